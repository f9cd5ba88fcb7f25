//! `tightfit-bench stages`: planned pipelines compared with those that cut equally and recompute
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
use tightfit::staged::PlannedStages;
use tightfit::units::{Bytes, Seconds};
use tightfit_cli::batches::Batches;
use tightfit_cli::clock::wall;
use tightfit_cli::effort::Search;
use tightfit_cli::exit_code::ExitCode;
use tightfit_cli::failure::Result;
use tightfit_cli::say;
use tightfit_cli::verbs::stages::answer::{Found, Task, answer};
use tightfit_cli::{input, interrupt};
use tightfit_engine::Budget;

use crate::markdown::{known, titled};

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

/// Plans and prints.
pub fn stages(arguments: &Arguments) -> Result<ExitCode> {
    let mut paths = arguments.inputs.clone();
    if paths.is_empty() {
        paths.push(Path::new("corpus/graphs/llama_1b_b2_s2048.json.gz").to_path_buf());
    }
    let mut compared = Vec::new();
    for path in paths {
        let (graph, _) = input::graph(&path)?;
        let machine = Machine::preset("a100-80gb")?;
        let profile = Profile::new(&graph, &machine);
        let cut = layers(&graph, &profile, 2 * DEVICES as usize)?;
        let costs = layer_costs(&graph, &profile, &cut, Some(STATE))?;
        for budget in BUDGETS.map(|budget| Bytes(budget * 1_000_000_000)) {
            compared.push(Compared::planned(&graph, &machine, &profile, &costs, budget)?);
        }
    }
    if arguments.json {
        say!("{}", compared.iter().map(Compared::json).collect::<Value>())?;
        return Ok(ExitCode::SUCCESS);
    }
    say!("{}", titled(&compared.iter().map(Compared::row).collect::<Vec<_>>()).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// The fastest pipelines within a budget; absent where nothing fits.
struct Compared {
    graph: String,
    budget: Bytes,
    /// Planned layer by layer.
    ours: Option<StagePlan>,
    seconds: f64,
    equal: Option<Named>,
    /// Planned tensor by tensor.
    tensors: Option<PlannedStages>,
    tensor_seconds: f64,
}

/// A pipeline with its name.
struct Named {
    name: String,
    plan: StagePlan,
}

impl Compared {
    fn planned(
        graph: &Graph,
        machine: &Machine,
        profile: &Profile,
        costs: &[LayerCost],
        budget: Bytes,
    ) -> Result<Compared> {
        let (bandwidth, latency) = LINK;
        let devices = Devices { ranks: DEVICES, budget, bandwidth, latency };
        let start = wall().0;
        let all: Vec<PipelineSchedule> = PipelineSchedule::with_equal_sums().collect();
        let plans = plan_stages(costs, &devices, MICRO_BATCHES, &all, &interrupt::raised)?;
        let seconds = wall().0 - start;
        let equal = equal(graph, profile, &devices)?;
        let start = wall().0;
        let tensors = by_tensors(graph, machine, budget)?;
        let tensor_seconds = wall().0 - start;
        let (graph, ours) = (graph.name().to_string(), plans.into_iter().next());
        Ok(Compared { graph, budget, ours, seconds, equal, tensors, tensor_seconds })
    }

    fn row(&self) -> [(&str, String); 12] {
        let (ours, equal, tensors) =
            (self.ours.as_ref(), self.equal.as_ref(), self.tensors.as_ref());
        let time = |seconds: Seconds| format!("{:.1}", seconds.0 * 1e3);
        let again = |plan: &StagePlan| {
            let again = plan.recomputed.iter().filter(|&&is| is).count();
            format!("{again} of {}", plan.recomputed.len())
        };
        let ratio = ours.zip(equal).map(|(ours, equal)| ours.makespan.0 / equal.plan.makespan.0);
        [
            ("budget", format!("{} GB", self.budget.0 / 1_000_000_000)),
            ("planned", known(ours, |plan| plan.schedule.clone())),
            ("step, ms", known(ours, |plan| time(plan.makespan))),
            ("recomputed", known(ours, again)),
            ("best equal cut", known(equal, |equal| equal.name.clone())),
            ("step, ms", known(equal, |equal| time(equal.plan.makespan))),
            ("ratio", known(ratio, |ratio| format!("{ratio:.3}"))),
            ("planning, s", format!("{:.2}", self.seconds)),
            ("by tensors", known(tensors, |planned| planned.plan.schedule.clone())),
            ("step, ms", known(tensors, |planned| time(planned.times.makespan))),
            (
                "recomputed",
                known(tensors, |planned| format!("{:.1} %", planned.recomputed() * 1e2)),
            ),
            ("planning, s", format!("{:.2}", self.tensor_seconds)),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "graph": self.graph,
            "budget_bytes": self.budget,
            "schedule": self.ours.as_ref().map(|plan| &plan.schedule),
            "step_seconds": self.ours.as_ref().map(|plan| plan.makespan),
            "equal": self.equal.as_ref().map(|equal| &equal.name),
            "equal_step_seconds": self.equal.as_ref().map(|equal| equal.plan.makespan),
            "planning_seconds": self.seconds,
            "tensors": self.tensors.as_ref().map(|planned| json!({
                "schedule": planned.plan.schedule,
                "step_seconds": planned.times.makespan,
                "recomputed": planned.recomputed(),
            })),
            "tensors_planning_seconds": self.tensor_seconds,
        })
    }
}

/// The fastest pipeline with each device planned tensor by tensor; none if nothing fits.
fn by_tensors(graph: &Graph, machine: &Machine, budget: Bytes) -> Result<Option<PlannedStages>> {
    let task = Task {
        devices: DEVICES,
        budget: Budget::Absolute(budget),
        batches: Batches::of_micro_batches(MICRO_BATCHES),
        link: Some(LINK),
        state: Some(STATE),
        schedule: None,
        cut: Vec::new(),
        at_modules: false,
        search: Some(Search::default()),
    };
    match answer(graph, machine, &task, &interrupt::raised) {
        Ok(answer) => Ok(match answer.found.into_iter().next() {
            Some(Found::Tensors(planned)) => Some(planned),
            _ => None,
        }),
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
