//! Pipelines for `tightfit stages`, the fastest first; the program and Python plan them alike.
//! Invariant: an order that is missing was found not to fit, or was not planned: because by the
//! model of layers it takes at least as long as the first one, or because time was up.

use tightfit::graph::Graph;
use tightfit::id::{PrimaryMap, RankId};
use tightfit::machine::Machine;
use tightfit::pipeline::stages::{
    Devices, LayerCost, StagePlan, in_time, layer_costs, plan_cut, plan_stages,
};
use tightfit::pipeline::{
    Decided, Layer, LayeredModel, Order, PipelineError, PipelineSchedule, Simulated, at_modules,
    beginnings, ends, layers_for_all_orders, span,
};
use tightfit::staged::{PlannedStages, TensorPlanning, TensorPlanningError};
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{Budget, reserve, within_memory};

use super::by_tensors::{ByTensors, Timer, room};
use crate::batches::Batches;
use crate::clock::wall;
use crate::effort::Search;
use crate::failure::{Failure, Result};
use crate::input;
use crate::values::{Lack, NoRanks, NoStages, OtherStages};

/// The most calls of all micro-batches to plan one by one: a second or two for each cut.
const MOST_CALLS: u64 = 1 << 18;

/// What is requested.
pub struct Task {
    /// How many devices there are.
    pub devices: u32,
    /// The budget of each.
    pub budget: Budget,
    /// The batches of an update.
    pub batches: Batches,
    /// Bytes per second between devices, and the latency of the first; absent: as fast as memory.
    pub link: Option<(f64, Seconds)>,
    /// Bytes that each element of a parameter takes, in place of the graph's figure.
    pub state: Option<f64>,
    /// Only this order.
    pub schedule: Option<PipelineSchedule>,
    /// The modules with which the stages after the first begin; empty: wherever it is best.
    pub cut: Vec<String>,
    /// Cut only at the beginning of a module's call.
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

    /// The most that each device holds.
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
    /// What those layers cost.
    pub costs: Vec<LayerCost>,
    /// The layer after the last one of each stage, if the cut was requested.
    pub ends: Option<Vec<usize>>,
    /// The best of each order.
    pub found: Vec<Found>,
    /// Orders that were not planned, with the time they take by the model of layers if nothing is
    /// recomputed; no bound, since planning tensor by tensor does better.
    pub unplanned: Vec<(String, Seconds)>,
    /// The devices.
    pub devices: Devices,
    /// The whole budget of a device.
    pub budget: Bytes,
    /// The part of it that is not the slab's.
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

/// Plans; the answer has no plan if it was interrupted or time was up before one was found.
pub fn answer<'g>(
    graph: &'g Graph,
    machine: &Machine,
    task: &Task,
    is_over: &(dyn Fn() -> bool + Sync),
) -> Result<Answer<'g>> {
    let start = wall();
    let profile = input::profile(graph, machine);
    let reserve = reserve(graph, machine);
    let peak = match task.budget {
        Budget::Share(_) => {
            let whole = task.batches.accumulated(graph.clone())?;
            let profile = input::profile(&whole, machine);
            tightfit::unplanned(&whole, &profile)?.timeline().peak
        }
        Budget::Absolute(_) | Budget::Smallest => Bytes::ZERO,
    };
    let bytes = task.budget.bytes(peak, reserve).ok_or(crate::verbs::analyze::Refused::Smallest)?;
    within_memory(bytes, machine)?;
    let mut asked = match task.schedule {
        Some(schedule) => vec![schedule],
        None => PipelineSchedule::with_equal_sums().collect(),
    };
    if !task.cut.is_empty() {
        asked = with_so_many_stages(asked, task)?;
    }
    let begin = beginnings(graph, &task.cut)?;
    let mut cut = layers_for_all_orders(graph, &profile, task.devices, &begin)?;
    if task.at_modules {
        cut = at_modules(cut);
    }
    let ends = (!begin.is_empty()).then(|| ends(&cut, &begin));
    let costs = layer_costs(graph, &profile, &cut, task.state)?;
    let (bandwidth, latency) = task.link.unwrap_or((machine.bandwidth, Seconds(0.0)));
    let budget = bytes.saturating_sub(reserve.total());
    let devices = Devices { ranks: task.devices, budget, bandwidth, latency };
    let reserve = reserve.total();
    let (found, unplanned) = (Vec::new(), Vec::new());
    let budget = bytes;
    let empty = Answer { graph, cut, costs, ends, found, unplanned, devices, budget, reserve };
    match task.search.filter(|_| are_few(graph, task.batches)) {
        Some(search) => {
            let until = search.limits.deadline.map(|whole| Seconds(start.0 + whole.0));
            by_tensors(empty, machine, (task, search), &asked, (until, is_over))
        }
        None => by_layers(empty, task.batches, &asked, is_over),
    }
}

