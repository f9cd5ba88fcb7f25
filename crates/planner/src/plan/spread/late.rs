//! What waits for exchanged gradientscomes as late as they are expected to arrive. Invariant: runs
//! that wait keep their order, and so do all others.
//!
//! What waits are the means of pieces and everything that depends on them: sums over micro-batches,
//! and updates. Nothing else depends on them, so they may come after any run that does not write
//! what they read.

use cranelift_entity::SecondaryMap;

use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::operator::Operator;
use crate::plan::spread::delay::{Turn, delayed};
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// The sequence with such runs later.
pub fn late(graph: &Graph, profile: &Profile, runs: &[NodeId], budget: Bytes) -> Vec<NodeId> {
    let waits = waits(graph, runs);
    // When the pieces in a storage are expected, on a lane that brings one after another.
    let mut comes: SecondaryMap<StorageId, f64> = SecondaryMap::new();
    let (mut lane, mut now) = (0.0f64, Seconds(0.0));
    // None comes before one that waits already.
    let mut latest = 0.0;
    let mut turns = Vec::with_capacity(runs.len());
    for &node in runs {
        if waits[node] {
            let ready = graph.reads(node).iter().map(|&storage| comes[storage]);
            latest = ready.fold(latest, f64::max);
            turns.push(Turn::Waits(latest));
            continue;
        }
        turns.push(Turn::Stands(now.0));
        if graph.nodes()[node].operator.is_some_and(|operator| operator.is_collective()) {
            lane = lane.max(now.0) + profile.seconds[node].0;
            graph.fresh(node).iter().for_each(|&made| comes[made] = lane);
        } else {
            now = now + profile.seconds[node];
        }
    }
    delayed(graph, profile, runs, &turns, budget)
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
    // The copy that is read would depend on the order.
    if all_once { waits } else { SecondaryMap::new() }
}
