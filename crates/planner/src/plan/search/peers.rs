//! The other planners. Invariant: whatever one of them makes of a budget is known to the search
//! before it answers, so none of them is better.

use crate::effort::Meter;
use crate::plan::{self, Instance, Plan, PlanError, Planner};
use crate::units::Bytes;

/// The other planners, the quicker ones first; without those that use the solver, whose work and
/// memory cannot be bounded.
pub const PEERS: [Planner; 6] = [
    Planner::Chen,
    Planner::Rotor,
    Planner::Dtr,
    Planner::Knapsack,
    Planner::Capuchin,
    Planner::Xla,
];

/// Number of floors of a rule that a search may use: one for all peers at its budget, and one for
/// each at the smallest.
pub const FLOORS: u64 = 1 + PEERS.len() as u64;

/// The lowest plan that each of them reaches, offered as soon as it is there. Each has a floor of
/// its own, as when it is used alone.
pub fn lowest_of_peers(
    instance: Instance<'_>,
    meter: &Meter<'_>,
    mut offer: impl FnMut(&Plan),
) -> Vec<Plan> {
    let reach = |planner| {
        let mut meter = meter.above(meter.effort().floor_beside);
        let is_interrupted = meter.elapsed().0.is_infinite();
        (!is_interrupted).then(|| peer(instance, Bytes::ZERO, planner, &mut meter)).flatten()
    };
    PEERS.into_iter().filter_map(reach).inspect(|plan| offer(plan)).collect()
}

/// A planner's plan for a budget, or else the lowest that it reaches; `None` if it has no plan.
pub fn peer(
    instance: Instance<'_>,
    budget: Bytes,
    planner: Planner,
    meter: &mut Meter<'_>,
) -> Option<Plan> {
    match plan::plan_within(instance, budget, planner, meter) {
        Ok(plan) => Some(plan),
        Err(PlanError::Infeasible(proof)) => Some(proof.plan),
        Err(PlanError::NotFound(ended)) => Some(ended.plan),
        Err(
            PlanError::TooLarge { .. }
            | PlanError::NoModules
            | PlanError::ModuleStatistics(_)
            | PlanError::Unsolved { .. },
        ) => None,
    }
}
