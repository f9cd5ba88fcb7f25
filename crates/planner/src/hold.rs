//! Plans for runtimes whose allocator places tensors: no addresses, so the budget bounds the bytes
//! that are held. Invariant: what leaves this room was checked, and holds no more than its budget.

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
/// Its schedule has addresses, too, in which nothing overlaps; they are as good as any, and nobody
/// who holds a plan in this way should care about its slab.
#[derive(Clone, Debug)]
pub struct Held {
    schedule: Schedule,
    sequence: Sequence,
    timeline: Timeline,
    budget: Bytes,
    bound: Option<Bound>,
}

impl Held {
    /// The budget that it was made for; the bytes that it holds where as few as possible were
    /// asked for.
    pub fn budget(&self) -> Bytes {
        self.budget
    }

    /// What it does, in order.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// The schedule, which the checker let pass.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// What it does, and what is held meanwhile.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The time that no plan of the bound's class within the budget beats; absent where the planner
    /// proves nothing.
    pub fn bound(&self) -> Option<Bound> {
        self.bound
    }
}

/// Plans one step so that it holds no more bytes than are asked for, wherever tensors are placed.
///
/// # Errors
/// [`FitError::Plan`] where the planner has no plan, with a proof where the budget is infeasible.
/// [`FitError::Violation`] where the checker refuses what was planned, which is a bug of this
/// crate.
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

/// The plan as the checker let it pass, at addresses that are as good as any.
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
