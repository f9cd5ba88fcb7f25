//! `tightfit stages`: where to cut a model into stages, in which order its ranks perform what, and
//! what they recompute. Invariant: every figure is one of the stage planner's model and simulation;
//! nothing is executed; the program and Python show the same plan.

mod torch;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tightfit::graph::Graph;
use tightfit::id::{RankId, StageId};
use tightfit::machine::Machine;
use tightfit::pipeline::stages::{
    Devices, LayerCost, StagePlan, in_time, layer_costs, plan_stages,
};
use tightfit::pipeline::{Layer, PipelineSchedule, at_modules, layers, write_csv};
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{Budget, reserve};
use tightfit_report::pipeline_svg;

use crate::accumulation::Accumulation;
use crate::exit::ExitCode;
use crate::input::{self, OnMachine};
use crate::values::{NoStages, link};
use crate::{interrupt, output};

/// Cut a model into the stages of a pipeline: which layers on which device, in which order, and
/// what is recomputed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit stages corpus/graphs/llama_1b_b2_s2048.json.gz --devices 8 --budget 40GB \\
    --microbatches 16 --state 16 --link 50GB/s,10us
  tightfit stages corpus/steps/gpt-small --devices 2 --budget 300MiB --microbatches 8 --json")]
pub struct Arguments {
    /// A graph file (tightfit-graph/1, plain or gzip) or a step's folder
    graph: PathBuf,
    /// How many devices there are; each has one stage, or two where the order says so
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    devices: u32,
    /// Bytes of each device: 40GB, 320MiB; 60%: of the unplanned peak on one device
    #[arg(long, allow_hyphen_values = true)]
    budget: String,
    #[command(flatten)]
    accumulation: Accumulation,
    /// Bytes a second from one device to another, and how long the first of them takes, as in
    /// 50GB/s,10us [default: as fast as the machine's memory]
    #[arg(long, value_name = "BW[,LAT]", value_parser = link)]
    link: Option<(f64, Seconds)>,
    /// Bytes that each element of a parameter takes, its gradient and the optimizer's state
    /// included, in place of what the graph has
    #[arg(long, value_name = "BYTES", value_parser = state, allow_hyphen_values = true)]
    state: Option<f64>,
    /// Only this order, by its name
    #[arg(long, value_name = "NAME", value_parser = schedule)]
    schedule: Option<PipelineSchedule>,
    /// Write the best plan for PyTorch to -o, cut between modules: cut, order and recomputation as
    /// `tightfit.distributed` reads them, and the lists of modules that torchtitan takes
    #[arg(long, value_enum, value_name = "WHAT", requires = "output")]
    emit: Option<Emitted>,
    /// Where to write what is emitted (tightfit-stages/1)
    #[arg(short, long, value_name = "FILE", requires = "emit")]
    output: Option<PathBuf>,
    /// Write the order of the best plan here, as `torch.distributed.pipelining` reads it
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw here what each device does when, as the best plan has it
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    on: OnMachine,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// More bytes than an optimizer keeps for each element.
const MOST_STATE: f64 = 1024.0;

/// Bytes of each element of a parameter.
pub fn state(text: &str) -> Result<f64, String> {
    let state = text.parse().ok().filter(|state: &f64| (0.0..=MOST_STATE).contains(state));
    state.ok_or_else(|| format!("write a number of bytes from 0 to {MOST_STATE}"))
}

/// An order by its name.
pub fn schedule(name: &str) -> Result<PipelineSchedule, String> {
    PipelineSchedule::from_name(name).ok_or_else(|| {
        let names = PipelineSchedule::ALL.map(|(_, name)| name);
        format!("orders are {}", names.join(", "))
    })
}

/// What can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Emitted {
    /// A plan that PyTorch runs.
    Torch,
}

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
}

