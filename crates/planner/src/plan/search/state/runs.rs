//! Between events and sequences of runs. Invariant: a sequence has every operator's first run,
//! closed over what it reads; runs that no other run reads are left out, and the order of first
//! runs that remains can be planned again.

use cranelift_entity::SecondaryMap;

use crate::id::NodeId;
use crate::plan::Instance;
use crate::plan::search::state::Event;
use crate::plan::search::state::problem::{OpId, Problem, TensorId};

/// The runs that events stand for, without those that no run reads before the same operator runs
/// again.
fn needed(problem: &Problem, events: &[Event]) -> Vec<OpId> {
    let mut all: Vec<OpId> = Vec::with_capacity(problem.len() + events.len());
    let mut events = events.iter().peekable();
    for point in problem.ops.keys().skip(1) {
        while let Some(event) = events.next_if(|event| event.point <= point) {
            all.push(event.op);
        }
        all.push(point);
    }
    // For each run, the runs that made what it reads.
    let mut last_made: SecondaryMap<TensorId, Option<u32>> = SecondaryMap::new();
    let mut has_run: SecondaryMap<OpId, bool> = SecondaryMap::new();
    let (mut sources, mut from) = (Vec::with_capacity(3 * all.len()), vec![0u32]);
    let mut is_first = Vec::with_capacity(all.len());
    for (run, &id) in all.iter().enumerate() {
        let op = &problem.ops[id];
        is_first.push(!std::mem::replace(&mut has_run[id], true));
        sources.extend(op.inputs.iter().filter_map(|&tensor| last_made[tensor]));
        from.push(sources.len() as u32);
        for &tensor in &op.outputs {
            last_made[tensor] = Some(run as u32);
        }
    }
    let mut is_needed = vec![false; all.len()];
    let mut runs_later: SecondaryMap<OpId, bool> = SecondaryMap::new();
    for (run, &id) in all.iter().enumerate().rev() {
        let op = &problem.ops[id];
        is_needed[run] |= is_first[run] && (op.anchored || op.until == 0 || !runs_later[id]);
        if is_needed[run] {
            runs_later[id] = true;
            for &source in &sources[from[run] as usize..from[run + 1] as usize] {
                is_needed[source as usize] = true;
            }
        }
    }
    all.iter().zip(is_needed).filter(|(_, needed)| *needed).map(|(&id, _)| id).collect()
}

/// The same as nodes.
pub fn sequence(problem: &Problem, events: &[Event]) -> Vec<NodeId> {
    needed(problem, events).into_iter().filter_map(|id| problem.ops[id].node).collect()
}

/// A sequence of runs as a problem over its own order of first runs, and the events that make it.
///
/// A run that stands between two first runs belongs to the point of the second; runs after the last
/// are dropped.
pub fn rebase(instance: Instance<'_>, runs: &[NodeId]) -> (Problem, Vec<Event>) {
    let nodes = instance.graph.nodes().len();
    let mut place: SecondaryMap<NodeId, u32> = SecondaryMap::with_capacity(nodes);
    let mut order = Vec::with_capacity(runs.len());
    let mut again = Vec::new();
    for &node in runs {
        if place[node] == 0 {
            order.push(node);
            place[node] = order.len() as u32;
        } else {
            again.push((order.len() as u32 + 1, place[node]));
        }
    }
    let last = order.len() as u32;
    let mut events: Vec<Event> = again
        .into_iter()
        .filter(|&(point, _)| point <= last)
        .map(|(point, op)| Event { point: OpId::from_u32(point), op: OpId::from_u32(op) })
        .collect();
    events.sort_unstable();
    events.dedup();
    (Problem::new(Instance { order: &order, ..instance }), events)
}
