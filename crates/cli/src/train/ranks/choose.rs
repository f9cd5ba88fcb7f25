//! Chooses how a pipeline runs: the order of its actions, such as 1F1B, the cut of the model into
//! stages, and the plan of each rank. Invariant: what is chosen was planned and checked on every
//! rank within the budget. Of the orders and cuts found to fit, it is the one predicted to take the
//! least time, recomputation included, or the one with the smallest budget if that is requested.
//!
//! The stage planner says which cuts of each order to try. A cut is not planned if it would take at
//! least as long as the best one even with nothing recomputed.

use std::path::Path;

use tightfit::FitError;
use tightfit::id::{NodeId, PrimaryMap, RankId, SecondaryMap, StageId};
use tightfit::pipeline::stages::{Devices, cuts, layer_costs};
use tightfit::pipeline::{
    Division as Cut, Leeway, PipelineError, PipelineSchedule, Rows, assign, cut_evenly, layers,
    simulate, together,
};
use tightfit::plan::PlanError;
use tightfit::profile::Profile;
use tightfit::units::Seconds;
use tightfit_engine::{Budget, FittingError, Step};

use super::chosen::{Asked, Chosen, Division, Known, better, the_best};
use super::figures::{Figures, RankFigures};
use super::order::{NotASchedule, from_file};
use crate::failure::{Context, Failure, Result};
use crate::interrupt;
use crate::values::{NoRanks, Room};

/// An order with its name and one cut for it.
struct Candidate {
    name: String,
    rows: Rows,
    /// The stage of each forward node.
    of_forward: SecondaryMap<NodeId, StageId>,
    /// The time that it takes if nothing is recomputed.
    least: Seconds,
    /// The time that it is expected to take; infinite if the stage planner was interrupted.
    expected: Seconds,
}

/// Plans one candidate after another, and keeps the best.
pub fn choose(asked: &Asked<'_>, stages: u32) -> Result<Chosen> {
    let order = order(asked, stages)?;
    let known = Known::of(asked)?;
    let plans = Plans { asked, known: &known };
    let budget = known.budget;
    let mut best: Option<Chosen> = None;
    let mut refused: Option<Failure> = None;
    let profile = Profile::measured(&asked.step.training, &known.machine, &known.seconds);
    let devices = Devices {
        ranks: stages,
        budget: known.slab(),
        bandwidth: known.machine.bandwidth,
        latency: Seconds(0.0),
    };
    for candidate in candidates(asked, order, &profile, &devices)? {
        // If the smallest budget is requested, size counts, not time.
        let is_slower = |best: &Chosen| candidate.least.0 >= best.figures.makespan().0;
        if budget != Budget::Smallest && best.as_ref().is_some_and(is_slower) {
            continue;
        }
        better(&mut best, &mut refused, plans.with_most_leeway(&candidate), budget);
    }
    the_best(best, refused)
}

/// The order that `--schedule` requests.
enum Order {
    Any,
    Named(PipelineSchedule),
    File(String, Rows),
}

fn order(asked: &Asked<'_>, stages: u32) -> Result<Order, NotASchedule> {
    let arguments = asked.arguments;
    let name = arguments.ranks.schedule.as_str();
    if name == "auto" {
        return Ok(Order::Any);
    }
    if let Some(schedule) = PipelineSchedule::from_name(name) {
        return Ok(Order::Named(schedule));
    }
    let rows = from_file(Path::new(name), stages, arguments.accumulation.micro_batches())?;
    Ok(Order::File(name.to_string(), rows))
}

/// The requested orders, each with its cuts; by expected time if the order is free.
fn candidates(
    asked: &Asked<'_>,
    order: Order,
    profile: &Profile,
    devices: &Devices,
) -> Result<Vec<Candidate>> {
    let (stages, micro_batches) = (devices.ranks, asked.arguments.accumulation.micro_batches());
    let of = |schedule: PipelineSchedule| -> Result<Vec<Candidate>> {
        let rows = schedule.rows(stages, micro_batches)?;
        of_order(asked.step, profile, devices, schedule.name(), &rows)
    };
    match order {
        Order::Any => {}
        Order::Named(schedule) => return of(schedule),
        Order::File(name, rows) => return of_order(asked.step, profile, devices, &name, &rows),
    }
    let (mut found, mut refused) = (Vec::new(), None);
    for schedule in PipelineSchedule::with_equal_sums() {
        match of(schedule) {
            Ok(candidates) => found.extend(candidates),
            // Some orders suit only some numbers of ranks and micro-batches, and the model may not
            // divide into two stages for each rank.
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let by_time = |a: &Candidate, b: &Candidate| {
        a.expected.0.total_cmp(&b.expected.0).then(a.least.0.total_cmp(&b.least.0))
    };
    found.sort_by(by_time);
    match refused.filter(|_| found.is_empty()) {
        Some(error) => Err(error),
        None => Ok(found),
    }
}

/// An order with its cuts: those of the stage planner, or an even one if it was interrupted.
fn of_order(
    step: &Step,
    profile: &Profile,
    devices: &Devices,
    name: &str,
    rows: &Rows,
) -> Result<Vec<Candidate>> {
    let stages = rows.placement.len();
    let layers = layers(&step.training, profile, stages)?;
    let costs = layer_costs(&step.training, profile, &layers, None)?;
    let plans = cuts(&costs, devices, (name, rows), &interrupt::raised);
    let mut found: Vec<(SecondaryMap<NodeId, StageId>, Seconds)> =
        plans.iter().map(|plan| (assign(&layers, &plan.ends), plan.makespan)).collect();
    if found.is_empty() {
        found.push((cut_evenly(&layers, stages)?, Seconds(f64::INFINITY)));
    }
    let candidate = |(of_forward, expected)| {
        let division = Cut::new(&step.training, &of_forward)?;
        let simulated = simulate(rows, &division.costs(profile)).map_err(PipelineError::from)?;
        let (name, rows, least) = (name.to_string(), rows.clone(), simulated.makespan);
        Ok(Candidate { name, rows, of_forward, least, expected })
    };
    found.into_iter().map(candidate).collect()
}

/// What plans are made from.
struct Plans<'a> {
    asked: &'a Asked<'a>,
    known: &'a Known,
}

impl Plans<'_> {
    /// A candidate with the plan of each rank, and with as much leeway for messages as fits.
    fn with_most_leeway(&self, candidate: &Candidate) -> Result<Chosen> {
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
    fn with_leeway(&self, candidate: &Candidate, leeway: Leeway) -> Result<Chosen> {
        let &Plans { asked, known } = self;
        let Known { machine, seconds, unplanned, .. } = known;
        let step = asked.step;
        let Candidate { name, rows, of_forward, .. } = candidate;
        let divided = step.divided(of_forward, rows, leeway)?;
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
        let (rows, of_forward) = (rows.clone(), of_forward.clone());
        Ok(Chosen {
            figures,
            division: Division::Stages { rows, of_forward, leeway },
            divided,
            plans,
            machine: machine.clone(),
            seconds: seconds.clone(),
        })
    }
}
