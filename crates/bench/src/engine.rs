//! `tightfit-bench engine`: training steps compared with PyTorch's on this machine. Invariant: all
//! sides run in alternation, in processes of their own, on the same number of threads; figures are
//! medians.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use serde_json::{Value, json};
use tightfit_cli::exit_code::ExitCode;
use tightfit_cli::failure::{Context, Failure, Result};
use tightfit_cli::{note, say};
use tightfit_cli::{processor, program};

/// Time training steps at several budgets, compared with PyTorch eager and PyTorch with per-block
/// checkpointing.
#[derive(Args)]
#[command(after_help = "Example:\n  tightfit-bench engine corpus/steps/gpt-small")]
pub struct Arguments {
    /// A step's folder; PyTorch's side exists for gpt-small
    step: PathBuf,
    /// Budgets to run at
    #[arg(long, value_delimiter = ',', default_value = "100%,320MiB")]
    budgets: Vec<String>,
    /// A Python with torch [default: that of `cargo xtask ci python`, if it is there; else only
    /// tightfit is measured]
    #[arg(long)]
    python: Option<PathBuf>,
    /// The script that times PyTorch
    #[arg(long, default_value = "python/bench/torch_step.py")]
    script: PathBuf,
    /// Rounds of alternation
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Steps of each run, the first of which is not counted
    #[arg(long, default_value_t = 6)]
    steps: usize,
    /// Worker threads of each side [default: all processors]
    #[arg(long)]
    threads: Option<u32>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// One side of the comparison.
struct Side {
    name: String,
    command: Command,
    seconds: Vec<f64>,
    process_peaks: Vec<f64>,
}

/// Runs and prints.
pub fn engine(arguments: &Arguments) -> Result<ExitCode> {
    let threads = processor::threads(arguments.threads);
    processor::machine(Some(threads));
    let mut sides = sides(arguments, threads)?;
    for round in 0..arguments.rounds {
        for side in &mut sides {
            note!("round {} of {}: {}", round + 1, arguments.rounds, side.name);
            measure(side)?;
        }
    }
    let results: Vec<Value> = sides
        .iter_mut()
        .map(|side| {
            json!({
                "name": side.name,
                "median_seconds": median(&mut side.seconds),
                "process_peak_bytes": median(&mut side.process_peaks),
                "samples": side.seconds.len(),
            })
        })
        .collect();
    if arguments.json {
        let result = json!({
            "step": arguments.step.to_string_lossy(),
            "threads": threads,
            "rounds": arguments.rounds,
            "sides": results,
        });
        say!("{result}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let number = |result: &Value, key: &str| result[key].as_f64().unwrap_or(f64::NAN);
    let reference = results
        .iter()
        .find(|result| result["name"] == EAGER)
        .or(results.first())
        .map_or(f64::NAN, |result| number(result, "median_seconds"));
    say!(
        "| run | ms per step (median) | against {} | process peak (PyTorch: above entry) |",
        if results.iter().any(|result| result["name"] == EAGER) { EAGER } else { "the first" }
    )?;
    say!("|---|---:|---:|---:|")?;
    for result in &results {
        let seconds = number(result, "median_seconds");
        let name = result["name"].as_str().unwrap_or("?");
        say!(
            "| {name} | {:.0} | {:.2} × | {:.0} MiB |",
            seconds * 1e3,
            seconds / reference,
            number(result, "process_peak_bytes") / 1_048_576.0
        )?;
    }
    say!(
        "\n{threads} threads, {} rounds in alternation, {} steps each, the first not counted",
        arguments.rounds,
        arguments.steps
    )?;
    Ok(ExitCode::SUCCESS)
}

const EAGER: &str = "PyTorch eager";

fn sides(arguments: &Arguments, threads: u32) -> Result<Vec<Side>> {
    let side = |name: String, command| Side {
        name,
        command,
        seconds: Vec::new(),
        process_peaks: Vec::new(),
    };
    let mut sides = Vec::new();
    for budget in &arguments.budgets {
        let mut command = program::command()?;
        command.arg("train").arg(&arguments.step).args([
            "--budget",
            budget,
            "--json",
            "--eval-batches",
            "0",
        ]);
        command.args(["--steps", &arguments.steps.to_string(), "--threads", &threads.to_string()]);
        sides.push(side(format!("tightfit at {budget}"), command));
    }
    let made_by_tests = PathBuf::from("target/python-venv/bin/python");
    let python = arguments.python.clone().or(Some(made_by_tests).filter(|path| path.exists()));
    if python.is_none() {
        note!("note: PyTorch is left out; pass --python, or run `cargo xtask ci python` first");
    }
    if let Some(python) = &python {
        if !arguments.script.exists() {
            return Err(Failure::other(format_args!(
                "{} does not exist; run from the repository's root or pass --script",
                arguments.script.display()
            )));
        }
        for (name, variant) in
            [(EAGER, "eager"), ("PyTorch, checkpointing each block", "checkpoint")]
        {
            let mut command = Command::new(python);
            command.arg(Path::new(&arguments.script)).args([
                "--variant",
                variant,
                "--threads",
                &threads.to_string(),
                "--steps",
                &arguments.steps.to_string(),
            ]);
            sides.push(side(name.to_string(), command));
        }
    }
    Ok(sides)
}

/// Runs one side once and takes its figures from its JSON: lines with `seconds` from tightfit, one
/// object from PyTorch.
fn measure(side: &mut Side) -> Result<()> {
    let output =
        side.command.output().with_context(|| format!("{} could not be started", side.name))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::other(format_args!("{} failed: {}", side.name, said.trim())));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut seconds: Vec<f64> = Vec::new();
    for line in text.lines() {
        let Ok(value) = serde_json::from_str::<Value>(line) else { continue };
        match &value["seconds"] {
            Value::Array(all) => seconds.extend(all.iter().filter_map(Value::as_f64)),
            one => seconds.extend(one.as_f64().filter(|_| value.get("loss").is_some())),
        }
        side.process_peaks.extend(
            ["process_peak_bytes", "peak_growth_bytes"].iter().find_map(|key| value[*key].as_f64()),
        );
    }
    side.seconds.extend(seconds.get(1..).unwrap_or_default());
    Ok(())
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
