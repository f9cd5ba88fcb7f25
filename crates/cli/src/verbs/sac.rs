//! `tightfit sac`: which modules to checkpoint under a budget, and how much each discards.
//! Invariant: table and JSON show the same plan.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde_json::{Map, Value, json};
use tightfit::analysis::modules::{ModuleInfo, operators};
use tightfit::plan::SolverLimits;
use tightfit::plan::modules::{
    CheckpointedUnit, SelectivePlan, SelectiveTask, policy, selective_on,
};
use tightfit::units::Bytes;
use tightfit_engine::Budget;

use crate::clock::wall;
use crate::exit_code::ExitCode;
use crate::failure::Result;
use crate::figures::share;
use crate::input::{self, OnMachine, Statistics};
use crate::output::{Printed, in_milliseconds, milliseconds, percent};
use crate::solver::{COUNTED, Clock, Solver, named, within};
use crate::table::{Cell, Table};
use crate::{interrupt, progress};

const HEADS: [&str; 4] = ["checkpointed", "discard ratio", "freed", "recompute ms"];

/// Choose which modules recompute how much of their activations, in the least time, under a budget.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit sac corpus/graphs/cuda/llama_1b_b2_s2048.json.gz --budget 60%
  tightfit sac corpus/cases/module_info/module_info_torchtest_4l.json --budget 3.5GiB --json")]
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
    #[arg(long, default_value_t = 1)]
    world_size: u32,
    /// The only modules that may be checkpointed, by fully qualified name [default: all that are no
    /// leaves]
    #[arg(long, value_name = "MODULE", value_delimiter = ',')]
    units: Option<Vec<String>>,
    /// Modules that are sharded: what contains one of them is not checkpointed
    #[arg(long, value_name = "MODULE", value_delimiter = ',')]
    sharded: Vec<String>,
    #[command(flatten)]
    solver: Solver,
    #[command(flatten)]
    on: OnMachine,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What is requested.
pub struct Task<'a> {
    /// The peak of every device, at most.
    pub budget: Budget,
    /// Devices that parameters and gradients are divided among.
    pub world_size: u32,
    /// The only modules that may be checkpointed; absent: all that are no leaves.
    pub units: Option<&'a [String]>,
    /// Modules that are sharded.
    pub sharded: &'a [String],
    /// For the solver.
    pub limits: SolverLimits,
}

/// A plan, and the budget that it was made for.
pub struct Answer {
    /// The budget in bytes.
    pub budget: Bytes,
    /// The plan.
    pub plan: SelectivePlan,
    /// How long planning took.
    pub seconds: f64,
}

/// Plans.
pub fn answer(info: &ModuleInfo, task: &Task<'_>, clock: Clock<'_>) -> Result<Answer> {
    let &Task { budget, world_size, limits, .. } = task;
    let allowed = task.units.map(|names| named(info, names)).transpose()?;
    let sharded = named(info, task.sharded)?;
    let start = Instant::now();
    let (budget, plan) = within(info, budget, (limits, clock), |budget, limits| {
        let (allowed, sharded) = (allowed.clone(), sharded.clone());
        let task = SelectiveTask { budget, world_size, allowed, sharded, limits };
        selective_on(info, &task, clock)
    })?;
    Ok(Answer { budget, plan, seconds: start.elapsed().as_secs_f64() })
}

impl Answer {
    /// As JSON, for the statistics from which it was made.
    pub fn document(&self, statistics: &Statistics) -> Result<Value> {
        let (info, plan) = (&statistics.info, &self.plan);
        let decisions: Map<String, Value> = plan
            .units
            .iter()
            .map(|unit| (info.modules()[unit.module].name.clone(), json!(unit.discard_ratio)))
            .collect();
        Ok(json!({
            "units": units_json(info, &plan.units, &statistics.text)?,
            "sac_milp": {
                "ac_decisions": decisions,
                "recomputation_time": plan.recompute.0 * 1e3,
                "peak_mem": plan.peak,
            },
            "recompute_ms": plan.recompute.0 * 1e3,
            "peak_bytes": plan.peak,
            "peak_module": info.modules()[plan.binding].name,
            "budget_bytes": self.budget,
            "baseline_peak_bytes": info.baseline_peak(),
            "baseline_ms": info.baseline_seconds().0 * 1e3,
            "gap": plan.gap,
            "seconds": self.seconds,
        }))
    }
}

