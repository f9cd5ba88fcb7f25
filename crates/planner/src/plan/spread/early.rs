//! Gathers begin just early enough to end in time. Invariant: what reads a gathered parameter reads
//! the same copy of it.
//!
//! From the end of the sequence to its beginning, each gather is put where it ends in time if only
//! one is under way at once, as far as the memory in between is free.

use cranelift_entity::SecondaryMap;

use crate::analysis::{liveness, memory_curve};
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::operator::Operator;
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// The sequence with earlier gathers.
pub fn early(graph: &Graph, profile: &Profile, runs: &[NodeId], budget: Bytes) -> Vec<NodeId> {
    let gathers = |node: NodeId| graph.nodes()[node].operator == Some(Operator::AllGather);
    let sequence = runs.into();
    let lives = liveness(graph, profile, &sequence);
    let mut held = memory_curve(graph, profile, &sequence, &lives).held;
    // Computation before each run.
    let mut clock = Vec::with_capacity(runs.len());
    let mut now = Seconds(0.0);
    for &node in runs {
        clock.push(now);
        if !gathers(node) {
            now = now + profile.seconds[node];
        }
    }
    let earliest = earliest(graph, runs);
    // Where runs go, as places of the current sequence.
    let mut places: Vec<usize> = (0..runs.len()).collect();
    let mut lane = f64::INFINITY;
    for (position, &node) in runs.iter().enumerate().rev() {
        if !gathers(node) {
            continue;
        }
        let begin = clock[position].0.min(lane) - profile.seconds[node].0;
        let bytes: Bytes = graph.fresh(node).iter().map(|&made| graph.storages()[made]).sum();
        let has_room = |held: Bytes| held + bytes <= budget;
        let mut place = position;
        while place > earliest[position].max(1)
            && clock[place].0 > begin
            && has_room(held[place - 1])
            // Between two runs, no more is held than by one of them.
            && (place < 2 || has_room(held[place - 2]))
        {
            place -= 1;
            held[place] += bytes;
        }
        places[position] = place;
        lane = begin.min(clock[place].0);
    }
    let mut order: Vec<usize> = (0..runs.len()).collect();
    // Stable: those that go to one place keep their order, before the run that is there already.
    order.sort_by_key(|&position| (places[position], places[position] == position));
    order.into_iter().map(|position| runs[position]).collect()
}

/// For each run the first place at which it could go: after the last run that makes or reads what
/// it makes, and after the last run that writes what it reads.
fn earliest(graph: &Graph, runs: &[NodeId]) -> Vec<usize> {
    let mut touched: SecondaryMap<StorageId, usize> = SecondaryMap::new();
    let mut written: SecondaryMap<StorageId, usize> = SecondaryMap::new();
    let mut earliest = Vec::with_capacity(runs.len());
    for (position, &node) in runs.iter().enumerate() {
        let (reads, fresh) = (graph.reads(node), graph.fresh(node));
        let behind = reads.iter().map(|&storage| written[storage]);
        let behind = behind.chain(fresh.iter().map(|&storage| touched[storage]));
        earliest.push(behind.max().unwrap_or(0));
        reads.iter().chain(fresh).for_each(|&storage| touched[storage] = position + 1);
        let writes = graph.mutated(node).iter().chain(fresh);
        writes.for_each(|&storage| written[storage] = position + 1);
    }
    earliest
}
