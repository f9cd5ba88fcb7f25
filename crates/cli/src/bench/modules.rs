//! `tightfit bench modules`: selective checkpointing of modules compared with what PyTorch's tools
//! answered. Invariant: nothing is judged; an answer that was recorded stands next to ours.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tightfit::plan::SOLVER;
use tightfit::plan::modules::{ModulePlanError, SelectiveTask, selective};
use tightfit::units::Bytes;

use super::markdown::table;
use crate::effort::clock;
use crate::exit_code::ExitCode;
use crate::failure::{Context, Result};
use crate::input::{self, OnMachine};
use crate::solver::Solver;

/// Shares of the baseline peak for which PyTorch's tools were run.
const SHARES: [f64; 4] = [0.9, 0.7, 0.5, 0.35];

/// Choose modules to checkpoint, with recorded and with generated statistics.
#[derive(Args)]
#[command(after_help = "Example:\n  tightfit bench modules --gap 0.01")]
pub struct Arguments {
    /// Statistics of modules, or graphs [default: those recorded with PyTorch, and two generated
    /// models of 24 layers]
    inputs: Vec<PathBuf>,
    #[command(flatten)]
    solver: Solver,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Plans and prints.
pub fn modules(arguments: &Arguments) -> Result<ExitCode> {
    let recorded = Path::new("corpus/cases/module_info");
    let mut paths = arguments.inputs.clone();
    if paths.is_empty() {
        paths.extend(
            ["torchtest_4l", "llama_tiny_4l"]
                .map(|name| recorded.join(format!("module_info_{name}.json"))),
        );
        paths.extend(
            ["modules-24", "modules-24-varied"]
                .map(|name| Path::new("corpus/synthetic").join(format!("{name}.json"))),
        );
    }
    let (mut rows, mut results): (Vec<Vec<String>>, Vec<Value>) = (Vec::new(), Vec::new());
    for path in paths {
        let info = input::modules(&path, &OnMachine::default())?.info;
        let name =
            path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let answers = answers(
            &path.with_file_name(name.replace("module_info_", "sac_answers_")),
            name.contains("module_info_"),
        )?;
        for share in SHARES {
            let budget = Bytes((info.baseline_peak().0 as f64 * share) as u64);
            let limits = arguments.solver.limits();
            let start = clock().0;
            let plan = match selective(
                &info,
                &SelectiveTask {
                    budget,
                    world_size: 1,
                    allowed: None,
                    sharded: Vec::new(),
                    limits,
                },
            ) {
                Ok(plan) => Some(plan),
                Err(ModulePlanError::Infeasible(_)) => None,
                Err(error) => return Err(error.into()),
            };
            let seconds = clock().0 - start;
            let theirs = answers.iter().find(|answer| answer.0 == share);
            let milliseconds =
                |found: Option<f64>| found.map_or("–".to_string(), |found| format!("{found:.3}"));
            let ours = plan.as_ref().map(|plan| plan.recompute.0 * 1e3);
            rows.push(vec![
                name.clone(),
                info.modules().len().to_string(),
                share.to_string(),
                milliseconds(ours),
                milliseconds(theirs.and_then(|answer| answer.1)),
                plan.as_ref()
                    .and_then(|plan| plan.gap)
                    .map_or("–".to_string(), |gap| format!("{:.2} %", gap * 100.0)),
                format!("{seconds:.3}"),
                theirs.map_or("–".to_string(), |answer| format!("{:.3}", answer.2)),
            ]);
            results.push(json!({
                "model": name,
                "modules": info.modules().len(),
                "share": share,
                "recompute_ms": ours,
                "seconds": seconds,
                "peak_bytes": plan.as_ref().map(|plan| plan.peak),
                "gap": plan.as_ref().and_then(|plan| plan.gap),
                "solver": SOLVER,
                "recorded_ms": theirs.and_then(|answer| answer.1),
                "recorded_seconds": theirs.map(|answer| answer.2),
            }));
        }
    }
    if arguments.json {
        say!("{}", Value::Array(results))?;
    } else {
        say!(
            "Solver: {SOLVER}. Recomputation in ms; – where nothing fits or nothing was recorded.\n"
        )?;
        let head = [
            "statistics",
            "modules",
            "share",
            "ours",
            "PyTorch's",
            "gap",
            "seconds",
            "PyTorch's seconds",
        ];
        say!("{}", table(&head, &rows).trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Share, recomputation (absent: infeasible) and seconds, as recorded for one device and gap 0.
fn answers(path: &Path, exist: bool) -> Result<Vec<(f64, Option<f64>, f64)>> {
    if !exist {
        return Ok(Vec::new());
    }
    let file = || path.display().to_string();
    let text: Value =
        serde_json::from_slice(&std::fs::read(path).with_context(file)?).with_context(file)?;
    let list = text["milp"].as_array().cloned().unwrap_or_default();
    let exact =
        list.iter().filter(|answer| answer["exact_gap"] == true && answer["world_size"] == 1);
    let one = |answer: &Value| {
        let fits = answer["peak_bytes"].as_i64().is_some_and(|peak| peak >= 0);
        Some((
            answer["frac"].as_f64()?,
            answer["recompute_ms"].as_f64().filter(|_| fits),
            answer["secs"].as_f64()?,
        ))
    };
    Ok(exact.filter_map(one).collect())
}
