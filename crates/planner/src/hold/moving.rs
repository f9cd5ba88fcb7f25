//! The same for plans that also move what they hold to a tier and back. Invariant: within a budget
//! none is slower than the fastest that is known to move nothing; and what must not move stays.

use crate::effort::Meter;
use crate::fit::Bound;
use crate::fit::sequences::{Sequences, with_instant_lanes};
use crate::fit::turns::Turns;
use crate::goal::Goal;
use crate::hold::Found;
use crate::plan::{self, Instance, Plan, PlanError, Planner, Search, Unplaced};
use crate::tuning::sequences::WITHOUT_MOVES;
use crate::units::Bytes;

/// Plans so that no more bytes of the device are held than requested.
///
/// # Errors
/// If the budget is smaller than what the smallest plan holds.
pub fn hold_moving(
    moving: &Sequences<'_>,
    goal: Goal,
    meter: &Meter<'_>,
) -> Result<Found, PlanError> {
    let instance = moving.instance;
    let mut search = Search::new(instance);
    let fastest = |search: &Search<'_>, budget: Bytes, known: Option<Plan>| {
        let known = known.map(|plan| (plan.seconds.0, plan));
        Turns::new::<Unplaced>(budget).fastest(moving, search, known, &mut Unplaced, meter)
    };
    match goal {
        Goal::Smallest => {
            let lowest = smallest(moving, &mut search, meter);
            let budget = lowest.peak;
            let plan = fastest(&search, budget, Some(lowest.clone())).unwrap_or(lowest);
            Ok(Found { plan, budget, bound: None })
        }
        Goal::Within(budget) => {
            let work = meter.effort().work;
            let is_possible = budget >= search.least_budget();
            let known = is_possible.then(|| {
                plan::fastest(&mut search, budget, &meter.round(work, WITHOUT_MOVES.get())).ok()
            });
            let plan = match fastest(&search, budget, known.flatten()) {
                Some(plan) => plan,
                None => instance.within(budget, smallest(moving, &mut search, meter))?,
            };
            let least = plan::lower_bound_with_moves(instance, budget, &meter.round(work, 1.0));
            let bound = Some(Bound::of_moves(instance.seconds().max(least)));
            Ok(Found { plan, budget, bound })
        }
    }
}

/// The plan with the smallest peak that is found.
fn smallest(moving: &Sequences<'_>, search: &mut Search<'_>, meter: &Meter<'_>) -> Plan {
    let instance = moving.instance;
    let instant = with_instant_lanes(instance.profile);
    let moving = &Sequences { instance: Instance { profile: &instant, ..instance }, ..*moving };
    let mut best: Option<Plan> = None;
    for runs in moving.lowest(search, meter) {
        let moved = moving.offloading(&runs).smallest(meter);
        let sequence = moved.map_or(runs.into(), |moved| moved.sequence);
        let plan = instance.plan(Planner::Auto, sequence);
        if best.as_ref().is_none_or(|best| plan.peak < best.peak) {
            best = Some(plan);
        }
    }
    best.unwrap_or_else(|| instance.unplanned(Planner::Auto))
}
