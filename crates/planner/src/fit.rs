//! Planning and laying out, in turns. Invariant: a schedule that leaves this room was checked, and
//! its slab is within the budget.
//!
//! Plans speak of bytes, slabs of addresses, and lifetimes do not always pack. A planner with a
//! fixed rule is asked again for as much less as was missing. The budget planner shares its effort
//! with the layout: a little less is asked of it from turn to turn, because a little slack makes
//! packing much easier.

use thiserror::Error;

use crate::check::{Checked, Violation};
use crate::effort::{Effort, Meter};
use crate::goal::Goal;
use crate::graph::Graph;
use crate::id::NodeId;
use crate::plan::{self, BoundOrder, Infeasible, Plan, PlanError, Planner, Search};
use crate::profile::Profile;
use crate::schedule::{Instruction, Lowering, Residents, Schedule, lower};
use crate::timeline::Timeline;
use crate::units::{Bytes, Seconds};

/// A schedule that fits: checked, and beside it what no other schedule of a class can beat.
#[derive(Clone, Debug)]
pub struct Fitted {
    checked: Checked,
    bound: Option<Bound>,
}

impl Fitted {
    /// The proof that the schedule was checked; the engine takes nothing else.
    pub fn checked(&self) -> &Checked {
        &self.checked
    }

    /// The schedule, which the checker let pass.
    pub fn schedule(&self) -> &Schedule {
        self.checked.schedule()
    }

    /// What the schedule does: its abstract execution by the checker.
    pub fn timeline(&self) -> &Timeline {
        self.checked.timeline()
    }

    /// The time that no schedule of the bound's class within the budget beats; absent where the
    /// planner proves nothing.
    pub fn bound(&self) -> Option<Bound> {
        self.bound
    }

    /// The same schedule under another budget with its bound, where the slab fits into that.
    pub(crate) fn within(&self, budget: Bytes, bound: Option<Bound>) -> Option<Fitted> {
        Some(Fitted { checked: self.checked.within(budget)?, bound })
    }
}

/// A proven lower bound on the time of every schedule of a class within a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// The time of the whole step that no schedule of the class beats.
    pub seconds: Seconds,
    /// The schedules that the bound speaks of.
    pub class: ScheduleClass,
}

/// A class of schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleClass {
    /// The orders of first runs that are in the class.
    pub order: BoundOrder,
    /// What the schedules of the class may do.
    pub actions: Actions,
}

/// What the schedules of a class may do to hold less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actions {
    /// They run, recompute and free. A schedule that moves what it holds is of another class and
    /// may be faster.
    Runs,
}

impl Bound {
    /// A bound for schedules that run and recompute.
    pub(crate) fn of_runs(seconds: Seconds, order: BoundOrder) -> Bound {
        Bound { seconds, class: ScheduleClass { order, actions: Actions::Runs } }
    }
}

/// Why a step does not fit.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FitError {
    /// The planner has no plan; where the budget is the reason, with a proof.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The checker refused a schedule: a bug of this crate, reported instead of executed.
    #[error("the schedule that was made is wrong and was not executed; please report this: {0}")]
    Violation(#[from] Violation),
}

impl FitError {
    /// The proof, where the budget is infeasible.
    pub fn infeasible(&self) -> Option<&Infeasible> {
        match self {
            FitError::Plan(PlanError::Infeasible(proof)) => Some(proof),
            FitError::Plan(_) | FitError::Violation(_) => None,
        }
    }
}

/// What a planner is given beside the budget.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// What stays where it is.
    pub residents: &'a Residents,
    /// How hard to look for something better.
    pub effort: &'a Effort<'a>,
}

/// A slab of at most this many times the bytes held is compact.
const COMPACT: f64 = 1.02;
/// The part of the effort that is spent on making a slab compact that fits already.
const COMPACTION: f64 = 0.3;
/// The part of the effort that the bound gets for the plan of a planner that proves nothing.
const BOUND: f64 = 0.1;
/// The part of the effort in which the smallest plan is searched for, where that is all that is
/// asked for: a search within its budget has to find it again, after other attempts.
const SMALLEST: f64 = 0.5;
/// The part of what is left then that goes into a first look for addresses of each of the smallest
/// plans.
const LOOK: f64 = 0.08;

/// A planner that is asked for one budget after another, and remembers what it found.
pub struct BudgetedPlanner<'a> {
    graph: &'a Graph,
    profile: &'a Profile,
    order: &'a [NodeId],
    planner: Planner,
    /// What the budget planner remembers.
    search: Option<Search<'a>>,
}

