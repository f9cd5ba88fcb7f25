//! `tightfit calibrate`: measure this processor, or the calls of a step on it. Invariant: other
//! verbs measure in a process of its own, this one, so that its memory never counts against a
//! budget.

use crate::exit::ExitCode;
use std::path::{Path, PathBuf};

use clap::Args;
use tightfit::machine::Machine;
use tightfit::plan::Planner;
use tightfit::profile::{CallSeconds, Profile};
use tightfit::units::Bytes;
use tightfit_engine::{Budget, Dataset, FitTask, Session, Step, fit_graph, trial};

use crate::calls::{self, TRIAL};
use crate::effort::Limits;
use crate::values::{MOST_THREADS, planner};
use crate::{input, processor};

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
    /// Memory that the step is run in: bytes, 320MiB, 2.5GB, 60% of the unplanned peak, or min
    #[arg(long, default_value = "100%", requires = "step", allow_hyphen_values = true)]
    budget: String,
    /// The planner of the step
    #[arg(long, default_value = "auto", requires = "step", value_parser = planner)]
    planner: Planner,
    /// Run on this file instead of the step's own data
    #[arg(long, requires = "step")]
    data: Option<PathBuf>,
    /// Worker threads [default: all processors]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=MOST_THREADS))]
    threads: Option<u32>,
    /// Print what was measured as JSON
    #[arg(long)]
    json: bool,
}

/// Measures, stores and prints.
pub fn calibrate(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if let Some(step) = &arguments.step {
        return calibrate_calls(arguments, step);
    }
    let machine = tightfit_engine::calibrate(processor::threads(arguments.threads))?;
    let text = serde_json::to_string_pretty(&machine)?;
    processor::remember(machine.threads, &text);
    if arguments.json {
        println!("{text}");
    } else {
        println!(
            "{} threads: {:.1} GFLOP/s in matrix products, {:.1} GB/s, {:.2} G exponentials/s, \
             {:.1} µs per call",
            machine.threads,
            machine.flops_32 / 1e9,
            machine.bandwidth / 1e9,
            machine.elementary.unwrap_or(0.0) / 1e9,
            machine.launch * 1e6
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn calibrate_calls(arguments: &Arguments, step: &Path) -> anyhow::Result<ExitCode> {
    let machine = processor::machine(arguments.threads);
    let (measured, budget) = try_step(&machine, arguments, step)?;
    calls::remember(&machine, measured.clone());
    if arguments.json {
        println!("{}", measured.write());
    } else {
        println!(
            "{} threads: {} kinds of calls measured within {budget}",
            machine.threads,
            measured.len()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Tries a step inside a budget, in this process: seconds of its calls, and the whole budget in
/// bytes.
fn try_step(
    machine: &Machine,
    arguments: &Arguments,
    folder: &Path,
) -> anyhow::Result<(CallSeconds, Bytes)> {
    let budget: Budget = arguments.budget.parse()?;
    let step = Step::open(folder)?;
    let mut data = Dataset::open(&step.data, &step.folder, arguments.data.as_deref())?;
    input::suits(&data, &step)?;
    let profile = Profile::new(&step.training, machine);
    let effort = Limits::default().effort(arguments.planner, 1);
    let task = FitTask { machine, budget, planner: arguments.planner, effort };
    let fitted = fit_graph(&step.training, &profile, &task)?;
    let mut session = Session::new(
        &step,
        fitted.fitted.checked(),
        None,
        fitted.slab(),
        machine.threads as usize,
        1,
    )?;
    let measured = trial(&mut session, &mut data, TRIAL)?;
    Ok((measured.call_seconds(&step.training, machine.threads), fitted.budget))
}
