//! Plans in one slab. Invariant: what fits a budget has addresses within it.

use crate::effort::{Effort, Meter};
use crate::goal::Goal;
use crate::plan::{Infeasible, Instance, Plan, Realize, Search, spread};
use crate::schedule::{Lowering, Residents, Schedule, lower};
use crate::tuning::min_slab::FLOOR;
use crate::units::Bytes;

/// A plan with addresses.
pub type Laid = (Schedule, Plan);

/// Where plans get their addresses.
#[derive(Clone, Copy)]
pub struct Slab<'a> {
    /// What is planned.
    pub instance: Instance<'a>,
    /// What stays in the slab between steps, and where.
    pub residents: &'a Residents,
}

impl Slab<'_> {
    /// Addresses for a plan.
    pub fn lay_out(&self, plan: &Plan, goal: Goal, effort: Effort<'_>) -> Schedule {
        self.lower(plan, &Lowering { effort, ..Lowering::to(goal) })
    }

    /// The smallest slab for a plan, or one that is small enough.
    pub fn smallest_of(&self, plan: &Plan, enough: Bytes, effort: Effort<'_>) -> Schedule {
        self.lower(plan, &Lowering { enough, effort, ..Lowering::to(Goal::Smallest) })
    }

    /// A share of the remaining time; all of it comes with a floor, and with at least that much
    /// work.
    pub fn rest<'e>(meter: &Meter<'e>, share: f64) -> Effort<'e> {
        let effort = meter.effort();
        let floor = if share < 1.0 { 0 } else { effort.in_proportion(FLOOR.get()) };
        Effort { floor, ..meter.round(effort.work.max(floor), share) }
    }

    /// Why a budget is too small for the smallest slab that was found.
    pub fn refusal(&self, budget: Bytes, (schedule, plan): Laid) -> Infeasible {
        Infeasible { reached: schedule.slab, ..Infeasible::new(self.instance, budget, plan) }
    }

    fn lower(&self, plan: &Plan, task: &Lowering<'_>) -> Schedule {
        let &Slab { instance: Instance { graph, profile, .. }, residents } = self;
        lower(graph, profile, plan, &Lowering { residents, ..*task })
    }
}

/// The schedule under a budget, if it is within it.
pub fn within(budget: Bytes, (schedule, plan): Laid) -> Result<Schedule, Box<Laid>> {
    match schedule.slab <= budget {
        true => Ok(Schedule { budget, ..schedule }),
        false => Err(Box::new((schedule, plan))),
    }
}

impl Realize for Slab<'_> {
    type Made = Schedule;
    type Refusal = Box<Laid>;
    const MAY_MISS: bool = true;

    /// Spread, if the budget allows, so that other ranks wait less; else as it is.
    fn realize(
        &mut self,
        plan: &Plan,
        budget: Bytes,
        &effort: &Effort<'_>,
    ) -> Result<Schedule, Bytes> {
        let spread = spread(self.instance, plan, budget);
        let spread = (spread != *plan).then(|| self.lay_out(&spread, Goal::Within(budget), effort));
        if let Some(schedule) = spread.filter(|schedule| schedule.slab <= budget) {
            return Ok(schedule);
        }
        let schedule = self.lay_out(plan, Goal::Within(budget), effort);
        if schedule.slab <= budget { Ok(schedule) } else { Err(schedule.slab - plan.peak) }
    }

    fn smallest(
        &mut self,
        search: &mut Search<'_>,
        budget: Bytes,
        meter: &Meter<'_>,
    ) -> Result<(Plan, Schedule), Box<Laid>> {
        let laid = self.lowest(search, budget, meter);
        let plan = laid.1.clone();
        within(budget, laid).map(|schedule| (plan, schedule))
    }
}
