//! In which parts: the step as it is and in chunks, planned within one budget. Invariant: what
//! is chosen is no slower than any other plan that was found, or needs no more if the smallest
//! budget is requested; with a limit of work and no deadline, the choice depends on the work alone.
//!
//! Each has a first plan, for a small part of the effort, unless its calls alone take longer than a
//! plan that is there, or it is proven to need more than one. The most promising one, by its plan
//! and its bound, is then planned with all of the work, or for the rest of the time.

use std::cmp::Ordering;

use tightfit::effort::Effort;
use tightfit::graph::Graph;
use tightfit::plan::{Infeasible, PlanError, needed};
use tightfit::profile::Profile;
use tightfit::split::{Parts, Sums};
use tightfit::units::{Bytes, Seconds};
use tightfit::{FitError, Fitted};

use crate::budget::Budget;
use crate::fit::{FitTask, FittedGraph, FittingError, fit_graph, whole_budget};
use crate::reserve::reserve;

/// The divisions that are tried, those that need least first.
pub const TRIED: [Parts; 3] = [
    Parts { chunks: 16, sums: Sums::AtOnce },
    Parts { chunks: 16, sums: Sums::Totals },
    Parts { chunks: 4, sums: Sums::AtOnce },
];
/// The part of the effort for a first plan.
const FIRST: f64 = 0.06;

/// The same where the smallest plan is requested, which takes longer to find.
const FIRST_SMALLEST: f64 = 0.25;

/// The most seconds of a first plan, however long the search may take.
const FIRST_SECONDS: f64 = 5.0;

/// Nothing new is tried once less than this part of the time is left.
const LAST: f64 = 0.2;

/// How a step may be divided.
#[derive(Clone, Copy)]
pub struct Division<'a> {
    /// Into these parts; if `None`, as makes the best plan.
    pub given: Option<Parts>,
    /// The step in these parts; `None` if it cannot be divided.
    pub graph: &'a dyn Fn(Parts) -> Option<Graph>,
    /// What the step in these parts costs.
    pub profile: &'a dyn Fn(Parts, &Graph) -> Profile,
}

/// A step in chunks, and what came of planning it.
#[derive(Debug)]
pub struct Divided {
    /// In which parts.
    pub parts: Parts,
    /// The step in these.
    pub graph: Graph,
    /// What it costs.
    pub profile: Profile,
    /// The plan, or why there is none.
    pub planned: Result<FittedGraph, FittingError>,
    /// The step as it is, unplanned, if it is divided: slowdowns and shares of budgets refer to it.
    pub whole: Option<Fitted>,
}

