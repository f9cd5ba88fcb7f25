//! `tightfit-bench scale`: a very large model on very many devices, on paper. Invariant: only the
//! time of planning is measured; all else is predicted, and one stated efficiency stands for
//! everything that the prediction leaves out.

mod llama;

use clap::Args;
use serde_json::{Value, json};
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::pipeline::stages::{Devices, LayerCost, StagePlan, layer_costs, plan_rows};
use tightfit::pipeline::{PipelineSchedule, Rows, interleaved, layers};
use tightfit::profile::Profile;
use tightfit::units::{Bytes, Seconds};
use tightfit_cli::clock::wall;
use tightfit_cli::exit_code::ExitCode;
use tightfit_cli::failure::Result;
use tightfit_cli::interrupt;
use tightfit_cli::say;

use crate::markdown::{known, titled};
use llama::LLAMA_405B;

/// GPUs that work as one device: they divide every tensor among themselves.
const GROUP: u64 = 8;
/// Devices of a pipeline, as published.
const RANKS: u32 = 16;
/// Sequences of an update, as published: 16 Mi tokens.
const SEQUENCES: u64 = 2_048;
/// Numbers of GPUs, one for each line of the table.
const GPUS: [u64; 5] = [1_024, 2_048, 4_096, 8_192, 16_384];
/// Fraction of a GPU's peak rate that calls reach, communication within the group included: chosen
/// so that 8,192 GPUs reach what was published.
const EFFICIENCY: f64 = 0.477;
/// Bytes for each element of a parameter: 2 of its own, and 4 of its gradient.
const PARAMETER: f64 = 6.0;
/// Bytes that Adam has for each element, divided among the pipelines.
const ADAM: f64 = 12.0;
/// Bandwidth and latency from one device to the next: each GPU has a link of its own, of 50 GB/s.
const LINK: (f64, Seconds) = (50e9 * GROUP as f64, Seconds(10e-6));
/// Memory of a GPU, in bytes.
const MEMORY: u64 = 80_000_000_000;
/// Most seconds spent on improving one order.
const PATIENCE: f64 = 4.0;

