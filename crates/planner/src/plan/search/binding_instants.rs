//! Which instants to examine: those at which the unplanned step, or the best plan, holds most.
//! Invariant: the choice depends on step, plan and budget alone.

use std::cmp::Reverse;
use std::collections::HashMap;

use cranelift_entity::EntityRef;

use crate::id::NodeId;
use crate::plan::Instance;
use crate::plan::quantity::ByteCount;
use crate::plan::search::state::State;
use crate::plan::search::state::problem::{OpId, Problem};
use crate::plan::search::state::runs::rebase;
use crate::tuning::starts::{APART, MOST_TIGHT, TIGHT};

/// The `count` highest points of a plan, then as many more that are far from each other.
pub fn highest(state: &mut State, count: usize) -> Vec<OpId> {
    let values = values(state);
    let mut points: Vec<usize> = (1..values.len()).collect();
    points.sort_by_key(|&point| (Reverse(values[point]), point));
    let mut chosen: Vec<usize> = points.iter().copied().take(count).collect();
    let mut spread: Vec<usize> = points.iter().copied().take(1).collect();
    for &point in &points {
        if spread.len() > count {
            break;
        }
        if spread.iter().all(|other| point.abs_diff(*other) > values.len() / APART.get()) {
            spread.push(point);
        }
    }
    spread.retain(|point| !chosen.contains(point));
    chosen.extend(spread);
    chosen.into_iter().map(OpId::at).collect()
}

/// Bytes at each point.
fn values(state: &mut State) -> Vec<ByteCount> {
    let mut values = Vec::new();
    state.peak();
    state.tree().values(&mut values, state.problem.len());
    values
}

/// The operators in whose first runs a plan is tight, largest working set first, then spread out;
/// as ids of `problem`.
pub fn tight(
    instance: Instance<'_>,
    runs: &[NodeId],
    problem: &Problem,
    limit: ByteCount,
) -> Vec<OpId> {
    let (own, events) = rebase(instance, runs);
    let mut state = State::new(&own);
    state.set(&events);
    let values = values(&mut state);
    let place: HashMap<NodeId, OpId> =
        problem.ops.iter().filter_map(|(id, op)| Some((op.node?, id))).collect();
    let mut points: Vec<OpId> = own
        .ops
        .iter()
        .filter(|(id, op)| op.node.is_some() && values[id.index()] >= limit - limit / TIGHT.get())
        .filter_map(|(_, op)| place.get(&op.node?).copied())
        .collect();
    points.sort_by_key(|&id| (Reverse(problem.working_set(id)), id));
    let count = MOST_TIGHT.get();
    let spread =
        points.iter().skip(count).step_by((points.len() / (2 * count)).max(1)).take(count).copied();
    let mut chosen: Vec<OpId> = points.iter().take(count).copied().chain(spread).collect();
    chosen.dedup();
    chosen
}
