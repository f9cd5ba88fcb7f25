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

/// One turn of planning and laying out.
struct Turn {
    /// The planner is asked for this part of the budget less.
    slack: f64,
    /// The part of the effort at which its search ends.
    search: f64,
    /// The part of the effort at which the search for addresses ends.
    layout: f64,
}

/// Less slack costs less time of the step, more slack packs sooner. How these and the figures below
/// were chosen: `doc/theory/recompute.md`.
const TURNS: [Turn; 8] = [
    Turn { slack: 0.0, search: 0.4, layout: 0.5 },
    Turn { slack: 0.003, search: 0.62, layout: 0.76 },
    Turn { slack: 0.008, search: 0.82, layout: 0.88 },
    Turn { slack: 0.02, search: 0.91, layout: 0.94 },
    Turn { slack: 0.045, search: 0.96, layout: 0.975 },
    Turn { slack: 0.08, search: 0.985, layout: 0.99 },
    Turn { slack: 0.13, search: 0.992, layout: 0.995 },
    Turn { slack: 0.2, search: 0.997, layout: 1.0 },
];
/// The part of the effort that the first turn spends on addresses before it looks again in earnest.
const FIRST_LAYOUT: f64 = 0.03;
/// Once addresses are found, the search for a faster plan ends when what is left of the effort is
/// this many times what the last layout took, so that the faster plan's addresses can be found too.
const FINAL_LAYOUT_MARGIN: f64 = 1.5;
/// The part of the effort that is left for those addresses at least.
const FINAL_LAYOUT: f64 = 0.03;
/// A plan that is faster by less than this part of the step is not worth new addresses.
const LEAST_GAIN: f64 = 1e-6;
/// A slab of at most this many times the bytes held is compact.
const COMPACT: f64 = 1.02;
/// The part of the effort that is spent on making a slab compact that fits already.
const COMPACTION: f64 = 0.3;
/// The part of the effort that the bound gets for the plan of a planner that proves nothing.
const BOUND: f64 = 0.1;
/// The part of the effort that a refusal gets at least, to name a budget that is feasible.
const REFUSAL: f64 = 0.08;

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
                let found = self.in_turns(&mut search, budget, residents, &meter, &mut first);
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
            Ok(None) => self.smallest(budget, residents, &meter),
            Err(error) => Err(error.into()),
        };
        (result, first)
    }

    /// Turn by turn with less of the budget, as long as addresses do not pack.
    fn in_turns(
        &self,
        search: &mut Search<'_>,
        budget: Bytes,
        residents: &Residents,
        meter: &Meter<'_>,
        first: &mut Option<Seconds>,
    ) -> Option<Schedule> {
        let lay = |plan: &Plan, until: f64| {
            let effort = meter.rest_until(until);
            let task = Lowering { goal: Goal::Within(budget), residents, effort };
            lower(self.graph, self.profile, plan, &task)
        };
        let seconds = |plan: &Plan| self.profile.total(&plan.runs());
        let mut missing = Bytes(u64::MAX);
        // Until here there is time to search, if addresses take as long as they did.
        let mut latest = 1.0 - FINAL_LAYOUT;
        for (number, turn) in TURNS.iter().enumerate() {
            // What was missing in the turn before, and a tenth of it, may be less than the turn
            // would leave.
            let slack = Bytes((budget.0 as f64 * turn.slack) as u64)
                .min(Bytes(missing.0.saturating_add(missing.0 / 10)));
            let answer = search
                .plan(budget.saturating_sub(slack), &meter.rest_until(turn.search.min(latest)));
            first.get_or_insert(answer.first);
            let Some(plan) = answer.plan else { break };
            let before = meter.share();
            let mut schedule =
                lay(&plan, if number == 0 { turn.search + FIRST_LAYOUT } else { turn.layout });
            latest = latest.min(1.0 - FINAL_LAYOUT_MARGIN * (meter.share() - before));
            if number == 0 && schedule.slab > budget && meter.share() < turn.layout {
                schedule = lay(&plan, turn.layout);
            }
            if schedule.slab <= budget {
                // What is left of the effort may find a faster one, that packs too.
                if meter.share() >= latest {
                    return Some(schedule);
                }
                let faster =
                    search.plan(budget.saturating_sub(slack), &meter.rest_until(latest)).plan;
                let faster = faster
                    .filter(|faster| seconds(faster).0 < seconds(&plan).0 * (1.0 - LEAST_GAIN));
                let faster =
                    faster.map(|faster| lay(&faster, 1.0)).filter(|faster| faster.slab <= budget);
                return Some(faster.unwrap_or(schedule));
            }
            let peak = plan::simulate(self.graph, self.profile, &plan.runs()).curve.peak;
            missing = schedule.slab - peak;
        }
        // What is known to need less may pack, if not as fast.
        search.within(budget).map(|plan| lay(&plan, 1.0)).find(|schedule| schedule.slab <= budget)
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

    /// The plan with the smallest peak has the last word: either its addresses fit, or its slab is
    /// the smallest budget known to be feasible.
    fn smallest(
        &self,
        budget: Bytes,
        residents: &Residents,
        meter: &Meter<'_>,
    ) -> Result<Fitted, FitError> {
        let left = meter.rest_until(1.0);
        let effort = Effort {
            deadline: Seconds(left.deadline.0.max(meter.effort().deadline.0 * REFUSAL)),
            floor: meter.floor_left(),
            ..left
        };
        let plan = smallest(self.graph, self.profile, self.order, self.planner, &effort)?;
        let task = Lowering { goal: Goal::Within(budget), residents, effort };
        let schedule = lower(self.graph, self.profile, &plan, &task);
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
}

/// The plan with the smallest peak that a planner reaches: the same one whatever was planned
/// before.
pub fn smallest(
    graph: &Graph,
    profile: &Profile,
    order: &[NodeId],
    planner: Planner,
    effort: &Effort<'_>,
) -> Result<Plan, PlanError> {
    match planner {
        Planner::Auto => {
            let effort = Effort { floor: 0, ..*effort };
            Ok(Search::new(graph, profile, order).smallest(&effort))
        }
        planner => plan::smallest(graph, profile, order, planner, &mut Meter::new(effort)),
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
