//! Plans for runtimes whose allocator places tensors: no addresses, so the budget bounds the bytes
//! held. Invariant: what leaves this module was checked, and holds no more than its budget.

mod moving;

use std::convert::Infallible;

use crate::analysis::Sequence;
use crate::check::held;
use crate::effort::{Effort, Meter};
use crate::fit::sequences::Sequences;
use crate::fit::{Bound, FitError};
use crate::goal::Goal;
use crate::graph::Graph;
use crate::hold::moving::hold_moving;
use crate::id::StorageId;
use crate::plan::offload::{Crossing, Home};
use crate::plan::{
    self, BoundOrder, Infeasible, Instance, Plan, PlanError, Planner, Realize, Search,
};
use crate::profile::Profile;
use crate::schedule::{Lowering, Schedule, lower};
use crate::timeline::Timeline;
use crate::tuning::min_slab::SMALLEST;
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

/// What is requested of [`hold`].
#[derive(Clone, Copy)]
pub struct HoldRequest<'a> {
    /// The number of bytes that may be held.
    pub goal: Goal,
    /// The planner that decides what runs again.
    pub planner: Planner,
    /// The storages that the budget planner may move to a tier below the device, if the machine has
    /// one, while no run needs them; if absent, nothing moves. When the step ends, no transfer is
    /// under way.
    pub may_move: Option<&'a dyn Fn(StorageId) -> bool>,
    /// The limits of the search for something better.
    pub effort: Effort<'a>,
}

/// As few bytes as the budget planner reaches with the default effort, if nothing moves.
impl Default for HoldRequest<'static> {
    fn default() -> HoldRequest<'static> {
        let (goal, planner, effort) = (Goal::Smallest, Planner::Auto, Effort::default());
        HoldRequest { goal, planner, may_move: None, effort }
    }
}

/// A plan with its budget, and a bound for that.
struct Found {
    plan: Plan,
    budget: Bytes,
    bound: Option<Bound>,
}

/// Plans one step so that it holds no more bytes than requested, wherever tensors are placed.
///
/// # Errors
/// [`FitError::Plan`] if the planner has no plan, with a proof if the budget is infeasible.
/// [`FitError::Violation`] if the checker refuses what was planned, which is a bug of this crate.
pub fn hold(graph: &Graph, profile: &Profile, request: &HoldRequest<'_>) -> Result<Held, FitError> {
    let &HoldRequest { goal, planner, may_move, ref effort } = request;
    let order = plan::base_order(graph, profile);
    let instance = Instance::new(graph, profile, &order);
    let meter = &mut Meter::new(effort);
    let found = match (planner, instance.route(), may_move) {
        (Planner::Auto, Some(route), Some(may_move)) => {
            let home = |storage| if may_move(storage) { Home::Anywhere } else { Home::Device };
            let (taken, crossing) = (Bytes::ZERO, Crossing::Never);
            let moving = Sequences { instance, route, home: &home, taken, crossing };
            hold_moving(&moving, goal, meter)?
        }
        (Planner::Auto, ..) => hold_still(instance, goal, meter).map_err(PlanError::Infeasible)?,
        (rule, ..) => by_rule(instance, rule, goal, meter)?,
    };
    checked(instance, found)
}

/// By the budget planner, which moves nothing.
fn hold_still(
    instance: Instance<'_>,
    goal: Goal,
    meter: &Meter<'_>,
) -> Result<Found, Box<Infeasible>> {
    let mut search = Search::new(instance);
    let Goal::Within(budget) = goal else {
        let plan = search.lowest(&meter.round(meter.effort().work, SMALLEST.get()));
        let (budget, mut known) = (plan.peak, NoLower(plan));
        let Ok(plan) =
            plan::fastest_from_scratch(&mut search, budget, &mut known, &meter.once_more());
        let known = known.0;
        let plan = if plan.seconds < known.seconds { plan } else { known };
        return Ok(Found { budget, plan, bound: None });
    };
    let plan = plan::fastest(&mut search, budget, meter.effort())?;
    let bound = search.bound(budget).map(|seconds| Bound::of_runs(seconds, BoundOrder::Any));
    Ok(Found { plan, budget, bound })
}

/// Plans that hold no more than one that is known.
struct NoLower(Plan);

impl Realize for NoLower {
    type Made = Plan;
    type Refusal = Infallible;
    const MAY_MISS: bool = false;

    fn realize(&mut self, plan: &Plan, _: Bytes, _: &Effort<'_>) -> Result<Plan, Bytes> {
        Ok(plan.clone())
    }

    fn smallest(
        &mut self,
        _: &mut Search<'_>,
        _: Bytes,
        _: &Meter<'_>,
    ) -> Result<(Plan, Plan), Infallible> {
        Ok((self.0.clone(), self.0.clone()))
    }
}

/// By a planner with a fixed rule, which proves nothing.
fn by_rule(
    instance: Instance<'_>,
    planner: Planner,
    goal: Goal,
    meter: &mut Meter<'_>,
) -> Result<Found, PlanError> {
    let plan = match goal {
        Goal::Smallest => plan::smallest(instance, planner, meter)?,
        Goal::Within(budget) => plan::plan_within(instance, budget, planner, meter)?,
    };
    let budget = match goal {
        Goal::Smallest => plan.peak,
        Goal::Within(budget) => budget,
    };
    Ok(Found { plan, budget, bound: None })
}

/// The plan, if the checker accepts it, at arbitrary addresses.
fn checked(instance: Instance<'_>, found: Found) -> Result<Held, FitError> {
    let Instance { graph, profile, .. } = instance;
    let Found { plan, budget, bound } = found;
    let schedule = lower(graph, profile, &plan, &Lowering::to(Goal::Within(Bytes::LIMIT)));
    let timeline = held(graph, profile, &schedule, budget)?;
    Ok(Held { schedule, sequence: plan.sequence, timeline, budget, bound })
}
