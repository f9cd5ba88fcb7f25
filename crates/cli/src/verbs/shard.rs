//! `tightfit shard`: which modules gather their parameters by themselves when a model is sharded
//! over devices. Invariant: table and JSON show the same plan.

use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tightfit::analysis::modules::ModuleInfo;
use tightfit::machine::Link;
use tightfit::plan::modules::{ShardPlan, ShardTask, ShardVariant, shard_on};
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::Budget;

use crate::clock::wall;
use crate::exit_code::ExitCode;
use crate::failure::Result;
use crate::figures::share;
use crate::input::{self, OnMachine, Statistics};
use crate::output::{milliseconds, percent};
use crate::solver::{COUNTED, Clock, Solver, named, within};
use crate::table::{Cell, Table};
use crate::values::{bandwidth, duration};
use crate::verbs::sac;
use crate::{interrupt, progress};

const HEADS: [&str; 3] = ["unit", "gathers", ""];

/// Choose units of sharding, in the least exposed communication, under a budget for each device.
///
/// With --checkpoint one program chooses both the units and what is recomputed, as `sac` does; with
/// --host-bandwidth also the units whose shards wait on the host between gathers. What is minimised
/// is all that the step takes beyond its computation.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit shard corpus/graphs/cuda/llama_1b_b2_s2048.json.gz --budget 60% \
--world-size 8 --bandwidth 100GB/s --latency 20us --checkpoint
  tightfit shard corpus/cases/module_info/module_info_torchtest_4l.json \
--budget 3GiB --world-size 8 --bandwidth 100GB/s --latency 20us \
--checkpoint --host-bandwidth 20GB/s --json")]
pub struct Arguments {
    /// A graph file, a step's folder, or statistics of modules as JSON (`tightfit modules --json`,
    /// or PyTorch's tools)
    input: PathBuf,
    /// Of each device, for parameters, gradients and activations (batch, buffers and optimizer
    /// state come on top): bytes, 320MiB, 2.5GB; 60%: of what the step needs without checkpointing
    /// on a single device, whatever --world-size is; or min
    #[arg(long, allow_hyphen_values = true)]
    budget: String,
    /// Devices that parameters and gradients are divided among
    #[arg(long)]
    world_size: u32,
    /// Bytes per second that pass between devices: 100GB/s, 25GiB/s or 1e11
    #[arg(long, value_parser = bandwidth)]
    bandwidth: f64,
    /// Of one collective, before the first byte: 20us, 0.1ms
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    latency: Seconds,
    /// Rules for what communication takes
    #[arg(long, value_enum, default_value_t = Variant::Ours)]
    variant: Variant,
    /// Exactly these modules and the root are units, by fully qualified name [default: chosen]
    #[arg(long, value_name = "MODULE", value_delimiter = ',')]
    units: Option<Vec<String>>,
    /// Choose in the same program which modules are checkpointed
    #[arg(long)]
    checkpoint: bool,
    /// Shards may wait on the host; bytes per second between a device and its host
    #[arg(long, value_parser = bandwidth)]
    host_bandwidth: Option<f64>,
    /// Of one transfer from the host
    #[arg(
        long,
        value_parser = duration,
        default_value = "0s",
        allow_hyphen_values = true,
        requires = "host_bandwidth"
    )]
    host_latency: Seconds,
    #[command(flatten)]
    solver: Solver,
    #[command(flatten)]
    on: OnMachine,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Variant {
    /// As PyTorch's program has it: all bytes pass
    Published,
    /// A device receives what others hold: (w−1)/w of the bytes
    Ours,
}

/// What is requested.
pub struct Task<'a> {
    /// The peak of every device, at most.
    pub budget: Budget,
    /// Exactly these modules and the root are units; absent: chosen.
    pub units: Option<&'a [String]>,
    /// Everything else; its budget and its units are not read.
    pub rest: ShardTask,
}

/// A plan, and the budget that it was made for.
pub struct Answer {
    /// The budget in bytes.
    pub budget: Bytes,
    /// The plan.
    pub plan: ShardPlan,
    /// How long planning took.
    pub seconds: f64,
}

