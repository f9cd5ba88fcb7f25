//! Pipelines for `tightfit stages`, the fastest first; the program and Python plan them alike.
//! Invariant: an order that is not among them was found to take at least as long as the first one
//! with the cuts that were tried, or not to fit.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tightfit::FitError;
use tightfit::graph::Graph;
use tightfit::id::{PrimaryMap, RankId};
use tightfit::machine::Machine;
use tightfit::pipeline::stages::{
    Devices, LayerCost, StagePlan, cuts, in_time, layer_costs, plan_stages,
};
use tightfit::pipeline::{
    Layer, PipelineError, PipelineSchedule, Simulated, at_modules, layers, span,
};
use tightfit::plan::PlanError;
use tightfit::staged::{PlannedStages, TensorPlanning, TensorPlanningError};
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{Budget, reserve, within_memory};

use crate::accumulation::Accumulation;
use crate::effort::Search;
use crate::input;
use crate::values::{Lack, NoRanks, NoStages, Room};

/// Calls of all micro-batches that are planned one by one: a second or two for each cut.
const MOST_CALLS: u64 = 1 << 18;

/// More than any refusal asks for.
const NOTHING_KNOWN: Room = Room::AtLeast(Bytes::LIMIT);

/// What is asked for.
pub struct Task {
    /// How many devices there are.
    pub devices: u32,
    /// The budget of each.
    pub budget: Budget,
    /// The micro-batches of an update.
    pub accumulation: Accumulation,
    /// Bytes a second between devices, and how long the first takes; absent: as fast as memory.
    pub link: Option<(f64, Seconds)>,
    /// Bytes that each element of a parameter takes, in place of what the graph has.
    pub state: Option<f64>,
    /// Only this order.
    pub schedule: Option<PipelineSchedule>,
    /// Cut only where the call of a module begins.
    pub at_modules: bool,
    /// How each device is planned tensor by tensor; absent: whole layers are recomputed.
    pub search: Option<Search>,
}

/// A pipeline.
pub enum Found {
    /// Whole layers are recomputed.
    Layers(StagePlan),
    /// Each device is planned tensor by tensor.
    Tensors(PlannedStages),
}

impl Found {
    /// Its cut and its order.
    pub fn plan(&self) -> &StagePlan {
        match self {
            Found::Layers(plan) => plan,
            Found::Tensors(planned) => &planned.plan,
        }
    }

    /// What an update takes.
    pub fn makespan(&self) -> Seconds {
        match self {
            Found::Layers(plan) => plan.makespan,
            Found::Tensors(planned) => planned.times.makespan,
        }
    }

    /// The share of the devices' time in which they do nothing.
    pub fn bubble(&self) -> f64 {
        match self {
            Found::Layers(plan) => plan.bubble,
            Found::Tensors(planned) => planned.idle(),
        }
    }

    /// What each device holds at most.
    pub fn peaks(&self) -> &PrimaryMap<RankId, Bytes> {
        match self {
            Found::Layers(plan) => &plan.peaks,
            Found::Tensors(planned) => &planned.times.peaks,
        }
    }
}

/// Plans, the fastest first.
pub struct Answer<'g> {
    /// The step.
    pub graph: &'g Graph,
    /// What the model was cut into.
    pub cut: Vec<Layer>,
    /// What that costs.
    pub costs: Vec<LayerCost>,
    /// The best of each order.
    pub found: Vec<Found>,
    /// Orders that were not planned, since they take at least so long with nothing recomputed.
    pub slower: Vec<(String, Seconds)>,
    /// The devices.
    pub devices: Devices,
    /// The whole budget of a device.
    pub budget: Bytes,
    /// What of it is not the slab's.
    pub reserve: Bytes,
}

impl Answer<'_> {
    /// When each device does what.
    pub fn times(&self, found: &Found) -> Simulated {
        match found {
            Found::Layers(plan) => in_time(&self.costs, &self.devices, plan),
            Found::Tensors(planned) => planned.times.clone(),
        }
    }
}

