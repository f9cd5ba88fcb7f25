//! Schedules: addresses and files.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod layout;
mod moving;
mod plan_file;

#[path = "../fixtures/corpus/mod.rs"]
mod corpus;
#[path = "../fixtures/generator/mod.rs"]
mod generator;
#[path = "../fixtures/moves/mod.rs"]
mod moves;