/// The orders with as many stages as the requested cut.
fn with_so_many_stages(
    mut asked: Vec<PipelineSchedule>,
    task: &Task,
) -> Result<Vec<PipelineSchedule>, OtherStages> {
    let stages = |order: &PipelineSchedule| task.devices * order.chunks();
    let mut possible: Vec<u32> = asked.iter().map(stages).collect();
    possible.sort_unstable();
    possible.dedup();
    asked.retain(|order| stages(order) as usize == task.cut.len() + 1);
    match asked.is_empty() {
        true => Err(OtherStages { cuts: task.cut.len(), devices: task.devices, possible }),
        false => Ok(asked),
    }
}

/// Whether calls are few enough to be planned one by one; says so if they are not.
fn are_few(graph: &Graph, batches: Batches) -> bool {
    let (calls, micro_batches) = (graph.compute_nodes().len(), batches.micro_batches());
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
    batches: Batches,
    asked: &[PipelineSchedule],
    is_over: &(dyn Fn() -> bool + Sync),
) -> Result<Answer<'g>> {
    let Answer { graph, cut, costs, devices, budget, reserve, .. } = &answer;
    let micro_batches = batches.micro_batches();
    let plans = match &answer.ends {
        None => plan_stages(costs, devices, micro_batches, asked, is_over),
        Some(ends) => plan_cut((costs, ends), devices, micro_batches, asked, is_over),
    }?;
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

/// Plans in which each device is planned tensor by tensor, until the time limit if there is one,
/// but at least those of one cut.
fn by_tensors<'g>(
    answer: Answer<'g>,
    machine: &Machine,
    (task, search): (&Task, Search),
    asked: &[PipelineSchedule],
    (until, is_interrupted): (Option<Seconds>, &(dyn Fn() -> bool + Sync)),
) -> Result<Answer<'g>> {
    let effort = search.effort();
    let planning = TensorPlanning {
        graph: answer.graph,
        layers: &answer.cut,
        devices: &answer.devices,
        state: task.state,
        profile: &|graph| input::profile(graph, machine),
        planner: search.planner,
        effort,
    };
    let orders: Vec<Order> = asked.iter().copied().map(Order::Known).collect();
    let model = LayeredModel {
        layers: &answer.costs,
        ends: answer.ends.as_deref(),
        devices: &answer.devices,
    };
    let timer = Timer { whole: effort, until, is_interrupted };
    let candidates =
        model.candidates(&orders, task.batches.micro_batches(), &|| timer.for_cuts())?;
    let mut by_tensors = ByTensors::new(planning, timer, candidates.len());
    let Decided { planned, skipped, refused } = model.decide(candidates, &mut by_tensors);
    drop(by_tensors);
    if let Some(error) = refused.filter(|_| planned.is_empty() && !is_interrupted()) {
        return Err(refusal(error, &answer));
    }
    // Of each order the best.
    let mut seen: Vec<String> = Vec::new();
    let mut is_first = |schedule: &String| {
        let is_first = !seen.contains(schedule);
        seen.push(schedule.clone());
        is_first
    };
    let found = planned.into_iter().filter(|planned| is_first(&planned.plan.schedule));
    let found = found.map(Found::Tensors).collect();
    let mut unplanned: Vec<(String, Seconds)> =
        skipped.into_iter().map(|(plan, least)| (plan.schedule, least)).collect();
    unplanned.sort_by(|a, b| a.1.0.total_cmp(&b.1.0));
    unplanned.retain(|(schedule, _)| is_first(schedule));
    Ok(Answer { found, unplanned, ..answer })
}

/// Why nothing fits, in bytes of the whole budget.
fn refusal(error: TensorPlanningError, answer: &Answer) -> Failure {
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
            Failure::from(*error).context(format!("{schedule}: {rank}"))
        }
        (TensorPlanningError::Pipeline(error), _) => error.into(),
        (error, _) => error.into(),
    }
}
