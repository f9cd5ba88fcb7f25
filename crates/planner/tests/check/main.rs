//! The checker: what it refuses.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod cycle;
mod transfers;
mod violations;

#[path = "../fixtures/moves/mod.rs"]
mod moves;