/// Plans.
pub fn answer(info: &ModuleInfo, task: &Task<'_>, clock: Clock<'_>) -> Result<Answer> {
    let units = task.units.map(|names| named(info, names)).transpose()?;
    let start = Instant::now();
    let (budget, plan) = within(info, task.budget, (task.rest.limits, clock), |budget, limits| {
        let task = ShardTask { budget, limits, units: units.clone(), ..task.rest.clone() };
        shard_on(info, &task, clock)
    })?;
    Ok(Answer { budget, plan, seconds: start.elapsed().as_secs_f64() })
}

impl Answer {
    /// As JSON, for the statistics from which it was made.
    pub fn document(&self, statistics: &Statistics) -> Result<Value> {
        let (info, plan) = (&statistics.info, &self.plan);
        let name = |module| info.modules()[module].name.as_str();
        let units = plan
            .units
            .iter()
            .map(|unit| json!({ "module": name(unit.module), "offloaded": unit.offloaded }));
        Ok(json!({
            "units": units.collect::<Vec<_>>(),
            "checkpointed": sac::units_json(info, &plan.checkpointed, &statistics.text)?,
            "exposed_ms": plan.exposed.0 * 1e3,
            "recompute_ms": plan.recompute.0 * 1e3,
            "peak_bytes": plan.peak,
            "peak_module": name(plan.binding),
            "budget_bytes": self.budget,
            "baseline_peak_bytes": info.baseline_peak(),
            "baseline_ms": info.baseline_seconds().0 * 1e3,
            "gap": plan.gap,
            "seconds": self.seconds,
        }))
    }
}

impl Arguments {
    fn task(&self) -> Result<Task<'_>> {
        let link = Link { latency: self.latency, bandwidth: self.bandwidth };
        let host =
            self.host_bandwidth.map(|bandwidth| Link { latency: self.host_latency, bandwidth });
        let rest = ShardTask {
            budget: Bytes::ZERO,
            world_size: self.world_size,
            all_gather: link,
            reduce_scatter: link,
            variant: match self.variant {
                Variant::Published => ShardVariant::Published,
                Variant::Ours => ShardVariant::Ours,
            },
            units: None,
            checkpointing: self.checkpoint,
            host,
            limits: self.solver.limits(),
        };
        Ok(Task { budget: self.budget.parse()?, units: self.units.as_deref(), rest })
    }
}

/// Plans and prints.
pub fn shard(arguments: &Arguments) -> Result<ExitCode> {
    let task = arguments.task()?;
    let statistics = input::modules(&arguments.input, &arguments.on)?;
    interrupt::listen();
    let most = arguments.solver.most();
    let answer = progress::during("solving", most, || answer(&statistics.info, &task, &wall))?;
    if arguments.json {
        crate::output::answer(answer.document(&statistics)?)?;
        return Ok(interrupt::code());
    }
    let (info, Answer { budget, plan, seconds }) = (&statistics.info, &answer);
    let name = |module| info.modules()[module].name.as_str();
    tell!(
        "peak {} of {} on each of {} devices ({} on one), {}{} ({} of communication exposed, {} \
         recomputed); {}, in {seconds:.2} s",
        plan.peak,
        budget,
        arguments.world_size,
        info.baseline_peak(),
        percent(share(plan.exposed + plan.recompute, info.baseline_seconds())),
        statistics.place(),
        milliseconds(plan.exposed),
        milliseconds(plan.recompute),
        arguments.solver.quality(plan.gap),
    )?;
    tell!("{COUNTED}")?;
    // The root gathers the parameters that no other unit gathers.
    let parameters = |module| info.modules()[module].parameters;
    let others: Bytes = plan.units.iter().skip(1).map(|unit| parameters(unit.module)).sum();
    let rows = plan.units.iter().map(|unit| {
        let rest = if unit.module == info.root() { others } else { Bytes::ZERO };
        let cells = vec![
            Cell::bytes(parameters(unit.module).saturating_sub(rest)),
            Cell::word(if unit.offloaded { "shard on the host" } else { "" }),
        ];
        (name(unit.module), cells)
    });
    let (within, table) = Table::of_modules(&HEADS, rows.collect());
    sac::print_within(&within)?;
    table.print(usize::MAX)?;
    if arguments.checkpoint {
        sac::print_units(info, &plan.checkpointed)?;
    }
    Ok(interrupt::code())
}
