//! Planning and laying out, in turns. Invariant: a schedule that leaves this module was checked,
//! and its slab is within the budget.
//!
//! A plan limits bytes held, a slab consists of addresses, and lifetimes do not always pack. A
//! planner with a fixed rule then plans again with a budget reduced by what was missing. The budget
//! planner shares its effort with the layout, and plans for slightly less from turn to turn,
//! because a little slack makes packing much easier. If nothing packs, the smallest slab decides.

mod bound;
mod moving;
mod rule;
mod rungs;
pub mod sequences;
mod slab;
mod smallest;
mod tiers;
pub mod turns;

pub(crate) use bound::carry_to_smaller_budgets;
pub use bound::{Actions, Bound, ScheduleClass};
use thiserror::Error;

use crate::check::{Checked, Violation};
use crate::effort::{Effort, Meter};
use crate::exit::{Coded, Exit, Refusal};
use crate::fit::rule::Rule;
use crate::fit::slab::{Laid, Slab};
use crate::graph::Graph;
use crate::machine::Route;
use crate::plan::{
    self, BoundOrder, Improvement, Infeasible, Instance, PlanError, Planner, Rounds, Search,
};
use crate::profile::Profile;
use crate::schedule::{Instruction, Residents, Schedule};
use crate::timeline::Timeline;
use crate::tuning::bound::AFTERWARDS;
use crate::units::{Bytes, Seconds};

/// A schedule that fits and was checked, with a bound that no schedule of a class beats.
#[derive(Clone, Debug)]
pub struct Fitted {
    checked: Checked,
    bound: Option<Bound>,
    limit: Option<Box<Infeasible>>,
    adopted: Option<Planner>,
    improvements: Vec<Improvement>,
    /// When half of the search was over; absent if it had no deadline.
    middle: Option<Seconds>,
}

/// What the second half of a search found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SecondHalf {
    /// The first plan.
    First,
    /// A step that is this much faster; zero if none.
    Faster(Seconds),
}

impl Fitted {
    /// The proof that the schedule was checked; the engine takes nothing else.
    pub fn checked(&self) -> &Checked {
        &self.checked
    }

    /// The schedule, which the checker accepted.
    pub fn schedule(&self) -> &Schedule {
        self.checked.schedule()
    }

    /// What the schedule does: its abstract execution by the checker.
    pub fn timeline(&self) -> &Timeline {
        self.checked.timeline()
    }

    /// The time that no schedule of the bound's class within the budget beats; absent if the
    /// planner proves nothing.
    pub fn bound(&self) -> Option<Bound> {
        self.bound
    }

    /// The planner whose plan the budget planner took as it was; absent if the plan is its own.
    pub fn adopted(&self) -> Option<Planner> {
        self.adopted
    }

    /// When a plan within the budget was found that is faster than all before it; nothing of a
    /// planner with a fixed rule, of plans that move what they hold, and of the smallest slab.
    pub fn improvements(&self) -> &[Improvement] {
        &self.improvements
    }

    /// What the second half of the search found: how much more time may help. Absent where
    /// [`Fitted::improvements`] are, and if the search had no deadline or was interrupted.
    pub fn second_half(&self) -> Option<SecondHalf> {
        let (middle, last) = (self.middle?, self.improvements.last()?);
        let first_half = self.improvements.iter().take_while(|it| it.at.0 <= middle.0);
        Some(match first_half.last() {
            Some(before) => SecondHalf::Faster(Seconds(before.seconds.0 - last.seconds.0)),
            None => SecondHalf::First,
        })
    }

    /// Why the slab is no smaller, if the smallest was requested and nothing may move: the refusal
    /// of a budget of one byte less.
    pub fn limit(&self) -> Option<&Infeasible> {
        self.limit.as_deref()
    }

    /// The same, which is removed from here.
    pub fn take_limit(&mut self) -> Option<Box<Infeasible>> {
        self.limit.take()
    }

    /// The bound, to be raised.
    pub(crate) fn bound_mut(&mut self) -> Option<&mut Bound> {
        self.bound.as_mut()
    }

