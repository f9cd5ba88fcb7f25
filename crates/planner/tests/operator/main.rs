//! The operator table: its facts beside what PyTorch recorded.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod facts;

#[path = "../fixtures/corpus/mod.rs"]
mod corpus;
