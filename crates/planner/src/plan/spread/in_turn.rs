//! Ranks of a pipeline send messages as early as their rows say. Invariant: messages keep their
//! order, as do runs that are not ahead of any.
//!
//! The graph of a rank has its nodes in the order of its row: first what others wait for, and
//! weights' gradients where the row has time for them. A planner that knows one device alone may
//! well put them earlier, since they free activations. Those that a plan has before a message that
//! precedes them in the graph are moved as late as in the graph.

use cranelift_entity::{EntityRef, SecondaryMap};

use crate::graph::Graph;
use crate::id::NodeId;
use crate::plan::spread::delay::{Turn, delayed};
use crate::profile::Profile;
use crate::units::Bytes;

/// The sequence with such runs later.
pub fn in_turn(graph: &Graph, profile: &Profile, runs: &[NodeId], budget: Bytes) -> Vec<NodeId> {
    let mut times: SecondaryMap<NodeId, u32> = SecondaryMap::new();
    runs.iter().for_each(|&node| times[node] += 1);
    let is_ahead = ahead(graph, runs);
    // A recomputation marks no moment of the row.
    let mut now = 0.0f64;
    let turns = runs.iter().zip(is_ahead).map(|(&node, is_ahead)| {
        let moment = node.index() as f64;
        match times[node] {
            1 if is_ahead => return Turn::Waits(moment),
            1 => now = now.max(moment),
            _ => {}
        }
        Turn::Stands(now)
    });
    let turns: Vec<Turn> = turns.collect();
    delayed(graph, profile, runs, &turns, budget)
}

/// Whether each run comes before a message that comes before it in the graph.
fn ahead(graph: &Graph, runs: &[NodeId]) -> Vec<bool> {
    let mut first = usize::MAX;
    let mut is_ahead: Vec<bool> = runs
        .iter()
        .rev()
        .map(|&node| {
            let call = &graph.nodes()[node];
            if call.stream {
                first = first.min(node.index());
            }
            !call.stream && node.index() > first
        })
        .collect();
    is_ahead.reverse();
    is_ahead
}
