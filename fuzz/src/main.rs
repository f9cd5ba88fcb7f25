//! `tightfit-fuzz TARGET`: a campaign from the command line. Invariant: exit 0 means that nothing
//! was found, 1 that something was, 2 that nothing could be tested.

use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tightfit_fuzz::campaign::{Campaign, run};
use tightfit_fuzz::child::Workers;
use tightfit_fuzz::target::Target;
use tightfit_fuzz::worker::{Task, judge_folder, work};

/// Tries a part of tightfit with hostile input.
#[derive(Parser)]
#[command(after_help = "\
Targets: graph, step, plan, modules, weights, check (a changed plan before the checker, executed
where it is accepted), execute (a changed step, trained at 100 % and at min).

Examples:
  tightfit-fuzz execute --cases 20000 --seed 1 --jobs 2
  tightfit-fuzz execute --seed 1 --first 1234 --cases 1
  tightfit-fuzz graph --file fuzz/findings/graph-panic-1-1234")]
struct Arguments {
    /// What to try
    target: Target,
    /// How many cases
    #[arg(long, default_value_t = 1000)]
    cases: u64,
    /// Seed of all choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of the first case
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Worker processes side by side [default: as many as processors]
    #[arg(long)]
    jobs: Option<u64>,
    /// Seconds that one case may take
    #[arg(long, default_value_t = 60)]
    limit: u64,
    /// Where findings are kept
    #[arg(long, default_value = "fuzz/findings")]
    findings: PathBuf,
    /// Judge the case that lies in this folder
    #[arg(long, conflicts_with_all = ["cases", "first", "jobs"])]
    file: Option<PathBuf>,
    /// Be a worker, with this folder for its cases
    #[arg(long, hide = true)]
    worker: Option<PathBuf>,
    /// Make only these changes of each case
    #[arg(long, hide = true, value_delimiter = ',', num_args = 0..)]
    kept: Option<Vec<String>>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match tried(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether nothing was found.
fn tried(arguments: &Arguments) -> anyhow::Result<bool> {
    let target = arguments.target;
    match (&arguments.worker, &arguments.file) {
        (Some(_), Some(folder)) => {
            println!("case 0 0");
            println!("verdict {}", judge_folder(target, folder));
            Ok(true)
        }
        (Some(scratch), None) => {
            let kept = arguments.kept.as_ref().map(|kept| {
                kept.iter().filter_map(|number| number.parse().ok()).collect::<Vec<usize>>()
            });
            let cases = arguments.first..arguments.first + arguments.cases;
            let task = Task { target, seed: arguments.seed, cases, kept: kept.as_deref() };
            work(&task, scratch)?;
            Ok(true)
        }
        (None, file) => {
            let workers = Workers {
                program: std::env::current_exe()?,
                target,
                seed: arguments.seed,
                limit: Duration::from_secs(arguments.limit),
            };
            match file {
                Some(folder) => {
                    let verdict = workers.folder(folder)?;
                    println!("{verdict}");
                    Ok(!verdict.is_finding())
                }
                None => campaign(arguments, workers),
            }
        }
    }
}

fn campaign(arguments: &Arguments, workers: Workers) -> anyhow::Result<bool> {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get) as u64;
    let campaign = Campaign {
        workers,
        first: arguments.first,
        cases: arguments.cases,
        jobs: arguments.jobs.unwrap_or(processors),
        findings: &arguments.findings,
    };
    let outcome = run(&campaign, &|line| eprintln!("{line}"))?;
    for (what, count) in &outcome.counts {
        println!("{count:>8} {what}");
    }
    for (cause, (count, folders)) in &outcome.findings {
        println!("finding, {count} times: {cause}");
        for folder in folders {
            println!("    {}", folder.display());
        }
    }
    Ok(outcome.findings.is_empty())
}
