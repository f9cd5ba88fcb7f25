//! Gathers as early as they have to begin to end in time. Invariant: the plan runs the same nodes
//! as often, what reads a gathered parameter reads the same copy of it, and no more than the budget
//! is held.
//!
//! A planner that lets go of a parameter gathers it again right before it is read, where the step
//! would wait for all of it. From the end of the step to its beginning each gather is put where it
//! ends in time if only one is under way at once, as far as the memory on the way there is free.

use cranelift_entity::SecondaryMap;

use crate::analysis::{liveness, memory_curve};
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::operator::Operator;
use crate::plan::Plan;
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// The plan with earlier gathers; the same plan where it has none, or moves anything.
pub fn gather_early(graph: &Graph, profile: &Profile, plan: &Plan, budget: Bytes) -> Plan {
    let runs = plan.runs();
    let gathers = |node: NodeId| graph.nodes()[node].operator == Some(Operator::AllGather);
    if !runs.iter().any(|&node| gathers(node)) || !plan.moves().is_empty() {
        return plan.clone();
    }
    let lives = liveness(graph, profile, &runs);
    let mut held = memory_curve(graph, profile, &runs, &lives).held;
    // Computation before each run.
    let mut clock = Vec::with_capacity(runs.len());
    let mut now = Seconds(0.0);
    for &node in &runs {
        clock.push(now);
        if !gathers(node) {
            now = now + profile.seconds[node];
        }
    }
    let earliest = earliest(graph, &runs);
    // Where runs go, in places of the sequence as it stands.
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
            // Between two runs no more is held than by one of them.
            && (place < 2 || has_room(held[place - 2]))
        {
            place -= 1;
            held[place] += bytes;
        }
        places[position] = place;
        lane = begin.min(clock[place].0);
    }
    let mut order: Vec<usize> = (0..runs.len()).collect();
    // Stable: those that go to one place keep their order, before what stands there.
    order.sort_by_key(|&position| (places[position], places[position] == position));
    let runs: Vec<NodeId> = order.into_iter().map(|position| runs[position]).collect();
    let lives = liveness(graph, profile, &runs);
    match memory_curve(graph, profile, &runs, &lives).peak <= budget {
        true => Plan::of_runs(plan.planner, runs),
        false => plan.clone(),
    }
}

/// For each run the first place at which it could stand: behind who last made or read what it
/// makes, and behind who last wrote what it reads.
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
