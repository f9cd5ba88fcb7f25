//! In which parts: the step as it is and in chunks, planned within one budget. Invariant: what
//! is chosen is no slower than any other plan that was found, or needs no more if the smallest
//! budget is requested; with a limit of work and no deadline, the choice depends on the work alone.
//!
//! Each has a first plan, for a small part of the effort, unless its calls alone take longer than a
//! plan that is there, or it is proven to need more than one. The most promising one, by its plan
//! and its bound, is then planned with all of the work, or for the rest of the time.

mod first;

use std::cmp::Ordering;

use tightfit::effort::Effort;
use tightfit::exit::{Coded, Refusal};
use tightfit::graph::Graph;
use tightfit::plan::{PlanError, needed};
use tightfit::profile::Profile;
use tightfit::split::Parts;
use tightfit::units::{Bytes, Seconds};
use tightfit::{FitError, Fitted};

use crate::budget::Budget;
use crate::fit::divided::first::First;
use crate::fit::{FitTask, FittedGraph, FittingError, fit_graph, whole_budget};
use crate::reserve::reserve;

/// The divisions of the loss that are tried.
const OF_LOSS: [Parts; 3] = [Parts::of_loss(16), Parts::with_totals(16), Parts::of_loss(4)];
/// Those with layers in chunks, too: they cost more, so they are tried where nothing else fits, or
/// the smallest plan is requested.
const WITH_LAYERS: [Parts; 2] =
    [Parts::of_loss(16).and_layers(4), Parts::with_totals(16).and_layers(4)];
/// That of a step whose loss cannot be divided, tried as seldom.
const ONLY_LAYERS: Parts = Parts::of_layers(4);

/// All divisions that are tried.
pub fn tried() -> impl Iterator<Item = Parts> {
    OF_LOSS.into_iter().chain(WITH_LAYERS).chain([ONLY_LAYERS])
}

/// What seems to need at most this times as much as another one, or as there is, may need no more.
const NEAR: f64 = 1.25;

/// Nothing new is tried once less than this part of the time is left,
const LAST: f64 = 0.2;

/// but that many seconds are used however short the deadline is: most of what it may be late.
const LEAST: f64 = 0.2;

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
    let search = Search::of(&graph, &profile, task);
    if let Some(parts) = division.given.filter(|&parts| parts != Parts::WHOLE)
        && let (Some(search), Some(divided)) = (&search, (division.graph)(parts))
    {
        let profile = (division.profile)(parts, &divided);
        return search.plan(parts, (divided, profile), task.effort);
    }
    let may_divide = |search: &Search<'_>| division.given.is_none() && !search.fits();
    let Some(search) = search.filter(may_divide) else {
        let planned = fit_graph(&graph, &profile, task);
        return Divided { parts: Parts::WHOLE, graph, profile, planned, whole: None };
    };
    if (division.graph)(OF_LOSS[0]).is_none() {
        return fit_layers(&search, division, (graph, profile));
    }
    let mut first = First::of(search, division, (graph, profile));
    if first.search.is_smallest() {
        // Totals need least, if they may be tried.
        for by_need in [[OF_LOSS[1], OF_LOSS[0]], [WITH_LAYERS[1], WITH_LAYERS[0]]] {
            by_need.into_iter().find(|&parts| first.plan(&[parts]));
        }
        first.plan(&OF_LOSS);
    } else {
        first.plan(&OF_LOSS);
        let mut with_layers = WITH_LAYERS;
        let seem =
            |one: &&Divided, other: &&Divided| seems_to_need(one).total_cmp(&seems_to_need(other));
        let nearest = first.planned.iter().min_by(seem).map(|known| known.parts.sums);
        with_layers.sort_by_key(|parts| Some(parts.sums) != nearest);
        for parts in with_layers {
            if first.has_none() {
                first.plan(&[parts]);
            }
        }
        first.plan_late();
    }
    let First { search, planned, least, untried, .. } = first;
    let mut best = search.improved(planned);
    best.admit_smaller(least);
    untried.into_iter().for_each(|least| best.admit_smaller(least));
    best
}

/// Fits a step whose loss cannot be divided: as it is, or else, and if the smallest plan is
/// requested, with its layers in chunks, each with all of the effort.
fn fit_layers(
    search: &Search<'_>,
    division: Division<'_>,
    (graph, profile): (Graph, Profile),
) -> Divided {
    let effort = search.task.effort;
    let mut whole = search.plan(Parts::WHOLE, (graph, profile), effort);
    if whole.planned.is_err() || search.is_smallest() && !search.is_best(&whole) {
        let layers = (division.graph)(ONLY_LAYERS).filter(|it| !search.needs_more(it, &whole));
        if let Some(graph) = layers {
            let least = search.least(&graph);
            let profile = (division.profile)(ONLY_LAYERS, &graph);
            let layers = search.plan(ONLY_LAYERS, (graph, profile), effort);
            whole.admit_smaller(least);
            whole = search.best(vec![layers, whole]);
        }
    }
    match whole.parts {
        Parts::WHOLE => Divided { whole: None, ..whole },
        _ => whole,
    }
}