    /// The same schedule under another budget with the bound of that, if the slab fits into it.
    pub(crate) fn within(&self, budget: Bytes, bound: Option<Bound>) -> Option<Fitted> {
        let checked = self.checked.within(budget)?;
        let improvements = self.improvements.clone();
        Some(Fitted { limit: None, checked, bound, improvements, ..*self })
    }
}

/// Why a step does not fit.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FitError {
    /// The planner has no plan; if the budget is the reason, with a proof.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The checker refused a schedule: a bug of this crate, reported instead of executed.
    #[error("the schedule that was made is wrong and was not executed; please report this: {0}")]
    Violation(#[from] Violation),
}

impl Coded for FitError {
    fn exit(&self) -> Exit {
        match self {
            FitError::Plan(error) => error.exit(),
            FitError::Violation(error) => error.exit(),
        }
    }

    fn refusal(&self) -> Option<Refusal> {
        match self {
            FitError::Plan(error) => error.refusal(),
            FitError::Violation(_) => None,
        }
    }
}

impl FitError {
    /// The proof, if the budget is infeasible.
    pub fn infeasible(&self) -> Option<&Infeasible> {
        match self {
            FitError::Plan(PlanError::Infeasible(proof)) => Some(proof),
            FitError::Plan(_) | FitError::Violation(_) => None,
        }
    }
}

/// A planner for one budget after another, which remembers what it found.
pub struct BudgetedPlanner<'a> {
    slab: Slab<'a>,
    planner: Planner,
    /// What the budget planner remembers; absent for the others, which have a fixed rule.
    search: Option<Search<'a>>,
    /// For each budget, the time that no schedule within it beats, even if it moves what it holds.
    proven: Vec<(Bytes, Seconds)>,
}

