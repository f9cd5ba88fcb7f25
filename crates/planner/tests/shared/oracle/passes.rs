//! Which pass a node takes part in, and which module a path belongs to, stated for the oracles of
//! dataflow and module statistics. Invariant: shares no code with what they judge.

use tightfit::graph::{Graph, Phase};
use tightfit::id::NodeId;

/// Whether `path` is `module` or below it.
pub fn below(path: &str, module: &str) -> bool {
    module.is_empty() || path == module || path.starts_with(&format!("{module}."))
}

/// Phases with the turn found by counting, for each boundary, who stands on the wrong side of it.
pub fn phases(graph: &Graph) -> Vec<Phase> {
    let runs = |node: usize| graph.runs(NodeId::from_u32(node as u32));
    let mut phases: Vec<Phase> = graph.nodes().values().map(|node| node.phase).collect();
    let is_update = |node: usize| {
        let written = graph.mutated(NodeId::from_u32(node as u32));
        written.iter().any(|&storage| {
            graph.nodes().values().any(|other| {
                let of_model =
                    matches!(other.phase, Phase::Parameter | Phase::Buffer | Phase::State);
                of_model
                    && other
                        .outputs
                        .iter()
                        .flatten()
                        .any(|&value| graph.values()[value].storage == storage)
            })
        })
    };
    let backward: Vec<usize> =
        (0..phases.len()).filter(|&node| runs(node) && phases[node] == Phase::Backward).collect();
    let forward = |node: usize| matches!(phases[node], Phase::Forward | Phase::Loss);
    let forward: Vec<usize> =
        (0..phases.len()).filter(|&node| runs(node) && forward(node) && !is_update(node)).collect();
    let wrong = |turn: usize| {
        backward.iter().filter(|&&node| node < turn).count()
            + forward.iter().filter(|&&node| node >= turn).count()
    };
    let turn = (0..=phases.len()).min_by_key(|&turn| wrong(turn)).unwrap();
    backward.iter().filter(|&&node| node < turn).for_each(|&node| phases[node] = Phase::Forward);
    phases
}
