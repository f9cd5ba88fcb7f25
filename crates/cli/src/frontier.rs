//! What each of several budgets costs. Invariant: budgets fall evenly from what the unplanned step
//! needs to the smallest one known to be feasible, and a larger one is never slower.

use tightfit::effort::Effort;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::{PlanError, Planner};
use tightfit::profile::Profile;
use tightfit::split::{Parts, split};
use tightfit::units::{Bytes, Seconds};
use tightfit::{FitError, Fitted, FittedPoint, Goal, Request};
use tightfit_report::FrontierPoint;

use crate::batches::Batches;
use crate::failure::Result;
use crate::figures::{Figures, overhead};
use crate::input;

/// One budget.
pub struct Point {
    /// The whole budget, reserve included.
    pub budget: Bytes,
    /// In which parts the step is computed.
    pub parts: Parts,
    /// What the plan costs, or why there is none.
    pub figures: Result<Figures, Refusal>,
    /// How long planning took.
    pub seconds: Seconds,
}

/// Why there is no plan for a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is proven that none fits.
    Proven,
    /// None was found, which proves nothing.
    NotFound,
}

impl Refusal {
    /// The refusal that an error means; an error about the step, not the budget, is none.
    fn of(error: PlanError) -> Result<Refusal, PlanError> {
        match error {
            PlanError::Infeasible(proof) if proof.is_proven() => Ok(Refusal::Proven),
            PlanError::Infeasible(_) | PlanError::NotFound(_) | PlanError::Unsolved { .. } => {
                Ok(Refusal::NotFound)
            }
            error => Err(error),
        }
    }

    /// In words, for a table.
    pub fn words(self) -> &'static str {
        match self {
            Refusal::Proven => "no plan",
            Refusal::NotFound => "not found",
        }
    }
}

/// How each budget is searched.
#[derive(Clone, Copy)]
pub struct Search<'a> {
    /// Which planner plans.
    pub planner: Planner,
    /// How hard to look for something better.
    pub effort: Effort<'a>,
}

impl Search<'_> {
    /// At most how long the search takes for this many points and the smallest budget.
    pub fn of_all(self, points: u32) -> Seconds {
        Seconds(self.effort.deadline.0 * f64::from(points + 1))
    }
}

/// The ways to divide a step, of which each budget gets the best, if a plan decides.
const TRIED: [Parts; 3] = [Parts::WHOLE, Parts::of_loss(16), Parts::with_totals(16)];

/// A step as it is, or in chunks.
struct Form {
    parts: Parts,
    graph: Graph,
    profile: Profile,
    /// The part of a budget that is not the slab's.
    reserve: Bytes,
}

/// What each budget costs, the largest budget first; each is searched with the given search. The
/// step is one of these batches, of which one has the size of `sized`.
pub fn frontier(
    (sized, batches): (&Graph, Batches),
    machine: &Machine,
    unplanned: &Fitted,
    search: Search<'_>,
    points: u32,
) -> Result<Vec<Point>> {
    let forms = forms(sized, batches, machine, search.planner)?;
    let request = Request {
        goal: Goal::Smallest,
        planner: search.planner,
        effort: search.effort.part(1.0 / forms.len() as f64),
        ..Request::default()
    };
    let mut smallest = Vec::with_capacity(forms.len());
    for form in &forms {
        smallest.push(tightfit::fit(&form.graph, &form.profile, &request));
    }
    let needed = |(form, fitted): (&Form, &Result<Fitted, FitError>)| {
        fitted.as_ref().ok().map(|fitted| fitted.schedule().slab + form.reserve)
    };
    let whole = batches.accumulated(sized.clone())?;
    let most = unplanned.schedule().slab + tightfit_engine::reserve(&whole, machine).total();
    let Some(least) = forms.iter().zip(&smallest).filter_map(needed).min() else {
        return Err(smallest.remove(0).map(drop).expect_err("nothing fits").into());
    };
    let budgets = budgets(least, most, points);
    let mut found: Vec<Vec<FittedPoint>> = Vec::with_capacity(forms.len());
    for (form, smallest) in forms.iter().zip(smallest) {
        let slab = |&budget: &Bytes| budget.saturating_sub(form.reserve);
        let slabs: Vec<Bytes> = budgets.iter().map(slab).collect();
        let smallest = smallest.ok();
        found.push(tightfit::frontier(&form.graph, &form.profile, &slabs, smallest, &request));
    }
    let mut found: Vec<_> = found.into_iter().map(Vec::into_iter).collect();
    let seconds = unplanned.timeline().seconds;
    let mut points = Vec::with_capacity(budgets.len());
    for budget in budgets {
        let of_budget: Vec<FittedPoint> = found.iter_mut().filter_map(Iterator::next).collect();
        let total = Seconds(of_budget.iter().map(|point| point.total.0).sum());
        let (parts, figures) = if most <= budget {
            // A search that ended early may not have reached the plan that takes no planning.
            let figures = Figures::in_any_order(unplanned, seconds);
            (Parts::WHOLE, Ok(Figures { bound: Some(0.0), gap: Some(0.0), ..figures }))
        } else {
            best(&forms, of_budget, seconds)?
        };
        points.push(Point { budget, parts, figures, seconds: total });
    }
    points.reverse();
    Ok(points)
}

