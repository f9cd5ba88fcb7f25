//! Planners of modules: beside brute force, recorded answers and laws.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod called;
mod deadlines;
mod selective_cases;
mod shard_cases;
mod shard_laws;

#[path = "../fixtures/corpus/mod.rs"]
mod corpus;
#[path = "../fixtures/generator/mod.rs"]
mod generator;
#[path = "../fixtures/module_tree/mod.rs"]
mod module_tree;
