//! Pipelines for `tightfit stages`, the fastest first; the program and Python plan them alike.
//! Invariant: an order that is missing was found not to fit, or was not planned: because by the
//! model of layers it takes at least as long as the first one, or because time was up.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tightfit::FitError;
use tightfit::effort::Effort;
use tightfit::graph::Graph;
use tightfit::id::{PrimaryMap, RankId};
use tightfit::machine::Machine;
use tightfit::pipeline::stages::{
    Devices, LayerCost, StagePlan, cuts, given_cut, in_time, layer_costs, plan_cut, plan_stages,
};
use tightfit::pipeline::{
    Layer, PipelineError, PipelineSchedule, Simulated, at_modules, beginnings, ends,
    layers_beginning_with, span,
};
use tightfit::plan::PlanError;
use tightfit::staged::{PlannedStages, TensorPlanning, TensorPlanningError};
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{Budget, reserve, within_memory};

use crate::accumulation::Accumulation;
use crate::effort::{Search, clock};
use crate::failure::{Failure, Result};
use crate::input;
use crate::values::{Lack, NoRanks, NoStages, OtherStages, Room};

/// The least time for each device of a candidate, if there is as much for two candidates.
const LEAST_SHARE: Seconds = Seconds(0.05);

/// The most calls of all micro-batches to plan one by one: a second or two for each cut.
const MOST_CALLS: u64 = 1 << 18;

/// More bytes than any refusal says are needed.
const NOTHING_KNOWN: Room = Room::AtLeast(Bytes::LIMIT);

/// What is requested.
pub struct Task {
    /// How many devices there are.
    pub devices: u32,
    /// The budget of each.
    pub budget: Budget,
    /// The micro-batches of an update.
    pub accumulation: Accumulation,
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
    let start = clock();
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
    let mut asked = match task.schedule {
        Some(schedule) => vec![schedule],
        None => PipelineSchedule::with_equal_sums().collect(),
    };
    if !task.cut.is_empty() {
        asked = with_so_many_stages(asked, task)?;
    }
    // Layers as fine as the order with the most stages needs, if there are that many, whichever
    // order is requested: so each order is cut as it would be among all of them.
    let chunks = PipelineSchedule::with_equal_sums().map(PipelineSchedule::chunks).max();
    let chunks = chunks.unwrap_or(1);
    let ranks = task.devices as usize;
    let begin = beginnings(graph, &task.cut)?;
    let layers = |stages| layers_beginning_with(graph, &profile, stages, &begin);
    let mut cut = layers(ranks * chunks as usize).or_else(|_| layers(ranks))?;
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
    match task.search.filter(|_| are_few(graph, task.accumulation)) {
        Some(search) => {
            let until = search.limits.deadline.map(|whole| Seconds(start.0 + whole.0));
            by_tensors(empty, machine, (task, search), &asked, (until, is_over))
        }
        None => by_layers(empty, task.accumulation, &asked, is_over),
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
) -> Result<Answer<'g>> {
    let Answer { graph, cut, costs, devices, budget, reserve, .. } = &answer;
    let micro_batches = accumulation.micro_batches();
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
    let micro_batches = task.accumulation.micro_batches();
    let left = || until.map(|until| Seconds((until.0 - clock().0).max(0.0)));
    // Half of the time is for choosing cuts.
    let is_late = || left().is_some_and(|left| left.0 < effort.deadline.0 / 2.0);
    let is_late: Option<&dyn Fn() -> bool> = until.is_some().then_some(&is_late);
    let candidates = candidates(&answer, micro_batches, asked, (is_late, is_interrupted))?;
    let limits = RankLimits { whole: effort, devices: task.devices, left: &left, is_interrupted };
    let Ranked { found, unplanned, refused } = rank(planning, &answer.costs, candidates, &limits);
    match refused {
        Some(error) if found.is_empty() && !is_interrupted() => Err(refusal(error, &answer)),
        _ => {
            let found = found.into_iter().map(Found::Tensors).collect();
            Ok(Answer { found, unplanned, ..answer })
        }
    }
}

