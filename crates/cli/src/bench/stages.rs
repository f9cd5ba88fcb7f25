//! `tightfit bench stages`: planned pipelines compared with those that cut equally and recompute
//! nothing or everything. Invariant: all of them are priced by the same model and the same
//! simulation; the results of planning each device tensor by tensor stand next to that.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tightfit::exit::Exit;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::pipeline::stages::{Devices, LayerCost, StagePlan, layer_costs, plan_stages, price};
use tightfit::pipeline::{PipelineSchedule, layers};
use tightfit::profile::Profile;
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::Budget;

use super::markdown::{known, table};
use crate::accumulation::Accumulation;
use crate::effort::{Search, clock};
use crate::exit_code::ExitCode;
use crate::failure::Result;
use crate::verbs::stages::answer::{Answer, Found, Task, answer};
use crate::{input, interrupt};

/// Gigabytes of a device.
const BUDGETS: [u64; 7] = [80, 40, 30, 20, 12, 8, 5];
/// Bytes for each element of a parameter: bfloat16 parameter and gradient, and three 32-bit numbers
/// of Adam with master weights.
const STATE: f64 = 16.0;
const DEVICES: u32 = 8;
const MICRO_BATCHES: u32 = 16;
/// Between devices: 50 GB/s, 10 µs.
const LINK: (f64, Seconds) = (50e9, Seconds(10e-6));

/// The schedules with which equal cuts are tried.
const SCHEDULES: [PipelineSchedule; 5] = [
    PipelineSchedule::GPipe,
    PipelineSchedule::OneFOneB,
    PipelineSchedule::Interleaved,
    PipelineSchedule::ZbH1,
    PipelineSchedule::ZbV,
];

