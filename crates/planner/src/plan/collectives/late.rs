//! What waits for exchanged gradients, as late as they are expected to have come. Invariant: runs
//! that wait keep their order, and so do all others.
//!
//! What waits are the means of pieces and all that depends on them: sums over micro-batches, and
//! updates. Nothing else does, so they may come behind any run that does not write what they read.

use std::collections::VecDeque;

use cranelift_entity::SecondaryMap;

use crate::analysis::{liveness, memory_curve};
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::operator::Operator;
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// A run that waits.
struct Waiting {
    node: NodeId,
    /// When what it needs is expected to have come.
    ready: f64,
    /// What is held until it runs.
    holds: Bytes,
}

/// The sequence with such runs later.
pub fn late(graph: &Graph, profile: &Profile, runs: &[NodeId], budget: Bytes) -> Vec<NodeId> {
    let waits = waits(graph, runs);
    let lives = liveness(graph, profile, runs);
    let held = memory_curve(graph, profile, runs, &lives).held;
    // What is let go of behind each run.
    let mut dying = vec![Bytes::ZERO; runs.len()];
    for life in lives.intervals.values() {
        if let Some(bytes) = dying.get_mut(life.dies as usize) {
            *bytes += graph.storages()[life.storage];
        }
    }
    // When the pieces in a storage are expected, on a lane that brings one after another.
    let mut comes: SecondaryMap<StorageId, f64> = SecondaryMap::new();
    let (mut lane, mut now) = (0.0f64, Seconds(0.0));
    let mut queue: VecDeque<Waiting> = VecDeque::new();
    let mut out = Vec::with_capacity(runs.len());
    let mut extra = Bytes::ZERO;
    for (position, &node) in runs.iter().enumerate() {
        let reads = graph.reads(node);
        if waits[node] {
            let ready = reads.iter().map(|&storage| comes[storage]).fold(0.0, f64::max);
            extra += dying[position];
            queue.push_back(Waiting { node, ready, holds: dying[position] });
            continue;
        }
        let writes = graph.mutated(node);
        let has_to_come = |waiting: &Waiting| {
            graph.reads(waiting.node).iter().any(|storage| writes.contains(storage))
        };
        let last = queue.iter().rposition(has_to_come);
        let mut due = last.map_or(0, |last| last + 1);
        while let Some(first) = queue.front()
            && (due > 0 || first.ready <= now.0 || held[position] + extra > budget)
        {
            out.push(first.node);
            extra = extra.saturating_sub(first.holds);
            due = due.saturating_sub(1);
            queue.pop_front();
        }
        out.push(node);
        if graph.nodes()[node].operator.is_some_and(|operator| operator.is_collective()) {
            lane = lane.max(now.0) + profile.seconds[node].0;
            graph.fresh(node).iter().for_each(|&made| comes[made] = lane);
        } else {
            now = now + profile.seconds[node];
        }
    }
    out.extend(queue.into_iter().map(|waiting| waiting.node));
    out
}

/// The nodes that wait for gradients: each runs once, and so does what makes what they read.
fn waits(graph: &Graph, runs: &[NodeId]) -> SecondaryMap<NodeId, bool> {
    let mut times: SecondaryMap<NodeId, u32> = SecondaryMap::new();
    runs.iter().for_each(|&node| times[node] += 1);
    let mut waits: SecondaryMap<NodeId, bool> = SecondaryMap::new();
    let mut is_late: SecondaryMap<StorageId, bool> = SecondaryMap::new();
    let mut all_once = true;
    for &node in runs {
        let reads = graph.reads(node);
        let is_first = graph.nodes()[node].operator == Some(Operator::MeanPieces);
        if is_first || reads.iter().any(|&storage| is_late[storage]) {
            waits[node] = true;
            graph.fresh(node).iter().for_each(|&made| is_late[made] = true);
            graph.mutated(node).iter().for_each(|&made| is_late[made] = true);
            let makers = reads.iter().filter_map(|&storage| graph.producer(storage));
            all_once &= makers.chain([node]).all(|maker| times[maker] <= 1);
        }
    }
    // Which copy is read would depend on the order.
    if all_once { waits } else { SecondaryMap::new() }
}
