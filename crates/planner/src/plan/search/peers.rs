//! The other planners. Invariant: whatever one of them makes of a budget is known to the search
//! before it answers, so none of them is better.

use crate::effort::Meter;
use crate::plan::{self, Instance, Plan, PlanError, Planner, needed_by_any};
use crate::tuning::min_peak::BISECTIONS;
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
        let mut own = meter.above(meter.effort().floor_beside);
        let is_interrupted = own.elapsed().0.is_infinite();
        let reach = || peer(instance, Bytes::ZERO, planner, &mut own);
        let reached = (!is_interrupted).then(reach).flatten()?;
        let lower = match planner {
            Planner::Dtr => lower_of_dtr(instance, reached.peak, &meter.half()),
            _ => None,
        };
        Some(lower.unwrap_or(reached))
    };
    PEERS.into_iter().filter_map(reach).inspect(|plan| offer(plan)).collect()
}

/// The lowest plan of DTR, by bisection: it evicts no more than it has to, and so reaches less for
/// a budget that it meets than for one that nothing meets. `None` if none is below `lowest`.
fn lower_of_dtr(instance: Instance<'_>, lowest: Bytes, meter: &Meter<'_>) -> Option<Plan> {
    let mut meter = meter.clone();
    let mut refused = needed_by_any(instance.graph, instance.profile, false);
    let (mut reached, mut best) = (lowest, None);
    for _ in 0..BISECTIONS.get() {
        let target = refused + Bytes(reached.saturating_sub(refused).0 / 2);
        if target >= reached || meter.is_over() {
            break;
        }
        match peer(instance, target, Planner::Dtr, &mut meter).filter(|plan| plan.peak <= target) {
            Some(plan) => {
                reached = plan.peak;
                best = Some(plan);
            }
            None => refused = target,
        }
    }
    best
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
