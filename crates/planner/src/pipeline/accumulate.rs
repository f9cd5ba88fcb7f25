//! Gradient accumulation: several micro-batches make one update. Invariant: a micro-batch is the
//! batch that the step was captured with; forward, loss and backward run once for each, in turn,
//! and the update once, with the means over all of them.
//!
//! Every gradient that an update reads, and every output that is a gradient or a scalar, is the sum
//! over the micro-batches, in their order, times one over their number: of a loss that is a mean
//! over the rows of its batch, as all have as many, that is the loss over all rows. Between two
//! micro-batches only these sums are held.

use crate::graph::limits::MOST_NODES;
use crate::graph::{Graph, Phase};
use crate::id::{MicroBatchId, NodeId, ValueId};
use crate::pipeline::error::PipelineError;
use crate::pipeline::unroll::{Unroll, is_of_a_micro_batch};

/// The step with so many micro-batches for each update, as one graph. Nodes of the first
/// micro-batch, updates and what stays from step to step keep their names; [`name_of`] says those
/// of the others.
///
/// [`name_of`]: crate::pipeline::name_of
///
/// # Errors
/// [`PipelineError`] where the step has outputs that no mean stands for, or there are too many
/// micro-batches.
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
    let mut unroll = Unroll::new(graph, micro_batches, &summed(graph)?);
    let (updates, passes): (Vec<NodeId>, Vec<NodeId>) = graph
        .nodes()
        .keys()
        .filter(|&id| !graph.nodes()[id].phase.is_placeholder())
        .partition(|&id| graph.nodes()[id].phase == Phase::Optimizer);
    for micro_batch in (0..micro_batches).map(MicroBatchId::from_u32) {
        passes.iter().try_for_each(|&id| unroll.run(id, micro_batch))?;
    }
    updates.into_iter().try_for_each(|id| unroll.update(id))?;
    unroll.build()
}

/// What the micro-batches make and the update or whoever comes after the step reads.
fn summed(graph: &Graph) -> Result<Vec<ValueId>, PipelineError> {
    let (nodes, values) = (graph.nodes(), graph.values());
    let updates = nodes.values().filter(|node| node.phase == Phase::Optimizer);
    let read = updates
        .flat_map(|node| node.inputs.iter().map(|&value| (value, format!("`{}`", node.name))));
    let outputs = graph.outputs().iter().map(|&value| (value, "whoever comes after".to_string()));
    let mut summed = Vec::new();
    for (value, reader) in
        read.chain(outputs).filter(|(value, _)| is_of_a_micro_batch(graph, *value))
    {
        let tensor = &values[value].tensor;
        let producer = &nodes[values[value].producer];
        let is_gradient = producer.phase == Phase::Backward;
        let is_scalar = !producer.phase.is_placeholder() && tensor.elements() == 1;
        if !tensor.dtype.is_float() || !(is_gradient || is_scalar) {
            let what = format!("{} {:?}", tensor.dtype.name(), tensor.shape);
            return Err(PipelineError::NoMean { node: producer.name.clone(), what, reader });
        }
        summed.push(value);
    }
    Ok(summed)
}
