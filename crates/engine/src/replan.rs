//! Planning again from measurements. Invariant: a plan that is returned is predicted to be faster
//! than the plan that ran, both under the measured profile; it fits into the same slab, and has an
//! evaluation if that one did.

use thiserror::Error;
use tightfit::Goal;
use tightfit::check::check;
use tightfit::machine::Machine;
use tightfit::plan::PlanError;
use tightfit::profile::Profile;
use tightfit::schedule::Residents;
use tightfit::timeline::Timeline;
use tightfit::units::Seconds;
use tightfit::{FitError, Request, fit};

use crate::execute::trial::Timings;
use crate::fit::{FitTask, FittedGraph, FittedStep, fit_evaluation};
use crate::step::Step;

/// Least fraction of a step's seconds that a new plan must save: less is within what measurements
/// vary by, and a change costs time.
const LEAST_GAIN: f64 = 0.01;

/// Why a run keeps the plan that it has.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Kept {
    /// The search found nothing that is faster by more than 1 %.
    #[error("nothing faster by more than 1 % was found")]
    NothingFaster,
    /// The search found nothing that fits.
    #[error("the search found no other plan that fits")]
    NoPlan,
    /// The evaluation would not fit.
    #[error("the evaluation does not fit next to what was found")]
    NoEvaluation,
    /// The plan that runs cannot be judged by what was measured.
    #[error(transparent)]
    Failed(#[from] FitError),
}

/// The result of planning again.
pub struct Replanned {
    /// The measured costs of the step.
    pub profile: Profile,
    /// The plan that ran, under this profile.
    pub before: Timeline,
    /// The faster plan, or why there is none.
    pub found: Result<FittedStep, Kept>,
}

/// Plans a step once more, from what its run has measured so far, into the slab of its plan.
///
/// Without a tier, what stays from step to step keeps its place, so that changing plans moves
/// nothing.
///
/// # Errors
/// The checker refuses the plan that ran, which is a bug of this program.
pub fn replan(
    step: &Step,
    known: &FittedStep,
    measured: &Timings,
    task: &FitTask<'_>,
) -> Result<Replanned, FitError> {
    let (graph, schedule) = (&step.training, known.training.fitted.schedule());
    let profile = measured.profile(&known.profile, schedule);
    let slab = known.training.slab();
    let before = check(graph, &profile, schedule, slab)?;
    let found = faster(step, known, &profile, before.seconds, measured, task);
    Ok(Replanned { profile, before, found })
}

fn faster(
    step: &Step,
    known: &FittedStep,
    profile: &Profile,
    seconds: Seconds,
    measured: &Timings,
    task: &FitTask<'_>,
) -> Result<FittedStep, Kept> {
    let FittedGraph { fitted, budget, reserve, .. } = &known.training;
    let graph = &step.training;
    let machine = Machine { hierarchy: profile.hierarchy.clone(), ..task.machine.clone() };
    let task = FitTask { machine: &machine, ..*task };
    let stay = Residents::of(graph, fitted.schedule());
    let has_tier = machine.hierarchy.main_route().is_some() && task.planner.moves();
    let residents = if has_tier { Residents::none() } else { &stay };
    let goal = Goal::Within(known.training.slab());
    let request = Request { goal, planner: task.planner, residents, effort: task.effort };
    let found = fit(graph, profile, &request).map_err(|error| match error {
        FitError::Plan(PlanError::Infeasible(_) | PlanError::NotFound(_)) => Kept::NoPlan,
        error => Kept::Failed(error),
    })?;
    if found.timeline().seconds.0 >= (1.0 - LEAST_GAIN) * seconds.0 {
        return Err(Kept::NothingFaster);
    }
    let unplanned = tightfit::unplanned(graph, profile).map_err(FitError::from)?;
    let (budget, reserve) = (*budget, *reserve);
    let training = FittedGraph { fitted: found, budget, reserve, unplanned, limit: None };
    let calls = measured.call_seconds(graph, machine.threads);
    let evaluation = fit_evaluation(step, &training, training.slab(), &calls, &task);
    if evaluation.is_none() && known.evaluation.is_some() {
        return Err(Kept::NoEvaluation);
    }
    Ok(FittedStep { training, profile: profile.clone(), evaluation, region: None })
}