/// Plan pipelines of 8 devices and 16 micro-batches, compared with equal cuts.
#[derive(Args)]
pub struct Arguments {
    /// Graphs [default: llama_1b_b2_s2048 of the corpus]
    inputs: Vec<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A pipeline with its name.
struct Named {
    name: String,
    plan: StagePlan,
}

/// Plans and prints.
pub fn stages(arguments: &Arguments) -> Result<ExitCode> {
    let mut paths = arguments.inputs.clone();
    if paths.is_empty() {
        paths.push(Path::new("corpus/graphs/llama_1b_b2_s2048.json.gz").to_path_buf());
    }
    let (mut rows, mut results): (Vec<Vec<String>>, Vec<Value>) = (Vec::new(), Vec::new());
    for path in paths {
        let (graph, _) = input::graph(&path)?;
        let machine = Machine::preset("a100-80gb")?;
        let profile = Profile::new(&graph, &machine);
        let planned = layers(&graph, &profile, 2 * DEVICES as usize)?;
        let planned = layer_costs(&graph, &profile, &planned, Some(STATE))?;
        for budget in BUDGETS.map(|budget| Bytes(budget * 1_000_000_000)) {
            let (bandwidth, latency) = LINK;
            let devices = Devices { ranks: DEVICES, budget, bandwidth, latency };
            let start = clock().0;
            let all: Vec<PipelineSchedule> = PipelineSchedule::with_equal_sums().collect();
            let plans = plan_stages(&planned, &devices, MICRO_BATCHES, &all, &interrupt::raised)?;
            let seconds = clock().0 - start;
            let ours = plans.first();
            let equal = equal(&graph, &profile, &devices)?;
            let ratio = ours
                .zip(equal.as_ref())
                .map(|(ours, equal)| ours.makespan.0 / equal.plan.makespan.0);
            let start = clock().0;
            let tensors = by_tensors(&graph, &machine, budget)?;
            let tensor_seconds = clock().0 - start;
            let tensors = tensors.as_ref().and_then(|answer| match answer.found.first() {
                Some(Found::Tensors(planned)) => Some(planned),
                _ => None,
            });
            let time = |plan: &StagePlan| format!("{:.1}", plan.makespan.0 * 1e3);
            let again = |plan: &StagePlan| plan.recomputed.iter().filter(|&&is| is).count();
            rows.push(vec![
                format!("{} GB", budget.0 / 1_000_000_000),
                known(ours, |plan| plan.schedule.clone()),
                known(ours, time),
                known(ours, |plan| format!("{} of {}", again(plan), plan.recomputed.len())),
                known(equal.as_ref(), |equal| equal.name.clone()),
                known(equal.as_ref(), |equal| time(&equal.plan)),
                known(ratio, |ratio| format!("{ratio:.3}")),
                format!("{seconds:.2}"),
                known(tensors, |planned| planned.plan.schedule.clone()),
                known(tensors, |planned| format!("{:.1}", planned.times.makespan.0 * 1e3)),
                known(tensors, |planned| format!("{:.1} %", planned.recomputed() * 1e2)),
                format!("{tensor_seconds:.2}"),
            ]);
            results.push(json!({
                "graph": graph.name(),
                "budget_bytes": budget,
                "schedule": ours.map(|plan| &plan.schedule),
                "step_seconds": ours.map(|plan| plan.makespan),
                "equal": equal.as_ref().map(|equal| &equal.name),
                "equal_step_seconds": equal.as_ref().map(|equal| equal.plan.makespan),
                "planning_seconds": seconds,
                "tensors": tensors.map(|planned| json!({
                    "schedule": planned.plan.schedule,
                    "step_seconds": planned.times.makespan,
                    "recomputed": planned.recomputed(),
                })),
                "tensors_planning_seconds": tensor_seconds,
            }));
        }
    }
    if arguments.json {
        say!("{}", Value::Array(results))?;
        return Ok(ExitCode::SUCCESS);
    }
    let head = [
        "budget",
        "planned",
        "step, ms",
        "recomputed",
        "best equal cut",
        "step, ms",
        "ratio",
        "planning, s",
        "by tensors",
        "step, ms",
        "recomputed",
        "planning, s",
    ];
    say!("{}", table(&head, &rows).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// The same with each device planned tensor by tensor; none if nothing fits.
fn by_tensors<'g>(
    graph: &'g Graph,
    machine: &Machine,
    budget: Bytes,
) -> Result<Option<Answer<'g>>> {
    let task = Task {
        devices: DEVICES,
        budget: Budget::Absolute(budget),
        accumulation: Accumulation::of_so_many(MICRO_BATCHES),
        link: Some(LINK),
        state: Some(STATE),
        schedule: None,
        cut: Vec::new(),
        at_modules: false,
        search: Some(Search::default()),
    };
    match answer(graph, machine, &task, &interrupt::raised) {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.exit() == Exit::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The fastest of all equal cuts that fit: stages of equal numbers of layers, or of equal time,
/// with nothing or everything recomputed. Layers are whole blocks if that gives enough of them.
fn equal(graph: &Graph, profile: &Profile, devices: &Devices) -> Result<Option<Named>> {
    let mut best: Option<Named> = None;
    for schedule in SCHEDULES {
        let rows = schedule.rows(devices.ranks, MICRO_BATCHES)?;
        let stages = rows.placement.len();
        let coarse = layers(graph, profile, devices.ranks as usize)?;
        let cut = if coarse.len() < stages { layers(graph, profile, stages)? } else { coarse };
        let costs = layer_costs(graph, profile, &cut, Some(STATE))?;
        let by_count = (1..=stages).map(|stage| stage * costs.len() / stages).collect();
        for (what, ends) in [("layers", by_count), ("time", by_time(&costs, stages))] {
            for (how, again) in [("", false), (", all recomputed", true)] {
                let order = (schedule.name(), &rows);
                let recomputed = vec![again; costs.len()];
                let Some(plan) = price(&costs, devices, order, &ends, &recomputed) else {
                    continue;
                };
                let is_faster = |best: &Named| plan.makespan.0 < best.plan.makespan.0;
                if best.as_ref().is_none_or(is_faster) {
                    let name = format!("{}, equal {what}{how}", schedule.name());
                    best = Some(Named { name, plan });
                }
            }
        }
    }
    Ok(best)
}

/// Ends each stage at its share of the time.
fn by_time(costs: &[LayerCost], stages: usize) -> Vec<usize> {
    let whole: f64 = costs.iter().map(|cost| cost.seconds().0).sum();
    let (mut until, mut ends) = (0.0, Vec::new());
    for (index, cost) in costs.iter().enumerate() {
        until += cost.seconds().0;
        let (next, left) = (index + 1, costs.len() - index - 1);
        let missing = stages - ends.len();
        let is_due = until >= whole * (ends.len() + 1) as f64 / stages as f64;
        if missing > 0 && (is_due && left >= missing - 1 && missing > 1 || left < missing) {
            ends.push(next);
        }
    }
    ends
}
