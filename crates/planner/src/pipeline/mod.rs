//! A step over several micro-batches, on one device or on several. Invariant: whatever a pipeline
//! does becomes a graph, one for each rank, in which every micro-batch has nodes of its own; so
//! planners, checker and engine need to know nothing of it.

mod accumulate;
mod error;
mod unroll;

pub use accumulate::accumulate;
pub use error::PipelineError;
pub use unroll::name_of;
