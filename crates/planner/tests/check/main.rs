//! The checker: what it refuses.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod transfers;
mod violations;
