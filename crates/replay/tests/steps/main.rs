//! Steps that are recorded and replayed, against a device that keeps a table of every block.
//! Invariant: checks here compare blocks pair by pair, by addresses alone.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod device;
mod hostile;
mod placed;
mod script;