/// Cuts of the requested orders, sorted by the time that the model of layers predicts; when time
/// runs out, only of the orders reached by then.
fn candidates(
    answer: &Answer<'_>,
    micro_batches: u32,
    asked: &[PipelineSchedule],
    (is_late, is_interrupted): (Option<&dyn Fn() -> bool>, &dyn Fn() -> bool),
) -> Result<Vec<StagePlan>> {
    let Answer { costs, devices, .. } = answer;
    let (mut found, mut first): (Vec<StagePlan>, Option<Failure>) = (Vec::new(), None);
    // In little time the one that fits more often than others, since it holds little.
    let mut asked = asked.to_vec();
    if is_late.is_some() {
        asked.sort_by_key(|&schedule| schedule != PipelineSchedule::OneFOneB);
    }
    for schedule in asked {
        // The first order that has a cut gets one in any case.
        let is_late = || is_late.is_some_and(|is_late| is_late());
        let is_over = || is_interrupted() || !found.is_empty() && is_late();
        if is_over() {
            break;
        }
        match schedule.rows(devices.ranks, micro_batches) {
            Ok(rows) if rows.placement.len() > costs.len() => {
                let (stages, layers) = (rows.placement.len(), costs.len());
                first = first.or(Some(PipelineError::TooManyStages { stages, layers }.into()));
            }
            Ok(rows) => {
                let order = (schedule.name(), &rows);
                found.extend(match &answer.ends {
                    None => cuts(costs, devices, order, &is_over),
                    Some(ends) => given_cut((costs, ends), devices, order),
                });
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

/// What became of the candidates.
struct Ranked {
    /// The best of each order, the fastest first.
    found: Vec<PlannedStages>,
    /// Orders of which none was planned.
    unplanned: Vec<(String, Seconds)>,
    /// Of all refusals the one that needs the least.
    refused: Option<TensorPlanningError>,
}

impl Ranked {
    fn has_tried(&self) -> bool {
        !self.found.is_empty() || self.refused.is_some()
    }

    /// The candidate to plan next: the fastest by the model of layers; but if time is limited and
    /// was not enough so far, the one of which a device holds least.
    fn next(&self, candidates: &[StagePlan], limits: &RankLimits<'_>) -> usize {
        if !self.found.is_empty() || self.refused.is_none() || (limits.left)().is_none() {
            return 0;
        }
        let held = |plan: &StagePlan| plan.peaks.values().max().copied();
        (0..candidates.len()).min_by_key(|&index| held(&candidates[index])).unwrap_or(0)
    }
}

/// How long planning candidates may take.
struct RankLimits<'a> {
    /// The effort that was requested.
    whole: Effort<'a>,
    /// Devices that share it.
    devices: u32,
    /// The time left for all candidates together, if there is a limit.
    left: &'a dyn Fn() -> Option<Seconds>,
    is_interrupted: &'a dyn Fn() -> bool,
}

impl RankLimits<'_> {
    fn is_over(&self) -> bool {
        (self.is_interrupted)() || (self.left)().is_some_and(|left| left.0 <= 0.0)
    }

    /// The effort for one of this many candidates: as much time as for one step, or a share of the
    /// time left. Shares are no shorter than what plans take, as long as two candidates get one.
    fn of_each(&self, candidates: usize) -> Effort<'_> {
        let devices = f64::from(self.devices);
        let Some(left) = (self.left)() else { return self.whole };
        let most = (left.0 / devices / LEAST_SHARE.0).max(2.0);
        let shares = most.min(candidates as f64);
        let of_device = |floor: u64| (floor as f64 / shares / devices) as u64;
        let of_all = |time: Seconds| Seconds(time.0 / shares);
        Effort {
            deadline: of_all(left),
            grace: self.whole.grace.map(of_all),
            floor: of_device(self.whole.floor),
            floor_beside: of_device(self.whole.floor_beside),
            ..self.whole
        }
    }
}

/// Plans candidates, except those that would take as long as the best even with nothing recomputed,
/// by the model of layers; one however little time there is.
fn rank(
    planning: TensorPlanning<'_>,
    costs: &[LayerCost],
    mut candidates: Vec<StagePlan>,
    limits: &RankLimits<'_>,
) -> Ranked {
    let mut ranked = Ranked { found: Vec::new(), unplanned: Vec::new(), refused: None };
    let bar = ProgressBar::new(candidates.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {elapsed}") {
        bar.set_style(style);
    }
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    while !candidates.is_empty() {
        let waiting = candidates.len();
        let candidate = candidates.remove(ranked.next(&candidates, limits));
        bar.set_message(candidate.schedule.clone());
        let nothing = StagePlan { recomputed: vec![false; costs.len()], ..candidate.clone() };
        let about = in_time(costs, planning.devices, &nothing).makespan;
        let best = ranked.found.first().map_or(f64::INFINITY, |best| best.times.makespan.0);
        if about.0 >= best || ranked.has_tried() && limits.is_over() {
            ranked.unplanned.push((candidate.schedule, about));
        } else if !(limits.is_interrupted)() {
            let effort = limits.of_each(waiting);
            match (TensorPlanning { effort, ..planning }).plan(&candidate) {
                Ok(planned) => ranked.found.push(planned),
                Err(error) => {
                    // Prefer one that is known to fit with some budget, if there is one.
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
    ranked.unplanned.sort_by(|a, b| a.1.0.total_cmp(&b.1.0));
    ranked.unplanned.retain(|(schedule, _)| is_first(schedule));
    ranked
}

/// What the rank that did not fit needs, if that is known; `reserve` is not the slab's.
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
