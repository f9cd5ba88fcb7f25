//! How many micro-batches make one update. Invariant: planning, checking and running a step with
//! the same number of them refer to the same graph.

use clap::Args;
use tightfit::graph::Graph;
use tightfit::pipeline::{PipelineError, accumulate};

/// Micro-batches with which every kind of call occurs: more need not be tried.
const TRIED: u32 = 2;

/// Gradient accumulation, as it is given on the command line.
#[derive(Args, Clone, Copy)]
pub struct Accumulation {
    /// Micro-batches of an update: each is one batch of the step, and the update takes the means of
    /// their gradients
    #[arg(
        long = "microbatches",
        value_name = "M",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    micro_batches: u32,
}

impl Default for Accumulation {
    /// One micro-batch, the whole batch.
    fn default() -> Accumulation {
        Accumulation { micro_batches: 1 }
    }
}

impl Accumulation {
    /// This many micro-batches.
    pub fn of_so_many(micro_batches: u32) -> Accumulation {
        Accumulation { micro_batches }
    }

    /// The step made of that many micro-batches.
    pub fn of(self, graph: Graph) -> Result<Graph, PipelineError> {
        if self.micro_batches == 1 { Ok(graph) } else { accumulate(&graph, self.micro_batches) }
    }

    /// The number of micro-batches.
    pub fn micro_batches(self) -> u32 {
        self.micro_batches
    }

    /// The fewest micro-batches whose step has every call that the requested number has.
    pub fn tried(self) -> u32 {
        self.micro_batches.min(TRIED)
    }

    /// The fraction of the step that those are.
    pub fn share_tried(self) -> f64 {
        f64::from(self.tried()) / f64::from(self.micro_batches)
    }
}
