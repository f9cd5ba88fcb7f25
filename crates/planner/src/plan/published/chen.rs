//! Chen's √n segments: keep what crosses the borders of √n segments of the forward pass, and make
//! the rest again segment by segment. Invariant: a segment's border never lies inside a unit, so
//! the last segment of a chain is never dropped in part.
//!
//! Source: Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016. Its n
//! layers are the units of the model here.

use crate::effort::Meter;
use crate::id::NodeId;
use crate::plan::published::chain::units;
use crate::plan::rematerialize::{Retention, Retentions, rematerialize};
use crate::plan::{Instance, Plan, PlanError, Planner};
use crate::units::Bytes;

/// √n segments, of about the same number of units each; the last segment's activations stay. It
/// visits each node once, so it does not check the time.
pub fn chen(
    instance: Instance<'_>,
    budget: Bytes,
    meter: &mut Meter<'_>,
) -> Result<Plan, PlanError> {
    let Instance { graph, order, .. } = instance;
    let forward: Vec<NodeId> =
        order.iter().copied().filter(|&node| graph.nodes()[node].phase.is_forward()).collect();
    let units = units(graph, &forward);
    let count = units.last().map_or(0, |last| last + 1);
    let segments = (count as f64).sqrt().round().max(1.0) as usize;
    let segment_of = |unit: usize| unit * segments / count.max(1);
    let mut retentions = Retentions::new();
    for (index, &node) in forward.iter().enumerate() {
        if segment_of(units[index]) + 1 < segments {
            retentions[node] = Retention::Recompute;
        }
    }
    // What a later segment reads is a checkpoint.
    for (index, &node) in forward.iter().enumerate() {
        for producer in graph.reads(node).iter().filter_map(|&storage| graph.producer(storage)) {
            if let Ok(made) = forward.binary_search(&producer)
                && segment_of(units[made]) < segment_of(units[index])
            {
                retentions[producer] = Retention::Save;
            }
        }
    }
    meter.spend(4 * order.len() as u64);
    let plan = instance.plan(Planner::Chen, rematerialize(graph, order, &retentions));
    instance.within(budget, plan)
}
