//! Gradient accumulation: several micro-batches make one update. Invariant: a micro-batch is the
//! batch that the step was captured with; forward, loss and backward run once for each, in turn,
//! and the update once, with the means over all of them.
//!
//! Every gradient that an update reads, and every output that is a gradient or a scalar, is the sum
//! over the micro-batches, in their order, divided by their number. For a loss that is a mean over
//! the rows of its batch, that is the loss over all rows, since all batches have equally many.
//! Between two micro-batches only these sums are held.

use crate::graph::Graph;
use crate::graph::limits::MOST_NODES;
use crate::id::MOST_IDS;
use crate::pipeline::action::{Action, Pass, Rows};
use crate::pipeline::divide::Division;
use crate::pipeline::error::PipelineError;
use crate::pipeline::ranks::{Leeway, ranks};
use crate::pipeline::rows::in_turn;

/// The step with this many micro-batches for each update, as one graph. Nodes of the first
/// micro-batch, updates and what stays from step to step keep their names; [`name_of`] gives those
/// of the others.
///
/// [`name_of`]: crate::pipeline::name_of
///
/// # Errors
/// [`PipelineError`] if the step has outputs that cannot be replaced by a mean, or neither outputs
/// nor updates, or if there are too many micro-batches.
pub fn accumulate(graph: &Graph, micro_batches: u32) -> Result<Graph, PipelineError> {
    let nodes = graph.nodes().len();
    match (nodes as u64).checked_mul(micro_batches.into()) {
        Some(0) if micro_batches == 0 => return Err(PipelineError::NoMicroBatch),
        Some(all) if all <= MOST_NODES as u64 => {}
        _ => return Err(PipelineError::TooMany { micro_batches, nodes, most: MOST_NODES }),
    }
    if micro_batches == 1 {
        return Ok(graph.clone());
    }
    if u64::from(micro_batches) > MOST_IDS {
        return Err(PipelineError::TooManyMicroBatches { micro_batches, most: MOST_IDS });
    }
    let division = Division::whole(graph)?;
    let row = (0..micro_batches).flat_map(|number| {
        [Pass::Forward, Pass::Backward].map(|pass| Action::new(0, pass, number))
    });
    let rows = Rows {
        placement: in_turn(1, 1),
        rows: [row.collect()].into_iter().collect(),
        micro_batches,
    };
    let mut ranks = ranks(&division, &rows, Leeway::NONE)?.graphs.into_iter();
    let (_, made) = ranks.next().expect("there is one rank");
    if made.nodes().is_empty() && !graph.nodes().is_empty() {
        return Err(PipelineError::NothingMade);
    }
    Ok(made)
}
