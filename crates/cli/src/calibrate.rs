//! `tightfit calibrate`: measure this processor, or the calls of a step on it. Invariant: other
//! verbs measure in a process of its own, this one, so that its memory never counts against a
//! budget.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;
use tightfit::machine::Machine;
use tightfit::plan::Planner;

use crate::effort::Limits;
use crate::seconds;
use crate::seconds::Subject;
use crate::{input, output};

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
    #[arg(long, default_value = "auto", requires = "step", value_parser = input::planner)]
    planner: Planner,
    /// Run on this file instead of the step's own data
    #[arg(long, requires = "step")]
    data: Option<PathBuf>,
    /// Worker threads [default: all processors]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=input::MOST_THREADS))]
    threads: Option<u32>,
    /// Print what was measured as JSON
    #[arg(long)]
    json: bool,
}

/// Measures, stores and prints.
pub fn calibrate(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if let Some(step) = &arguments.step {
        return calls(arguments, step);
    }
    let machine = tightfit_engine::calibrate(threads(arguments.threads))?;
    let text = serde_json::to_string_pretty(&machine)?;
    if let Some(path) = cache(machine.threads) {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).ok();
        }
        // Without a cache the next run measures again: no reason to fail.
        output::write_whole(&path, text.as_bytes()).ok();
    }
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

fn calls(arguments: &Arguments, step: &Path) -> anyhow::Result<ExitCode> {
    let machine = machine(arguments.threads);
    let subject = Subject {
        folder: step,
        data: arguments.data.as_deref(),
        budget: &arguments.budget,
        planner: arguments.planner,
    };
    let (measured, budget) = seconds::try_step(&machine, &subject, Limits::default())?;
    seconds::remember(&machine, measured.clone());
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

/// Worker threads: as asked, or one for each processor.
pub fn threads(asked: Option<u32>) -> u32 {
    asked
        .filter(|&threads| threads > 0)
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32))
        .min(1024)
}

/// This processor: from the cache, else measured in a child process, else a plausible guess.
pub fn machine(asked: Option<u32>) -> Machine {
    let threads = threads(asked);
    let cached = cache(threads)
        .and_then(|path| std::fs::read(path).ok())
        .and_then(|bytes| parse(&bytes, threads));
    cached.or_else(|| measure(threads)).unwrap_or_else(|| Machine::unmeasured_cpu(threads))
}

fn measure(threads: u32) -> Option<Machine> {
    eprintln!("measuring this processor once (about a second) …");
    let program = std::env::current_exe().ok()?;
    let output = Command::new(program)
        .args(["calibrate", "--json", "--threads", &threads.to_string()])
        .output()
        .ok()?;
    parse(&output.stdout, threads)
}

fn parse(bytes: &[u8], threads: u32) -> Option<Machine> {
    let machine: Machine = serde_json::from_slice(bytes).ok()?;
    machine
        .validate()
        .ok()
        .filter(|machine| machine.threads == threads && machine.runtime.rules().runs_here)
}

/// Where the rates are kept.
fn cache(threads: u32) -> Option<PathBuf> {
    Some(folder()?.join(format!("cpu-{}-{threads}.json", env!("CARGO_PKG_VERSION"))))
}

/// Where measurements are kept: the user's cache folder.
pub fn folder() -> Option<PathBuf> {
    let folder =
        std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = folder
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    Some(folder.join("tightfit"))
}
