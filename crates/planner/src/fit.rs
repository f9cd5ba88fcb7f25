//! Planning and laying out, in turns. Invariant: a schedule that leaves this room was checked, and
//! its slab is within the budget.
//!
//! Plans speak of bytes, slabs of addresses, and lifetimes do not always pack. A planner with a
//! fixed rule is asked again for as much less as was missing. The budget planner shares its effort
//! with the layout: a little less is asked of it from turn to turn, because a little slack makes
//! packing much easier. Where nothing packs, the smallest slab has the last word.

mod bound;
mod moving;
mod rungs;
pub mod sequences;
mod smallest;
mod tiers;

pub use bound::{Actions, Bound, ScheduleClass};
use thiserror::Error;

use crate::check::{Checked, Violation};
use crate::effort::{Effort, Meter};
use crate::fit::smallest::{Laid, SmallestSlab};
use crate::goal::Goal;
use crate::graph::Graph;
use crate::machine::Route;
use crate::plan::{
    self, BoundOrder, Infeasible, Instance, NotFound, Plan, PlanError, Planner, Search, spread,
};
use crate::profile::Profile;
use crate::schedule::{Instruction, Lowering, Residents, Schedule, lower};
use crate::timeline::Timeline;
use crate::units::{Bytes, Seconds};

/// A schedule that fits: checked, and beside it what no other schedule of a class can beat.
#[derive(Clone, Debug)]
pub struct Fitted {
    checked: Checked,
    bound: Option<Bound>,
    limit: Option<Box<Infeasible>>,
    adopted: Option<Planner>,
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

    /// The planner whose plan the budget planner took as it was; absent where the plan is its own.
    pub fn adopted(&self) -> Option<Planner> {
        self.adopted
    }

    /// Why it is no smaller, where the smallest slab was asked for and nothing moves: the refusal
    /// of a budget of one byte less.
    pub fn limit(&self) -> Option<&Infeasible> {
        self.limit.as_deref()
    }

    /// The same, which is not kept any longer.
    pub fn take_limit(&mut self) -> Option<Box<Infeasible>> {
        self.limit.take()
    }

    /// No schedule within a budget that is no smaller beats this either.
    pub(crate) fn raise_bound(&mut self, above: Option<Bound>) {
        if let Some(own) = &mut self.bound {
            *own = above.map_or(*own, |above| own.raised_to(above));
        }
    }

