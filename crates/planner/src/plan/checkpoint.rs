//! Checkpointing of whole micro-batches: of those that are checkpointed, only what cannot be made
//! again is held between forward and backward pass. Invariant: what another micro-batch keeps
//! stays.
//!
//! Source: `torchgpipe` (Kim et al. 2020) and similar libraries, whose `checkpoint` is one of
//! `always`, `except_last` and `never`. There a stage runs again as a whole; here what the backward
//! pass does not read stays as it was, so the last call of a stage is not repeated needlessly.

use crate::effort::Meter;
use crate::id::NodeId;
use crate::plan::rematerialize::{Retention, Retentions, rematerialize};
use crate::plan::{Instance, Plan, PlanError, Planner};
use crate::units::Bytes;

/// Recomputes the forward passes of all micro-batches, or of all but the last one, whose backward
/// pass often follows at once. A step that is not divided is its own last micro-batch.
pub fn checkpoint(
    instance: Instance<'_>,
    (budget, planner): (Bytes, Planner),
    meter: &mut Meter<'_>,
) -> Result<Plan, PlanError> {
    let Instance { graph, order, .. } = instance;
    let forward = || order.iter().copied().filter(|&id| graph.nodes()[id].phase.is_forward());
    let of = |id: NodeId| graph.nodes()[id].micro_batch;
    let last = forward().map(of).max();
    let mut retentions = Retentions::new();
    for id in forward() {
        if planner == Planner::CheckpointAlways || Some(of(id)) != last {
            retentions[id] = Retention::Recompute;
        }
    }
    meter.spend(4 * order.len() as u64);
    let plan = instance.plan(planner, rematerialize(graph, order, &retentions));
    instance.within(budget, plan)
}
