//! Moves that are in flight when a step ends. Invariant: they follow from graph and sequence alone,
//! so schedule and simulated times agree on them.

use cranelift_entity::SecondaryMap;

use crate::analysis::sequence::{Action, Motion, Sequence};
use crate::graph::Graph;
use crate::id::StorageId;

/// The moves that are in flight when a step ends, by their positions among all moves of the
/// sequence, in increasing order: offloads that are released in the next step, and prefetches of
/// what is first read there. Outputs have arrived by then.
pub fn crossing(graph: &Graph, sequence: &Sequence) -> Vec<usize> {
    let actions = sequence.actions();
    let mut last_read: SecondaryMap<StorageId, usize> = SecondaryMap::new();
    for (place, action) in actions.iter().enumerate() {
        match *action {
            Action::Run(node) => {
                graph.reads(node).iter().for_each(|&storage| last_read[storage] = place);
            }
            Action::Move(..) => {}
        }
    }
    let mut is_output: SecondaryMap<StorageId, bool> = SecondaryMap::new();
    graph.output_storages().for_each(|storage| is_output[storage] = true);
    let mut crossing: Vec<(usize, StorageId, Motion)> = Vec::new();
    let mut index = 0;
    for (place, action) in actions.iter().enumerate() {
        let (storage, motion) = match *action {
            Action::Run(_) => continue,
            Action::Move(storage, motion) => (storage, motion),
        };
        if graph.is_persistent(storage) {
            match motion {
                Motion::Offload => crossing.push((index, storage, motion)),
                Motion::Release => crossing
                    .retain(|&(_, other, motion)| other != storage || motion != Motion::Offload),
                Motion::Prefetch if is_output[storage] || last_read[storage] > place => {}
                Motion::Prefetch => crossing.push((index, storage, motion)),
            }
        }
        index += 1;
    }
    crossing.into_iter().map(|(index, ..)| index).collect()
}