/// Plans, the fastest first.
pub struct Answer {
    cut: Vec<Layer>,
    costs: Vec<LayerCost>,
    plans: Vec<StagePlan>,
    devices: Devices,
    /// The whole budget of a device.
    budget: Bytes,
}

/// Plans; without one where it was interrupted.
pub fn answer(
    graph: &Graph,
    machine: &Machine,
    task: &Task,
    is_over: &(dyn Fn() -> bool + Sync),
) -> anyhow::Result<Answer> {
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
    let all = PipelineSchedule::ALL.map(|(schedule, _)| schedule);
    let asked = match task.schedule {
        Some(schedule) => vec![schedule],
        // Its sums have another order than those of all others.
        None => all.into_iter().filter(|&s| s != PipelineSchedule::AsyncPipe).collect(),
    };
    // Layers as fine as the order with the most stages asks for, where there are so many.
    let chunks = asked.iter().map(|schedule| schedule.chunks()).max().unwrap_or(1);
    let devices = task.devices as usize;
    let cut = layers(graph, &profile, devices * chunks as usize);
    let mut cut = cut.or_else(|_| layers(graph, &profile, devices))?;
    if task.at_modules {
        cut = at_modules(cut);
    }
    let costs = layer_costs(graph, &profile, &cut, task.state)?;
    let (bandwidth, latency) = task.link.unwrap_or((machine.bandwidth, Seconds(0.0)));
    let devices = Devices {
        ranks: task.devices,
        budget: bytes.saturating_sub(reserve.total()),
        bandwidth,
        latency,
    };
    let micro_batches = task.accumulation.micro_batches();
    let plans = plan_stages(&costs, &devices, micro_batches, &asked, is_over)?;
    if plans.is_empty() && !is_over() {
        let largest = cut.iter().zip(&costs).max_by_key(|(_, cost)| cost.least());
        let (layer, needed) = largest
            .map(|(layer, cost)| (name(layer), cost.least() + reserve.total()))
            .unwrap_or_default();
        return Err(NoStages { devices: task.devices, budget: bytes, layer, needed }.into());
    }
    Ok(Answer { cut, costs, plans, devices, budget: bytes })
}

/// Plans and prints.
pub fn stages(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let budget: Budget = arguments.budget.parse()?;
    for path in [&arguments.csv, &arguments.output, &arguments.svg].into_iter().flatten() {
        output::writable(path)?;
    }
    let (graph, is_step) = input::graph(&arguments.graph)?;
    let machine = arguments.on.machine(is_step)?;
    interrupt::listen();
    let task = Task {
        devices: arguments.devices,
        budget,
        accumulation: arguments.accumulation,
        link: arguments.link,
        state: arguments.state,
        schedule: arguments.schedule,
        at_modules: arguments.emit.is_some(),
    };
    let answer = answer(&graph, &machine, &task, &interrupt::raised)?;
    let Some(best) = answer.plans.first() else {
        return Ok(interrupt::code());
    };
    if let Some(path) = &arguments.csv {
        output::write_whole(path, write_csv(&best.rows).as_bytes())?;
    }
    if let Some(path) = &arguments.svg {
        let title = format!("{} on {} devices: {}", graph.name(), task.devices, best.schedule);
        let drawn = pipeline_svg(&title, &in_time(&answer.costs, &answer.devices, best));
        output::write_whole(path, drawn.as_bytes())?;
    }
    if let Some(path) = &arguments.output {
        output::write_whole(path, format!("{}\n", answer.for_torch(&graph)).as_bytes())?;
    }
    match arguments.json {
        true => say!("{}", answer.json(best))?,
        false => {
            let micro_batches = arguments.accumulation.micro_batches();
            answer.show(best, graph.name(), &machine.name, micro_batches)?
        }
    }
    Ok(interrupt::code())
}

/// A layer in words.
fn name(layer: &Layer) -> String {
    if layer.name.is_empty() { "the loss".to_string() } else { layer.name.clone() }
}

