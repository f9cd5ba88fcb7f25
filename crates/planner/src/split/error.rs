//! Why a loss cannot be computed in chunks. Invariant: each cause names the node that it is about.

use thiserror::Error;

use crate::exit::coded;
use crate::graph::GraphError;
use crate::operator::Unsuited;

/// Why a loss cannot be computed in chunks.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum SplitError {
    /// There is no loss of rows of classes.
    #[error(
        "no loss can be computed in chunks: the step has no `aten.nll_loss_forward` of a matrix \
         with one row for each target, with a mean or a sum and without weights of the classes"
    )]
    NoLoss,
    /// A call on the way is none of those that are known.
    #[error("the loss cannot be computed in chunks: node `{node}` {why}")]
    Unsuited {
        /// The name of the node.
        node: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There are too few rows.
    #[error("a loss of {rows} rows cannot be computed in chunks, which have 256 rows or more")]
    Few {
        /// The rows.
        rows: u64,
    },
    /// A call of a chunk would not conform to its operator.
    #[error("node `{node}` in chunks: {error}")]
    Call {
        /// The name of the node.
        node: String,
        /// Why.
        error: Unsuited,
    },
    /// A rule of graphs would be broken.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

coded!(Usage: SplitError);
