//! Fitting for the engine: a whole budget becomes a slab, the training graph is fitted into it, and
//! the evaluation graph into what training leaves free. Invariant: slab and reserve together are
//! the budget, and a refusal names numbers that can be requested as a budget.

mod divided;
mod placed;

pub use divided::{Divided, Division, fit_divided, tried as parts_tried};
pub use placed::{PlacementError, fit_placed};

use thiserror::Error;
use tightfit::check::{Checked, Violation};
use tightfit::effort::Effort;
use tightfit::exit::{Coded, Exit, Refusal};
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::{Infeasible, LiveTensor, PlanError, Planner, Prediction};
use tightfit::profile::{CallSeconds, Profile};
use tightfit::schedule::Residents;
use tightfit::units::Bytes;
use tightfit::{FitError, Fitted, Goal, Request, fit};

use crate::budget::{Budget, BudgetError};
use crate::execute::region::Region;
use crate::memory::process;
use crate::reserve::{Reserve, reserve};
use crate::step::Step;

/// Bytes of a page, or of a part of one.
const PAGE: u64 = 4096;

/// A request to fit a step.
#[derive(Clone, Copy)]
pub struct FitTask<'a> {
    /// Where the step runs.
    pub machine: &'a Machine,
    /// The whole budget; on the engine's machine the reserve is part of it.
    pub budget: Budget,
    /// What this process holds in addition to what every process that runs the step does, such as
    /// the index of a large data file: it counts toward the base.
    pub beside: Bytes,
    /// The planner to use.
    pub planner: Planner,
    /// How much work and time to spend on finding a better plan.
    pub effort: Effort<'a>,
}

impl FitTask<'_> {
    /// The part of the budget that is not the slab's.
    fn reserve(&self, graph: &Graph) -> Reserve {
        let mut reserve = reserve(graph, self.machine);
        if self.machine.runtime.rules().runs_here {
            reserve.base += self.beside;
        }
        reserve
    }
}

