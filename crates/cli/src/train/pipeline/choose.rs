//! The cut, the order and the plans of a pipeline. Invariant: what is chosen was planned and
//! checked on every rank within the budget; of several orders it is the one that is predicted to
//! take the least time, recomputation included, among those that were found to fit. The stage
//! planner says where to cut for each order, and which to try first; an order is not planned where
//! it would take as long as the best if it recomputed nothing.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use tightfit::FitError;
use tightfit::graph::Graph;
use tightfit::id::{NodeId, PrimaryMap, RankId, SecondaryMap, StageId};
use tightfit::machine::Machine;
use tightfit::pipeline::stages::{Devices, layer_costs, plan_rows};
use tightfit::pipeline::{
    Division, PipelineError, PipelineSchedule, RankInTime, Rows, assign, cut_evenly, layers,
    simulate, together,
};
use tightfit::plan::PlanError;
use tightfit::profile::{CallSeconds, Profile};
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::step::Divided;
use tightfit_engine::transport::Route;
use tightfit_engine::{
    Budget, Dataset, Executable, FitTask, FittedStep, FittingError, Step, fit_step, reserve,
};

use super::figures::{Figures, RankFigures};
use super::order::{NotASchedule, from_file};
use super::share::Share;
use crate::calls::{self, Subject};
use crate::train::Arguments;
use crate::{input, interrupt, processor};

/// How long a rank waits for others, unless their steps take longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Predicted steps that a rank waits for others at least.
const STEPS: f64 = 10.0;

/// What is asked for.
pub struct Asked<'a> {
    pub arguments: &'a Arguments,
    /// The step, of one micro-batch.
    pub step: &'a Step,
    pub data: &'a Dataset,
    /// The budget of each rank.
    pub budget: Budget,
    /// The number of ranks.
    pub stages: u32,
    /// Threads of each rank.
    pub threads: u32,
    /// How many actions before the one that reads a message its receiver says where to put it.
    pub ahead: usize,
    /// What a rank's process holds beside what every process that runs a step does.
    pub beside: Bytes,
    pub seed: u64,
}

/// A pipeline that is ready to run.
#[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "what processes tell each other"))]
pub struct Chosen {
    /// What is known of it.
    pub figures: Figures,
    /// Who does what.
    pub rows: Rows,
    /// The step of each rank.
    pub divided: Divided,
    /// The plan of each rank.
    pub plans: PrimaryMap<RankId, FittedStep>,
    /// Where it is cut.
    pub of_forward: SecondaryMap<NodeId, StageId>,
    /// How early messages are posted.
    pub ahead: usize,
    /// What each rank runs on.
    pub machine: Machine,
    /// What is known of calls there.
    pub seconds: CallSeconds,
}

impl Chosen {
    /// What each rank runs, the ways of all messages, and what is to be said of it.
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

    /// How long a rank waits for another one.
    pub fn deadline(&self, given: Option<Seconds>) -> Duration {
        let long = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        match given {
            Some(Seconds(seconds)) => long(seconds),
            None => PATIENCE.max(long(STEPS * self.figures.makespan().0)),
        }
    }
}

/// An order with its name.
struct Candidate {
    name: String,
    rows: Rows,
    /// Where it is cut.
    of_forward: SecondaryMap<NodeId, StageId>,
    /// What it takes where nothing is recomputed.
    least: Seconds,
    /// What it is expected to take; infinite where the stage planner has no plan for it.
    expected: Seconds,
}

