//! `tightfit calibrate`: measure this processor, or the calls of a step on it. Invariant: other
//! verbs measure by running this one in a process of its own, so that its memory never counts
//! against a budget.

use std::path::{Path, PathBuf};

use clap::Args;
use tightfit::machine::Machine;
use tightfit::plan::Planner;
use tightfit::profile::{CallSeconds, Profile};
use tightfit::units::Bytes;
use tightfit_engine::{
    Budget, Extent, FitTask, Session, Step, TierFolder, Traffic, fit_graph, process, trial,
};

use crate::batches::Batches;
use crate::calls::{self, TRIAL};
use crate::effort::Limits;
use crate::exit_code::ExitCode;
use crate::failure::Result;
use crate::planners::planner;
use crate::source::Source;
use crate::tier::Folder;
use crate::values::MOST_THREADS;
use crate::{input, output, processor};

/// Measure this processor's rates, or how long a step's calls take on it, and keep them for
/// predictions; `train` and `plan` do it by themselves when needed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit calibrate --threads 2 --json
  tightfit calibrate corpus/steps/gpt-small --budget 320MiB")]
pub struct Arguments {
    /// A step's folder: measure its calls by running a few steps
    step: Option<PathBuf>,
    /// Memory of the whole process that runs the step: bytes, 320MiB, 2.5GB, 60%, or min, as of
    /// `tightfit train`
    #[arg(long, default_value = "100%", requires = "step", allow_hyphen_values = true)]
    budget: String,
    /// The planner of the step
    #[arg(long, default_value = "auto", requires = "step", value_parser = planner())]
    planner: Planner,
    #[command(flatten)]
    source: Source,
    /// A folder for a tier below the slab, as of `tightfit train`
    #[arg(long, value_name = "DIR[:SIZE]", requires = "step")]
    tier: Option<String>,
    #[command(flatten)]
    batches: Batches,
    /// Worker threads [default: all processors]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=MOST_THREADS))]
    threads: Option<u32>,
    /// Measure the processor on tensors of less than a MiB, as small steps have them, and in as
    /// little memory; kept for budgets that are smaller than what the usual measurement takes
    #[arg(long, conflicts_with = "step")]
    small: bool,
    /// Print what was measured as JSON
    #[arg(long)]
    json: bool,
}

/// Measures, stores and prints.
pub fn calibrate(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(step) = &arguments.step {
        return calibrate_calls(arguments, step);
    }
    process::one_heap();
    let extent = if arguments.small { Extent::Small } else { Extent::Usual };
    let machine = tightfit_engine::calibrate(processor::threads(arguments.threads), extent)?;
    let text = serde_json::to_string_pretty(&machine)?;
    processor::remember(machine.threads, extent, &text);
    if arguments.json {
        output::answer(serde_json::to_value(&machine)?)?;
    } else {
        tell!(
            "{} threads: {:.1} GFLOP/s in matrix products, {:.1} GB/s, {:.2} G exponentials/s, \
             {:.1} µs per call",
            machine.threads,
            machine.flops_32 / 1e9,
            machine.bandwidth / 1e9,
            machine.elementary.unwrap_or(0.0) / 1e9,
            machine.launch * 1e6
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn calibrate_calls(arguments: &Arguments, step: &Path) -> Result<ExitCode> {
    process::one_heap();
    let (machine, measured, budget) = try_step(arguments, step)?;
    calls::remember(&machine, measured.clone());
    if arguments.json {
        say!("{}", measured.write())?;
    } else {
        tell!(
            "{} threads: {} kinds of calls measured within {budget}",
            machine.threads,
            measured.len()
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Tries a step inside a budget, in this process; returns the machine, the seconds of the step's
/// calls, and the whole budget in bytes.
fn try_step(arguments: &Arguments, folder: &Path) -> Result<(Machine, CallSeconds, Bytes)> {
    let budget: Budget = arguments.budget.parse()?;
    let step = arguments.batches.sized_step(Step::open(folder)?)?;
    let step = arguments.batches.split_step(step)?;
    let mut data = arguments.source.open(&step)?;
    input::suits(&data, &step)?;
    let step = step.accumulated(arguments.batches.micro_batches())?;
    let tier = arguments.tier.as_deref().map(Folder::parse).transpose()?;
    let has_tier = tier.is_some();
    let mut machine =
        processor::machine_within(arguments.threads, &step.training, budget, has_tier);
    if let Some(folder) = &tier {
        folder.add_to(&mut machine, None)?;
    }
    let profile = Profile::new(&step.training, &machine);
    let effort = Limits::default().effort(arguments.planner, 1);
    let (beside, planner) = (data.beside(), arguments.planner);
    let task = FitTask { machine: &machine, budget, beside, planner, effort };
    process::give_back();
    let fitted = fit_graph(&step.training, &profile, &task)?;
    process::settle_heap();
    let tier = tier.map(|Folder { folder, size }| {
        let traffic = Traffic::default();
        TierFolder { folder, traffic, size }
    });
    let mut session = Session::builder(&step, fitted.fitted.checked())
        .slab(fitted.slab())
        .tier(tier.as_ref())
        .threads(machine.threads as usize)
        .seed(1)
        .start()?;
    process::settle_heap();
    let measured = trial(&mut session, &mut data, TRIAL)?;
    let seconds = measured.call_seconds(&step.training, machine.threads);
    Ok((machine, seconds, fitted.budget))
}
