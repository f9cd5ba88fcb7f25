//! Plans: which nodes run, in which order, how often. Invariant: every plan that leaves this room is closed over its
//! inputs (each read finds its value) and its peak, re-simulated, is at most the budget it was made for.
//!
//! A pass is a plain function from graph, profile and budget to a [`Plan`] or to an [`Infeasible`] that explains.

mod capuchin;
mod chen;
mod effort;
mod infeasible;
mod order;
mod recompute;
mod rematerialize;

use thiserror::Error;

pub use capuchin::capuchin;
pub use capuchin::published::{Choice, Final, Published, Table, TableRow, published};
pub use chen::chen;
pub use effort::Effort;
pub use infeasible::{Infeasible, LiveTensor, live_tensors};
pub use order::early_updates;
pub use recompute::{Answer, Search};
pub use rematerialize::{Drop, Drops, rematerialize};

use crate::graph::{Graph, NodeId};
use crate::profile::{MemoryCurve, Profile, liveness, memory_curve};
use crate::units::{Bytes, Seconds};

/// The planners, by the name that a user gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planner {
    /// Recomputes nothing.
    None,
    /// √n segments: Chen et al. 2016.
    Chen,
    /// Greedy by bytes saved per second, the peak re-simulated after every choice: Peng et al. 2020, corrected.
    Capuchin,
    /// The budget planner: searches from the plans of all others, and proves how far it is from optimal.
    Auto,
}

impl Planner {
    /// Every planner with its name.
    pub const ALL: [(Planner, &'static str); 4] =
        [(Planner::None, "none"), (Planner::Chen, "chen"), (Planner::Capuchin, "capuchin"), (Planner::Auto, "auto")];

    /// The planner called `name`.
    pub fn from_name(name: &str) -> Option<Planner> {
        Self::ALL.iter().find(|(_, n)| *n == name).map(|(planner, _)| *planner)
    }

    /// Its plans are starts of the budget planner's search.
    fn is_peer(self) -> bool {
        !matches!(self, Planner::None | Planner::Auto)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// A sequence of runs. A node that stands in it again is recomputed.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The planner that made it; never `auto`.
    pub planner: Planner,
    /// Nodes in the order in which they run.
    pub steps: Vec<NodeId>,
}

/// Why there is no plan.
#[derive(Debug, Error)]
pub enum PlanError {
    /// No plan of this planner fits.
    #[error("{0}")]
    Infeasible(Box<Infeasible>),
}

/// Bytes and seconds of a plan, simulated.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// Bytes at each step.
    pub curve: MemoryCurve,
    /// Seconds of all steps.
    pub seconds: Seconds,
}

/// Simulates a sequence of runs.
pub fn simulate(graph: &Graph, profile: &Profile, steps: &[NodeId]) -> Simulation {
    let lives = liveness(graph, profile, steps);
    Simulation { curve: memory_curve(graph, profile, steps, &lives), seconds: profile.total(steps) }
}

/// Plans the sequence `order` under a budget with one planner.
pub fn plan(graph: &Graph, profile: &Profile, order: &[NodeId], budget: Bytes, planner: Planner) -> Result<Plan, PlanError> {
    match planner {
        Planner::None => none(graph, profile, order, budget),
        Planner::Chen => chen(graph, profile, order, budget),
        Planner::Capuchin => capuchin(graph, profile, order, budget),
        Planner::Auto => auto(graph, profile, order, budget),
    }
}

/// Recomputes nothing: feasible where the peak of `order` fits.
pub fn none(graph: &Graph, profile: &Profile, order: &[NodeId], budget: Bytes) -> Result<Plan, PlanError> {
    let plan = Plan { planner: Planner::None, steps: order.to_vec() };
    if simulate(graph, profile, order).curve.peak <= budget {
        return Ok(plan);
    }
    Err(PlanError::Infeasible(Box::new(Infeasible::new(graph, profile, budget, plan))))
}

/// The budget planner with the default effort; [`Search`] takes others.
fn auto(graph: &Graph, profile: &Profile, order: &[NodeId], budget: Bytes) -> Result<Plan, PlanError> {
    let effort = Effort::default();
    let mut search = Search::new(graph, profile, order);
    if let Some(plan) = search.plan(budget, &effort).plan {
        return Ok(plan);
    }
    let least = search.least_budget();
    let smallest = Search::new(graph, profile, order).smallest(&effort);
    if simulate(graph, profile, &smallest.steps).curve.peak <= budget {
        return Ok(smallest);
    }
    let proof = Infeasible::new(graph, profile, budget, smallest);
    Err(PlanError::Infeasible(Box::new(Infeasible { needed: proof.needed.max(least), ..proof })))
}

/// The plan with the smallest peak that a planner reaches, whatever it costs.
pub fn smallest(graph: &Graph, profile: &Profile, order: &[NodeId], planner: Planner) -> Plan {
    match plan(graph, profile, order, Bytes::ZERO, planner) {
        Ok(plan) => plan,
        Err(PlanError::Infeasible(proof)) => proof.plan,
    }
}
