//! Chen's √n segments: keep what crosses the borders of √n segments of the forward pass, make the rest again segment by
//! segment. Invariant: a segment's border never lies inside a unit, so the last segment of a chain is never dropped
//! in part.
//!
//! Source: Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016. Its n layers are here the
//! units of the model: module paths up to their first number (`h.3`), runs of the same unit counting once.

use super::rematerialize::{Drop, Drops, rematerialize};
use super::{Infeasible, Plan, PlanError, Planner, simulate};
use crate::graph::{Graph, NodeId};
use crate::profile::Profile;
use crate::units::Bytes;

/// √n segments, of about the same number of units each; the last segment's activations stay.
pub fn chen(graph: &Graph, profile: &Profile, order: &[NodeId], budget: Bytes) -> Result<Plan, PlanError> {
    let forward: Vec<NodeId> = order.iter().copied().filter(|&node| graph.nodes()[node].phase.is_forward()).collect();
    let units = units(graph, &forward);
    let count = units.last().map_or(0, |last| last + 1);
    let segments = (count as f64).sqrt().round().max(1.0) as usize;
    let segment_of = |unit: usize| unit * segments / count.max(1);
    let mut drops = Drops::new();
    for (index, &node) in forward.iter().enumerate() {
        if segment_of(units[index]) + 1 < segments {
            drops[node] = Drop::Keep;
        }
    }
    // What a later segment reads is a checkpoint.
    for (index, &node) in forward.iter().enumerate() {
        for producer in graph.reads(node).iter().filter_map(|&storage| graph.producer(storage)) {
            if let Ok(made) = forward.binary_search(&producer)
                && segment_of(units[made]) < segment_of(units[index])
            {
                drops[producer] = Drop::Hold;
            }
        }
    }
    let plan = Plan { planner: Planner::Chen, steps: rematerialize(graph, order, &drops) };
    if simulate(graph, profile, &plan.steps).curve.peak <= budget {
        return Ok(plan);
    }
    Err(PlanError::Infeasible(Box::new(Infeasible::new(graph, profile, budget, plan))))
}

/// The unit of each forward node, counted from 0: a new one begins wherever the path of units changes, and nodes of the
/// root belong to the unit before them.
fn units(graph: &Graph, forward: &[NodeId]) -> Vec<usize> {
    let mut units = Vec::with_capacity(forward.len());
    let (mut unit, mut previous) = (0, None);
    for &node in forward {
        let path = unit_path(graph.module_of(node));
        if !path.is_empty() {
            if previous.is_some_and(|previous| previous != path) {
                unit += 1;
            }
            previous = Some(path);
        }
        units.push(unit);
    }
    units
}

/// A module path up to and including its first numeric component; the whole path where there is none.
fn unit_path(path: &str) -> &str {
    let mut end = 0;
    for component in path.split('.') {
        end += component.len();
        if !component.is_empty() && component.bytes().all(|byte| byte.is_ascii_digit()) {
            return &path[..end];
        }
        end += 1;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_ends_at_the_first_number() {
        assert_eq!(unit_path("model.h.3.attn.c_proj"), "model.h.3");
        assert_eq!(unit_path("wte"), "wte");
        assert_eq!(unit_path("layers.10"), "layers.10");
        assert_eq!(unit_path(""), "");
    }
}
