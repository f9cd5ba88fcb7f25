//! Steps that ranks share: the graph of a rank, when its collectives end, and how early it gathers.
//! The tests of the engine compare what ranks compute with one device.

mod beside;

mod shard;
mod spread;