/// Why a step is not fitted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FittingError {
    /// The budget is not valid for this step on this machine.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// The planner has no plan; its numbers are of the whole budget.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// The checker refused the step as captured.
    #[error(transparent)]
    Unplanned(#[from] Violation),
    /// There is no region for tensors that are placed at run time.
    #[error(transparent)]
    Placement(#[from] PlacementError),
}

impl Coded for FittingError {
    fn exit(&self) -> Exit {
        match self {
            FittingError::Budget(error) => error.exit(),
            FittingError::Fit(error) => error.exit(),
            FittingError::Unplanned(error) => error.exit(),
            FittingError::Placement(error) => error.exit(),
        }
    }

    fn refusal(&self) -> Option<Refusal> {
        match self {
            FittingError::Fit(error) => error.refusal(),
            FittingError::Placement(error) => error.refusal(),
            FittingError::Budget(_) | FittingError::Unplanned(_) => None,
        }
    }
}

/// A graph fitted into a budget.
#[derive(Clone, Debug)]
pub struct FittedGraph {
    /// Its schedule, checked.
    pub fitted: Fitted,
    /// The whole budget.
    pub budget: Bytes,
    /// The part of it that is not the slab's.
    pub reserve: Reserve,
    /// The graph as captured.
    pub unplanned: Fitted,
    /// Why no less was reached, in numbers of the whole budget, if the smallest was requested.
    pub limit: Option<Infeasible>,
}

impl FittedGraph {
    /// The slab: the budget less the reserve.
    pub fn slab(&self) -> Bytes {
        self.budget - self.reserve.total()
    }
}

/// Both graphs of a step, fitted into one slab.
#[derive(Clone, Debug)]
pub struct FittedStep {
    /// The training graph.
    pub training: FittedGraph,
    /// What the training graph costs.
    pub profile: Profile,
    /// The evaluation graph's schedule, in what training leaves free; absent if that is too little,
    /// or if the step has none.
    pub evaluation: Option<Checked>,
    /// Where persistent tensors are placed at run time; absent if the schedules say where they are.
    /// With a region, the schedules are those of a slab that has space for all of them.
    pub region: Option<Region>,
}

impl FittedStep {
    /// The most bytes of the slab that are used, as the checker found them: with a region, the
    /// region and what lies after it.
    pub fn high_water(&self) -> Bytes {
        let high_water = self.training.fitted.timeline().high_water;
        self.region.as_ref().map_or(high_water, |region| {
            region.bytes() + high_water.saturating_sub(region.persistent())
        })
    }

    /// The most bytes that are held at once; all of a region counts as held.
    pub fn peak(&self) -> Bytes {
        let peak = self.training.fitted.timeline().peak;
        self.region
            .as_ref()
            .map_or(peak, |region| region.bytes() + peak.saturating_sub(region.tensor_bytes()))
    }
}

/// Fits the training graph of a step, and its evaluation graph if there is space for it. Costs
/// follow from `seconds` of calls where known, else from the machine's rates.
pub fn fit_step(
    step: &Step,
    seconds: &CallSeconds,
    task: &FitTask<'_>,
) -> Result<FittedStep, FittingError> {
    let profile = Profile::measured(&step.training, task.machine, seconds);
    // A run holds nothing that it does not need.
    let training = FittedGraph { limit: None, ..fit_graph(&step.training, &profile, task)? };
    Ok(fit_rest(step, (training, profile), seconds, task))
}

/// A step whose training graph is fitted, with its evaluation graph if there is space for it.
pub fn fit_rest(
    step: &Step,
    (training, profile): (FittedGraph, Profile),
    seconds: &CallSeconds,
    task: &FitTask<'_>,
) -> FittedStep {
    let evaluation = fit_evaluation(step, &training, training.slab(), seconds, task);
    FittedStep { training, profile, evaluation, region: None }
}

/// Fits the evaluation graph of a step into what training leaves free of a slab, if it fits.
pub(crate) fn fit_evaluation(
    step: &Step,
    training: &FittedGraph,
    slab: Bytes,
    seconds: &CallSeconds,
    task: &FitTask<'_>,
) -> Option<Checked> {
    let graph = step.evaluation.as_ref()?;
    let profile = Profile::measured(graph, task.machine, seconds);
    let residents = &Residents::of(&step.training, training.fitted.schedule());
    let &FitTask { planner, effort, .. } = task;
    // Only the budget planner can begin with tensors in the tier.
    let planner = if residents.below.is_empty() { planner } else { Planner::Auto };
    let goal = Goal::Within(slab);
    let fitted = fit(graph, &profile, &Request { goal, planner, residents, effort }).ok()?;
    Some(fitted.checked().clone())
}

/// Fits a graph into the slab that a budget leaves after the reserve.
pub fn fit_graph(
    graph: &Graph,
    profile: &Profile,
    task: &FitTask<'_>,
) -> Result<FittedGraph, FittingError> {
    let &FitTask { planner, ref effort, .. } = task;
    let reserve = task.reserve(graph);
    let unplanned = tightfit::unplanned(graph, profile)?;
    let nowhere = Residents::default();
    let Some(budget) = whole_budget(task, &unplanned, reserve)? else {
        let mut fitted = tightfit::fit(
            graph,
            profile,
            &Request { goal: Goal::Smallest, planner, residents: &nowhere, effort: *effort },
        )?;
        let budget = fitted.schedule().slab + reserve.total();
        within_memory(budget, task.machine)?;
        let below = budget.saturating_sub(Bytes(1));
        let limit = fitted.take_limit().map(|proof| of_whole(*proof, below, reserve));
        return Ok(FittedGraph { fitted, budget, reserve, unplanned, limit });
    };
    let fitted = fit(
        graph,
        profile,
        &Request {
            goal: Goal::Within(budget.saturating_sub(reserve.total())),
            planner,
            residents: &nowhere,
            effort: *effort,
        },
    )
    .map_err(|error| with_reserve(error, budget, reserve))?;
    Ok(FittedGraph { fitted, budget, reserve, unplanned, limit: None })
}

/// The bytes of the whole budget, within this machine's memory; `None` if the smallest is
/// requested. One that is less than the reserve is refused with the smallest that can be met, as
/// others are.
fn whole_budget(
    task: &FitTask<'_>,
    unplanned: &Fitted,
    reserve: Reserve,
) -> Result<Option<Bytes>, BudgetError> {
    let Some(budget) = task.budget.bytes_of(unplanned, reserve) else {
        return Ok(None);
    };
    if budget == Bytes::ZERO {
        return Err(BudgetError::Zero);
    }
    within_memory(budget, task.machine)?;
    Ok(Some(budget))
}

/// Refuses to run with more memory than there is.
///
/// # Errors
/// [`BudgetError::BeyondMemory`] if the machine is this one.
pub fn within_memory(budget: Bytes, machine: &Machine) -> Result<(), BudgetError> {
    let memory = if machine.runtime.rules().runs_here { process::physical_memory() } else { None };
    // Limits are in whole pages: a group limited to the budget gets a little less.
    let pages = Bytes(budget.0 / PAGE * PAGE);
    match memory.filter(|&memory| pages > memory) {
        Some(memory) => Err(BudgetError::BeyondMemory { budget, memory }),
        None => Ok(()),
    }
}

/// The proof in terms of the whole budget, so that the number it names can be requested.
fn with_reserve(error: FitError, budget: Bytes, reserve: Reserve) -> FitError {
    let all = reserve.total();
    let proof = match error {
        FitError::Plan(PlanError::Infeasible(proof)) => proof,
        FitError::Plan(PlanError::NotFound(mut found)) => {
            found.budget = budget;
            found.reached += all;
            return PlanError::NotFound(found).into();
        }
        error => return error,
    };
    PlanError::Infeasible(Box::new(of_whole(*proof, budget, reserve))).into()
}

fn of_whole(proof: Infeasible, budget: Bytes, reserve: Reserve) -> Infeasible {
    let all = reserve.total();
    let mut proof = Infeasible {
        budget,
        needed: proof.needed + all,
        reached: proof.reached + all,
        peak: proof.peak + all,
        prediction: proof.prediction.map(|prediction| Prediction {
            predicted: prediction.predicted + all,
            simulated: prediction.simulated + all,
            ..prediction
        }),
        ..proof
    };
    for (name, bytes) in
        [("the process itself", reserve.base), ("what the matrix product packs", reserve.packing)]
    {
        if bytes > Bytes::ZERO {
            let (name, module) = (name.to_string(), String::new());
            let tensor = LiveTensor { name, module, phase: "reserve", bytes };
            let place = proof.live.partition_point(|other| other.bytes >= bytes);
            proof.live.insert(place, tensor);
        }
    }
    proof
}