/// Fits a step as it is, or in chunks, if it can be divided: in those that are given, else as is
/// fastest of what fits, or smallest if that is requested. If none fits, the answer is the one that
/// needs least. A share of a budget is one of the step as it is.
pub fn fit_divided(graph: Graph, division: Division<'_>, task: &FitTask<'_>) -> Divided {
    let profile = (division.profile)(Parts::WHOLE, &graph);
    let first = Some(division.given.unwrap_or(TRIED[0])).filter(|&parts| parts != Parts::WHOLE);
    let divided = first.and_then(|parts| Some((parts, (division.graph)(parts)?)));
    let search = divided.and_then(|divided| Some((Search::of(&graph, &profile, task)?, divided)));
    let mut search = match search {
        Some((search, (parts, divided))) if division.given.is_some() => {
            let profile = (division.profile)(parts, &divided);
            return search.plan(parts, (divided, profile), task.effort);
        }
        Some((search, _)) if !search.fits() => search,
        _ => {
            let planned = fit_graph(&graph, &profile, task);
            return Divided { parts: Parts::WHOLE, graph, profile, planned, whole: None };
        }
    };
    let rates = |graph: &Graph| Profile::new(graph, task.machine).total(&graph.compute_nodes()).0;
    // Rates say what measuring would be wasted on.
    let measured = profile.total(&graph.compute_nodes()).0 / rates(&graph);
    let least = search.least(&graph);
    let mut forms = vec![Form { parts: Parts::WHOLE, graph, profile: Some(profile), least }];
    for parts in TRIED {
        let Some(graph) = (division.graph)(parts) else { continue };
        // There may not be that many blocks of rows.
        if forms.iter().all(|known| known.graph.hash() != graph.hash()) {
            let least = search.least(&graph);
            forms.push(Form { parts, graph, profile: None, least });
        }
    }
    let least = forms.iter().map(|form| form.least).min();
    let share = if search.is_smallest() { FIRST_SMALLEST } else { FIRST };
    if search.is_smallest() {
        // Where least is needed, least will be reached; often that is less than others need.
        forms.sort_by_key(|form| form.least);
    }
    let effort = first_effort(task.effort, share);
    let mut planned: Vec<Divided> = Vec::new();
    for Form { parts, graph, profile, .. } in forms {
        if let Some(best) = planned.iter_mut().min_by(|one, other| search.compare(one, other)) {
            let at_least = Seconds(rates(&graph) * measured);
            if !search.can_be_better(at_least, best) || search.needs_more(&graph, best) {
                continue;
            }
            if search.left().0 < LAST * task.effort.deadline.0 {
                search.admit(&graph, best);
                continue;
            }
        }
        let before = (task.effort.clock)().0;
        let profile = profile.unwrap_or_else(|| (division.profile)(parts, &graph));
        search.start.0 += (task.effort.clock)().0 - before;
        let calls = profile.total(&graph.compute_nodes());
        if planned.iter().all(|known| search.can_be_better(calls, known)) {
            planned.push(search.plan(parts, (graph, profile), effort));
        }
    }
    let mut best = search.improved(planned);
    // What is proven of one way to divide the step is not proven of the others.
    if let (Ok(planned), Some(least)) = (&mut best.planned, least)
        && let Some(limit) = &mut planned.limit
    {
        limit.needed = limit.needed.min(least);
    }
    best
}

/// The effort for a first plan.
fn first_effort(effort: Effort<'_>, share: f64) -> Effort<'_> {
    let part = effort.part(share);
    let is_timed = part.deadline.0.is_finite();
    let deadline = if is_timed { part.deadline.0.min(FIRST_SECONDS) } else { part.deadline.0 };
    Effort { deadline: Seconds(deadline), ..part }
}

/// A step in some parts, before it is planned.
struct Form {
    parts: Parts,
    graph: Graph,
    /// What it costs, if that is known.
    profile: Option<Profile>,
    /// A budget that every plan of it needs.
    least: Bytes,
}

/// What all plans of a step have in common.
struct Search<'a> {
    /// With a budget in bytes, unless the smallest is requested.
    task: FitTask<'a>,
    /// The step as it is.
    unplanned: Fitted,
    /// The budget that suffices for that.
    whole: Bytes,
    /// When planning began, later by what measuring took.
    start: Seconds,
}

