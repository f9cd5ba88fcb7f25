//! Planners of modules: beside brute force, recorded answers and laws.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod selective_cases;
mod shard_cases;
mod shard_laws;

#[path = "../shared/corpus/mod.rs"]
mod corpus;
#[path = "../shared/module_tree/mod.rs"]
mod module_tree;
