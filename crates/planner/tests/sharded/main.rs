//! Steps that ranks share: the graph of a rank, when its collectives end, and how early it gathers.
//! What ranks compute is held to one device by the tests of the engine.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod beside;

mod shard;
mod spread;

#[path = "../fixtures/corpus/mod.rs"]
mod corpus;
