//! Why a step cannot be computed in chunks. Invariant: each cause names the node that it is about.

use thiserror::Error;

use crate::exit::coded;
use crate::graph::GraphError;
use crate::operator::Unsuited;

/// A text that does not say how a step is divided.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "give `off`, a number of chunks from 2 to 1024, or that and `:totals`, as in `8:totals`, and \
     for layers in chunks, `+` and their number, as in `8+4` or `1+4`"
)]
pub struct NotParts;

/// Why a step cannot be computed in chunks.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum SplitError {
    /// The forward pass has no product of matrices.
    #[error("nothing can be computed in chunks: the forward pass has no product of matrices")]
    NoProduct,
    /// No layer has a product of matrices that others follow.
    #[error(
        "no layer can be computed in chunks: no product of the forward pass follows from another \
         one; leave out `+` and their number, or give `off` instead of `1+`"
    )]
    NoLayer,
    /// A call cannot be made for some rows at a time.
    #[error("the step cannot be computed in chunks: node `{node}` {why}")]
    Unsuited {
        /// The name of the node.
        node: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There are too few rows.
    #[error(
        "{rows} rows are too few for two chunks: there have to be more than {block}, and {least} \
         or more in the last one"
    )]
    Few {
        /// The rows.
        rows: u64,
        /// Borders are multiples of this many.
        block: u64,
        /// As many are a chunk.
        least: u64,
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
