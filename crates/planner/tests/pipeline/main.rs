//! Steps of several micro-batches, in one graph and in the rows of a pipeline.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod accumulation;
mod cases;
mod layers;
mod planned;
mod rows;
mod stages;
mod tensors;

#[path = "../fixtures/corpus/mod.rs"]
mod corpus;
#[path = "../fixtures/generator/mod.rs"]
mod generator;
#[path = "../fixtures/symbolic/mod.rs"]
mod symbolic;
