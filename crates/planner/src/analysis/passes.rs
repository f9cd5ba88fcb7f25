//! Which pass of the step a node takes part in. Invariant: placeholders and optimizer nodes are as
//! the graph says; only between the forward and the backward pass may a node be on another side
//! than its phase.
//!
//! A capture marks some nodes as backward that run in the middle of the forward pass: they prepare
//! what the backward pass will read, and hold or free activations long before any gradient exists.
//! So the phase alone does not tell what is saved.

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Phase};
use crate::id::NodeId;

/// Whether a node writes parameters, buffers or state. Wherever it is, it belongs to no pass.
pub fn is_update(graph: &Graph, node: NodeId) -> bool {
    let persistent = |&storage| {
        graph.producer(storage).is_some_and(|maker| graph.nodes()[maker].phase.is_persistent())
    };
    graph.mutated(node).iter().any(persistent)
}

/// Phases as the step runs, over `program`, the nodes that run: nodes before the turn that are
/// marked as backward count as forward. The turn is where the fewest nodes are on the wrong side;
/// of several such places, the first.
pub fn passes(graph: &Graph, program: &[NodeId]) -> SecondaryMap<NodeId, Phase> {
    let mut phases = SecondaryMap::with_default(Phase::Forward);
    for (id, node) in graph.nodes() {
        phases[id] = node.phase;
    }
    // Forward nodes after the boundary plus backward nodes before it, less what is the same for all
    // boundaries.
    let (mut wrong, mut fewest, mut turn) = (0i64, 0, 0);
    for (position, &id) in program.iter().enumerate() {
        wrong += match phases[id] {
            Phase::Backward => 1,
            phase if phase.is_forward() && !is_update(graph, id) => -1,
            _ => 0,
        };
        if wrong < fewest {
            (fewest, turn) = (wrong, position + 1);
        }
    }
    for &id in &program[..turn] {
        if phases[id] == Phase::Backward {
            phases[id] = Phase::Forward;
        }
    }
    phases
}
