//! Plans for runtimes whose allocator places tensors: no addresses, so the budget bounds the bytes
//! held. Invariant: what leaves this module was checked, and holds no more than its budget.

mod moving;

pub use moving::hold_moving;

use crate::analysis::Sequence;
use crate::check::held;
use crate::effort::{Effort, Meter};
use crate::fit::{Bound, FitError};
use crate::goal::Goal;
use crate::graph::Graph;
use crate::plan::{self, BoundOrder, Instance, LOWEST, Plan, PlanError, Planner, Search};
use crate::profile::Profile;
use crate::schedule::{Lowering, Schedule, lower};
use crate::timeline::Timeline;
use crate::units::Bytes;

/// A plan that was checked, and that holds no more than a budget.
///
/// Its schedule has addresses, too, at which nothing overlaps; they are arbitrary, so the size of
/// its slab means nothing.
#[derive(Clone, Debug)]
pub struct Held {
    schedule: Schedule,
    sequence: Sequence,
    timeline: Timeline,
    budget: Bytes,
    bound: Option<Bound>,
}

impl Held {
    /// The budget that it was made for; if as few bytes as possible were requested, the bytes that
    /// it holds.
    pub fn budget(&self) -> Bytes {
        self.budget
    }

    /// What it does, in order.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// The schedule, which the checker accepted.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// What it does, and what is held meanwhile.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The time that no plan of the bound's class within the budget beats; absent if the planner
    /// proves nothing.
    pub fn bound(&self) -> Option<Bound> {
        self.bound
    }
}

/// Plans one step so that it holds no more bytes than requested, wherever tensors are placed.
///
/// # Errors
/// [`FitError::Plan`] if the planner has no plan, with a proof if the budget is infeasible.
/// [`FitError::Violation`] if the checker refuses what was planned, which is a bug of this crate.
pub fn hold(
    graph: &Graph,
    profile: &Profile,
    goal: Goal,
    planner: Planner,
    effort: &Effort<'_>,
) -> Result<Held, FitError> {
    let order = plan::base_order(graph, profile);
    let instance = Instance::new(graph, profile, &order);
    let mut search = (planner == Planner::Auto).then(|| Search::new(instance));
    let meter = &mut Meter::new(effort);
    let Goal::Within(budget) = goal else {
        let plan = match &mut search {
            Some(search) => search.lowest(&meter.round(effort.work, LOWEST)),
            None => plan::smallest(instance, planner, meter)?,
        };
        let peak = plan.peak;
        return checked(graph, profile, plan, (peak, None));
    };
    let plan = match &mut search {
        Some(search) => plan::fastest(search, budget, effort).map_err(PlanError::Infeasible)?,
        None => plan::plan_within(instance, budget, planner, meter)?,
    };
    let bound = search.and_then(|search| search.bound(budget));
    let bound = bound.map(|seconds| Bound::of_runs(seconds, BoundOrder::Any));
    checked(graph, profile, plan, (budget, bound))
}

/// The plan, if the checker accepts it, at arbitrary addresses.
fn checked(
    graph: &Graph,
    profile: &Profile,
    plan: Plan,
    (budget, bound): (Bytes, Option<Bound>),
) -> Result<Held, FitError> {
    let schedule = lower(graph, profile, &plan, &Lowering::to(Goal::Within(Bytes::LIMIT)));
    let timeline = held(graph, profile, &schedule, budget)?;
    Ok(Held { schedule, sequence: plan.sequence, timeline, budget, bound })
}
