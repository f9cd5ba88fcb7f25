//! Costs: machines, and seconds that were measured.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod machines;
mod measured_seconds;
