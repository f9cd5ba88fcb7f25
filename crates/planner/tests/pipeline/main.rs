//! Steps of several micro-batches: what their graphs compute, and what is refused.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod accumulation;

#[path = "../fixtures/corpus/mod.rs"]
mod corpus;
#[path = "../fixtures/generator/mod.rs"]
mod generator;
#[path = "../fixtures/symbolic/mod.rs"]
mod symbolic;
