//! Why a step is not divided. Invariant: each variant names the nodes concerned.

use thiserror::Error;

use crate::exit::coded;
use crate::graph::GraphError;
use crate::id::StageId;
use crate::pipeline::rows::Unsuited;
use crate::pipeline::validate::RowsError;

/// Why there is no step of several micro-batches.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum PipelineError {
    /// There are no micro-batches.
    #[error("an update needs at least one micro-batch")]
    NoMicroBatch,
    /// The nodes of all micro-batches exceed the limit.
    #[error(
        "{micro_batches} micro-batches of {nodes} nodes are more than the {most} nodes that a \
         graph may have; take fewer, of more rows each"
    )]
    TooMany {
        /// The number of micro-batches.
        micro_batches: u32,
        /// The nodes of the step.
        nodes: usize,
        /// The nodes that a graph may have.
        most: usize,
    },
    /// There are more micro-batches than a plan can number.
    #[error(
        "{micro_batches} micro-batches are more than the {most} that a plan can number; take \
         fewer, of more rows each"
    )]
    TooManyMicroBatches {
        /// The number of micro-batches.
        micro_batches: u32,
        /// The most that a plan can number.
        most: u64,
    },
    /// Nothing that a micro-batch computes is used.
    #[error(
        "the step has neither outputs nor updates, so there is nothing to be made of several \
         micro-batches"
    )]
    NothingMade,
    /// The forward pass cannot be cut into this many stages.
    #[error(
        "{stages} stages are asked for, and the forward pass has {layers} layers to cut between"
    )]
    TooManyStages {
        /// The requested stages.
        stages: usize,
        /// The layers that there are.
        layers: usize,
    },
    /// A value that updates or outputs need of all micro-batches has no mean.
    #[error(
        "`{node}` makes {what} in each micro-batch, and {reader} reads it: only gradients and \
         scalars of floating-point numbers have a mean over micro-batches"
    )]
    NoMean {
        /// The name of the node that makes the value.
        node: String,
        /// Its type and shape.
        what: String,
        /// The reader.
        reader: String,
    },
    /// A node reads a value that does not exist in that form for its micro-batch.
    #[error(
        "`{node}` of one micro-batch reads what `{made}` makes, which is not there for every \
         micro-batch, or not in this form"
    )]
    OfAnother {
        /// The name of the node.
        node: String,
        /// The name of the node that makes the value.
        made: String,
    },
    /// A stage reads what a later one makes.
    #[error(
        "`{node}` of {stage} reads what `{made}` of {from} makes: activations go to later stages \
         and gradients to earlier ones, so a layer that is visited again is a stage of its own"
    )]
    TurnsBack {
        /// The name of the node.
        node: String,
        /// Its stage.
        stage: StageId,
        /// The name of the node that makes what it reads.
        made: String,
        /// The stage of that.
        from: StageId,
    },
    /// What stays from step to step is written by one stage and read by another.
    #[error(
        "`{name}` is written by {writer} and read by {reader}: a statistic of the model belongs to \
         one stage, whose micro-batches come in turn"
    )]
    Shared {
        /// The name of the placeholder.
        name: String,
        /// The stage that writes it.
        writer: StageId,
        /// The stage that reads it.
        reader: StageId,
    },
    /// No order suits the ranks and the micro-batches.
    #[error(transparent)]
    Unsuited(#[from] Unsuited),
    /// The rows are invalid.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// The rows are of another number of stages than the step.
    #[error("the step is divided into {stages} stages, the rows into {rows}")]
    OtherStages {
        /// The stages of the step.
        stages: usize,
        /// The stages of the rows.
        rows: usize,
    },
    /// The nodes do not form a graph.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

coded!(Usage: PipelineError);
