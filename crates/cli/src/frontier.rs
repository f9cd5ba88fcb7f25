//! What each of several budgets costs. Invariant: budgets fall evenly from what the unplanned step
//! needs to the smallest one known to be feasible, and a larger one is never slower.

use tightfit::effort::Effort;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::{PlanError, Planner};
use tightfit::profile::Profile;
use tightfit::units::{Bytes, Seconds};
use tightfit::{FitError, Fitted, Goal, Request};
use tightfit_report::FrontierPoint;

use crate::failure::Result;
use crate::figures::Figures;

/// One budget.
pub struct Point {
    /// The whole budget, reserve included.
    pub budget: Bytes,
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

/// The points of a frontier, the largest budget first; each is searched with the given search.
pub fn frontier(
    graph: &Graph,
    machine: &Machine,
    profile: &Profile,
    unplanned: &Fitted,
    search: Search<'_>,
    points: u32,
) -> Result<Vec<Point>> {
    let reserve = tightfit_engine::reserve(graph, machine);
    let request = Request {
        goal: Goal::Smallest,
        planner: search.planner,
        effort: search.effort,
        ..Request::default()
    };
    let smallest = tightfit::fit(graph, profile, &request)?;
    let slabs = slabs(smallest.schedule().slab, unplanned.schedule().slab, points);
    let mut points = Vec::with_capacity(slabs.len());
    for point in tightfit::frontier(graph, profile, &slabs, Some(smallest), &request) {
        let seconds = unplanned.timeline().seconds;
        let figures = match point.result {
            // A search that ended early may not have reached the plan that takes no planning.
            _ if unplanned.schedule().slab <= point.budget => Ok(Figures {
                bound: Some(0.0),
                gap: Some(0.0),
                ..Figures::in_any_order(unplanned, seconds)
            }),
            Ok(fitted) => Ok(Figures::in_any_order(&fitted, seconds)),
            Err(FitError::Plan(error)) => Err(Refusal::of(error)?),
            Err(error) => return Err(error.into()),
        };
        points.push(Point {
            budget: point.budget + reserve.total(),
            figures,
            seconds: point.total,
        });
    }
    points.reverse();
    Ok(points)
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

/// Sizes of the slab in rising order, from the smallest to what the unplanned step takes.
fn slabs(least: Bytes, most: Bytes, points: u32) -> Vec<Bytes> {
    let least = least.min(most);
    let (steps, range) = (u128::from(points.max(2) - 1), u128::from((most - least).0));
    let mut slabs: Vec<Bytes> =
        (0..=steps).map(|step| least + Bytes((range * step / steps) as u64)).collect();
    slabs.dedup();
    slabs
}
