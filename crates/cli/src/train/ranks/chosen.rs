//! What is requested of several ranks, what is known before anything is chosen, and what was
//! chosen. Invariant: what is chosen was planned and checked on every rank within the budget.

use std::time::Duration;

use tightfit::id::{NodeId, PrimaryMap, RankId, SecondaryMap, StageId};
use tightfit::machine::Machine;
use tightfit::pipeline::{Leeway, Rows};
use tightfit::profile::{CallSeconds, Profile};
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::step::{Divided, Sharing};
use tightfit_engine::transport::Route;
use tightfit_engine::{
    Budget, Dataset, Executable, FitTask, FittedStep, Reserve, Step, fit_step, reserve,
};

use super::Way;
use super::figures::Figures;
use super::share::Share;
use crate::calls::{self, Subject};
use crate::failure::{Failure, Result};
use crate::train::Arguments;
use crate::{input, processor};

/// How long a rank waits for others, unless the steps take longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a rank waits for others at least, in predicted steps.
const STEPS: f64 = 10.0;

/// What is requested.
pub struct Asked<'a> {
    pub arguments: &'a Arguments,
    /// The step, of one micro-batch.
    pub step: &'a Step,
    pub data: &'a Dataset,
    /// The budget of each rank.
    pub budget: Budget,
    /// How the step is divided, and among how many ranks.
    pub way: Way,
    /// Threads of each rank.
    pub threads: u32,
    /// How many actions before the one that reads a message its receiver says where to put it.
    pub ahead: usize,
    /// Bytes that a rank's process holds in addition to those of every process that runs a step.
    pub beside: Bytes,
    pub seed: u64,
}

/// What is known of a step before it is divided.
pub struct Known {
    /// The machine of each rank.
    pub machine: Machine,
    /// The known times of calls there.
    pub seconds: CallSeconds,
    /// The whole step on one device, with nothing recomputed.
    pub unplanned: tightfit::Fitted,
    /// Approximate bytes of a budget that are not the slab's.
    pub reserve: Reserve,
    /// The budget of each rank: a share is one of the whole step's.
    pub budget: Budget,
}

impl Known {
    /// Measures calls, or takes their times from the cache.
    pub fn of(asked: &Asked<'_>) -> Result<Known> {
        let &Asked { arguments, step, budget, threads, .. } = asked;
        let whole = step.clone().accumulated(arguments.batches.micro_batches())?;
        input::note_repeated_rows(asked.data, &whole);
        let machine = processor::machine_within(Some(threads), &whole.training, budget, false);
        let subject = Subject {
            folder: &arguments.step,
            source: &arguments.source,
            budget: &arguments.budget,
            planner: arguments.planner,
            tier: None,
            batches: arguments.batches,
        };
        // The smallest budget of the whole step is not that of a rank, and a rank has no more
        // memory.
        let are_processes = arguments.ranks.transport.has_a_process_for_each_rank();
        let is_tried = !are_processes || budget != Budget::Smallest;
        let costs = arguments.costs;
        let seconds = match is_tried || costs.roofline {
            true => calls::of_step(&whole.training, &machine, costs, &subject),
            false => calls::known(&machine),
        };
        if !arguments.costs.roofline {
            // What ranks measure includes waiting, so later runs know this instead.
            calls::remember(&machine, seconds.clone());
        }
        let profile = Profile::measured(&whole.training, &machine, &seconds);
        let unplanned = tightfit::unplanned(&whole.training, &profile)?;
        let mut reserve = reserve(&whole.training, &machine);
        reserve.base += asked.data.beside() + asked.beside;
        let budget = match budget.bytes_of(&unplanned, reserve) {
            Some(bytes) => Budget::Absolute(bytes),
            None => Budget::Smallest,
        };
        Ok(Known { machine, seconds, unplanned, reserve, budget })
    }

    /// Plans what a rank runs, in its part of the time that one step would get.
    pub fn plan(
        &self,
        asked: &Asked<'_>,
        step: &Step,
        parts: usize,
    ) -> Result<FittedStep, Failure> {
        let (arguments, budget) = (asked.arguments, self.budget);
        let mut effort = arguments.limits.effort(arguments.planner, asked.seed);
        effort.deadline = Seconds(effort.deadline.0 / parts as f64);
        let (planner, beside) = (arguments.planner, asked.data.beside() + asked.beside);
        let task = FitTask { machine: &self.machine, budget, beside, planner, effort };
        for graph in [Some(&step.training), step.evaluation.as_ref()].into_iter().flatten() {
            Executable::admits(graph)?;
        }
        Ok(fit_step(step, &self.seconds, &task)?)
    }

    /// The approximate slab of each rank; unlimited if the smallest budget is requested.
    pub fn slab(&self) -> Bytes {
        match self.budget {
            Budget::Absolute(bytes) => bytes.saturating_sub(self.reserve.total()),
            Budget::Share(_) | Budget::Smallest => Bytes::LIMIT,
        }
    }
}

/// How a step was divided.
#[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "what processes tell each other"))]
pub enum Division {
    /// Into stages.
    Stages {
        /// Which rank does what.
        rows: Rows,
        /// Where it is cut.
        of_forward: SecondaryMap<NodeId, StageId>,
        /// How much longer messages hold memory than they have to.
        leeway: Leeway,
    },
    /// Into shards.
    Shards(Sharing),
}

/// Ranks that are ready to run.
#[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "what processes tell each other"))]
pub struct Chosen {
    /// Its figures.
    pub figures: Figures,
    /// How the step was divided.
    pub division: Division,
    /// The step of each rank.
    pub divided: Divided,
    /// The plan of each rank.
    pub plans: PrimaryMap<RankId, FittedStep>,
    /// The machine of each rank.
    pub machine: Machine,
    /// The known times of calls there.
    pub seconds: CallSeconds,
}

impl Chosen {
    /// What each rank runs, the routes of all messages, and the figures to report.
    pub fn divide(self) -> (PrimaryMap<RankId, Share>, Vec<Route>, Figures) {
        let Chosen { figures, divided, plans, machine, .. } = self;
        let Divided { ranks, routes, first_of_evaluation, .. } = divided;
        let both = ranks.into_iter().zip(plans);
        let shares = both.map(|((_, step), (_, plan))| Share {
            step,
            training: plan.training.fitted.checked().clone(),
            evaluation: plan.evaluation,
            slab: plan.training.slab(),
            machine: machine.clone(),
            first_of_evaluation,
        });
        (shares.collect(), routes, figures)
    }

    /// The largest budget that a rank has.
    pub fn largest_budget(&self) -> Bytes {
        self.plans.values().map(|plan| plan.training.budget).max().unwrap_or(Bytes::ZERO)
    }

    /// How long a rank waits for another one.
    pub fn deadline(&self, given: Option<Seconds>) -> Duration {
        let steps = Seconds(STEPS * self.figures.makespan().0);
        given.map_or_else(|| PATIENCE.max(long(steps)), long)
    }
}

/// How long a rank waits for others before it knows what a step takes.
#[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "what processes wait for"))]
pub fn patience(given: Option<Seconds>) -> Duration {
    given.map_or(PATIENCE, long)
}

/// A duration, capped at the longest one that can be represented.
fn long(Seconds(seconds): Seconds) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
