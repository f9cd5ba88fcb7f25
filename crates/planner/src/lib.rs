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
use graph::Graph;
use plan::{Infeasible, PlanError, Planner};
use profile::Profile;
use schedule::{Residents, Schedule, lower};
use thiserror::Error;
use units::Bytes;

/// A schedule that passed the checker, and what it does.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The instructions.
    pub schedule: Schedule,
    /// Their abstract execution.
    pub timeline: Timeline,
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
/// less as was missing.
pub fn fit(graph: &Graph, profile: &Profile, budget: Bytes, planner: Planner, residents: &Residents) -> Result<Fitted, FitError> {
    let order = plan::early_updates(graph, profile);
    let mut target = budget;
    loop {
        let plan = plan::plan(graph, profile, &order, target, planner).map_err(|error| asked_for(error, budget))?;
        let schedule = lower(graph, profile, &plan, budget, residents);
        if schedule.slab <= budget {
            let timeline = check(graph, profile, &schedule, budget)?;
            return Ok(Fitted { schedule, timeline });
        }
        if target == Bytes::ZERO {
            let proof = Infeasible::new(graph, profile, budget, plan);
            return Err(PlanError::Infeasible(Box::new(Infeasible { reached: schedule.slab, ..proof })).into());
        }
        target = target.saturating_sub(schedule.slab - budget);
    }
}

/// The smallest slab that `planner` reaches, with its schedule.
pub fn fit_smallest(graph: &Graph, profile: &Profile, planner: Planner, residents: &Residents) -> Result<Fitted, FitError> {
    let order = plan::early_updates(graph, profile);
    let plan = plan::smallest(graph, profile, &order, planner);
    let mut schedule = lower(graph, profile, &plan, Bytes::ZERO, residents);
    schedule.budget = schedule.slab;
    let timeline = check(graph, profile, &schedule, schedule.slab)?;
    Ok(Fitted { schedule, timeline })
}

/// The step as the graph states it: program order, nothing recomputed, nothing moved. Its peak is the unplanned one.
pub fn unplanned(graph: &Graph, profile: &Profile) -> Result<Fitted, Violation> {
    let profile = Profile { in_place: false, ..profile.clone() };
    let plan = plan::Plan { planner: Planner::None, steps: graph.program() };
    let mut schedule = lower(graph, &profile, &plan, Bytes::ZERO, &Residents::default());
    schedule.budget = schedule.slab;
    let timeline = check(graph, &profile, &schedule, schedule.slab)?;
    Ok(Fitted { schedule, timeline })
}

/// The proof names the budget that the user gave, not the smaller one that the layout asked for; and a plan whose
/// peak is within that budget, but not its addresses, is no proof that the budget is feasible.
fn asked_for(error: PlanError, budget: Bytes) -> PlanError {
    let PlanError::Infeasible(mut proof) = error;
    proof.budget = budget;
    PlanError::Infeasible(proof)
}
