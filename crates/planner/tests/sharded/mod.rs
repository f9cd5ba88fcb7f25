//! Steps that ranks share: the graph of a rank, when its collectives end, and how early it gathers.
//! What ranks compute is held to one device by the tests of the engine.

mod beside;

mod shard;
mod spread;
