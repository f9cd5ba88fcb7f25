//! Sharded data parallelism: ranks compute the same step on different micro-batches, and divide
//! parameters, gradients and optimizer state among them. Invariant: all ranks have one graph, and
//! execute one schedule of it; they communicate by collectives, which are calls like any other.
//!
//! Each rank holds a *shard* of every parameter and of its state: a run of its elements, the same
//! number on each rank. A call gathers the whole parameter where it is needed. It is pure, so a
//! planner may compute it again: a parameter that is freed and gathered again is recomputed like an
//! activation, and nothing else determines how much of the model is sharded when. Gradients are
//! exchanged piece by piece, and each rank takes the mean of its own piece, with which it updates
//! its shard.

mod beside;
mod error;
mod gradients;
mod in_time;
mod shard;

pub use beside::{Ending, endings};
pub use error::ShardingError;
pub use gradients::Reductions;
pub use in_time::in_time;
pub use shard::{Collective, Sharded, Sharding, shard};
