//! Room for collectives to go on beside other runs. Invariant: the plan runs the same nodes as
//! often, what is read is the same copy of it, and no more than the budget is held.
//!
//! A planner puts a gather right before its reader, and what waits for a gradient right behind its
//! exchange: nothing is then left for them to go on beside. Where there is memory left, gathers
//! begin earlier, and what needs an exchanged gradient comes later.

mod early;
mod late;

use crate::graph::Graph;
use crate::plan::{Plan, simulate_plan};
use crate::profile::Profile;
use crate::units::Bytes;

/// The plan with as much room as the budget leaves; the same plan where it has no collectives, or
/// moves anything.
pub fn spread(graph: &Graph, profile: &Profile, plan: &Plan, budget: Bytes) -> Plan {
    let runs = plan.runs();
    let of = |node| graph.nodes()[node].operator;
    let is_collective = |&node| of(node).is_some_and(|operator| operator.is_collective());
    if !runs.iter().any(is_collective) || !plan.moves().is_empty() {
        return plan.clone();
    }
    let mut best = plan.clone();
    for pass in [late::late, early::early] {
        let next = Plan::of_runs(plan.planner, pass(graph, profile, &best.runs(), budget));
        if simulate_plan(graph, profile, &next).curve.peak <= budget {
            best = next;
        }
    }
    best
}