/// The step of these batches in each of the ways that are tried.
fn forms(
    sized: &Graph,
    batches: Batches,
    machine: &Machine,
    planner: Planner,
) -> Result<Vec<Form>> {
    let given = batches.parts(planner);
    let mut forms: Vec<Form> = Vec::new();
    let tried = TRIED.into_iter().filter(|&parts| batches.may_try(parts));
    for parts in given.map_or_else(|| tried.collect(), |parts| vec![parts]) {
        let graph = match split(sized, parts) {
            Ok(graph) => batches.accumulated(graph)?,
            Err(_) if given.is_none() => continue,
            Err(error) => return Err(error.into()),
        };
        let profile = input::profile(&graph, machine);
        let reserve = tightfit_engine::reserve(&graph, machine).total();
        forms.push(Form { parts, graph, profile, reserve });
    }
    Ok(forms)
}

/// The fastest plan of a budget, with a bound on all schedules in these forms.
fn best(
    forms: &[Form],
    points: Vec<FittedPoint>,
    unplanned: Seconds,
) -> Result<(Parts, Result<Figures, Refusal>)> {
    let (mut best, mut refused, mut bound) = (None, Refusal::Proven, f64::INFINITY);
    for (form, point) in forms.iter().zip(points) {
        let calls = overhead(form.profile.total(&form.graph.compute_nodes()), unplanned);
        match point.result {
            Ok(fitted) => {
                let figures = Figures::in_any_order(&fitted, unplanned);
                bound = bound.min(figures.bound.unwrap_or(calls));
                let is_better = |(_, best): &(Parts, Figures)| figures.step < best.step;
                if best.as_ref().is_none_or(is_better) {
                    best = Some((form.parts, figures));
                }
            }
            Err(FitError::Plan(error)) => {
                if Refusal::of(error)? == Refusal::NotFound {
                    (refused, bound) = (Refusal::NotFound, bound.min(calls));
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(match best {
        Some((parts, figures)) => {
            let gap = Some(figures.overhead - bound);
            (parts, Ok(Figures { bound: Some(bound), gap, ..figures }))
        }
        None => (Parts::WHOLE, Err(refused)),
    })
}

/// The points that have a plan, to be drawn.
pub fn drawn(points: &[Point]) -> Vec<FrontierPoint> {
    let drawn = points.iter().filter_map(|point| {
        let figures = point.figures.ok()?;
        Some(FrontierPoint {
            budget: point.budget,
            overhead: figures.overhead,
            bound: figures.bound,
        })
    });
    drawn.collect()
}

/// Budgets in rising order, from the smallest to what the unplanned step takes.
fn budgets(least: Bytes, most: Bytes, points: u32) -> Vec<Bytes> {
    let least = least.min(most);
    let (steps, range) = (u128::from(points.max(2) - 1), u128::from((most - least).0));
    let mut budgets: Vec<Bytes> =
        (0..=steps).map(|step| least + Bytes((range * step / steps) as u64)).collect();
    budgets.dedup();
    budgets
}