impl<'a> BudgetedPlanner<'a> {
    /// A planner for the nodes of `order`.
    pub fn new(
        graph: &'a Graph,
        profile: &'a Profile,
        order: &'a [NodeId],
        planner: Planner,
    ) -> BudgetedPlanner<'a> {
        let search = (planner == Planner::Auto).then(|| Search::new(graph, profile, order));
        BudgetedPlanner { graph, profile, order, planner, search }
    }

    /// What no schedule within a budget beats, as far as the planner knows.
    pub fn bound(&self, budget: Bytes) -> Option<Bound> {
        let seconds = self.search.as_ref()?.bound(budget)?;
        Some(Bound::of_runs(seconds, BoundOrder::Any))
    }

    /// A schedule within the budget, and how long the first plan took.
    pub fn fit(&mut self, budget: Bytes, terms: Terms<'_>) -> (Result<Fitted, FitError>, Seconds) {
        let mut meter = Meter::new(terms.effort);
        let residents = terms.residents;
        let mut first = None;
        let found = match self.search.take() {
            Some(mut search) => {
                let found = self.in_rounds(&mut search, budget, terms, &mut first);
                self.search = Some(search);
                Ok(found)
            }
            None => self.by_rule(budget, residents, &mut meter, &mut first),
        };
        let first = first.unwrap_or(meter.elapsed());
        let result = match found {
            Ok(Some(schedule)) => {
                let bound = self.bound(budget).or_else(|| self.bound_of(&schedule, budget, &meter));
                checked(self.graph, self.profile, schedule, bound).map_err(FitError::from)
            }
            Ok(None) => self.refuse(budget, residents, &meter),
            Err(error) => Err(error.into()),
        };
        (result, first)
    }

    /// In rounds, each plan with addresses of its own; the fastest that pack.
    fn in_rounds(
        &self,
        search: &mut Search<'_>,
        budget: Bytes,
        terms: Terms<'_>,
        first: &mut Option<Seconds>,
    ) -> Option<Schedule> {
        let rounds = search.in_rounds(budget, terms.effort, |plan, &effort| {
            let task = Lowering { goal: Goal::Within(budget), residents: terms.residents, effort };
            let schedule = lower(self.graph, self.profile, plan, &task);
            if schedule.slab <= budget {
                return Ok(schedule);
            }
            let peak = plan::simulate(self.graph, self.profile, &plan.runs()).curve.peak;
            Err(schedule.slab - peak)
        });
        *first = Some(rounds.first);
        rounds.taken
    }

    /// As much less as was missing, until addresses pack.
    fn by_rule(
        &self,
        budget: Bytes,
        residents: &Residents,
        meter: &mut Meter<'_>,
        first: &mut Option<Seconds>,
    ) -> Result<Option<Schedule>, PlanError> {
        let mut target = budget;
        loop {
            let &BudgetedPlanner { graph, profile, order, planner, .. } = self;
            let plan = match plan::plan_within(graph, profile, order, target, planner, meter) {
                Ok(plan) => plan,
                Err(PlanError::Infeasible(proof)) if proof.prediction.is_some() => {
                    return Err(self.mispredicted(*proof, budget, residents, meter));
                }
                Err(PlanError::Infeasible(_)) => return Ok(None),
                Err(error) => return Err(error),
            };
            first.get_or_insert(meter.elapsed());
            let lay = |limit: Bytes, until: f64| {
                let effort = meter.rest_until(until);
                let task = Lowering { goal: Goal::Within(limit), residents, effort };
                lower(self.graph, self.profile, &plan, &task)
            };
            let schedule = lay(budget, 1.0);
            let peak = plan::simulate(self.graph, self.profile, &plan.runs()).curve.peak;
            if schedule.slab <= budget {
                // Addresses that fit may be spread out all the same.
                let compact = Bytes((peak.0 as f64 * COMPACT) as u64);
                let smaller = (schedule.slab > compact)
                    .then(|| lay(compact, (meter.share() + COMPACTION).min(1.0)));
                let smaller = smaller.filter(|smaller| smaller.slab < schedule.slab);
                return Ok(Some(Schedule { budget, ..smaller.unwrap_or(schedule) }));
            }
            // Asked for no less than this plan holds, the planner would give the same plan again.
            let Some(less) = peak.0.checked_sub(1) else { return Ok(None) };
            target = target.saturating_sub(schedule.slab - budget).min(Bytes(less));
        }
    }

    /// The refusal of a planner that goes by predictions: another plan of it that happens to fit
    /// would not be its answer. The budget that it names is one for addresses, too.
    fn mispredicted(
        &self,
        proof: Infeasible,
        budget: Bytes,
        residents: &Residents,
        meter: &Meter<'_>,
    ) -> PlanError {
        let (goal, effort) = (Goal::Within(proof.reached), meter.rest_until(1.0));
        let task = Lowering { goal, residents, effort };
        let slab = lower(self.graph, self.profile, &proof.plan, &task).slab;
        let reached = proof.reached.max(slab);
        PlanError::Infeasible(Box::new(Infeasible { budget, reached, ..proof }))
    }

    /// What no schedule beats that runs everything for the first time in the order of this one, if
    /// that is the order that the planner was given, or else in any.
    fn bound_of(&self, schedule: &Schedule, budget: Bytes, meter: &Meter<'_>) -> Option<Bound> {
        let runs = schedule.instructions.iter().filter_map(|instruction| match instruction {
            Instruction::Run(call) => Some(call.node),
            Instruction::Recompute(_)
            | Instruction::Free(_)
            | Instruction::Start(_)
            | Instruction::Wait(_) => None,
        });
        let order =
            if runs.eq(self.order.iter().copied()) { BoundOrder::Given } else { BoundOrder::Any };
        let effort = meter.rest_until((meter.share() + BOUND).min(1.0));
        let known = schedule.runs();
        let seconds = plan::lower_bound(
            self.graph,
            self.profile,
            self.order,
            order,
            budget,
            &known,
            &effort,
        )?;
        Some(Bound::of_runs(seconds, order))
    }

    /// The smallest slab that the planner reaches.
    pub fn smallest(&mut self, terms: Terms<'_>) -> Result<Fitted, FitError> {
        let meter = Meter::new(terms.effort);
        let (schedule, _) = self.lowest(Goal::Smallest, terms.residents, &meter)?;
        Ok(checked(self.graph, self.profile, schedule, None)?)
    }

    /// The smallest slab has the last word: either it fits, or it is the smallest budget known to
    /// be feasible.
    fn refuse(
        &mut self,
        budget: Bytes,
        residents: &Residents,
        meter: &Meter<'_>,
    ) -> Result<Fitted, FitError> {
        let (schedule, plan) = self.lowest(Goal::Within(budget), residents, meter)?;
        if schedule.slab <= budget {
            return Ok(checked(self.graph, self.profile, schedule, self.bound(budget))?);
        }
        let proof = Infeasible::new(self.graph, self.profile, budget, plan);
        let needed = self
            .search
            .as_ref()
            .map_or(proof.needed, |search| proof.needed.max(search.least_budget()));
        Err(PlanError::Infeasible(Box::new(Infeasible { reached: schedule.slab, needed, ..proof }))
            .into())
    }

    /// Of the plans with small peaks, the fastest whose slab is within a goal, or else the one with
    /// the smallest slab.
    fn lowest(
        &mut self,
        goal: Goal,
        residents: &Residents,
        meter: &Meter<'_>,
    ) -> Result<(Schedule, Plan), PlanError> {
        let plans = match &mut self.search {
            Some(search) => search.smallest(&meter.round(meter.effort().work, SMALLEST)),
            None => {
                let mut meter = meter.clone();
                vec![plan::smallest(
                    self.graph,
                    self.profile,
                    self.order,
                    self.planner,
                    &mut meter,
                )?]
            }
        };
        let lay = |plan: &Plan, share: f64| {
            let effort = meter.round(meter.effort().work, share);
            lower(self.graph, self.profile, plan, &Lowering { goal, residents, effort })
        };
        let capacity = match goal {
            Goal::Within(capacity) => capacity,
            Goal::Smallest => Bytes::ZERO,
        };
        // What is beyond the goal, and then the time.
        let rank = |schedule: &Schedule, plan: &Plan| {
            (schedule.slab.max(capacity), self.profile.total(&plan.runs()).0)
        };
        let none = || Plan::of_runs(self.planner, self.order.to_vec());
        let mut best: Option<(Schedule, Plan)> = None;
        let take = |share: f64, plan: Plan, best: &mut Option<(Schedule, Plan)>| {
            let peak = plan::simulate(self.graph, self.profile, &plan.runs()).curve.peak;
            if best.as_ref().is_some_and(|(best, _)| peak > best.slab.max(capacity)) {
                return;
            }
            let schedule = lay(&plan, share);
            let is_better =
                |(other, of): &(Schedule, Plan)| rank(&schedule, &plan) < rank(other, of);
            if best.as_ref().is_none_or(is_better) {
                *best = Some((schedule, plan));
            }
        };
        // A look at each, then the lowest in earnest.
        let lowest = plans.first().cloned().unwrap_or_else(none);
        for plan in plans {
            take(LOOK, plan, &mut best);
        }
        take(1.0, lowest, &mut best);
        let best = best.unwrap_or_else(|| (lay(&none(), 1.0), none()));
        Ok(best)
    }
}

/// A schedule that the checker let pass.
pub fn checked(
    graph: &Graph,
    profile: &Profile,
    schedule: Schedule,
    bound: Option<Bound>,
) -> Result<Fitted, Violation> {
    Ok(Fitted { checked: Checked::new(graph, profile, schedule)?, bound })
}
