//! The cut, the order and the plans of a pipeline. Invariant: what is chosen was planned and
//! checked on every rank within the budget; of several orders it is the one that is predicted to
//! take the least time, recomputation included, among those that were found to fit. The stage
//! planner says where to cut for each order, and which to try first; an order is not planned where
//! it would take as long as the best if it recomputed nothing.

use std::path::Path;

use anyhow::Context;
use tightfit::FitError;
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
use tightfit_engine::{
    Budget, Dataset, Executable, FitTask, FittedStep, FittingError, Step, fit_step, reserve,
};

use super::order::{NotASchedule, from_file};
use crate::calls::{self, Subject};
use crate::train::Arguments;
use crate::{input, interrupt, processor};

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
    pub seed: u64,
}

/// A pipeline that is ready to run.
pub struct Chosen {
    /// The name of the order.
    pub schedule: String,
    /// Who does what.
    pub rows: Rows,
    /// The step of each rank.
    pub divided: Divided,
    /// The plan of each rank.
    pub plans: PrimaryMap<RankId, FittedStep>,
    /// When each rank does what, as predicted.
    pub times: PrimaryMap<RankId, RankInTime>,
    /// What each rank runs on.
    pub machine: Machine,
    /// The unplanned peak of the step on one device, with accumulation.
    pub whole: Bytes,
    /// What the step takes on one device, unplanned, with as many threads as a rank has.
    pub alone: Seconds,
}

impl Chosen {
    /// What an update takes, as predicted.
    pub fn makespan(&self) -> Seconds {
        Seconds(self.times.values().map(|time| time.end.0).fold(0.0, f64::max))
    }

    /// The share of the ranks' time in which they wait, as predicted.
    pub fn idle(&self) -> f64 {
        let all = self.makespan().0 * self.times.len() as f64;
        let busy: f64 = self.times.values().map(|time| time.end.0 - time.waiting.0).sum();
        if all > 0.0 { 1.0 - busy / all } else { 0.0 }
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
    let &Asked { arguments, step, budget, stages, .. } = asked;
    let micro_batches = arguments.accumulation.micro_batches();
    let order = order(asked)?;
    let whole = step.clone().accumulated(micro_batches)?;
    input::note_repeated_rows(asked.data, &whole);
    let threads = (processor::threads(arguments.threads) / stages).max(1);
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
    let budget = match budget.bytes_of(&unplanned, reserve(&whole.training, &machine)) {
        Some(bytes) => Budget::Absolute(bytes),
        None => Budget::Smallest,
    };
    let plans = Plans { asked, budget, machine: &machine, seconds: &seconds };
    let mut best: Option<Chosen> = None;
    let mut refused: Option<anyhow::Error> = None;
    let of_one = Profile::measured(&step.training, &machine, &seconds);
    let reserve = reserve(&whole.training, &machine).total();
    let devices = Devices {
        ranks: stages,
        budget: match budget {
            Budget::Absolute(bytes) => bytes.saturating_sub(reserve),
            Budget::Share(_) | Budget::Smallest => Bytes::LIMIT,
        },
        bandwidth: machine.bandwidth,
        latency: Seconds(0.0),
    };
    for candidate in candidates(asked, order, &of_one, &devices)? {
        // Of the smallest budgets the smallest counts.
        let is_slower = |best: &Chosen| candidate.least.0 >= best.makespan().0;
        if budget != Budget::Smallest && best.as_ref().is_some_and(is_slower) {
            continue;
        }
        match plans.of(candidate, &unplanned) {
            Ok(chosen) => {
                let is_better = |best: &Chosen| match budget {
                    Budget::Smallest => largest(&chosen) < largest(best),
                    _ => chosen.makespan().0 < best.makespan().0,
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
    /// An order with the plan of each rank.
    fn of(&self, candidate: Candidate, unplanned: &tightfit::Fitted) -> anyhow::Result<Chosen> {
        let &Plans { asked: &Asked { arguments, step, data, seed, .. }, budget, machine, seconds } =
            self;
        let Candidate { name, rows, of_forward, .. } = candidate;
        let divided = step.divided(&of_forward, &rows)?;
        let mut plans = PrimaryMap::new();
        for (rank, step) in &divided.ranks {
            let mut effort = arguments.limits.effort(arguments.planner, seed);
            // All ranks together search as long as one step would.
            effort.deadline = Seconds(effort.deadline.0 / divided.ranks.len() as f64);
            let (planner, beside) = (arguments.planner, data.beside());
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
        Ok(Chosen {
            schedule: name,
            rows,
            divided,
            plans,
            times,
            machine: machine.clone(),
            whole: unplanned.timeline().peak,
            alone: unplanned.timeline().seconds,
        })
    }
}
