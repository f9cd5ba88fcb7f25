//! Runs that wait until their time has come. Invariant: all runs keep their order except those that
//! wait, which come after later ones; no run comes before what it needs, and none after what makes
//! again, or writes, what it reads.

use std::collections::VecDeque;

use crate::analysis::{liveness, memory_curve};
use crate::graph::Graph;
use crate::id::NodeId;
use crate::profile::Profile;
use crate::units::Bytes;

/// When a run comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Turn {
    /// At its own place, which counts as this time.
    Stands(f64),
    /// As soon as this time is reached.
    Waits(f64),
}

/// A run that waits.
struct Waiting {
    node: NodeId,
    until: f64,
    /// What is held until it runs.
    holds: Bytes,
}

/// The sequence with runs moved later, each according to `turns`; if more than `budget` would be
/// held, the waiting runs whose time is next come first. Each run that waits runs once, and runs
/// that wait for the same time keep their order.
pub fn delayed(
    graph: &Graph,
    profile: &Profile,
    runs: &[NodeId],
    turns: &[Turn],
    budget: Bytes,
) -> Vec<NodeId> {
    let sequence = runs.into();
    let lives = liveness(graph, profile, &sequence);
    let held = memory_curve(graph, profile, &sequence, &lives).held;
    // Bytes that are freed after each run.
    let mut dying = vec![Bytes::ZERO; runs.len()];
    for life in lives.intervals.values() {
        if let Some(bytes) = dying.get_mut(life.dies as usize) {
            *bytes += graph.storages()[life.storage];
        }
    }
    let mut queue: VecDeque<Waiting> = VecDeque::new();
    let mut out = Vec::with_capacity(runs.len());
    let mut extra = Bytes::ZERO;
    for (position, (&node, &turn)) in runs.iter().zip(turns).enumerate() {
        let now = match turn {
            Turn::Waits(until) => {
                extra += dying[position];
                let place = queue.partition_point(|waiting| waiting.until <= until);
                queue.insert(place, Waiting { node, until, holds: dying[position] });
                continue;
            }
            Turn::Stands(now) => now,
        };
        let last = queue.iter().rposition(|waiting| depends(graph, waiting.node, node));
        let mut due = last.map_or(0, |last| last + 1);
        while let Some(first) = queue.front()
            && (due > 0 || first.until <= now || held[position] + extra > budget)
        {
            out.push(first.node);
            extra = extra.saturating_sub(first.holds);
            due = due.saturating_sub(1);
            queue.pop_front();
        }
        out.push(node);
    }
    out.extend(queue.into_iter().map(|waiting| waiting.node));
    out
}

/// Whether the second of two runs has to stay after the first.
fn depends(graph: &Graph, first: NodeId, second: NodeId) -> bool {
    let reads = |node: NodeId| graph.reads(node).iter();
    let writes = |node: NodeId| graph.mutated(node).iter().chain(graph.fresh(node));
    reads(first).any(|read| writes(second).any(|write| write == read))
        || reads(second).any(|read| writes(first).any(|write| write == read))
}
