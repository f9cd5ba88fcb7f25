//! Chooses how a pipeline runs: the order of its actions, such as 1F1B, the cut of the model into
//! stages, and the plan of each rank. Invariant: what is chosen was planned and checked on every
//! rank within the budget. Of the orders and cuts found to fit, it is the one predicted to take the
//! least time, recomputation included, or the one with the smallest budget if that is requested.
//!
//! The planner decides: which cuts of each order are tried, and which of them are skipped.

use std::path::Path;

use tightfit::FitError;
use tightfit::id::{PrimaryMap, RankId};
use tightfit::pipeline::stages::{Devices, StagePlan, layer_costs};
use tightfit::pipeline::{
    Layer, LayeredModel, Leeway, Order, PipelineError, PipelineSchedule, Planning, Time, assign,
    layers_for_all_orders, together,
};
use tightfit::plan::PlanError;
use tightfit::profile::Profile;
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{Budget, FittingError};

use super::chosen::{Asked, Chosen, Division, Known};
use super::figures::{Figures, RankFigures};
use super::order::{NotASchedule, from_file};
use crate::failure::{Context, Failure, Result};
use crate::interrupt;
use crate::values::{NoRanks, Room};

/// Plans one candidate after another, and keeps the best.
pub fn choose(asked: &Asked<'_>, stages: u32) -> Result<Chosen> {
    let orders = orders(asked, stages)?;
    let known = Known::of(asked)?;
    let graph = &asked.step.training;
    let profile = Profile::measured(graph, &known.machine, &known.seconds);
    let layers = layers_for_all_orders(graph, &profile, stages, &[])?;
    let costs = layer_costs(graph, &profile, &layers, None)?;
    let devices = Devices {
        ranks: stages,
        budget: known.slab(),
        bandwidth: known.machine.bandwidth,
        latency: Seconds(0.0),
    };
    let model = LayeredModel { layers: &costs, ends: None, devices: &devices };
    let mut plans = Plans { asked, known: &known, layers: &layers };
    let micro_batches = asked.arguments.batches.micro_batches();
    let candidates = model.candidates(&orders, micro_batches, &|| plans.time())?;
    let decided = model.decide(candidates, &mut plans);
    match (decided.planned.into_iter().next(), decided.refused) {
        (Some(chosen), _) => Ok(chosen),
        (None, Some(refused)) => Err(refused),
        (None, None) => Err(PipelineError::NoMicroBatch.into()),
    }
}

/// The orders that `--schedule` requests.
fn orders(asked: &Asked<'_>, stages: u32) -> Result<Vec<Order>, NotASchedule> {
    let arguments = asked.arguments;
    let name = arguments.ranks.schedule.as_str();
    if name == "auto" {
        return Ok(PipelineSchedule::with_equal_sums().map(Order::Known).collect());
    }
    if let Some(schedule) = PipelineSchedule::from_name(name) {
        return Ok(vec![Order::Known(schedule)]);
    }
    let rows = from_file(Path::new(name), stages, arguments.batches.micro_batches())?;
    Ok(vec![Order::Given { name: name.to_string(), rows }])
}

/// What plans are made from.
struct Plans<'a> {
    asked: &'a Asked<'a>,
    known: &'a Known,
    layers: &'a [Layer],
}

impl Planning for Plans<'_> {
    type Planned = Chosen;
    type Refusal = Failure;
    type Need = Bytes;

    fn plan(&mut self, candidate: &StagePlan, _: usize) -> Result<Chosen> {
        self.with_most_leeway(candidate)
    }

    fn cost(&self, chosen: &Chosen) -> f64 {
        match self.known.budget {
            Budget::Smallest => chosen.largest_budget().0 as f64,
            Budget::Absolute(_) | Budget::Share(_) => chosen.figures.makespan().0,
        }
    }

    /// If the smallest budget is requested, size counts, not time.
    fn may_beat(&self, least: Seconds, best: &Chosen) -> bool {
        self.known.budget == Budget::Smallest || least.0 < best.figures.makespan().0
    }

    fn need(&self, refusal: &Failure) -> Bytes {
        match refusal.cause() {
            Some(NoRanks { room: Room::Enough(bytes), .. }) => *bytes,
            _ => Bytes::LIMIT,
        }
    }

    fn time(&self) -> Time {
        if interrupt::raised() { Time::Up } else { Time::Unlimited }
    }
}

impl Plans<'_> {
    /// A candidate with the plan of each rank, and with as much leeway for messages as fits.
    fn with_most_leeway(&self, candidate: &StagePlan) -> Result<Chosen> {
        let early = Leeway { ahead: self.asked.ahead, ..Leeway::OF_SENDERS };
        let mut leeways = vec![early, Leeway::OF_SENDERS];
        leeways.dedup();
        let is_tried = |_: &&Leeway| self.known.budget != Budget::Smallest;
        let chosen = leeways
            .iter()
            .filter(is_tried)
            .find_map(|&leeway| self.with_leeway(candidate, leeway).ok());
        chosen.map_or_else(|| self.with_leeway(candidate, Leeway::NONE), Ok)
    }

    /// Why a rank does not fit with this cut; other cuts may fit.
    fn refusal(&self, error: Failure, schedule: &str, rank: RankId) -> Failure {
        let (budget, room, because) = match error.cause() {
            Some(FittingError::Fit(FitError::Plan(PlanError::Infeasible(found)))) => {
                (found.budget, Room::Enough(found.reached), Some(found.clone()))
            }
            Some(FittingError::Fit(FitError::Plan(PlanError::NotFound(found)))) => {
                (found.budget, Room::Enough(found.reached), None)
            }
            _ => return error.context(format_args!("{schedule}: {rank}")),
        };
        let (devices, schedule) = (self.asked.way.ranks(), schedule.to_string());
        NoRanks { devices, budget, schedule, rank, room, because }.into()
    }

    /// A candidate with the plan of each rank.
    fn with_leeway(&self, candidate: &StagePlan, leeway: Leeway) -> Result<Chosen> {
        let &Plans { asked, known, layers } = self;
        let Known { machine, seconds, unplanned, .. } = known;
        let step = asked.step;
        let StagePlan { schedule: name, rows, ends, .. } = candidate;
        let of_forward = assign(layers, ends);
        let divided = step.divided(&of_forward, rows, leeway)?;
        let mut plans = PrimaryMap::new();
        for (rank, step) in &divided.ranks {
            // The searches of all ranks together may take as long as that of one step.
            let planned = known.plan(asked, step, divided.ranks.len());
            plans.push(planned.map_err(|error| self.refusal(error, name, rank))?);
        }
        let timelines = plans.values().map(|plan| plan.training.fitted.timeline());
        let graphs = divided.ranks.values().map(|step| &step.training);
        let times = together(graphs.zip(timelines), &[])
            .context("the ranks wait for each other forever")?;
        let ranks = times.iter().map(|(rank, time)| {
            let (plan, graph) = (&plans[rank], &divided.ranks[rank].training);
            RankFigures::of(plan, graph, rows.stages_of(rank), time)
        });
        let figures = Figures {
            schedule: name.clone(),
            stages: rows.placement.len(),
            shards: None,
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
            division: Division::Stages { rows: rows.clone(), of_forward, leeway },
            divided,
            plans,
            machine: machine.clone(),
            seconds: seconds.clone(),
        })
    }
}