    /// The same schedule under another budget with its bound, where the slab fits into that.
    pub(crate) fn within(&self, budget: Bytes, bound: Option<Bound>) -> Option<Fitted> {
        Some(Fitted { limit: None, checked: self.checked.within(budget)?, bound, ..*self })
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
/// The part of the effort in which a rule plans a budget; the rest is for its smallest slab.
const BY_RULE: f64 = 0.3;
/// The part of the effort that goes into the smallest slab of a rule where that is all that is
/// asked for.
const LOWEST_BY_RULE: f64 = 0.55;

/// A planner that is asked for one budget after another, and remembers what it found.
pub struct BudgetedPlanner<'a> {
    instance: Instance<'a>,
    planner: Planner,
    /// What the budget planner remembers.
    search: Option<Search<'a>>,
    /// Time that no schedule which may move what it holds beats within a budget.
    proven: Vec<(Bytes, Seconds)>,
}

impl<'a> BudgetedPlanner<'a> {
    /// Nothing is known yet.
    pub fn new(instance: Instance<'a>, planner: Planner) -> BudgetedPlanner<'a> {
        let search = (planner == Planner::Auto).then(|| Search::new(instance));
        BudgetedPlanner { instance, planner, search, proven: Vec::new() }
    }

    /// What no schedule within a budget beats, as far as the planner knows.
    pub fn bound(&self, budget: Bytes) -> Option<Bound> {
        if self.route().is_some() {
            let proven = self.proven.iter().filter(|&&(within, _)| budget <= within);
            let total = self.instance.seconds();
            return Some(Bound::of_moves(proven.fold(total, |most, &(_, least)| most.max(least))));
        }
        let seconds = self.search.as_ref()?.bound(budget)?;
        Some(Bound::of_runs(seconds, BoundOrder::Any))
    }

    /// The way over which its plans may move what they hold.
    fn route(&self) -> Option<Route> {
        self.instance.route().filter(|_| self.planner.moves())
    }

    /// A schedule within the budget, and how long the first plan took.
    pub fn fit(&mut self, budget: Bytes, terms: Terms<'_>) -> (Result<Fitted, FitError>, Seconds) {
        let mut meter = Meter::new(terms.effort);
        let mut first = None;
        let found = match self.route() {
            None => self.found(budget, &mut meter, terms, &mut first),
            Some(_) => self.found_and_proven(budget, &mut meter, terms, &mut first),
        };
        let first = first.unwrap_or(meter.elapsed());
        let result = found.map_err(FitError::from).and_then(|schedule| {
            let bound = self.bound(budget).or_else(|| self.bound_of(&schedule, budget, &meter));
            let adopted = self.adopted(&schedule);
            let fitted = checked(self.instance.graph, self.instance.profile, schedule, bound)?;
            Ok(Fitted { adopted, ..fitted })
        });
        (result, first)
    }

    /// A schedule within the budget.
    fn found(
        &mut self,
        budget: Bytes,
        meter: &mut Meter<'_>,
        terms: Terms<'_>,
        first: &mut Option<Seconds>,
    ) -> Result<Schedule, PlanError> {
        let residents = terms.residents;
        match self.search.take() {
            Some(mut search) => {
                let found = match self.route() {
                    None => self.in_rounds(&mut search, budget, terms, first),
                    Some(route) => {
                        self.with_moves(&mut search, route, (budget, meter), terms, first)
                    }
                };
                self.search = Some(search);
                found.map_err(|smallest| self.refusal(budget, *smallest))
            }
            None => {
                let smallest = |meter: &Meter<'_>| {
                    let laid = self.lowest_by_rule(budget, residents, meter)?;
                    within(budget, laid).map_err(|smallest| self.refusal(budget, *smallest))
                };
                match self.by_rule(budget, residents, (meter, BY_RULE), first) {
                    Ok(Some(schedule)) => Ok(schedule),
                    Ok(None) => smallest(meter),
                    Err(PlanError::NotFound(ended)) => smallest(meter).map_err(|error| {
                        // What is named has addresses.
                        let reached = match error {
                            PlanError::Infeasible(proof) => proof.reached,
                            _ => self.slab(&ended.plan, ended.reached, residents, meter),
                        };
                        PlanError::NotFound(NotFound { budget, reached, ..*ended }.into())
                    }),
                    // A solver whose time was up may still reach its smallest slab, and goes on
                    // from there.
                    Err(unsolved @ PlanError::Unsolved { .. }) => match smallest(meter) {
                        Ok(lowest) => self
                            .by_rule(budget, residents, (meter, 1.0), first)
                            .map(|faster| faster.unwrap_or(lowest.clone()))
                            .or(Ok(lowest)),
                        Err(error @ PlanError::Infeasible(_)) => Err(error),
                        Err(_) => Err(unsolved),
                    },
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// In rounds, each plan with addresses of its own; the fastest that pack, or else the plan with
    /// the smallest slab.
    fn in_rounds(
        &self,
        search: &mut Search<'_>,
        budget: Bytes,
        terms: Terms<'_>,
        first: &mut Option<Seconds>,
    ) -> Result<Schedule, Box<Laid>> {
        let take = |plan: &Plan, effort: &Effort<'_>| self.packed(plan, budget, terms, effort);
        let rounds = search.in_rounds(budget, terms.effort, take, |search, meter| {
            let smallest = self.lowest(search, budget, terms.residents, meter);
            let plan = smallest.1.clone();
            within(budget, smallest).map(|schedule| (plan, schedule))
        });
        *first = Some(rounds.first);
        rounds.taken
    }

    /// A plan with addresses, or by how much its slab exceeds its peak where that does not fit.
    fn packed(
        &self,
        plan: &Plan,
        budget: Bytes,
        terms: Terms<'_>,
        &effort: &Effort<'_>,
    ) -> Result<Schedule, Bytes> {
        let residents = terms.residents;
        let task = Lowering { residents, effort, ..Lowering::to(Goal::Within(budget)) };
        let spread = spread(self.instance, plan, budget);
        if spread != *plan {
            let schedule = lower(self.instance.graph, self.instance.profile, &spread, &task);
            if schedule.slab <= budget {
                return Ok(schedule);
            }
        }
        let schedule = lower(self.instance.graph, self.instance.profile, plan, &task);
        if schedule.slab <= budget {
            return Ok(schedule);
        }
        Err(schedule.slab - plan.peak)
    }

    /// As much less as was missing, until addresses pack; in a part of the effort.
    fn by_rule(
        &self,
        budget: Bytes,
        residents: &Residents,
        (meter, part): (&mut Meter<'_>, f64),
        first: &mut Option<Seconds>,
    ) -> Result<Option<Schedule>, PlanError> {
        let mut target = budget;
        loop {
            let &BudgetedPlanner { instance, planner, .. } = self;
            let mut turn = meter.until(part);
            let plan = plan::plan_within(instance, target, planner, &mut turn);
            meter.spend(turn.spent() - meter.spent());
            let plan = match plan {
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
                let task = Lowering { residents, effort, ..Lowering::to(Goal::Within(limit)) };
                lower(self.instance.graph, self.instance.profile, &plan, &task)
            };
            let schedule = lay(budget, part);
            let peak = plan.peak;
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
    /// would not be its answer. The budget that it names is one for addresses, too; with more than
    /// it predicted the planner may choose otherwise, so it is asked again.
    fn mispredicted(
        &self,
        proof: Infeasible,
        budget: Bytes,
        residents: &Residents,
        meter: &Meter<'_>,
    ) -> PlanError {
        let &BudgetedPlanner { instance, planner, .. } = self;
        let slab = |plan: &Plan, least: Bytes| least.max(self.slab(plan, least, residents, meter));
        let mut reached = slab(&proof.plan, proof.reached);
        loop {
            let mut turn = meter.until(1.0);
            let larger = match plan::plan_within(instance, reached, planner, &mut turn) {
                Ok(plan) => slab(&plan, reached),
                Err(PlanError::Infeasible(above)) => slab(&above.plan, above.reached),
                // Time is up; what recomputes nothing needs no choice.
                Err(_) => {
                    reached = slab(&instance.unplanned(planner), reached);
                    break;
                }
            };
            if larger <= reached {
                break;
            }
            reached = larger;
        }
        PlanError::Infeasible(Box::new(Infeasible { budget, reached, ..proof }))
    }

    /// The slab of a plan that is to lie within a limit, in what is left of the effort.
    fn slab(&self, plan: &Plan, limit: Bytes, residents: &Residents, meter: &Meter<'_>) -> Bytes {
        let effort = meter.rest_until(1.0);
        let task = Lowering { residents, effort, ..Lowering::to(Goal::Within(limit)) };
        lower(self.instance.graph, self.instance.profile, plan, &task).slab
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
        let order = if runs.eq(self.instance.order.iter().copied()) {
            BoundOrder::Given
        } else {
            BoundOrder::Any
        };
        let effort = meter.rest_until((meter.share() + BOUND).min(1.0));
        let known = schedule.runs();
        let seconds = plan::lower_bound(self.instance, order, budget, &known, &effort)?;
        Some(Bound::of_runs(seconds, order))
    }

    /// The smallest slab that the planner reaches.
    pub fn smallest(&mut self, terms: Terms<'_>) -> Result<Fitted, FitError> {
        let meter = Meter::new(terms.effort);
        let (any, residents) = (Bytes::ZERO, terms.residents);
        let schedule = match self.search.take() {
            Some(mut search) => {
                let schedule = match self.route() {
                    None => self.lowest(&mut search, any, residents, &meter).0,
                    Some(route) => self.smallest_with_moves(&mut search, route, terms, &meter),
                };
                self.search = Some(search);
                // Those that are faster within a known slab have that for a budget.
                Schedule { budget: schedule.slab, ..schedule }
            }
            None => self.lowest_by_rule(any, residents, &meter.until(LOWEST_BY_RULE))?.0,
        };
        let limit = self.route().is_none().then(|| {
            let plan = self.instance.plan(self.planner, schedule.runs());
            let below = schedule.slab.saturating_sub(Bytes(1));
            Box::new(self.proof(below, (schedule.clone(), plan)))
        });
        let adopted = self.adopted(&schedule);
        let fitted = checked(self.instance.graph, self.instance.profile, schedule, None)?;
        Ok(Fitted { limit, adopted, ..fitted })
    }

    fn adopted(&self, schedule: &Schedule) -> Option<Planner> {
        // Who recomputes nothing takes nobody's plan.
        let search = self.search.as_ref().filter(|_| schedule.recomputed() > 0)?;
        search.rule_of(&schedule.runs().into())
    }

    fn refusal(&self, budget: Bytes, laid: Laid) -> PlanError {
        PlanError::Infeasible(Box::new(self.proof(budget, laid)))
    }

    /// The smallest budget known to be feasible is that of the smallest slab.
    fn proof(&self, budget: Bytes, (schedule, plan): Laid) -> Infeasible {
        let proof = Infeasible::new(self.instance, budget, plan);
        let least = self.search.as_ref().filter(|_| self.route().is_none());
        let least = least.map_or(Bytes::ZERO, Search::least_budget);
        let needed = proof.needed.max(least);
        Infeasible { reached: schedule.slab, needed, ..proof }
    }

    /// The smallest slab for the smallest plan of a rule, or one that is small enough.
    fn lowest_by_rule(
        &self,
        enough: Bytes,
        residents: &Residents,
        meter: &Meter<'_>,
    ) -> Result<Laid, PlanError> {
        let &BudgetedPlanner { instance, planner, .. } = self;
        // As if nothing had been asked for before.
        let mut anew = meter.above(meter.effort().floor);
        let plan = plan::smallest(instance, planner, &mut anew)?;
        let slab = SmallestSlab { instance, residents, enough, meter };
        Ok((slab.lay_out(&plan, slab.rest(1.0)), plan))
    }
}

/// The schedule under a budget, where it is within it.
fn within(budget: Bytes, (schedule, plan): Laid) -> Result<Schedule, Box<Laid>> {
    match schedule.slab <= budget {
        true => Ok(Schedule { budget, ..schedule }),
        false => Err(Box::new((schedule, plan))),
    }
}

/// A schedule that the checker let pass.
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
    })
}