/// Chooses.
pub fn choose(asked: &Asked<'_>) -> anyhow::Result<Chosen> {
    let &Asked { arguments, step, budget, stages, threads, .. } = asked;
    let micro_batches = arguments.accumulation.micro_batches();
    let order = order(asked)?;
    let whole = step.clone().accumulated(micro_batches)?;
    input::note_repeated_rows(asked.data, &whole);
    let machine = processor::machine_within(Some(threads), &whole.training, budget, false);
    let subject = Subject {
        folder: &arguments.step,
        data: arguments.data.as_deref(),
        budget: &arguments.budget,
        planner: arguments.planner,
        tier: None,
        accumulation: arguments.accumulation,
    };
    let seconds = calls::of_step(&whole.training, &machine, arguments.costs, &subject);
    if !arguments.costs.roofline {
        // What ranks measure has waiting in it, so this is what later runs know.
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
    let plans = Plans { asked, budget, machine: &machine, seconds: &seconds };
    let mut best: Option<Chosen> = None;
    let mut refused: Option<anyhow::Error> = None;
    let of_one = Profile::measured(&step.training, &machine, &seconds);
    let devices = Devices {
        ranks: stages,
        budget: match budget {
            Budget::Absolute(bytes) => bytes.saturating_sub(reserve.total()),
            Budget::Share(_) | Budget::Smallest => Bytes::LIMIT,
        },
        bandwidth: machine.bandwidth,
        latency: Seconds(0.0),
    };
    for candidate in candidates(asked, order, &of_one, &devices)? {
        // Of the smallest budgets the smallest counts.
        let is_slower = |best: &Chosen| candidate.least.0 >= best.figures.makespan().0;
        if budget != Budget::Smallest && best.as_ref().is_some_and(is_slower) {
            continue;
        }
        match plans.posted(&candidate, &unplanned) {
            Ok(chosen) => {
                let is_better = |best: &Chosen| match budget {
                    Budget::Smallest => largest(&chosen) < largest(best),
                    _ => chosen.figures.makespan().0 < best.figures.makespan().0,
                };
                if best.as_ref().is_none_or(is_better) {
                    best = Some(chosen);
                }
            }
            Err(error) => {
                if refused.as_ref().is_none_or(|refused| reached(&error) < reached(refused)) {
                    refused = Some(error);
                }
            }
        }
    }
    match (best, refused) {
        (Some(chosen), _) => Ok(chosen),
        (None, Some(refused)) => Err(refused),
        (None, None) => Err(PipelineError::NoMicroBatch.into()),
    }
}

/// The largest budget that a rank has.
fn largest(chosen: &Chosen) -> Bytes {
    chosen.plans.values().map(|plan| plan.training.budget).max().unwrap_or(Bytes::ZERO)
}

/// The budget that would do, of a refusal that names one.
fn reached(error: &anyhow::Error) -> Bytes {
    let found = error.chain().find_map(|cause| cause.downcast_ref::<FittingError>());
    match found {
        Some(FittingError::Fit(FitError::Plan(PlanError::Infeasible(proof)))) => proof.reached,
        _ => Bytes::LIMIT,
    }
}

/// What is asked for by name.
enum Order {
    Any,
    Named(PipelineSchedule),
    File(String, Rows),
}

fn order(asked: &Asked<'_>) -> Result<Order, NotASchedule> {
    let &Asked { arguments, stages, .. } = asked;
    let name = arguments.pipeline.schedule.as_str();
    if name == "auto" {
        return Ok(Order::Any);
    }
    if let Some(schedule) = PipelineSchedule::from_name(name) {
        return Ok(Order::Named(schedule));
    }
    let rows = from_file(Path::new(name), stages, arguments.accumulation.micro_batches())?;
    Ok(Order::File(name.to_string(), rows))
}

/// The orders that are asked for, those first that are expected to be fastest.
fn candidates(
    asked: &Asked<'_>,
    order: Order,
    profile: &Profile,
    devices: &Devices,
) -> anyhow::Result<Vec<Candidate>> {
    let &Asked { arguments, stages, .. } = asked;
    let micro_batches = arguments.accumulation.micro_batches();
    let of = |schedule: PipelineSchedule| -> anyhow::Result<Candidate> {
        let rows = schedule.rows(stages, micro_batches)?;
        candidate(asked.step, profile, devices, schedule.name().to_string(), rows)
    };
    match order {
        Order::Any => {}
        Order::Named(schedule) => return Ok(vec![of(schedule)?]),
        Order::File(name, rows) => {
            return Ok(vec![candidate(asked.step, profile, devices, name, rows)?]);
        }
    }
    // Its sums have another order than those of all others.
    let all = PipelineSchedule::ALL.map(|(schedule, _)| schedule).into_iter();
    let all = all.filter(|&schedule| schedule != PipelineSchedule::AsyncPipe).map(of);
    let (mut found, mut first) = (Vec::new(), None);
    for candidate in all {
        match candidate {
            Ok(candidate) => found.push(candidate),
            // Some orders are only for some numbers; and two stages on each rank may be too many.
            Err(error) => first = first.or(Some(error)),
        }
    }
    let by_time = |a: &Candidate, b: &Candidate| {
        a.expected.0.total_cmp(&b.expected.0).then(a.least.0.total_cmp(&b.least.0))
    };
    found.sort_by(by_time);
    match first.filter(|_| found.is_empty()) {
        Some(error) => Err(error),
        None => Ok(found),
    }
}

/// An order with its cut: that of the stage planner, or where by its model nothing fits, which the
/// planner of single tensors may well do, an even one.
fn candidate(
    step: &Step,
    profile: &Profile,
    devices: &Devices,
    name: String,
    rows: Rows,
) -> anyhow::Result<Candidate> {
    let stages = rows.placement.len();
    let layers = layers(&step.training, profile, stages)?;
    let costs = layer_costs(&step.training, profile, &layers, None)?;
    let plan = plan_rows(&costs, devices, (&name, &rows), &interrupt::raised);
    let (of_forward, expected) = match plan {
        Some(plan) => (assign(&layers, &plan.ends), plan.makespan),
        None => (cut_evenly(&layers, stages)?, Seconds(f64::INFINITY)),
    };
    let division = Division::new(&step.training, &of_forward)?;
    let least = simulate(&rows, &division.costs(profile)).map_err(PipelineError::from)?.makespan;
    Ok(Candidate { name, rows, of_forward, least, expected })
}

/// How plans are made.
struct Plans<'a> {
    asked: &'a Asked<'a>,
    budget: Budget,
    machine: &'a Machine,
    seconds: &'a CallSeconds,
}

