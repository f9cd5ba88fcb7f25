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
    // Each update follows the last node before it that touches what it touches; so updates that depend on each other
    // keep their order, and whoever reads a new version stays behind it. Slot n is right behind n nodes.
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