impl Answer {
    /// The layers of a stage.
    fn layers(plan: &StagePlan, stage: StageId) -> std::ops::Range<usize> {
        let number = stage.as_u32() as usize;
        let begin = number.checked_sub(1).map_or(0, |before| plan.ends[before]);
        begin..plan.ends[number]
    }

    fn json(&self, best: &StagePlan) -> Value {
        let stages = best.rows.placement.iter().map(|(stage, rank)| {
            let layers = Answer::layers(best, stage);
            let (cut, costs) = (&self.cut[layers.clone()], &self.costs[layers.clone()]);
            let seconds: Seconds = costs.iter().map(LayerCost::seconds).sum();
            let again = layers.filter(|&layer| best.recomputed[layer]);
            let again = again.map(|layer| name(&self.cut[layer]));
            json!({
                "stage": stage.as_u32(),
                "rank": rank.as_u32(),
                "layers": cut.iter().map(name).collect::<Vec<_>>(),
                "recomputed": again.collect::<Vec<_>>(),
                "seconds": seconds,
            })
        });
        let plans = self.plans.iter().map(|plan| {
            json!({
                "schedule": plan.schedule,
                "step_seconds": plan.makespan,
                "bubble": plan.bubble,
                "peak_bytes": plan.peaks.values().max(),
                "recomputed_layers": plan.recomputed.iter().filter(|&&is| is).count(),
            })
        });
        json!({
            "feasible": true,
            "schedule": best.schedule,
            "step_seconds": best.makespan,
            "bubble": best.bubble,
            "budget_bytes": self.budget,
            "peak_bytes": best.peaks.values().collect::<Vec<_>>(),
            "stages": stages.collect::<Vec<_>>(),
            "plans": plans.collect::<Vec<_>>(),
            "csv": write_csv(&best.rows),
        })
    }

    fn show(
        &self,
        best: &StagePlan,
        graph: &str,
        machine: &str,
        micro_batches: u32,
    ) -> output::Printed {
        let ranks = best.rows.rows.len();
        say!(
            "{graph}: {micro_batches} micro-batches on {ranks} × {machine}, {} each",
            self.budget
        )?;
        say!(
            "{:<12}{:>14}{:>9}{:>14}{:>12}",
            "schedule",
            "step",
            "bubble",
            "largest peak",
            "recomputed"
        )?;
        for plan in &self.plans {
            let again = plan.recomputed.iter().filter(|&&is| is).count();
            say!(
                "{:<12}{:>14}{:>9}{:>14}{:>12}",
                plan.schedule,
                output::milliseconds(plan.makespan),
                output::percent(plan.bubble).trim_start_matches('+'),
                plan.peaks.values().max().copied().unwrap_or(Bytes::ZERO).to_string(),
                format!("{again} of {}", plan.recomputed.len())
            )?;
        }
        say!()?;
        say!("{}: what lies where", best.schedule)?;
        for rank in best.rows.rows.keys() {
            self.show_rank(best, rank)?;
        }
        Ok(())
    }

    fn show_rank(&self, best: &StagePlan, rank: RankId) -> output::Printed {
        for (index, stage) in best.rows.stages_of(rank).into_iter().enumerate() {
            let layers = Answer::layers(best, stage);
            let (first, last) = (name(&self.cut[layers.start]), name(&self.cut[layers.end - 1]));
            let span = if layers.len() == 1 { first } else { format!("{first} … {last}") };
            let again = match layers.clone().filter(|&layer| best.recomputed[layer]).count() {
                0 => String::new(),
                count if count == layers.len() => ", recomputed".to_string(),
                count => format!(", {count} of {} recomputed", layers.len()),
            };
            let head = match index {
                0 => (rank.to_string(), best.peaks[rank].to_string()),
                _ => (String::new(), String::new()),
            };
            say!("{:<8}{:>10}  stage {}: {span}{again}", head.0, head.1, stage.as_u32())?;
        }
        Ok(())
    }
}