/// Plans; without one where it was over before.
pub fn answer<'g>(
    graph: &'g Graph,
    machine: &Machine,
    task: &Task,
    is_over: &(dyn Fn() -> bool + Sync),
) -> anyhow::Result<Answer<'g>> {
    let profile = input::profile(graph, machine);
    let reserve = reserve(graph, machine);
    let peak = match task.budget {
        Budget::Share(_) => {
            let whole = task.accumulation.of(graph.clone())?;
            let profile = input::profile(&whole, machine);
            tightfit::unplanned(&whole, &profile)?.timeline().peak
        }
        Budget::Absolute(_) | Budget::Smallest => Bytes::ZERO,
    };
    let bytes = task.budget.bytes(peak, reserve).ok_or(crate::verbs::analyze::Refused::Smallest)?;
    within_memory(bytes, machine)?;
    let asked = match task.schedule {
        Some(schedule) => vec![schedule],
        None => PipelineSchedule::with_equal_sums().collect(),
    };
    // Layers as fine as the order with the most stages asks for, where there are so many.
    let chunks = asked.iter().map(|schedule| schedule.chunks()).max().unwrap_or(1);
    let ranks = task.devices as usize;
    let cut = layers(graph, &profile, ranks * chunks as usize);
    let mut cut = cut.or_else(|_| layers(graph, &profile, ranks))?;
    if task.at_modules {
        cut = at_modules(cut);
    }
    let costs = layer_costs(graph, &profile, &cut, task.state)?;
    let (bandwidth, latency) = task.link.unwrap_or((machine.bandwidth, Seconds(0.0)));
    let budget = bytes.saturating_sub(reserve.total());
    let devices = Devices { ranks: task.devices, budget, bandwidth, latency };
    let reserve = reserve.total();
    let (found, slower) = (Vec::new(), Vec::new());
    let empty = Answer { graph, cut, costs, found, slower, devices, budget: bytes, reserve };
    match task.search.filter(|_| are_few(graph, task.accumulation)) {
        Some(search) => by_tensors(empty, machine, (task, search), &asked, is_over),
        None => by_layers(empty, task.accumulation, &asked, is_over),
    }
}

/// Whether calls are few enough to be planned one by one; says so where they are not.
fn are_few(graph: &Graph, accumulation: Accumulation) -> bool {
    let (calls, micro_batches) = (graph.compute_nodes().len(), accumulation.micro_batches());
    let are_few = calls as u64 * u64::from(micro_batches) <= MOST_CALLS;
    if !are_few {
        note!(
            "note: {micro_batches} times {calls} calls are too many to be planned tensor by \
             tensor; whole layers are recomputed (--whole-layers)"
        );
    }
    are_few
}

/// Plans in which whole layers are recomputed.
fn by_layers<'g>(
    answer: Answer<'g>,
    accumulation: Accumulation,
    asked: &[PipelineSchedule],
    is_over: &(dyn Fn() -> bool + Sync),
) -> anyhow::Result<Answer<'g>> {
    let Answer { graph, cut, costs, devices, budget, reserve, .. } = &answer;
    let micro_batches = accumulation.micro_batches();
    let plans = plan_stages(costs, devices, micro_batches, asked, is_over)?;
    if plans.is_empty() && !is_over() {
        let stages = asked.iter().map(|order| (devices.ranks * order.chunks()) as usize).min();
        if let Some(stages) = stages.filter(|&stages| stages > cut.len()) {
            return Err(PipelineError::TooManyStages { stages, layers: cut.len() }.into());
        }
        let least = |cost: &LayerCost| cost.least() + *reserve;
        let largest = costs.iter().enumerate().max_by_key(|(_, cost)| cost.least());
        let alone = largest.filter(|(_, cost)| least(cost) > *budget);
        let lack = alone.map_or_else(
            || Lack::Together(costs.iter().map(|cost| cost.held).sum()),
            |(layer, cost)| Lack::Layer(span(graph, cut, layer..layer + 1), least(cost)),
        );
        return Err(NoStages { devices: devices.ranks, budget: *budget, lack }.into());
    }
    Ok(Answer { found: plans.into_iter().map(Found::Layers).collect(), ..answer })
}

/// Plans in which each device is planned tensor by tensor.
fn by_tensors<'g>(
    answer: Answer<'g>,
    machine: &Machine,
    (task, search): (&Task, Search),
    asked: &[PipelineSchedule],
    is_over: &(dyn Fn() -> bool + Sync),
) -> anyhow::Result<Answer<'g>> {
    let mut effort = search.effort();
    // All devices together search as long as one step would.
    effort.deadline = Seconds(effort.deadline.0 / f64::from(task.devices));
    let planning = TensorPlanning {
        graph: answer.graph,
        layers: &answer.cut,
        devices: &answer.devices,
        state: task.state,
        profile: &|graph| input::profile(graph, machine),
        planner: search.planner,
        effort,
    };
    let candidates = candidates(&answer, task.accumulation.micro_batches(), asked, is_over)?;
    let Ranked { found, slower, refused } = rank(&planning, &answer.costs, candidates, is_over);
    match refused {
        Some(error) if found.is_empty() && !is_over() => Err(refusal(error, &answer)),
        _ => {
            Ok(Answer { found: found.into_iter().map(Found::Tensors).collect(), slower, ..answer })
        }
    }
}

