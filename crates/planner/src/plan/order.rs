//! Updates as early as they may be. Invariant: the order that leaves this pass respects every read and every version,
//! and never peaks higher than the one that entered.

use cranelift_entity::SecondaryMap;

use super::simulate;
use crate::graph::{Graph, NodeId, Phase, StorageId};
use crate::profile::Profile;

/// Moves each optimizer node up behind its gradient and behind the last reader of the versions that it overwrites, so
/// that gradients die early; returns the program order itself where that does not lower the peak.
pub fn early_updates(graph: &Graph, profile: &Profile) -> Vec<NodeId> {
    let program = graph.program();
    let moved = moved(graph, &program);
    let peak = |order: &[NodeId]| simulate(graph, profile, order).curve.peak;
    if peak(&moved) < peak(&program) { moved } else { program }
}

fn moved(graph: &Graph, program: &[NodeId]) -> Vec<NodeId> {
    let is_update = |node: NodeId| graph.nodes()[node].phase == Phase::Optimizer;
    // The last node before any update that touches a storage, by position.
    let mut last_access: SecondaryMap<StorageId, Option<usize>> = SecondaryMap::new();
    for (position, &node) in program.iter().enumerate().filter(|(_, node)| !is_update(**node)) {
        for &storage in graph.reads(node).iter().chain(graph.fresh(node)) {
            last_access[storage] = Some(position);
        }
    }
    // Updates follow the last node that they must wait for; updates that depend on each other keep their order.
    let mut waiting: Vec<Vec<NodeId>> = vec![Vec::new(); program.len() + 1];
    let mut slot_of: SecondaryMap<StorageId, usize> = SecondaryMap::new();
    for &node in program.iter().filter(|&&node| is_update(node)) {
        let touched = || graph.reads(node).iter().chain(graph.fresh(node));
        let gradient = touched().filter_map(|&storage| last_access[storage]).map(|position| position + 1).max().unwrap_or(0);
        let slot = touched().map(|&storage| slot_of[storage]).max().unwrap_or(0).max(gradient);
        for &storage in touched() {
            slot_of[storage] = slot;
        }
        waiting[slot].push(node);
    }
    let mut order = Vec::with_capacity(program.len());
    for position in 0..=program.len() {
        order.append(&mut waiting[position]);
        if let Some(&node) = program.get(position).filter(|&&node| !is_update(node)) {
            order.push(node);
        }
    }
    order
}
