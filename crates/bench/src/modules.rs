//! `tightfit-bench modules`: selective checkpointing of modules compared with what PyTorch's tools
//! answered. Invariant: nothing is judged; an answer that was recorded stands next to ours.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tightfit::analysis::modules::ModuleInfo;
use tightfit::plan::modules::{ModulePlanError, SelectivePlan, SelectiveTask, selective};
use tightfit::plan::{SOLVER, SolverLimits};
use tightfit::units::Bytes;
use tightfit_cli::clock::wall;
use tightfit_cli::exit_code::ExitCode;
use tightfit_cli::failure::{Context, Result};
use tightfit_cli::input::{self, OnMachine};
use tightfit_cli::say;
use tightfit_cli::solver::Solver;

use crate::markdown::{known, titled};

/// Shares of the baseline peak for which PyTorch's tools were run.
const SHARES: [f64; 4] = [0.9, 0.7, 0.5, 0.35];

/// Choose modules to checkpoint, with recorded and with generated statistics.
#[derive(Args)]
#[command(after_help = "Example:\n  tightfit-bench modules --gap 0.01")]
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
    let mut compared = Vec::new();
    for path in paths(arguments) {
        let info = input::modules(&path, &OnMachine::default())?.info;
        let name =
            path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let answers = answers(
            &path.with_file_name(name.replace("module_info_", "sac_answers_")),
            name.contains("module_info_"),
        )?;
        for share in SHARES {
            let recorded = answers.iter().copied().find(|answer| answer.share == share);
            let limits = arguments.solver.limits();
            compared.push(Compared::planned(&name, &info, share, limits, recorded)?);
        }
    }
    if arguments.json {
        say!("{}", compared.iter().map(Compared::json).collect::<Value>())?;
        return Ok(ExitCode::SUCCESS);
    }
    say!("Solver: {SOLVER}. Recomputation in ms; – where nothing fits or nothing was recorded.\n")?;
    say!("{}", titled(&compared.iter().map(Compared::row).collect::<Vec<_>>()).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// The files that were named, or else the recorded and the generated ones.
fn paths(arguments: &Arguments) -> Vec<PathBuf> {
    if !arguments.inputs.is_empty() {
        return arguments.inputs.clone();
    }
    let recorded = ["torchtest_4l", "llama_tiny_4l"]
        .map(|name| format!("corpus/cases/module_info/module_info_{name}.json"));
    let generated =
        ["modules-24", "modules-24-varied"].map(|name| format!("corpus/synthetic/{name}.json"));
    recorded.into_iter().chain(generated).map(PathBuf::from).collect()
}

/// A plan within a share of a model's baseline peak, and what was recorded for that.
struct Compared {
    model: String,
    modules: usize,
    share: f64,
    /// Absent if nothing fits.
    plan: Option<SelectivePlan>,
    seconds: f64,
    recorded: Option<Recorded>,
}

impl Compared {
    fn planned(
        model: &str,
        info: &ModuleInfo,
        share: f64,
        limits: SolverLimits,
        recorded: Option<Recorded>,
    ) -> Result<Compared> {
        let budget = Bytes((info.baseline_peak().0 as f64 * share) as u64);
        let task =
            SelectiveTask { budget, world_size: 1, allowed: None, sharded: Vec::new(), limits };
        let start = wall().0;
        let plan = match selective(info, &task) {
            Ok(plan) => Some(plan),
            Err(ModulePlanError::Infeasible(_)) => None,
            Err(error) => return Err(error.into()),
        };
        let seconds = wall().0 - start;
        let (model, modules) = (model.to_string(), info.modules().len());
        Ok(Compared { model, modules, share, plan, seconds, recorded })
    }

    /// The plan's recomputation.
    fn milliseconds(&self) -> Option<f64> {
        self.plan.as_ref().map(|plan| plan.recompute.0 * 1e3)
    }

    fn gap(&self) -> Option<f64> {
        self.plan.as_ref().and_then(|plan| plan.gap)
    }

    fn row(&self) -> [(&str, String); 8] {
        let thousandths = |number: f64| format!("{number:.3}");
        let recorded = self.recorded.and_then(|recorded| recorded.milliseconds);
        let recorded_seconds = self.recorded.map(|recorded| recorded.seconds);
        [
            ("statistics", self.model.clone()),
            ("modules", self.modules.to_string()),
            ("share", self.share.to_string()),
            ("ours", known(self.milliseconds(), thousandths)),
            ("PyTorch's", known(recorded, thousandths)),
            ("gap", known(self.gap(), |gap| format!("{:.2} %", gap * 100.0))),
            ("seconds", thousandths(self.seconds)),
            ("PyTorch's seconds", known(recorded_seconds, thousandths)),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "model": self.model,
            "modules": self.modules,
            "share": self.share,
            "recompute_ms": self.milliseconds(),
            "seconds": self.seconds,
            "peak_bytes": self.plan.as_ref().map(|plan| plan.peak),
            "gap": self.gap(),
            "solver": SOLVER,
            "recorded_ms": self.recorded.and_then(|recorded| recorded.milliseconds),
            "recorded_seconds": self.recorded.map(|recorded| recorded.seconds),
        })
    }
}

/// An answer of PyTorch's tools, for one device and gap 0.
#[derive(Clone, Copy)]
struct Recorded {
    /// Of the baseline peak.
    share: f64,
    /// Its recomputation; absent if nothing fits.
    milliseconds: Option<f64>,
    /// How long it took.
    seconds: f64,
}

/// The answers that were recorded for a model.
fn answers(path: &Path, exist: bool) -> Result<Vec<Recorded>> {
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
        Some(Recorded {
            share: answer["frac"].as_f64()?,
            milliseconds: answer["recompute_ms"].as_f64().filter(|_| fits),
            seconds: answer["secs"].as_f64()?,
        })
    };
    Ok(exact.filter_map(one).collect())
}
