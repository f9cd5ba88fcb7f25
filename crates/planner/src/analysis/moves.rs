//! What moves between the runs of a sequence. Invariant: plain data; a move names the gap in which
//! it happens by the run behind it.
//!
//! A storage that is offloaded stays on the device until it is released; one that is released
//! without having been offloaded is in the tier below at this very version already. What is kept
//! from step to step may be away when the sequence begins: then its first move is a prefetch.

use cranelift_entity::SecondaryMap;

use crate::graph::Graph;
use crate::id::{NodeId, StorageId};

/// What happens to a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Motion {
    /// Begins to copy it into the tier below; it stays on the device.
    Offload,
    /// Waits until the tier below has it, and gives its memory on the device back.
    Release,
    /// Takes memory on the device for it, and begins to bring it back; the next run that reads it
    /// waits for it.
    Prefetch,
}

/// One move of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The position of the run before which it happens; the number of runs for what happens behind
    /// the last one.
    pub before: u32,
    /// What moves.
    pub storage: StorageId,
    /// What happens to it.
    pub motion: Motion,
}

/// The moves that are under way when a step of `runs` ends, by their places among `moves`, in
/// rising order: offloads that are released in the next step, and prefetches of what is read there
/// first. Outputs have arrived by then.
pub fn crossing(graph: &Graph, runs: &[NodeId], moves: &[Move]) -> Vec<usize> {
    let mut last_read: SecondaryMap<StorageId, Option<u32>> = SecondaryMap::new();
    for (position, &node) in (0..).zip(runs) {
        for &storage in graph.reads(node) {
            last_read[storage] = Some(position);
        }
    }
    let mut is_output: SecondaryMap<StorageId, bool> = SecondaryMap::new();
    graph.output_storages().for_each(|storage| is_output[storage] = true);
    let mut crossing: Vec<usize> = Vec::new();
    for (index, next) in moves.iter().enumerate() {
        if !graph.is_persistent(next.storage) {
            continue;
        }
        let is_same = |&other: &usize| moves[other].storage == next.storage;
        match next.motion {
            Motion::Offload => crossing.push(index),
            Motion::Release => crossing
                .retain(|other| !(is_same(other) && moves[*other].motion == Motion::Offload)),
            Motion::Prefetch => {
                let is_over = last_read[next.storage] < Some(next.before);
                crossing.extend((is_over && !is_output[next.storage]).then_some(index));
            }
        }
    }
    crossing
}