/// Cuts of the orders that are asked for, those first that the model of layers likes best.
fn candidates(
    answer: &Answer<'_>,
    micro_batches: u32,
    asked: &[PipelineSchedule],
    is_over: &dyn Fn() -> bool,
) -> anyhow::Result<Vec<StagePlan>> {
    let Answer { costs, devices, .. } = answer;
    let (mut found, mut first): (_, Option<anyhow::Error>) = (Vec::new(), None);
    for schedule in asked.iter().take_while(|_| !is_over()) {
        match schedule.rows(devices.ranks, micro_batches) {
            Ok(rows) if rows.placement.len() > costs.len() => {
                let (stages, layers) = (rows.placement.len(), costs.len());
                first = first.or(Some(PipelineError::TooManyStages { stages, layers }.into()));
            }
            Ok(rows) => {
                let order = (schedule.name(), &rows);
                found.extend(cuts(costs, devices, order, is_over));
            }
            Err(error) => first = first.or(Some(error.into())),
        }
    }
    if let Some(error) = first.filter(|_| found.is_empty()) {
        return Err(error);
    }
    found.sort_by(|a, b| a.makespan.0.total_cmp(&b.makespan.0));
    Ok(found)
}

/// What became of candidates.
struct Ranked {
    /// The best of each order, the fastest first.
    found: Vec<PlannedStages>,
    /// Orders of which none was planned.
    slower: Vec<(String, Seconds)>,
    /// Of refusals the one that asks for least.
    refused: Option<TensorPlanningError>,
}

/// Plans candidates, but those that would take as long as the best with nothing recomputed.
fn rank(
    planning: &TensorPlanning<'_>,
    costs: &[LayerCost],
    candidates: Vec<StagePlan>,
    is_over: &dyn Fn() -> bool,
) -> Ranked {
    let mut ranked = Ranked { found: Vec::new(), slower: Vec::new(), refused: None };
    let bar = ProgressBar::new(candidates.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {elapsed}") {
        bar.set_style(style);
    }
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    for candidate in candidates {
        bar.set_message(candidate.schedule.clone());
        let nothing = StagePlan { recomputed: vec![false; costs.len()], ..candidate.clone() };
        let least = in_time(costs, planning.devices, &nothing).makespan;
        let best = ranked.found.first().map_or(f64::INFINITY, |best| best.times.makespan.0);
        if least.0 >= best {
            ranked.slower.push((candidate.schedule, least));
        } else if !is_over() {
            match planning.plan(&candidate) {
                Ok(planned) => ranked.found.push(planned),
                Err(error) => {
                    // One that is known to fit somewhere, where there is one.
                    let asks = |error| room(error, Bytes::ZERO).unwrap_or(NOTHING_KNOWN);
                    if ranked.refused.as_ref().is_none_or(|least| asks(&error) < asks(least)) {
                        ranked.refused = Some(error);
                    }
                }
            }
            ranked.found.sort_by(|a, b| a.times.makespan.0.total_cmp(&b.times.makespan.0));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut seen: Vec<String> = Vec::new();
    let mut is_first = |schedule: &String| {
        let is_first = !seen.contains(schedule);
        seen.push(schedule.clone());
        is_first
    };
    ranked.found.retain(|planned| is_first(&planned.plan.schedule));
    ranked.slower.sort_by(|a, b| a.1.0.total_cmp(&b.1.0));
    ranked.slower.retain(|(schedule, _)| is_first(schedule));
    ranked
}

/// What the rank that did not fit needs, where that is known; `reserve` is not the slab's.
fn room(error: &TensorPlanningError, reserve: Bytes) -> Option<Room> {
    match error {
        TensorPlanningError::TooLittle { needed, .. } => Some(Room::AtLeast(*needed + reserve)),
        TensorPlanningError::Rank { beside, error, .. } => {
            let reached = match &**error {
                FitError::Plan(PlanError::Infeasible(proof)) => proof.reached,
                FitError::Plan(PlanError::NotFound(found)) => found.reached,
                _ => return None,
            };
            Some(Room::Enough(reached + *beside + reserve))
        }
        _ => None,
    }
}

/// Why nothing fits, in bytes of the whole budget.
fn refusal(error: TensorPlanningError, answer: &Answer) -> anyhow::Error {
    let room = room(&error, answer.reserve);
    match (error, room) {
        (
            TensorPlanningError::Rank { schedule, rank, .. }
            | TensorPlanningError::TooLittle { schedule, rank, .. },
            Some(room),
        ) => {
            let (devices, budget) = (answer.devices.ranks, answer.budget);
            NoRanks { devices, budget, schedule, rank, room, because: None }.into()
        }
        (TensorPlanningError::Rank { schedule, rank, error, .. }, None) => {
            anyhow::Error::from(*error).context(format!("{schedule}: {rank}"))
        }
        (TensorPlanningError::Pipeline(error), _) => error.into(),
        (error, _) => error.into(),
    }
}
