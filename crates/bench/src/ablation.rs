//! `tightfit-bench ablation`: what each tuned figure of the planners is good for. Invariant: a
//! figure is varied alone, and compared with the table's value on the same cases, with the same
//! seeds and the same processor time; every schedule that counts was checked at its budget.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tightfit::effort::Effort;
use tightfit::plan::Planner;
use tightfit::tuning::{self, Row};
use tightfit::units::{Bytes, Seconds};
use tightfit::{Goal, HoldRequest, Request, fit, hold};
use tightfit_cli::effort::Limits;
use tightfit_cli::exit_code::ExitCode;
use tightfit_cli::failure::Result;
use tightfit_cli::figures::{self, Figures};
use tightfit_cli::values::{duration, fraction};
use tightfit_cli::{output, say};

use crate::planner::subject::Subject;
use crate::{markdown, processor};

/// Planners with a fixed rule, which plan without a tier or with one.
const RULES: [Planner; 3] = [Planner::Chen, Planner::Capuchin, Planner::Dtr];
const RULES_WITH_MOVES: [Planner; 2] = [Planner::CapuchinSwap, Planner::Offload];
/// Tight budgets exceed the smallest slab by one part in this many.
const NEAR: u64 = 20;
/// What a figure is multiplied by.
const FACTORS: [f64; 2] = [0.5, 2.0];

/// Halve and double each tuned figure of the planners in turn.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit-bench ablation --markdown ablation.md
  tightfit-bench ablation --figures rounds,layout::NODES --seeds 5")]
pub struct Arguments {
    /// Graphs
    #[arg(default_values = [
        "corpus/graphs/gpt2_small_b8_s512.json.gz",
        "corpus/graphs/llama_1b_b2_s2048.json.gz",
        "corpus/graphs/resnet50_b32.json.gz",
        "corpus/graphs/mobilenet_v3_large_b64.json.gz",
    ])]
    graphs: Vec<PathBuf>,
    /// Plan with this tier below the device: pcie4, pcie5, nvlink-c2c or nvme [default: none]
    #[arg(long)]
    tier: Option<String>,
    /// Only these groups or figures: rounds, or rounds::SLACK [default: all]
    #[arg(long, value_delimiter = ',')]
    figures: Vec<String>,
    /// Budgets, as fractions of the activation peak
    #[arg(long, value_delimiter = ',', value_parser = fraction, default_values = ["0.6", "0.3"])]
    budgets: Vec<f64>,
    /// Processor time of each search, of all threads together
    #[arg(long, value_name = "SECONDS", value_parser = duration, default_value = "200ms")]
    deadline: Seconds,
    /// Seeds of the searches: 1 to this many
    #[arg(long, value_name = "N", default_value_t = 3)]
    seeds: u64,
    /// Write all results here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table here too
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// What is compared; of all of them, less is better.
const MEASURES: [&str; 5] =
    ["slowdown", "gap", "slowdown if held", "smallest slab", "slabs of rules"];

/// Their means over all cases, for one seed. A refusal counts as 100.
type Means = [f64; MEASURES.len()];

/// The cases.
struct Bench {
    /// Graphs with their budgets: the fractions, and a little more than the smallest slab.
    subjects: Vec<(Subject, Vec<Bytes>)>,
    rules: &'static [Planner],
    deadline: Seconds,
    seeds: u64,
    bar: ProgressBar,
}

