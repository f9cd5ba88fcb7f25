//! The order that every planner starts from: updates as early as possible, and gradients that are
//! kept as late as possible. Invariant: it respects every read and every version, and never peaks
//! higher than the program order.

use cranelift_entity::SecondaryMap;

use crate::analysis::held;
use crate::graph::{Graph, Phase};
use crate::id::{NodeId, StorageId};
use crate::profile::Profile;
use crate::units::Bytes;

/// Moves each optimizer node up to just after its gradient and the last reader of the versions that
/// it overwrites, so that gradients die early. Moves a node whose outputs are kept and read by no
/// other node to the end of the step, if less is held that way. Each move is made only if it does
/// not raise the peak.
pub fn base_order(graph: &Graph, profile: &Profile) -> Vec<NodeId> {
    let peak = |order: &[NodeId]| held(graph, profile, &order.into()).peak;
    let mut order = graph.compute_nodes();
    for pass in [early_updates, late_outputs] {
        let moved = pass(graph, &order);
        if moved != order && peak(&moved) <= peak(&order) {
            order = moved;
        }
    }
    order
}

/// A node that makes more bytes that are kept than it reads, and that no later node depends on,
/// goes last. What one such node reads counts as held for the others too.
fn late_outputs(graph: &Graph, program: &[NodeId]) -> Vec<NodeId> {
    let mut is_touched: SecondaryMap<StorageId, bool> = SecondaryMap::new();
    let mut is_ended: SecondaryMap<StorageId, bool> = SecondaryMap::new();
    for &node in program {
        graph.reads(node).iter().for_each(|&storage| is_touched[storage] = true);
        graph.mutated(node).iter().for_each(|&storage| is_ended[storage] = true);
    }
    let mut is_held: SecondaryMap<StorageId, bool> = SecondaryMap::new();
    let bytes = |storages: &[StorageId]| {
        storages.iter().map(|&storage| graph.storages()[storage]).sum::<Bytes>()
    };
    let (mut early, mut late) = (Vec::with_capacity(program.len()), Vec::new());
    for &node in program.iter().rev() {
        let (reads, fresh) = (graph.reads(node), graph.fresh(node));
        let holds: Vec<StorageId> = reads
            .iter()
            .copied()
            .filter(|&storage| !graph.is_kept(storage) && !is_held[storage])
            .collect();
        let stays: Vec<StorageId> =
            fresh.iter().copied().filter(|&storage| graph.is_kept(storage)).collect();
        let is_last = !fresh.iter().any(|&storage| is_touched[storage])
            && !reads.iter().any(|&storage| is_ended[storage]);
        let call = &graph.nodes()[node];
        let may_move = is_last && !call.mutates && !call.stream;
        if may_move && bytes(&stays) > bytes(&holds) {
            holds.into_iter().for_each(|storage| is_held[storage] = true);
            late.push(node);
        } else {
            early.push(node);
        }
    }
    early.iter().rev().chain(late.iter().rev()).copied().collect()
}

fn early_updates(graph: &Graph, program: &[NodeId]) -> Vec<NodeId> {
    let is_update = |node: NodeId| graph.nodes()[node].phase == Phase::Optimizer;
    // Each update follows the last node before it that touches what it touches; so updates that
    // depend on each other keep their order, and readers of a new version stay after it. Slot n
    // comes right after the first n nodes.
    let mut last_access: SecondaryMap<StorageId, usize> = SecondaryMap::new();
    let mut waiting: Vec<Vec<NodeId>> = vec![Vec::new(); program.len() + 1];
    for (position, &node) in program.iter().enumerate() {
        let touched = || graph.reads(node).iter().chain(graph.fresh(node)).copied();
        let slot = match is_update(node) {
            true => touched().map(|storage| last_access[storage]).max().unwrap_or(0),
            false => position + 1,
        };
        if is_update(node) {
            waiting[slot].push(node);
        }
        for storage in touched() {
            last_access[storage] = slot.max(last_access[storage]);
        }
    }
    let mut order = Vec::with_capacity(program.len());
    for (position, updates) in waiting.iter_mut().enumerate() {
        order.append(updates);
        if let Some(&node) = program.get(position).filter(|&&node| !is_update(node)) {
            order.push(node);
        }
    }
    order
}
