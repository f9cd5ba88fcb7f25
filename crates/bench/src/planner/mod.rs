//! `tightfit-bench planner`: how good plans are, how near to the bound, how fast. Invariant: every
//! plan that counts was checked again here, within its budget and not faster than its own bound;
//! one that fails ends the bench.

mod anchors;
mod grid;
pub mod subject;
mod synthetic;
mod tiers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};
use tightfit::effort::Effort;
use tightfit::plan::Planner;
use tightfit::units::Seconds;
use tightfit_cli::effort::Limits;
use tightfit_cli::exit_code::ExitCode;
use tightfit_cli::failure::{Context, Result};
use tightfit_cli::output;
use tightfit_cli::planners::planner as planner_named;
use tightfit_cli::say;
use tightfit_cli::values::fraction;

/// Plan the corpus at many budgets with every planner, compared with bounds, proven optima and
/// other systems.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit-bench planner --markdown planner.md --json planner.json
  tightfit-bench planner --quick
  tightfit-bench planner --parts grid --planners auto --budgets 0.5,0.3 --deadline 10s")]
pub struct Arguments {
    /// Folder with graphs
    #[arg(long, default_value = "corpus/graphs")]
    graphs: PathBuf,
    /// Folder with synthetic graphs and their optima
    #[arg(long, default_value = "corpus/synthetic")]
    synthetic: PathBuf,
    /// Points of torch.compile's memory budget
    #[arg(long, default_value = "corpus/anchors/torch_budget.json")]
    anchors: PathBuf,
    /// What to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "grid,tiers,anchors,optima,transformers"
    )]
    parts: Vec<Part>,
    /// Planners of the grid [default: all]
    #[arg(long, value_delimiter = ',', value_parser = planner_named())]
    planners: Vec<Planner>,
    /// Budgets of the grid and of plans with a tier, as fractions of the activation peak [default:
    /// 0.9,0.8,0.7,0.6,0.5,0.4,0.3; with a tier 0.6,0.5,0.4,0.3]
    #[arg(long, value_delimiter = ',', value_parser = fraction)]
    budgets: Vec<f64>,
    /// Two budgets, one point of each graph, one transformer, and 0.2 s a plan
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    limits: Limits,
    /// Seed of the search
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write all figures here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the tables here too
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    /// Every graph at every budget with every planner
    Grid,
    /// Every graph with a tier below the device: recomputing, moving, and both
    Tiers,
    /// The points of torch.compile's memory budget, and checkpointing of each block
    Anchors,
    /// Small graphs whose optimum is proven
    Optima,
    /// Graphs of ten thousand nodes and more
    Transformers,
}

/// What all parts need.
pub struct Bench {
    effort: Effort<'static>,
    quick: bool,
    bar: ProgressBar,
}

impl Bench {
    fn doing(&self, what: String) {
        self.bar.set_message(what);
    }
}

/// What one part found, for people and for programs.
struct Found {
    markdown: String,
    json: Value,
}

/// Measures, prints and writes.
pub fn planner(arguments: &Arguments) -> Result<ExitCode> {
    for path in [&arguments.json, &arguments.markdown].into_iter().flatten() {
        output::writable(path)?;
    }
    let mut limits = arguments.limits;
    if arguments.quick && limits.deadline.is_none() && limits.iterations.is_none() {
        limits.deadline = Some(Seconds(0.2));
    }
    let effort = limits.effort(Planner::Auto, arguments.seed);
    let bench = Bench { effort, quick: arguments.quick, bar: progress() };
    let mut markdown = heading(&effort);
    let mut json = Map::new();
    for &part in &arguments.parts {
        let (name, found) = match part {
            Part::Grid => (
                "grid",
                grid::measure(
                    &bench,
                    &arguments.graphs,
                    &planners(arguments),
                    &fractions(arguments, [&[0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], &[0.5, 0.7]]),
                )?,
            ),
            Part::Tiers => {
                let fractions = fractions(arguments, [&[0.3, 0.4, 0.5, 0.6], &[0.4, 0.6]]);
                ("tiers", tiers::measure(&bench, &arguments.graphs, &fractions)?)
            }
            Part::Anchors => {
                ("anchors", anchors::measure(&bench, &arguments.anchors, &arguments.graphs)?)
            }
            Part::Optima => ("optima", synthetic::optima(&bench, &arguments.synthetic)?),
            Part::Transformers => {
                ("transformers", synthetic::transformers(&bench, &arguments.synthetic)?)
            }
        };
        markdown += &found.markdown;
        json.insert(name.to_string(), found.json);
    }
    bench.bar.finish_and_clear();
    if let Some(path) = &arguments.markdown {
        output::write_whole(path, markdown.as_bytes())?;
    }
    if let Some(path) = &arguments.json {
        output::write_whole(path, format!("{}\n", Value::Object(json)).as_bytes())?;
    }
    say!("{}", markdown.trim_end_matches('\n'))?;
    Ok(ExitCode::SUCCESS)
}

fn planners(arguments: &Arguments) -> Vec<Planner> {
    if arguments.planners.is_empty() {
        Planner::ALL.iter().map(|(planner, _)| *planner).collect()
    } else {
        arguments.planners.clone()
    }
}

/// Rising, as a frontier requires them; unless any are chosen, a part's own fractions, or its few
/// for a quick run.
fn fractions(arguments: &Arguments, [all, few]: [&[f64]; 2]) -> Vec<f64> {
    let mut fractions = match (&arguments.budgets[..], arguments.quick) {
        ([], true) => few.to_vec(),
        ([], false) => all.to_vec(),
        (chosen, _) => chosen.to_vec(),
    };
    fractions.sort_by(f64::total_cmp);
    fractions.dedup();
    fractions
}

fn heading(effort: &Effort<'_>) -> String {
    let work = if effort.work == u64::MAX {
        String::new()
    } else {
        format!("{} iterations, ", effort.work)
    };
    let time = if effort.deadline.0.is_finite() {
        format!("{} s", effort.deadline.0)
    } else {
        "no deadline".to_string()
    };
    format!(
        "Search: {work}{time}, seed {}. Slowdowns, bounds and gaps are in % of the unplanned \
         step's time.\n",
        effort.seed
    )
}

fn progress() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed}  {pos} plans  {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Graph files of a folder, by name.
pub fn graph_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || -> std::io::Result<Vec<PathBuf>> {
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect()
    };
    let mut files = read().with_context(|| folder.display().to_string())?;
    files.retain(|path| path.as_os_str().as_encoded_bytes().ends_with(b".json.gz"));
    files.sort();
    Ok(files)
}