impl<'a> Search<'a> {
    /// None if the step or the budget is not valid.
    fn of(graph: &Graph, profile: &Profile, task: &FitTask<'a>) -> Option<Search<'a>> {
        let start = (task.effort.clock)();
        let reserve = task.reserve(graph);
        let unplanned = tightfit::unplanned(graph, profile).ok()?;
        let budget = match whole_budget(task, &unplanned, reserve).ok()? {
            Some(budget) => Budget::Absolute(budget),
            None => Budget::Smallest,
        };
        let whole = unplanned.schedule().slab + reserve.total();
        Some(Search { task: FitTask { budget, ..*task }, unplanned, whole, start })
    }

    /// Whether the step as it is needs no plan.
    fn fits(&self) -> bool {
        matches!(self.task.budget, Budget::Absolute(budget) if self.whole <= budget)
    }

    fn plan(
        &self,
        parts: Parts,
        (graph, profile): (Graph, Profile),
        effort: Effort<'a>,
    ) -> Divided {
        let planned = fit_graph(&graph, &profile, &FitTask { effort, ..self.task });
        Divided { parts, graph, profile, planned, whole: Some(self.unplanned.clone()) }
    }

    /// Whether a step whose calls take that long may have a better plan than this one.
    fn can_be_better(&self, seconds: Seconds, best: &Divided) -> bool {
        match &best.planned {
            Ok(planned) if !self.is_smallest() => seconds < planned.fitted.timeline().seconds,
            _ => true,
        }
    }

    /// Whether every plan of a step needs more than the budget, or than the best one.
    fn needs_more(&self, graph: &Graph, best: &Divided) -> bool {
        let Ok(planned) = best.planned.as_ref() else { return false };
        let least = self.least(graph);
        least > planned.budget || self.is_smallest() && least == planned.budget
    }

    /// A step that was not planned may fit where another one does not: that is no proof then.
    fn admit(&self, graph: &Graph, best: &mut Divided) {
        if let Err(FittingError::Fit(FitError::Plan(PlanError::Infeasible(proof)))) =
            &mut best.planned
        {
            proof.needed = proof.needed.min(self.least(graph));
        }
    }

    /// A budget that every plan of a step needs.
    fn least(&self, graph: &Graph) -> Bytes {
        let profile = Profile::new(graph, self.task.machine);
        needed(graph, &profile, self.task.planner) + reserve(graph, self.task.machine).total()
    }

    fn compare(&self, one: &Divided, other: &Divided) -> Ordering {
        let [one, other] = [one, other].map(|it| self.rank(&it.planned));
        one.partial_cmp(&other).expect("times are numbers")
    }

    /// What is better is less: what fits, then what takes least of what is to be saved.
    fn rank(&self, planned: &Result<FittedGraph, FittingError>) -> (u8, [f64; 2]) {
        match planned {
            Ok(planned) => {
                let seconds = planned.fitted.timeline().seconds.0;
                let bytes = planned.budget.0 as f64;
                (0, if self.is_smallest() { [bytes, seconds] } else { [seconds, bytes] })
            }
            Err(FittingError::Fit(error)) => (1, needs(error)),
            Err(_) => (2, [0.0; 2]),
        }
    }

    fn is_smallest(&self) -> bool {
        self.task.budget == Budget::Smallest
    }

    /// The time that is left.
    fn left(&self) -> Seconds {
        let effort = &self.task.effort;
        let elapsed = (effort.clock)().0 - self.start.0;
        Seconds((effort.deadline.0 - elapsed).max(0.0))
    }

    /// The best of all, after the most promising one was planned with as much work as if its parts
    /// had been asked for, or in the time that is left.
    fn improved(&self, mut planned: Vec<Divided>) -> Divided {
        planned.sort_by(|one, other| self.compare(one, other));
        let by_promise = |a: &&Divided, b: &&Divided| self.promise(a).total_cmp(&self.promise(b));
        let known = planned.iter().min_by(by_promise).expect("the first form is planned");
        let deadline = self.left();
        if deadline > Seconds(0.0) && !self.is_best(known) {
            let effort = Effort { deadline, ..self.task.effort };
            let costs = (known.graph.clone(), known.profile.clone());
            planned.push(self.plan(known.parts, costs, effort));
        }
        // Of several that are as good, the last one has the better bound.
        planned.into_iter().rev().min_by(|one, other| self.compare(one, other)).expect("not empty")
    }

    /// What is to be saved, halfway between the plan and what is proven: the first plan of a step
    /// of many calls is far from its best.
    fn promise(&self, divided: &Divided) -> f64 {
        let (fits, [plan, _]) = self.rank(&divided.planned);
        let proven = match &divided.planned {
            Ok(planned) if !self.is_smallest() => planned.fitted.bound().map(|it| it.seconds.0),
            _ => None,
        };
        if fits > 0 { f64::INFINITY } else { (plan + proven.unwrap_or(plan)) / 2.0 }
    }

    /// Whether nothing can be better than a plan of its graph.
    fn is_best(&self, divided: &Divided) -> bool {
        let Ok(planned) = &divided.planned else { return false };
        match &planned.limit {
            Some(limit) => limit.is_proven(),
            None => planned
                .fitted
                .bound()
                .is_some_and(|bound| planned.fitted.timeline().seconds <= bound.seconds),
        }
    }
}

/// What no schedule needs less than, and the smallest budget known: if the step that needs least is
/// proven not to fit, none does.
fn needs(error: &FitError) -> [f64; 2] {
    let of = |proof: &Infeasible| [proof.needed, proof.reached].map(|bytes| bytes.0 as f64);
    error.infeasible().map_or([f64::INFINITY; 2], of)
}
