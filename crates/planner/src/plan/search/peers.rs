//! The other planners, beside the search. Invariant: whatever one of them makes of a budget is
//! known to the search before it answers, so none of them is better.

use crate::effort::Meter;
use crate::graph::Graph;
use crate::id::NodeId;
use crate::plan::{self, PlanError, Planner};
use crate::profile::Profile;
use crate::units::Bytes;

/// The other planners, the quicker ones first.
pub const PEERS: [Planner; 6] = [
    Planner::Chen,
    Planner::Rotor,
    Planner::Dtr,
    Planner::Knapsack,
    Planner::Capuchin,
    Planner::Xla,
];

/// What a planner makes of a budget, or the lowest that it reaches; `None` where it has no plan.
pub fn peer(
    graph: &Graph,
    profile: &Profile,
    order: &[NodeId],
    budget: Bytes,
    planner: Planner,
    meter: &mut Meter<'_>,
) -> Option<Vec<NodeId>> {
    match plan::plan_within(graph, profile, order, budget, planner, meter) {
        Ok(plan) => Some(plan.runs()),
        Err(PlanError::Infeasible(proof)) => Some(proof.plan.runs()),
        Err(PlanError::NotFound(ended)) => Some(ended.plan.runs()),
        Err(PlanError::TooLarge { .. } | PlanError::Unsolved { .. }) => None,
    }
}