impl Plans<'_> {
    /// An order with the plan of each rank, where messages are posted early if there is room for
    /// what arrives then.
    fn posted(
        &self,
        candidate: &Candidate,
        unplanned: &tightfit::Fitted,
    ) -> anyhow::Result<Chosen> {
        let early = self.asked.ahead;
        if early > 0
            && self.budget != Budget::Smallest
            && let Ok(chosen) = self.of(candidate, early, unplanned)
        {
            return Ok(chosen);
        }
        self.of(candidate, 0, unplanned)
    }

    /// An order with the plan of each rank.
    fn of(
        &self,
        candidate: &Candidate,
        ahead: usize,
        unplanned: &tightfit::Fitted,
    ) -> anyhow::Result<Chosen> {
        let &Plans { asked, budget, machine, seconds } = self;
        let &Asked { arguments, step, data, seed, .. } = asked;
        let Candidate { name, rows, of_forward, .. } = candidate;
        let divided = step.divided(of_forward, rows, ahead)?;
        let mut plans = PrimaryMap::new();
        for (rank, step) in &divided.ranks {
            let mut effort = arguments.limits.effort(arguments.planner, seed);
            // All ranks together search as long as one step would.
            effort.deadline = Seconds(effort.deadline.0 / divided.ranks.len() as f64);
            let (planner, beside) = (arguments.planner, data.beside() + asked.beside);
            let task = FitTask { machine, budget, beside, planner, effort };
            for graph in [Some(&step.training), step.evaluation.as_ref()].into_iter().flatten() {
                Executable::admits(graph)?;
            }
            let planned = fit_step(step, seconds, &task);
            plans.push(planned.with_context(|| format!("{name}: {rank}"))?);
        }
        let timelines = plans.values().map(|plan| plan.training.fitted.timeline());
        let graphs = divided.ranks.values().map(|step| &step.training);
        let times = together(graphs.zip(timelines)).context("the ranks wait for each other")?;
        let ranks = times.iter().map(|(rank, time)| {
            let (plan, graph) = (&plans[rank], &divided.ranks[rank].training);
            figures_of(plan, graph, rows.stages_of(rank), time)
        });
        let figures = Figures {
            schedule: name.clone(),
            stages: rows.placement.len(),
            micro_batches: rows.micro_batches,
            messages: divided.first_of_evaluation,
            threads: machine.threads,
            ranks: ranks.collect(),
            whole: unplanned.timeline().peak,
            alone: unplanned.timeline().seconds,
            not_evaluated: divided.not_evaluated.as_ref().map(ToString::to_string),
        };
        Ok(Chosen {
            figures,
            rows: rows.clone(),
            divided,
            plans,
            of_forward: of_forward.clone(),
            ahead,
            machine: machine.clone(),
            seconds: seconds.clone(),
        })
    }
}

/// A rank's plan in figures.
fn figures_of(
    plan: &FittedStep,
    graph: &Graph,
    stages: Vec<StageId>,
    time: &RankInTime,
) -> RankFigures {
    let training = &plan.training;
    RankFigures {
        stages,
        kept: graph.static_bytes(),
        budget: training.budget,
        reserve: training.reserve,
        slab: training.slab(),
        high_water: plan.high_water(),
        peak: plan.peak(),
        recomputed: training.fitted.schedule().recomputed(),
        seconds: training.fitted.timeline().seconds,
        waiting: time.waiting,
        end: time.end,
        planner: training.fitted.schedule().planner.clone(),
    }
}