/// Measures, prints and writes.
pub fn ablation(arguments: &Arguments) -> Result<ExitCode> {
    for path in [&arguments.json, &arguments.markdown].into_iter().flatten() {
        output::writable(path)?;
    }
    let rows: Vec<&Row> = tuning::ALL.iter().filter(|row| is_chosen(row, arguments)).collect();
    let bench = Bench::new(arguments, rows.len())?;
    let settled = bench.means("as settled");
    let mut markdown =
        heading(&settled) + &markdown::head(&["figure", "value", "halved", "doubled"]);
    // It takes long, so each row is there when it is known.
    bench.bar.suspend(|| say!("{}", markdown.trim_end_matches('\n')))?;
    let mut results: Vec<Value> = Vec::new();
    for row in rows {
        let mut line = vec![format!("`{}`", name(row)), row.figure.settled()];
        for factor in FACTORS {
            row.figure.multiply(factor);
            let varied = bench.means(&format!("{} × {factor}", name(row)));
            row.figure.multiply(1.0);
            line.push(words(&settled, &varied));
            results.push(json!({
                "figure": name(row),
                "about": row.about.trim(),
                "factor": factor,
                "means": varied,
            }));
        }
        let line = markdown::line(&line);
        bench
            .bar
            .suspend(|| say!("{}", line.trim_end_matches('\n')).and_then(|()| output::flush()))?;
        markdown += &line;
    }
    bench.bar.finish_and_clear();
    let json = json!({ "measures": MEASURES, "settled": settled, "varied": results });
    if let Some(path) = &arguments.markdown {
        output::write_whole(path, markdown.as_bytes())?;
    }
    if let Some(path) = &arguments.json {
        output::write_whole(path, format!("{json}\n").as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn name(row: &Row) -> String {
    format!("{}::{}", row.group, row.name)
}

fn is_chosen(row: &Row, arguments: &Arguments) -> bool {
    let is_meant = |chosen: &String| *chosen == row.group || *chosen == name(row);
    arguments.figures.is_empty() || arguments.figures.iter().any(is_meant)
}

impl Bench {
    fn new(arguments: &Arguments, rows: usize) -> Result<Bench> {
        let &Arguments { deadline, seeds, .. } = arguments;
        let with_budgets = |path: &PathBuf| -> Result<(Subject, Vec<Bytes>)> {
            let subject = match &arguments.tier {
                Some(tier) => Subject::read_with_tier(path, tier)?,
                None => Subject::read(path)?,
            };
            let least = smallest(&subject, Planner::Auto, &effort(deadline, 1));
            let least = least.unwrap_or(subject.peak);
            let budgets = arguments.budgets.iter().map(|&part| subject.budget(part));
            let budgets = budgets.chain([least + Bytes(least.0 / NEAR)]).collect();
            Ok((subject, budgets))
        };
        let subjects = arguments.graphs.iter().map(with_budgets).collect::<Result<_>>()?;
        let rules: &[Planner] = if arguments.tier.is_some() { &RULES_WITH_MOVES } else { &RULES };
        let bar = ProgressBar::new(seeds * (1 + (FACTORS.len() * rows) as u64));
        if let Ok(style) = ProgressStyle::with_template("{elapsed} {wide_bar} {eta}  {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Ok(Bench { subjects, rules, deadline, seeds, bar })
    }

    /// The means of every seed.
    fn means(&self, what: &str) -> Vec<Means> {
        self.bar.set_message(what.to_string());
        let mean = |seed| {
            self.bar.inc(1);
            self.mean(&effort(self.deadline, seed))
        };
        (1..=self.seeds).map(mean).collect()
    }

    fn mean(&self, effort: &Effort<'static>) -> Means {
        let mut all: [Vec<f64>; MEASURES.len()] = Default::default();
        let [slowdowns, gaps, if_held, slabs, slabs_of_rules] = &mut all;
        for (subject, budgets) in &self.subjects {
            for &budget in budgets {
                let request =
                    Request { goal: Goal::Within(budget), effort: *effort, ..Request::default() };
                let fitted = fit(&subject.graph, &subject.profile, &request).ok();
                let figures = fitted.map(|fitted| Figures::of(&fitted, subject.seconds));
                slowdowns.push(in_percent(figures.map(|figures| figures.overhead)));
                gaps.push(in_percent(figures.and_then(|figures| figures.gap)));
                if_held.push(in_percent(held(subject, budget, effort)));
            }
            let slab = |&planner: &Planner| {
                let slab = smallest(subject, planner, effort)?;
                Some(slab.0 as f64 / subject.peak.0.max(1) as f64)
            };
            slabs.push(in_percent(slab(&Planner::Auto)));
            slabs_of_rules.extend(self.rules.iter().map(|planner| in_percent(slab(planner))));
        }
        all.map(|values| mean(&values))
    }
}

/// The effort of one search, in processor time: other processes take none of it.
fn effort(deadline: Seconds, seed: u64) -> Effort<'static> {
    let limits = Limits { deadline: Some(deadline), iterations: None };
    limits.timed(Planner::Auto, seed, &processor::time)
}

/// The smallest slab that a planner finds.
fn smallest(subject: &Subject, planner: Planner, effort: &Effort<'static>) -> Option<Bytes> {
    let request = Request { planner, effort: *effort, ..Request::default() };
    Some(fit(&subject.graph, &subject.profile, &request).ok()?.schedule().slab)
}

/// The slowdown of a plan without addresses.
fn held(subject: &Subject, budget: Bytes, effort: &Effort<'static>) -> Option<f64> {
    let goal = Goal::Within(budget);
    let request =
        HoldRequest { goal, may_move: Some(&|_| true), effort: *effort, ..HoldRequest::default() };
    let held = hold(&subject.graph, &subject.profile, &request).ok()?;
    Some(figures::overhead(held.timeline().seconds, subject.seconds))
}

/// A share in percent; a refusal counts as all of it.
fn in_percent(share: Option<f64>) -> f64 {
    share.unwrap_or(1.0) * 100.0
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// A measure over all seeds: its mean, and its standard deviation.
fn over_seeds(means: &[Means], measure: usize) -> (f64, f64) {
    let values: Vec<f64> = means.iter().map(|of_seed| of_seed[measure]).collect();
    let middle = mean(&values);
    let squares: Vec<f64> = values.iter().map(|value| (value - middle).powi(2)).collect();
    (middle, mean(&squares).sqrt())
}

/// By how much each measure changes, if by more than twice the spread of either over its seeds.
fn words(settled: &[Means], varied: &[Means]) -> String {
    let changes = MEASURES.iter().enumerate().filter_map(|(measure, name)| {
        let ((before, spread), (after, other)) =
            (over_seeds(settled, measure), over_seeds(varied, measure));
        let change = after - before;
        (change.abs() > 2.0 * spread.max(other)).then(|| format!("{name} {change:+.3}"))
    });
    let changes: Vec<String> = changes.collect();
    if changes.is_empty() { "–".to_string() } else { changes.join(", ") }
}

fn heading(settled: &[Means]) -> String {
    let means = MEASURES.iter().enumerate().map(|(measure, name)| {
        let (middle, spread) = over_seeds(settled, measure);
        format!("- {name}: {middle:.3} ± {spread:.3}\n")
    });
    format!("As settled, mean and standard deviation over seeds:\n{}\n", means.collect::<String>())
}
