//! Why a step is not sharded. Invariant: each variant names what is concerned.

use thiserror::Error;

use crate::graph::GraphError;

/// Why there is no sharded step.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum ShardingError {
    /// There is no other rank to share with.
    #[error("a step is sharded among at least two ranks, and {ranks} is asked for")]
    TooFew {
        /// The requested ranks.
        ranks: u32,
    },
    /// The ranks would not have the same amount of work.
    #[error(
        "{ranks} ranks share the micro-batches of an update evenly: take a multiple of {ranks}, \
         not {micro_batches}"
    )]
    Uneven {
        /// The micro-batches of an update.
        micro_batches: u32,
        /// The ranks.
        ranks: u32,
    },
    /// A pass writes what stays from step to step, such as a running statistic of batch
    /// normalization.
    #[error(
        "`{node}` writes `{name}`, which each rank would do for its own part of the batch alone: \
         statistics of a whole batch (deferred or synchronised batch normalization) are not \
         implemented"
    )]
    Statistic {
        /// The node that writes it.
        node: String,
        /// The placeholder.
        name: String,
    },
    /// An update does not work element by element.
    #[error(
        "`{node}` ({op}) updates parameters otherwise than element by element, as far as is \
         known: it cannot compute on shards"
    )]
    Update {
        /// The node.
        node: String,
        /// Its operator.
        op: String,
    },
    /// A tensor that an update writes cannot be divided.
    #[error("`{name}` is updated, and is no contiguous tensor of type f32, so it has no shards")]
    Indivisible {
        /// The placeholder.
        name: String,
    },
    /// A node reads a tensor of which there are only shards.
    #[error("`{node}` reads what `{made}` makes, of which each rank has only a shard")]
    OnlyShards {
        /// The node.
        node: String,
        /// The node that makes it.
        made: String,
    },
    /// The nodes do not form a graph.
    #[error(transparent)]
    Graph(#[from] GraphError),
}
