//! The same for plans that also move what they hold to a tier and back. Invariant: within a budget
//! none is slower than the fastest that is known to move nothing; and what may not move stays.

use crate::effort::{Effort, Meter};
use crate::fit::sequences::{Bracket, Candidate, Sequences, fastest_of, with_instant_lanes};
use crate::fit::{Bound, FitError};
use crate::goal::Goal;
use crate::graph::Graph;
use crate::hold::{Held, checked, hold};
use crate::id::StorageId;
use crate::plan::offload::{Crossing, Home};
use crate::plan::{self, Instance, Plan, PlanError, Planner, Search};
use crate::profile::Profile;
use crate::units::Bytes;

/// The part of the time in which a plan that moves nothing is looked for.
const WITHOUT_MOVES: f64 = 0.3;

/// Plans one step so that it holds no more bytes of the device than are asked for, where the
/// storages for which `may_move` holds may be away while nobody needs them. When the step ends,
/// nothing is under way. On a machine without a tier this is [`hold`] by the budget planner.
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
    let lowest = |search: &mut Search<'_>| {
        let plan = smallest(&moving, search, &meter);
        (instance.simulate_plan(&plan).curve.peak, plan)
    };
    match goal {
        Goal::Smallest => {
            let (peak, plan) = lowest(&mut search);
            let plan = fastest(&moving, &search, peak, Some(plan), &meter);
            let plan = plan.expect("the smallest plan is known");
            checked(graph, profile, &plan, (peak, None))
        }
        Goal::Within(budget) => {
            let is_possible = budget >= search.least_budget();
            let known = is_possible
                .then(|| search.fastest(budget, &meter.round(effort.work, WITHOUT_MOVES)).ok());
            let plan = match fastest(&moving, &search, budget, known.flatten(), &meter) {
                Some(plan) => plan,
                None => {
                    let (peak, plan) = lowest(&mut search);
                    if peak > budget {
                        return Err(PlanError::infeasible(instance, budget, plan).into());
                    }
                    plan
                }
            };
            let proof = meter.round(effort.work, 1.0);
            let least = plan::lower_bound_with_moves(instance, budget, &proof);
            let bound = Bound::of_moves(instance.seconds().max(least));
            checked(graph, profile, &plan, (budget, Some(bound)))
        }
    }
}

/// The fastest plan that is found within a budget, or the known one where none is faster.
fn fastest(
    moving: &Sequences<'_>,
    search: &Search<'_>,
    budget: Bytes,
    known: Option<Plan>,
    meter: &Meter<'_>,
) -> Option<Plan> {
    let instance = moving.instance;
    let seconds = known.as_ref().map(|plan| instance.simulate_plan(plan).seconds.0);
    if seconds.is_some_and(|seconds| seconds <= instance.seconds().0) {
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
    let found =
        found.filter(|found| seconds.is_none_or(|seconds| found.offloaded.seconds.0 < seconds));
    found.as_ref().map(Candidate::plan).or(known)
}

/// The plan with the smallest peak that is found.
fn smallest(moving: &Sequences<'_>, search: &mut Search<'_>, meter: &Meter<'_>) -> Plan {
    let instant = with_instant_lanes(moving.instance.profile);
    let instance = Instance { profile: &instant, ..moving.instance };
    let moving = &Sequences { instance, ..*moving };
    let mut best: Option<(Bytes, Plan)> = None;
    for runs in moving.lowest(search, None, meter) {
        let moves =
            moving.offloading(&runs).smallest(meter).map_or(Vec::new(), |found| found.moves);
        let plan = Plan::with_moves(Planner::Auto, &runs, &moves);
        let peak = instance.simulate_plan(&plan).curve.peak;
        if best.as_ref().is_none_or(|(least, _)| peak < *least) {
            best = Some((peak, plan));
        }
    }
    let known = best.map(|(_, plan)| plan);
    known.unwrap_or_else(|| Plan::of_runs(Planner::Auto, instance.order.to_vec()))
}
