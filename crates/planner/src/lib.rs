//! tightfit plans a training step into a memory budget.
//!
//! This crate is pure: no files, no clock; its one thread ends before its caller goes on. What
//! happens to a step, in order, is [`fit`]: the graph is profiled, updates move up behind their
//! gradients, a planner decides what to recompute, the plan becomes a schedule with addresses, and
//! an independent checker executes it abstractly. Nothing leaves this function unchecked.

pub mod analysis;
pub mod check;
pub mod effort;
mod fit;
pub mod graph;
pub mod id;
pub mod machine;
pub mod operator;
pub mod plan;
pub mod profile;
pub mod schedule;
pub mod tensor;
pub mod units;

pub use fit::{Bound, FitError, Fitted};
pub use plan::BoundOrder;

use check::Violation;
use effort::Effort;
use fit::{BudgetedPlanner, checked, smallest};
use graph::Graph;
use plan::Planner;
use profile::Profile;
use schedule::{Residents, Schedule, lower};
use units::{Bytes, Seconds};

/// One point of the frontier: a budget, and what became of it.
#[derive(Debug)]
pub struct FittedPoint {
    /// The budget.
    pub budget: Bytes,
    /// The schedule, or why there is none.
    pub result: Result<Fitted, FitError>,
    /// Until the first plan within the budget was known, by the effort's clock.
    pub first: Seconds,
    /// Until the schedule was made and checked.
    pub total: Seconds,
}

/// Fits one step into `budget` bytes.
///
/// Addresses cost more than the bytes held where lifetimes do not pack; then the planner is asked
/// again for as much less as was missing. Its plan with the smallest peak has the last word: either
/// its addresses fit, or its slab is the smallest budget known to be feasible.
pub fn fit(
    graph: &Graph,
    profile: &Profile,
    budget: Bytes,
    planner: Planner,
    residents: &Residents,
    effort: &Effort<'_>,
) -> Result<Fitted, FitError> {
    let order = plan::base_order(graph, profile);
    let mut budgeted = BudgetedPlanner::new(graph, profile, &order, planner);
    budgeted.fit(budget, residents, effort).0
}

/// Fits one step into each of several budgets, given in rising order, with the effort for each.
/// What fits into a smaller budget is a candidate for every larger one, and so is what is `known`
/// already; a larger budget never gives a slower schedule.
pub fn frontier(
    graph: &Graph,
    profile: &Profile,
    budgets: &[Bytes],
    known: Option<Fitted>,
    planner: Planner,
    effort: &Effort<'_>,
) -> Vec<FittedPoint> {
    let order = plan::base_order(graph, profile);
    let mut budgeted = BudgetedPlanner::new(graph, profile, &order, planner);
    let mut fastest = known;
    let mut points = Vec::with_capacity(budgets.len());
    for &budget in budgets {
        let start = (effort.clock)();
        let (mut result, first) = budgeted.fit(budget, &Residents::default(), effort);
        let seconds = |fitted: &Fitted| fitted.timeline.seconds;
        if let Some(smaller) = &fastest
            && smaller.schedule.slab <= budget
            && result.as_ref().map_or(true, |fitted| seconds(fitted) > seconds(smaller))
        {
            let bound = budgeted.bound(budget);
            result = Ok(Fitted {
                schedule: Schedule { budget, ..smaller.schedule.clone() },
                bound,
                ..smaller.clone()
            });
        }
        fastest = result.as_ref().ok().cloned().or(fastest);
        points.push(FittedPoint {
            budget,
            result,
            first,
            total: Seconds((effort.clock)().0 - start.0),
        });
    }
    points
}

/// The smallest slab that `planner` reaches, with its schedule.
pub fn fit_smallest(
    graph: &Graph,
    profile: &Profile,
    planner: Planner,
    residents: &Residents,
    effort: &Effort<'_>,
) -> Result<Fitted, FitError> {
    let order = plan::base_order(graph, profile);
    let plan = smallest(graph, profile, &order, planner, effort);
    let mut schedule = lower(graph, profile, &plan, Bytes::ZERO, residents, effort);
    schedule.budget = schedule.slab;
    Ok(checked(graph, profile, schedule, None)?)
}

/// The step as the graph states it: program order, nothing recomputed, nothing moved. Its peak is
/// the unplanned one.
pub fn unplanned(graph: &Graph, profile: &Profile) -> Result<Fitted, Violation> {
    let profile = Profile { in_place: false, ..profile.clone() };
    let plan = plan::Plan { planner: Planner::None, runs: graph.program() };
    let mut schedule =
        lower(graph, &profile, &plan, Bytes::LIMIT, &Residents::default(), &Effort::default());
    schedule.budget = schedule.slab;
    checked(graph, &profile, schedule, None)
}