/// Plan Llama 3.1 405B on 1,024 to 16,384 GPUs, compared with published figures of its training.
#[derive(Args)]
pub struct Arguments {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The published share of the peak rate: "The Llama 3 Herd of Models", table 4.
fn published(gpus: u64) -> Option<f64> {
    match gpus {
        8_192 => Some(0.43),
        16_384 => Some(0.41),
        _ => None,
    }
}

/// Plans and prints.
pub fn scale(arguments: &Arguments) -> Result<ExitCode> {
    let graph = LLAMA_405B.graph()?;
    let gpu = Machine::preset("h100-80gb")?;
    let peak = gpu.flops_16 * GROUP as f64;
    let group = Machine {
        flops_16: peak * EFFICIENCY,
        flops_32: gpu.flops_32 * GROUP as f64 * EFFICIENCY,
        bandwidth: gpu.bandwidth * GROUP as f64,
        ..gpu
    };
    let profile = Profile::new(&graph, &group);
    let mut sizes = Vec::new();
    for gpus in GPUS {
        sizes.push(Size::planned(&graph, &profile, peak, gpus)?);
    }
    if arguments.json {
        say!("{}", sizes.iter().map(Size::json).collect::<Value>())?;
        return Ok(ExitCode::SUCCESS);
    }
    say!("{}: {} nodes", graph.name(), graph.nodes().len())?;
    say!("{}", titled(&sizes.iter().map(Size::row).collect::<Vec<_>>()).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// A run of some size.
struct Size {
    gpus: u64,
    micro_batches: u32,
    /// As it was trained: one layer at a time on each rank, in turn, and nothing recomputed.
    as_published: Option<Reached>,
    /// The best of all orders within the memory.
    best: Option<Reached>,
    seconds: f64,
}

/// A plan, and the share of the peak rate that it reaches.
struct Reached {
    plan: StagePlan,
    share: f64,
}

impl Size {
    /// `peak`: operations in a second of a group of GPUs.
    fn planned(graph: &Graph, profile: &Profile, peak: f64, gpus: u64) -> Result<Size> {
        let start = wall().0;
        let pipelines = gpus / GROUP / u64::from(RANKS);
        let micro_batches = (SEQUENCES / pipelines) as u32;
        let cut = layers(graph, profile, 8 * RANKS as usize)?;
        let state = PARAMETER + ADAM / pipelines as f64;
        let costs = layer_costs(graph, profile, &cut, Some(state))?;
        let work = LLAMA_405B.flops() * f64::from(micro_batches);
        let reached = |plan: StagePlan| {
            let share = work / (plan.makespan.0 * peak * f64::from(RANKS));
            Reached { plan, share }
        };
        let (bandwidth, latency) = LINK;
        let budget = Bytes(MEMORY * GROUP);
        let devices = Devices { ranks: RANKS, budget, bandwidth, latency };
        let orders = orders(micro_batches)?;
        let plans = orders.iter().filter_map(|(name, rows)| plan(&costs, &devices, name, rows));
        let best = plans.map(reached).max_by(|a, b| a.share.total_cmp(&b.share));
        let seconds = wall().0 - start;
        let (name, rows) = &orders[0];
        let roomy = Devices { budget: Bytes::LIMIT, ..devices };
        let as_published = plan(&costs, &roomy, name, rows).map(reached);
        Ok(Size { gpus, micro_batches, as_published, best, seconds })
    }

    fn row(&self) -> [(&str, String); 8] {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let best = self.best.as_ref();
        let again = |Reached { plan, .. }: &Reached| {
            let again = plan.recomputed.iter().filter(|&&is| is).count();
            format!("{again} of {}", plan.recomputed.len())
        };
        [
            ("GPUs", self.gpus.to_string()),
            ("micro-batches", self.micro_batches.to_string()),
            ("published", known(published(self.gpus), percent)),
            ("as published", known(self.as_published.as_ref(), |reached| percent(reached.share))),
            ("within 80 GB", known(best, |best| best.plan.schedule.clone())),
            ("share of peak", known(best, |best| percent(best.share))),
            ("recomputed", known(best, again)),
            ("planning, s", format!("{:.1}", self.seconds)),
        ]
    }

    fn json(&self) -> Value {
        let best = self.best.as_ref();
        json!({
            "gpus": self.gpus,
            "micro_batches": self.micro_batches,
            "published_share": published(self.gpus),
            "as_published_share": self.as_published.as_ref().map(|reached| reached.share),
            "schedule": best.map(|best| &best.plan.schedule),
            "share": best.map(|best| best.share),
            "step_seconds": best.map(|best| best.plan.makespan),
            "planning_seconds": self.seconds,
        })
    }
}

/// The orders that are compared, the published one first.
fn orders(micro_batches: u32) -> Result<Vec<(String, Rows)>> {
    let mut orders = Vec::new();
    for chunks in [8, 4, 2] {
        let rows = interleaved(RANKS, micro_batches, chunks)?;
        orders.push((format!("interleaved, {chunks} stages a rank"), rows));
    }
    for schedule in [
        PipelineSchedule::OneFOneB,
        PipelineSchedule::ZbH1,
        PipelineSchedule::ZbV,
        PipelineSchedule::VHalf,
    ] {
        orders.push((schedule.name().to_string(), schedule.rows(RANKS, micro_batches)?));
    }
    Ok(orders)
}

/// The best plan of an order that is found within [`PATIENCE`].
fn plan(costs: &[LayerCost], devices: &Devices, name: &str, rows: &Rows) -> Option<StagePlan> {
    let start = wall().0;
    let looked = std::cell::Cell::new(0);
    // The first cut is examined however long it takes.
    let is_over = || {
        looked.set(looked.get() + 1);
        interrupt::raised() || looked.get() > 2 && wall().0 - start > PATIENCE
    };
    plan_rows(costs, devices, (name, rows), &is_over)
}