/// Plans and prints.
pub fn sac(arguments: &Arguments) -> Result<ExitCode> {
    let budget = arguments.budget.parse()?;
    let statistics = input::modules(&arguments.input, &arguments.on)?;
    let task = Task {
        budget,
        world_size: arguments.world_size,
        units: arguments.units.as_deref(),
        sharded: &arguments.sharded,
        limits: arguments.solver.limits(),
    };
    interrupt::listen();
    let most = arguments.solver.most();
    let answer = progress::during("solving", most, || answer(&statistics.info, &task, &wall))?;
    if arguments.json {
        crate::output::answer(answer.document(&statistics)?)?;
        return Ok(interrupt::code());
    }
    let (info, Answer { budget, plan, seconds }) = (&statistics.info, &answer);
    let devices = match arguments.world_size {
        1 => String::new(),
        several => format!(" on each of {several} devices"),
    };
    let whole = if arguments.world_size == 1 { "" } else { " on a single one" };
    tell!(
        "peak {} of {}{devices} ({} without checkpointing{whole}), {}{} ({} recomputed); {}, in \
         {seconds:.2} s",
        plan.peak,
        budget,
        info.baseline_peak(),
        percent(share(plan.recompute, info.baseline_seconds())),
        statistics.place(),
        milliseconds(plan.recompute),
        arguments.solver.quality(plan.gap),
    )?;
    tell!("{COUNTED}")?;
    tell!(
        "as sac_milp returns it: recomputation_time {} (ms), peak_mem {} (bytes), ac_decisions:",
        in_milliseconds(plan.recompute),
        plan.peak.0,
    )?;
    print_units(info, &plan.units)?;
    Ok(interrupt::code())
}

/// A table of modules that recompute.
pub fn print_units(info: &ModuleInfo, units: &[CheckpointedUnit]) -> Printed {
    if units.is_empty() {
        return say!("nothing is recomputed");
    }
    let rows = units.iter().map(|unit| {
        let cells = vec![
            Cell::figure(unit.discard_ratio, format!("{:.4}", unit.discard_ratio)),
            Cell::bytes(unit.discarded),
            Cell::milliseconds(unit.recompute),
        ];
        (info.modules()[unit.module].name.as_str(), cells)
    });
    let (within, table) = Table::of_modules(&HEADS, rows.collect());
    print_within(&within)?;
    table.print(usize::MAX)
}

/// Says what a table of modules leaves out of their names, and how it writes several in one row.
pub fn print_within(module: &str) -> Printed {
    say!()?;
    match module {
        "" => Ok(()),
        _ => tell!(
            "modules in `{module}`; `0–3` stands for modules that are alike, with the figures of \
             each"
        ),
    }
}

/// Units, with the operators that each saves if `text`, which the statistics were read from,
/// records operators too.
pub fn units_json(
    info: &ModuleInfo,
    units: &[CheckpointedUnit],
    text: &[u8],
) -> Result<Vec<Value>> {
    let sac_stats = input::operators(text).unwrap_or_default();
    units.iter().map(|unit| unit_json(info, unit, &sac_stats)).collect()
}

fn unit_json(info: &ModuleInfo, unit: &CheckpointedUnit, sac_stats: &Value) -> Result<Value> {
    let name = &info.modules()[unit.module].name;
    let mut result = json!({
        "module": name,
        "discard_ratio": unit.discard_ratio,
        "discarded_bytes": unit.discarded,
        "recompute_ms": unit.recompute.0 * 1e3,
    });
    if let Some(stats) = sac_stats.get(name) {
        let (operators, save_random) = operators(name, stats)?;
        let policy = policy(&operators, save_random, (1.0 - unit.discard_ratio).clamp(0.0, 1.0));
        result["saved_operators"] = policy.map_or(Value::Null, |policy| json!(policy.saved));
    }
    Ok(result)
}
