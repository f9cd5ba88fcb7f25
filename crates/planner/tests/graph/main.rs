//! The graph: its rules, as a builder or a file breaks them.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod documented;
mod limits;
mod links;
mod rules;

#[path = "../fixtures/generator/mod.rs"]
mod generator;
