//! The same for plans that also move what they hold to a tier and back. Invariant: within a budget
//! none is slower than the fastest that is known to move nothing; and what must not move stays.

use crate::effort::{Effort, Meter};
use crate::fit::sequences::{Bracket, Sequences, fastest_of, with_instant_lanes};
use crate::fit::{Bound, FitError};
use crate::goal::Goal;
use crate::graph::Graph;
use crate::hold::{Held, checked, hold};
use crate::id::StorageId;
use crate::plan::offload::{Crossing, Home};
use crate::plan::{self, Instance, Plan, Planner, Search};
use crate::profile::Profile;
use crate::units::Bytes;

/// Fraction of the remaining time for finding a plan that moves nothing.
const WITHOUT_MOVES: f64 = 0.3;

/// Plans one step so that it holds no more bytes of the device than requested; storages for which
/// `may_move` is true may be away while no run needs them. When the step ends, no transfer is under
/// way. On a machine without a tier this is [`hold`] by the budget planner.
///
/// # Errors
/// As those of [`hold`].
pub fn hold_moving(
    graph: &Graph,
    profile: &Profile,
    goal: Goal,
    may_move: &dyn Fn(StorageId) -> bool,
    effort: &Effort<'_>,
) -> Result<Held, FitError> {
    let Some(route) = profile.hierarchy.main_route() else {
        return hold(graph, profile, goal, Planner::Auto, effort);
    };
    let order = plan::base_order(graph, profile);
    let instance = Instance::new(graph, profile, &order);
    let mut search = Search::new(instance);
    let meter = Meter::new(effort);
    let home = |storage| if may_move(storage) { Home::Anywhere } else { Home::Device };
    let moving =
        Sequences { instance, route, home: &home, taken: Bytes::ZERO, crossing: Crossing::Never };
    let lowest = |search: &mut Search<'_>| smallest(&moving, search, &meter);
    match goal {
        Goal::Smallest => {
            let lowest = lowest(&mut search);
            let peak = lowest.peak;
            let plan = fastest(&moving, &search, peak, Some(lowest), &meter);
            let plan = plan.expect("the smallest plan is known");
            checked(graph, profile, plan, (peak, None))
        }
        Goal::Within(budget) => {
            let is_possible = budget >= search.least_budget();
            let known = is_possible.then(|| {
                plan::fastest(&mut search, budget, &meter.round(effort.work, WITHOUT_MOVES)).ok()
            });
            let plan = match fastest(&moving, &search, budget, known.flatten(), &meter) {
                Some(plan) => plan,
                None => {
                    let lowest = lowest(&mut search);
                    instance.within(budget, lowest)?
                }
            };
            let proof = meter.round(effort.work, 1.0);
            let least = plan::lower_bound_with_moves(instance, budget, &proof);
            let bound = Bound::of_moves(instance.seconds().max(least));
            checked(graph, profile, plan, (budget, Some(bound)))
        }
    }
}

/// The fastest plan that is found within a budget, or the known one if none is faster.
fn fastest(
    moving: &Sequences<'_>,
    search: &Search<'_>,
    budget: Bytes,
    known: Option<Plan>,
    meter: &Meter<'_>,
) -> Option<Plan> {
    let instance = moving.instance;
    let seconds = known.as_ref().map(|plan| plan.seconds);
    if seconds.is_some_and(|seconds| seconds <= instance.seconds()) {
        return known;
    }
    let mut meter = meter.clone();
    let mut bracket = Bracket::whole();
    let mut found = fastest_of(moving.levels(search, budget, &mut bracket, &mut meter));
    let share = (1.0 - meter.part()).max(0.0) / found.len().max(1) as f64;
    for candidate in &mut found {
        moving.descend(candidate, budget, share, &mut meter);
    }
    let found = fastest_of(found).into_iter().next();
    found.filter(|found| seconds.is_none_or(|seconds| found.seconds < seconds)).or(known)
}

/// The plan with the smallest peak that is found.
fn smallest(moving: &Sequences<'_>, search: &mut Search<'_>, meter: &Meter<'_>) -> Plan {
    let instance = moving.instance;
    let instant = with_instant_lanes(instance.profile);
    let moving = &Sequences { instance: Instance { profile: &instant, ..instance }, ..*moving };
    let mut best: Option<Plan> = None;
    for runs in moving.lowest(search, None, meter) {
        let moved = moving.offloading(&runs).smallest(meter);
        let sequence = moved.map_or(runs.into(), |moved| moved.sequence);
        let plan = instance.plan(Planner::Auto, sequence);
        if best.as_ref().is_none_or(|best| plan.peak < best.peak) {
            best = Some(plan);
        }
    }
    best.unwrap_or_else(|| instance.unplanned(Planner::Auto))
}