impl<'a> BudgetedPlanner<'a> {
    /// Nothing is known yet.
    pub fn new(
        instance: Instance<'a>,
        planner: Planner,
        residents: &'a Residents,
    ) -> BudgetedPlanner<'a> {
        let search = (planner == Planner::Auto).then(|| Search::new(instance));
        BudgetedPlanner { slab: Slab { instance, residents }, planner, search, proven: Vec::new() }
    }

    /// The bound that the planner knows for schedules within a budget.
    pub fn bound(&self, budget: Bytes) -> Option<Bound> {
        if self.route().is_some() {
            let proven = self.proven.iter().filter(|&&(within, _)| budget <= within);
            let total = self.slab.instance.seconds();
            return Some(Bound::of_moves(proven.fold(total, |most, &(_, least)| most.max(least))));
        }
        let seconds = self.search.as_ref()?.bound(budget)?;
        Some(Bound::of_runs(seconds, BoundOrder::Any))
    }

    /// The route over which its plans may move what they hold.
    fn route(&self) -> Option<Route> {
        self.slab.instance.route().filter(|_| self.planner.moves())
    }

    fn rule(&self) -> Rule<'a> {
        Rule { planner: self.planner, slab: self.slab }
    }

    /// A schedule within the budget, and how long the first plan took.
    pub fn fit(
        &mut self,
        budget: Bytes,
        effort: &Effort<'_>,
    ) -> (Result<Fitted, FitError>, Seconds) {
        let mut meter = Meter::new(effort);
        let (mut first, mut improvements) = (None, Vec::new());
        let found = match (self.route(), &mut self.search) {
            (None, Some(search)) => {
                let rounds = Rounds::new(search, budget, &mut self.slab).run(effort);
                (first, improvements) = (Some(rounds.first), rounds.improvements);
                rounds.made.map_err(|smallest| self.refusal(budget, *smallest))
            }
            (None, None) => self.rule().fit(budget, &mut meter, &mut first),
            (Some(route), _) => self.found_and_proven(route, budget, &mut meter, &mut first),
        };
        let first = first.unwrap_or(meter.elapsed());
        let took = meter.elapsed().0;
        let is_timed = meter.has_deadline() && took < Effort::LATE.0;
        let middle = is_timed.then(|| Seconds(meter.now().0 - took / 2.0));
        let result = found.map_err(FitError::from).and_then(|schedule| {
            let bound = self.bound(budget).or_else(|| self.bound_of(&schedule, budget, &meter));
            let adopted = self.adopted(&schedule);
            Ok(Fitted { adopted, improvements, middle, ..self.checked(schedule, bound)? })
        });
        (result, first)
    }

    /// The bound of schedules whose first runs have the order of this one, if that is the order
    /// that the planner was given; else of schedules in any order.
    fn bound_of(&self, schedule: &Schedule, budget: Bytes, meter: &Meter<'_>) -> Option<Bound> {
        let instance = self.slab.instance;
        let runs = schedule.instructions.iter().filter_map(|instruction| match instruction {
            Instruction::Run(call) => Some(call.node),
            Instruction::Recompute(_)
            | Instruction::Free(_)
            | Instruction::Start(_)
            | Instruction::Wait(_) => None,
        });
        let order = if runs.eq(instance.order.iter().copied()) {
            BoundOrder::Given
        } else {
            BoundOrder::Any
        };
        let effort = meter.rest_until((meter.share() + AFTERWARDS.get()).min(1.0));
        let known = schedule.runs();
        let seconds = plan::lower_bound(instance, order, budget, &known, &effort)?;
        Some(Bound::of_runs(seconds, order))
    }

    /// The smallest slab that the planner reaches.
    pub fn smallest(&mut self, effort: &Effort<'_>) -> Result<Fitted, FitError> {
        let meter = Meter::new(effort);
        let route = self.route();
        let schedule = match (&mut self.search, route) {
            (None, _) => self.rule().smallest(&meter)?.0,
            // A schedule that was made to fit a known slab has that as its budget.
            (Some(search), None) => {
                let schedule = self.slab.named(search, &meter).0;
                Schedule { budget: schedule.slab, ..schedule }
            }
            (Some(search), Some(route)) => self.slab.smallest_with_moves(search, route, &meter),
        };
        let limit = route.is_none().then(|| {
            let plan = self.slab.instance.plan(self.planner, schedule.runs());
            let below = schedule.slab.saturating_sub(Bytes(1));
            Box::new(self.proof(below, (schedule.clone(), plan)))
        });
        let adopted = self.adopted(&schedule);
        Ok(Fitted { limit, adopted, ..self.checked(schedule, None)? })
    }

    fn adopted(&self, schedule: &Schedule) -> Option<Planner> {
        // A schedule that recomputes nothing is attributed to no other planner.
        let search = self.search.as_ref().filter(|_| schedule.recomputed() > 0)?;
        search.rule_of(&schedule.runs().into())
    }

    fn refusal(&self, budget: Bytes, laid: Laid) -> PlanError {
        PlanError::Infeasible(Box::new(self.proof(budget, laid)))
    }

    /// A refusal; the smallest budget that it names as feasible is the smallest slab.
    fn proof(&self, budget: Bytes, laid: Laid) -> Infeasible {
        let proof = self.slab.refusal(budget, laid);
        let least = self.search.as_ref().filter(|_| self.route().is_none());
        let least = least.map_or(Bytes::ZERO, Search::least_budget);
        Infeasible { needed: proof.needed.max(least), ..proof }
    }

    fn checked(&self, schedule: Schedule, bound: Option<Bound>) -> Result<Fitted, Violation> {
        checked(self.slab.instance.graph, self.slab.instance.profile, schedule, bound)
    }
}

/// The schedule, if the checker accepts it.
pub fn checked(
    graph: &Graph,
    profile: &Profile,
    schedule: Schedule,
    bound: Option<Bound>,
) -> Result<Fitted, Violation> {
    Ok(Fitted {
        checked: Checked::new(graph, profile, schedule)?,
        bound,
        limit: None,
        adopted: None,
        improvements: Vec::new(),
        middle: None,
    })
}
