//! tightfit plans a training step into a memory budget.
//!
//! This crate is pure: no files, no clock, no threads. What happens to a step, in order, is [`fit`]: the graph is
//! profiled, updates move up behind their gradients, a planner decides what to recompute, the plan becomes a schedule
//! with addresses, and an independent checker executes it abstractly. Nothing leaves this function unchecked.

pub mod check;
pub mod graph;
pub mod machine;
pub mod plan;
pub mod profile;
pub mod schedule;
pub mod units;

use check::{Timeline, Violation, check};
use graph::{Graph, NodeId};
use plan::{Effort, Infeasible, Plan, PlanError, Planner, Search};
use profile::Profile;
use schedule::{Residents, Schedule, lower};
use thiserror::Error;
use units::{Bytes, Seconds};

/// A schedule that passed the checker, and what it does.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The instructions.
    pub schedule: Schedule,
    /// Their abstract execution.
    pub timeline: Timeline,
    /// No schedule within the budget takes less; absent where the planner proves nothing.
    pub bound: Option<Bound>,
}

/// A proven lower bound on the time of every schedule within a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Seconds of the whole step.
    pub seconds: Seconds,
    /// Which schedules it speaks of.
    pub order: BoundOrder,
}

/// The schedules that a bound speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundOrder {
    /// Those that run every node for the first time in the order of the graph.
    Given,
    /// All.
    Any,
}

impl BoundOrder {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            BoundOrder::Given => "given",
            BoundOrder::Any => "any",
        }
    }
}

/// One budget of a ladder, and what became of it.
#[derive(Debug)]
pub struct Rung {
    /// The budget.
    pub budget: Bytes,
    /// The schedule, or why there is none.
    pub result: Result<Fitted, FitError>,
    /// Until the first plan within the budget was known, by the effort's clock.
    pub first: Seconds,
    /// Until the schedule was made and checked.
    pub total: Seconds,
}

/// Why a step does not fit.
#[derive(Debug, Error)]
pub enum FitError {
    /// The planner has no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The checker refused a schedule: a bug of this crate, reported instead of executed.
    #[error("the schedule that was made is wrong and was not executed; please report this: {0}")]
    Violation(#[from] Violation),
}

/// Fits one step into `budget` bytes.
///
/// Addresses cost more than the bytes held where lifetimes do not pack; then the planner is asked again for as much
/// less as was missing. Its plan with the smallest peak has the last word: either its addresses fit, or its slab is the
/// smallest budget known to be feasible.
pub fn fit(
    graph: &Graph,
    profile: &Profile,
    budget: Bytes,
    planner: Planner,
    residents: &Residents,
    effort: &Effort<'_>,
) -> Result<Fitted, FitError> {
    let order = plan::early_updates(graph, profile);
    let mut asked = Asked::new(graph, profile, &order, planner);
    asked.fit(budget, residents, effort).0
}

/// Fits one step into each of several budgets, given in rising order, with the effort for each. What fits into a smaller
/// budget is a candidate for every larger one, so a larger budget never gives a slower schedule.
pub fn ladder(graph: &Graph, profile: &Profile, budgets: &[Bytes], planner: Planner, effort: &Effort<'_>) -> Vec<Rung> {
    let order = plan::early_updates(graph, profile);
    let mut asked = Asked::new(graph, profile, &order, planner);
    let mut fastest: Option<Fitted> = None;
    let mut rungs = Vec::with_capacity(budgets.len());
    for &budget in budgets {
        let start = (effort.clock)();
        let (mut result, first) = asked.fit(budget, &Residents::default(), effort);
        let seconds = |fitted: &Fitted| fitted.timeline.seconds;
        if let Some(smaller) = &fastest
            && result.as_ref().map_or(true, |fitted| seconds(fitted) > seconds(smaller))
        {
            let bound = asked.bound(budget);
            result = Ok(Fitted { schedule: Schedule { budget, ..smaller.schedule.clone() }, bound, ..smaller.clone() });
        }
        fastest = result.as_ref().ok().cloned().or(fastest);
        rungs.push(Rung { budget, result, first, total: Seconds((effort.clock)().0 - start.0) });
    }
    rungs
}

/// The smallest slab that `planner` reaches, with its schedule.
pub fn fit_smallest(
    graph: &Graph,
    profile: &Profile,
    planner: Planner,
    residents: &Residents,
    effort: &Effort<'_>,
) -> Result<Fitted, FitError> {
    let order = plan::early_updates(graph, profile);
    let plan = smallest(graph, profile, &order, planner, effort);
    let mut schedule = lower(graph, profile, &plan, Bytes::ZERO, residents, effort);
    schedule.budget = schedule.slab;
    Ok(checked(graph, profile, schedule, None)?)
}

/// The plan with the smallest peak that a planner reaches: the same one whatever was planned before.
fn smallest(graph: &Graph, profile: &Profile, order: &[NodeId], planner: Planner, effort: &Effort<'_>) -> Plan {
    match planner {
        Planner::Auto => Search::new(graph, profile, order).smallest(effort),
        planner => plan::smallest(graph, profile, order, planner),
    }
}

/// A planner that is asked for one budget after another.
struct Asked<'a> {
    graph: &'a Graph,
    profile: &'a Profile,
    order: &'a [NodeId],
    planner: Planner,
    /// What the budget planner remembers.
    search: Option<Search<'a>>,
}

/// Parts of an effort: until when the planner searches, and until when addresses are looked for in what it found; turn
/// by turn, as long as they are not found. The last turn repeats.
const TURNS: [(f64, f64); 4] = [(0.5, 0.75), (0.8, 0.9), (0.92, 0.96), (0.98, 1.0)];
/// If addresses are found at once in the first plan, it is worth searching on for a faster one, until here.
const SEARCH: (f64, f64) = (0.9, 0.97);
/// What "at once" means.
const GLANCE: f64 = 0.03;
/// Where addresses do not pack, the planner is asked for this part of the budget less, and for more from turn to turn.
const SLACK: f64 = 0.002;

