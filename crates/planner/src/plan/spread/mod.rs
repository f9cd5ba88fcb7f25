//! More time for what other ranks wait for, or are waited for. Invariant: the plan runs the same
//! nodes the same number of times, every read is of the same copy, and no more than the budget is
//! held.
//!
//! A planner puts a gather right before its reader, and what waits for a gradient right after its
//! exchange: nothing is then left for them to overlap with. It puts weights' gradients where they
//! free the most, even before what the next rank waits for. If memory is left, gathers begin
//! earlier, and nodes that need an exchanged gradient, or that are not waited for, come later.

mod delay;
mod early;
mod in_turn;
mod late;

use crate::graph::Graph;
use crate::id::NodeId;
use crate::operator::Operator;
use crate::plan::{Instance, Plan};
use crate::profile::Profile;
use crate::tuning::spread::BUDGETS;
use crate::units::Bytes;

/// The plan, spread as far as the budget allows; the same plan if its rank is alone, or if it moves
/// anything.
pub fn spread(instance: Instance<'_>, plan: &Plan, budget: Bytes) -> Plan {
    let Instance { graph, profile, .. } = instance;
    let runs = plan.runs();
    let has = |is: fn(Operator) -> bool| {
        runs.iter().any(|&node| graph.nodes()[node].operator.is_some_and(is))
    };
    let passes: &[Pass] = match () {
        () if plan.sequence.has_moves() => &[],
        () if has(Operator::exchanges) => &[in_turn::in_turn],
        () if has(Operator::is_collective) => &[late::late, early::early],
        () => &[],
    };
    let mut best = plan.clone();
    for pass in passes {
        let runs = best.runs();
        let fitting = BUDGETS.get().iter().find_map(|share| {
            let within = Bytes((budget.0 as f64 * share) as u64);
            let next = instance.plan(plan.planner, pass(graph, profile, &runs, within));
            (next.peak <= budget).then_some(next)
        });
        best = fitting.unwrap_or(best);
    }
    best
}

/// A sequence of runs within a budget, rearranged.
type Pass = fn(&Graph, &Profile, &[NodeId], Bytes) -> Vec<NodeId>;