impl Divided {
    /// What is proven of one way to divide the step is not proven of the others: a smaller plan of
    /// those may need as little as that.
    fn admit_smaller(&mut self, least: Bytes) {
        if let Ok(planned) = &mut self.planned
            && let Some(limit) = &mut planned.limit
        {
            limit.needed = limit.needed.min(least);
        }
    }

    /// Another division of the step, planned or not, may fit where this one does not: nothing is
    /// proven of less than it needs.
    fn admit_any(&mut self, least: Bytes) {
        if let Err(FittingError::Fit(FitError::Plan(PlanError::Infeasible(proof)))) =
            &mut self.planned
        {
            proof.needed = proof.needed.min(least);
        }
    }

    /// What no schedule needs less than, if the budget is refused.
    fn needed(&self) -> Option<Bytes> {
        match &self.planned {
            Err(FittingError::Fit(error)) => error.infeasible().map(|proof| proof.needed),
            _ => None,
        }
    }
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

    /// The time of all calls of a step, by the rates of the machine.
    fn rates(&self, graph: &Graph) -> Seconds {
        Profile::new(graph, self.task.machine).total(&graph.compute_nodes())
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
            Err(FittingError::Fit(error)) => (1, [reached(error), 0.0]),
            Err(_) => (2, [0.0; 2]),
        }
    }

    fn is_smallest(&self) -> bool {
        self.task.budget == Budget::Smallest
    }

    fn elapsed(&self) -> f64 {
        (self.task.effort.clock)().0 - self.start.0
    }

    /// The time that is left.
    fn left(&self) -> Seconds {
        Seconds((self.task.effort.deadline.0 - self.elapsed()).max(0.0))
    }

    /// Whether it is too late for something new.
    fn is_late(&self) -> bool {
        self.elapsed() > (self.task.effort.deadline.0 * (1.0 - LAST)).max(LEAST)
    }

    /// The best of all, after the most promising one was planned with as much work as if its parts
    /// had been asked for, or in the time that is left.
    fn improved(&self, mut planned: Vec<Divided>) -> Divided {
        planned.sort_by(|one, other| self.compare(one, other));
        let key = |it: &Divided| (self.promise(it), seems_to_need(it), it.parts != Parts::WHOLE);
        let by_promise = |a: &&Divided, b: &&Divided| key(a).partial_cmp(&key(b)).expect("numbers");
        let known = planned.iter().min_by(by_promise).expect("the first form is planned");
        let near = self.near(&planned);
        let rest = Effort { deadline: self.left(), ..self.task.effort };
        let is_left =
            rest.deadline > Seconds(0.0) && near.is_none_or(|near| near.parts != known.parts);
        let rest = is_left.then_some((known, rest));
        let again = rest.into_iter().chain(near.map(|near| (near, self.task.effort)));
        let again = again.filter(|(known, _)| !self.is_best(known)).map(|(known, effort)| {
            self.plan(known.parts, (known.graph.clone(), known.profile.clone()), effort)
        });
        let again: Vec<Divided> = again.collect();
        planned.extend(again);
        self.best(planned)
    }

    /// The best of several; of those that are as good, the last one, which has the better bound. If
    /// none fits, nothing is proven of less than any of them needs.
    fn best(&self, planned: Vec<Divided>) -> Divided {
        let needed = planned.iter().filter_map(Divided::needed).min();
        let by_rank = |one: &Divided, other: &Divided| self.compare(one, other);
        let mut best = planned.into_iter().rev().min_by(by_rank).expect("one is planned");
        needed.into_iter().for_each(|needed| best.admit_any(needed));
        best
    }

    /// What may be better than its first plan seemed: the step as it is, if the smallest plan is
    /// requested and it seems to need little more than the least; if nothing fitted without layers
    /// in chunks, what seemed to need little more than the budget without.
    fn near<'d>(&self, planned: &'d [Divided]) -> Option<&'d Divided> {
        let has_layers = planned.iter().any(|it| it.parts.layers > 1);
        let fits_without = planned.iter().any(|it| it.parts.layers == 1 && it.planned.is_ok());
        let (most, of): (f64, fn(&Divided) -> bool) = match self.task.budget {
            Budget::Absolute(budget) if has_layers && !fits_without => {
                (budget.0 as f64, |it| it.parts.layers == 1)
            }
            Budget::Smallest => {
                (planned.iter().map(seems_to_need).fold(f64::INFINITY, f64::min), |it| {
                    it.parts == Parts::WHOLE
                })
            }
            _ => return None,
        };
        let near = planned.iter().filter(|it| of(it) && seems_to_need(it) <= NEAR * most);
        near.min_by(|one, other| seems_to_need(one).total_cmp(&seems_to_need(other)))
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

/// The smallest budget known that fits a plan, if it is not proven that there is none.
fn seems_to_need(divided: &Divided) -> f64 {
    match &divided.planned {
        Ok(planned) => planned.budget.0 as f64,
        Err(error) => match error.refusal() {
            Some(Refusal { is_proven: false, reached: Some(reached), .. }) => reached.0 as f64,
            _ => f64::INFINITY,
        },
    }
}

/// The smallest budget known that fits a plan.
fn reached(error: &FitError) -> f64 {
    error.infeasible().map_or(f64::INFINITY, |proof| proof.reached.0 as f64)
}
