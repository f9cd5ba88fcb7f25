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
pub mod goal;
pub mod graph;
pub mod id;
pub mod machine;
pub mod operator;
pub mod plan;
pub mod profile;
pub mod schedule;
pub mod tensor;
pub mod timeline;
pub mod units;

pub use fit::{Actions, Bound, FitError, Fitted, ScheduleClass};
pub use goal::Goal;
pub use plan::BoundOrder;

use check::Violation;
use effort::Effort;
use fit::{BudgetedPlanner, Terms, checked, smallest};
use graph::Graph;
use plan::Planner;
use profile::Profile;
use schedule::{Lowering, Residents, lower};
use units::{Bytes, Seconds};

/// What is asked of a schedule.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// How many bytes the slab may have.
    pub goal: Goal,
    /// Who plans.
    pub planner: Planner,
    /// What stays in the slab between steps.
    pub residents: &'a Residents,
    /// How hard to look for something better.
    pub effort: Effort<'a>,
}

impl Request<'static> {
    /// The fastest schedule that the budget planner finds with the default effort within a budget.
    pub fn within(budget: Bytes) -> Request<'static> {
        Request { goal: Goal::Within(budget), ..Request::default() }
    }
}

/// The smallest slab that the budget planner reaches with the default effort.
impl Default for Request<'static> {
    fn default() -> Request<'static> {
        Request {
            goal: Goal::Smallest,
            planner: Planner::Auto,
            residents: Residents::none(),
            effort: Effort::default(),
        }
    }
}

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

/// Fits one step into the bytes that are asked for.
///
/// Addresses cost more than the bytes held where lifetimes do not pack; then the planner is asked
/// again for as much less as was missing. Its plan with the smallest peak has the last word: either
/// its addresses fit, or its slab is the smallest budget known to be feasible.
///
/// # Errors
/// [`FitError::Plan`] where the planner has no plan, with a proof where the budget is infeasible.
pub fn fit(graph: &Graph, profile: &Profile, request: &Request<'_>) -> Result<Fitted, FitError> {
    let order = plan::base_order(graph, profile);
    let &Request { goal, planner, residents, ref effort } = request;
    match goal {
        Goal::Within(budget) => {
            let mut budgeted = BudgetedPlanner::new(graph, profile, &order, planner);
            budgeted.fit(budget, Terms { residents, effort }).0
        }
        Goal::Smallest => {
            let plan = smallest(graph, profile, &order, planner, effort);
            let task = Lowering { goal, residents, effort: *effort };
            Ok(checked(graph, profile, lower(graph, profile, &plan, &task), None)?)
        }
    }
}

/// Fits one step into each of several budgets, given in rising order, with the request's effort for
/// each; its goal is of no account. What fits into a smaller budget is a candidate for every larger
/// one, and so is what is `known` already; a larger budget never gives a slower schedule.
pub fn frontier(
    graph: &Graph,
    profile: &Profile,
    budgets: &[Bytes],
    known: Option<Fitted>,
    request: &Request<'_>,
) -> Vec<FittedPoint> {
    let order = plan::base_order(graph, profile);
    let &Request { planner, residents, ref effort, .. } = request;
    let mut budgeted = BudgetedPlanner::new(graph, profile, &order, planner);
    let mut fastest = known;
    let mut points = Vec::with_capacity(budgets.len());
    for &budget in budgets {
        let start = (effort.clock)();
        let (mut result, first) = budgeted.fit(budget, Terms { residents, effort });
        let seconds = |fitted: &Fitted| fitted.timeline().seconds;
        if let Some(smaller) = &fastest
            && result.as_ref().map_or(true, |fitted| seconds(fitted) > seconds(smaller))
            && let Some(smaller) = smaller.within(budget, budgeted.bound(budget))
        {
            result = Ok(smaller);
        }
        fastest = result.as_ref().ok().cloned().or(fastest);
        let total = Seconds((effort.clock)().0 - start.0);
        points.push(FittedPoint { budget, result, first, total });
    }
    points
}

/// The step as the graph states it: program order, nothing recomputed, nothing moved. Its peak is
/// the unplanned one.
pub fn unplanned(graph: &Graph, profile: &Profile) -> Result<Fitted, Violation> {
    let profile = Profile { in_place: false, ..profile.clone() };
    let plan = plan::Plan::of_runs(Planner::None, graph.compute_nodes());
    // The first addresses will do.
    let mut schedule = lower(graph, &profile, &plan, &Lowering::to(Goal::Within(Bytes::LIMIT)));
    schedule.budget = schedule.slab;
    checked(graph, &profile, schedule, None)
}