impl<'a> Asked<'a> {
    fn new(graph: &'a Graph, profile: &'a Profile, order: &'a [NodeId], planner: Planner) -> Asked<'a> {
        let search = (planner == Planner::Auto).then(|| Search::new(graph, profile, order));
        Asked { graph, profile, order, planner, search }
    }

    fn bound(&self, budget: Bytes) -> Option<Bound> {
        let seconds = self.search.as_ref()?.bound(budget)?;
        Some(Bound { seconds, order: BoundOrder::Any })
    }

    /// A schedule within the budget, and how long the first plan took.
    fn fit(&mut self, budget: Bytes, residents: &Residents, effort: &Effort<'_>) -> (Result<Fitted, FitError>, Seconds) {
        let (graph, profile) = (self.graph, self.profile);
        let start = (effort.clock)();
        let since = || Seconds((effort.clock)().0 - start.0);
        let mut first = None;
        let mut target = budget;
        for turn in 0.. {
            let (search, layout) = TURNS[turn.min(TURNS.len() - 1)];
            let plan = match self.plan(target, &effort.part(search, since())) {
                Ok((plan, soon)) => {
                    first = first.or(soon);
                    plan
                }
                Err(PlanError::Infeasible(_)) => break,
                Err(error) => return (Err(error.into()), since()),
            };
            let lay = |plan: &Plan, until: f64| lower(graph, profile, plan, budget, residents, &effort.part(until, since()));
            let glance = if turn == 0 { search + GLANCE } else { layout };
            let mut schedule = lay(&plan, glance);
            let at_once = schedule.slab <= budget;
            if !at_once && turn == 0 {
                schedule = lay(&plan, layout);
            }
            if schedule.slab <= budget {
                if at_once && turn == 0 && self.search.is_some() {
                    schedule = self.faster(budget, &plan, residents, effort, since()).unwrap_or(schedule);
                }
                let result = checked(graph, profile, schedule, self.bound(budget));
                return (result.map_err(FitError::from), first.unwrap_or(since()));
            }
            // Asked for no less than this plan holds, the planner would answer with this plan again.
            let Some(less) = plan::simulate(graph, profile, &plan.steps).curve.peak.0.checked_sub(1) else { break };
            let missing = match self.search {
                Some(_) if turn + 1 < TURNS.len() => Bytes((budget.0 as f64 * SLACK * (turn + 1) as f64) as u64),
                _ => schedule.slab - budget,
            };
            target = target.saturating_sub(missing.min(schedule.slab - budget)).min(Bytes(less));
        }
        // Its plan with the smallest peak has the last word.
        let plan = smallest(graph, profile, self.order, self.planner, &effort.part(1.0, since()));
        let schedule = lower(graph, profile, &plan, budget, residents, &effort.part(1.0, since()));
        let first = first.unwrap_or(since());
        if schedule.slab <= budget {
            let result = checked(graph, profile, schedule, self.bound(budget));
            return (result.map_err(FitError::from), first);
        }
        let proof = Infeasible::new(graph, profile, budget, plan);
        let needed = self.search.as_ref().map_or(proof.needed, |search| proof.needed.max(search.least_budget()));
        (Err(PlanError::Infeasible(Box::new(Infeasible { reached: schedule.slab, needed, ..proof })).into()), first)
    }

    /// Searches on after a plan whose addresses were found at once.
    fn faster(&mut self, budget: Bytes, found: &Plan, residents: &Residents, effort: &Effort<'_>, passed: Seconds) -> Option<Schedule> {
        let start = (effort.clock)();
        let since = || Seconds((effort.clock)().0 - start.0 + passed.0);
        let (plan, _) = self.plan(budget, &effort.part(SEARCH.0, passed)).ok()?;
        if self.profile.total(&plan.steps) >= self.profile.total(&found.steps) {
            return None;
        }
        let schedule = lower(self.graph, self.profile, &plan, budget, residents, &effort.part(SEARCH.1, since()));
        (schedule.slab <= budget).then_some(schedule)
    }

    /// A plan, and how long the first one took where the planner says so.
    fn plan(&mut self, budget: Bytes, effort: &Effort<'_>) -> Result<(Plan, Option<Seconds>), PlanError> {
        let Some(search) = &mut self.search else {
            return Ok((plan::plan(self.graph, self.profile, self.order, budget, self.planner)?, None));
        };
        let answer = search.plan(budget, effort);
        match answer.plan {
            Some(plan) => Ok((plan, Some(answer.first))),
            None => Err(PlanError::Infeasible(Box::new(Infeasible::new(self.graph, self.profile, budget, search.lowest())))),
        }
    }
}

/// The step as the graph states it: program order, nothing recomputed, nothing moved. Its peak is the unplanned one.
pub fn unplanned(graph: &Graph, profile: &Profile) -> Result<Fitted, Violation> {
    let profile = Profile { in_place: false, ..profile.clone() };
    let plan = plan::Plan { planner: Planner::None, steps: graph.program() };
    let mut schedule = lower(graph, &profile, &plan, Bytes::LIMIT, &Residents::default(), &Effort::default());
    schedule.budget = schedule.slab;
    checked(graph, &profile, schedule, None)
}

fn checked(graph: &Graph, profile: &Profile, schedule: Schedule, bound: Option<Bound>) -> Result<Fitted, Violation> {
    let timeline = check(graph, profile, &schedule, schedule.budget)?;
    Ok(Fitted { schedule, timeline, bound })
}
