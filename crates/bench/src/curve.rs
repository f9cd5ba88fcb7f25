//! `tightfit-bench curve`: how good plans are while the search goes on. Invariant: a point counts
//! only if its schedule was checked at its budget; times are of all threads together, from when
//! planning begins.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use tightfit::check::check;
use tightfit::effort::Effort;
use tightfit::plan::{Improvement, Planner};
use tightfit::units::{Bytes, Seconds};
use tightfit::{FitError, Request, fit};
use tightfit_cli::clock::wall;
use tightfit_cli::effort::Limits;
use tightfit_cli::exit_code::ExitCode;
use tightfit_cli::failure::{Context, Result};
use tightfit_cli::values::{duration, fraction};
use tightfit_cli::{note, output, say};
use tightfit_report::{Curve, curves_svg};

use crate::markdown::{known, points, table};
use crate::planner::subject::Subject;
use crate::processor;

/// When the best plan so far is looked at, in seconds.
const MARKS: [f64; 9] = [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];
/// What a budget without a plan counts as, as a share of the step's time.
const NONE: f64 = 1.0;
/// A tight budget is this many times the smallest known.
const TIGHT: f64 = 1.05;

/// Record when plans get better during a search, and compare them with the best ones known.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit-bench curve --markdown curve.md
  tightfit-bench curve graphs/*.json.gz --known known.json --lower")]
pub struct Arguments {
    /// Graph files [default: those in corpus/graphs]
    graphs: Vec<PathBuf>,
    /// Budgets, as fractions of the activation peak, but for those below the smallest known; a last
    /// one is 1.05 times that
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = fraction,
        default_values = ["0.9", "0.8", "0.7", "0.6", "0.5", "0.4", "0.3"]
    )]
    budgets: Vec<f64>,
    /// Processor time of each search, of all threads together
    #[arg(long, value_name = "SECONDS", value_parser = duration, default_value = "10s")]
    deadline: Seconds,
    /// Seed of the search
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The best plans known [default: those of this run]
    #[arg(long, value_name = "FILE")]
    known: Option<PathBuf>,
    /// Write better plans into that file
    #[arg(long, requires = "known")]
    lower: bool,
    /// Write the tables here too
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Draw the means over the graphs
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The best that is known of a graph.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Known {
    /// The smallest slab.
    smallest_bytes: Option<u64>,
    /// The fastest step within each budget, by its bytes.
    step_seconds: BTreeMap<u64, f64>,
}

/// One search.
struct Search {
    graph: String,
    /// The fraction of the activation peak; none for the tight budget.
    fraction: Option<f64>,
    budget: Bytes,
    /// Of the unplanned step.
    unplanned: Seconds,
    /// By the time since planning began.
    improvements: Vec<Improvement>,
}

/// Plans, compares and prints.
pub fn curve(arguments: &Arguments) -> Result<ExitCode> {
    for path in [&arguments.markdown, &arguments.svg].into_iter().flatten() {
        output::writable(path)?;
    }
    let mut all = arguments.known.as_deref().map_or(Ok(BTreeMap::new()), read)?;
    let mut searches = Vec::new();
    for path in graphs(arguments)? {
        let subject = Subject::read(&path)?;
        let known = all.entry(subject.name.clone()).or_default();
        let smallest = smallest(&subject, known, arguments)?;
        let fractions = arguments.budgets.iter().map(|&it| (Some(it), subject.budget(it)));
        let tight = (None, Bytes((smallest.0 as f64 * TIGHT) as u64));
        let budgets = fractions.filter(|(_, budget)| *budget >= smallest).chain([tight]);
        for (fraction, budget) in budgets {
            let search = planned(&subject, fraction, budget, arguments)?;
            if let Some(last) = search.improvements.last() {
                let seconds = known.step_seconds.entry(budget.0).or_insert(last.seconds.0);
                *seconds = seconds.min(last.seconds.0);
            }
            searches.push(search);
        }
    }
    if let (true, Some(path)) = (arguments.lower, &arguments.known) {
        output::write_whole(path, &written(&all)?)?;
    }
    let markdown =
        format!("{}\n{}", by_budget(&searches, &all, arguments), by_graph(&searches, &all));
    if let Some(path) = &arguments.markdown {
        output::write_whole(path, markdown.as_bytes())?;
    }
    if let Some(path) = &arguments.svg {
        output::write_whole(path, drawing(&searches, &all, arguments).as_bytes())?;
    }
    say!("{}", markdown.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

fn graphs(arguments: &Arguments) -> Result<Vec<PathBuf>> {
    match arguments.graphs.is_empty() {
        true => crate::planner::graph_files(Path::new("corpus/graphs")),
        false => Ok(arguments.graphs.clone()),
    }
}

fn read(path: &Path) -> Result<BTreeMap<String, Known>> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| path.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

fn written(all: &BTreeMap<String, Known>) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(all)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// The marks within the search's time.
fn marks(arguments: &Arguments) -> Vec<f64> {
    MARKS.into_iter().filter(|&mark| mark <= arguments.deadline.0).collect()
}

/// Processor time; infinite once interrupted.
fn now() -> Seconds {
    if wall().0.is_finite() { processor::time() } else { Seconds(f64::INFINITY) }
}

fn effort(arguments: &Arguments) -> Effort<'static> {
    let limits = Limits { deadline: Some(arguments.deadline), iterations: None };
    limits.timed(Planner::Auto, arguments.seed, &now)
}

/// The smallest slab known, which is looked for if none is.
fn smallest(subject: &Subject, known: &mut Known, arguments: &Arguments) -> Result<Bytes> {
    if let Some(bytes) = known.smallest_bytes {
        return Ok(Bytes(bytes));
    }
    note!("{}, as small as possible", subject.name);
    let request = Request { effort: effort(arguments), ..Request::default() };
    let fitted =
        fit(&subject.graph, &subject.profile, &request).with_context(|| subject.name.clone())?;
    let slab = fitted.schedule().slab;
    known.smallest_bytes = Some(slab.0);
    Ok(slab)
}

/// Plans for one budget; no improvements if there is no plan.
fn planned(
    subject: &Subject,
    fraction: Option<f64>,
    budget: Bytes,
    arguments: &Arguments,
) -> Result<Search> {
    note!("{} at {}", subject.name, name(fraction));
    let start = now();
    let request = Request { effort: effort(arguments), ..Request::within(budget) };
    let improvements = match fit(&subject.graph, &subject.profile, &request) {
        Err(FitError::Plan(_)) => Vec::new(),
        Err(error) => return Err(error).with_context(|| subject.name.clone()),
        Ok(fitted) => {
            check(&subject.graph, &subject.profile, fitted.schedule(), budget)
                .with_context(|| subject.name.clone())?;
            let since = |it: &Improvement| Improvement { at: Seconds(it.at.0 - start.0), ..*it };
            fitted.improvements().iter().map(since).collect()
        }
    };
    Ok(Search {
        graph: subject.name.clone(),
        fraction,
        budget,
        unplanned: subject.seconds,
        improvements,
    })
}

impl Search {
    /// By how much the best plan at some time is slower than the best known, as a share of the
    /// unplanned step's time; none if no plan was found by then.
    fn excess(&self, mark: f64, known: &BTreeMap<String, Known>) -> Option<f64> {
        let best = *known.get(&self.graph)?.step_seconds.get(&self.budget.0)?;
        let by_then = self.improvements.iter().take_while(|it| it.at.0 <= mark);
        by_then.last().map(|it| (it.seconds.0 - best) / self.unplanned.0)
    }
}

fn name(fraction: Option<f64>) -> String {
    fraction.map_or("tight".to_string(), |fraction| fraction.to_string())
}

/// The searches for each budget, and all of them, by name.
fn groups<'a>(searches: &'a [Search], arguments: &Arguments) -> Vec<(String, Vec<&'a Search>)> {
    let budgets = arguments.budgets.iter().copied().map(Some).chain([None]);
    let of_budget = |fraction| searches.iter().filter(|it| it.fraction == fraction).collect();
    let by_budget = budgets.map(|fraction| (name(fraction), of_budget(fraction)));
    by_budget.chain([("all".to_string(), searches.iter().collect())]).collect()
}

/// The means over the graphs as lines.
fn drawing(searches: &[Search], known: &BTreeMap<String, Known>, arguments: &Arguments) -> String {
    let marks = marks(arguments);
    let curve = |(name, of): (String, Vec<&Search>)| {
        let at = |mark: &f64| {
            let all: Vec<Option<f64>> = of.iter().map(|it| it.excess(*mark, known)).collect();
            mean(&all).map(|share| share * 100.0)
        };
        Curve { name, figures: marks.iter().map(at).collect() }
    };
    let curves: Vec<Curve> = groups(searches, arguments).into_iter().map(curve).collect();
    let what = "processor time (across), points beyond the best plan known, mean (up)";
    curves_svg("How fast plans get better", &marks, &curves, what)
}

fn mean(excesses: &[Option<f64>]) -> Option<f64> {
    let found: Vec<f64> = excesses.iter().copied().flatten().collect();
    (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64)
}

/// Means over the graphs, at each budget and over all, and the area below the curve of all.
fn by_budget(
    searches: &[Search],
    known: &BTreeMap<String, Known>,
    arguments: &Arguments,
) -> String {
    let marks = marks(arguments);
    let head: Vec<String> = std::iter::once("f".to_string())
        .chain(marks.iter().map(|mark| format!("{mark} s")))
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let row = |name: String, of: &[&Search]| {
        let cell = |mark: &f64| {
            let all: Vec<Option<f64>> = of.iter().map(|it| it.excess(*mark, known)).collect();
            let missing = all.iter().filter(|it| it.is_none()).count();
            let refused = if missing > 0 { format!(" ({missing} none)") } else { String::new() };
            format!("{}{refused}", points(mean(&all)))
        };
        std::iter::once(name).chain(marks.iter().map(cell)).collect::<Vec<String>>()
    };
    let groups = groups(searches, arguments);
    let rows: Vec<Vec<String>> = groups.into_iter().map(|(name, of)| row(name, &of)).collect();
    let area = searches.iter().map(|it| area(it, known, &marks)).sum::<f64>()
        / searches.len().max(1) as f64;
    format!(
        "## Curve\nSlowdown beyond the best plan known, in points of the unplanned step's time, \
         by seconds of processor time; means over the graphs. `none`: graphs without a plan by \
         then.\n\n{}\nArea: {} points, the mean over the marks, a budget without a plan counting \
         as 100.\n",
        table(&head, &rows),
        points(Some(area))
    )
}

/// The mean over the marks, which are about evenly spaced in the logarithm of time.
fn area(search: &Search, known: &BTreeMap<String, Known>, marks: &[f64]) -> f64 {
    let excess = |mark: &f64| search.excess(*mark, known).unwrap_or(NONE);
    marks.iter().map(excess).sum::<f64>() / marks.len().max(1) as f64
}

/// Each search, with when its first and its last plan were found.
fn by_graph(searches: &[Search], known_of: &BTreeMap<String, Known>) -> String {
    let head = ["graph", "f", "first plan (s)", "its excess", "last plan (s)", "its excess"];
    let rows: Vec<Vec<String>> = searches
        .iter()
        .map(|search| {
            let [first, last] = [search.improvements.first(), search.improvements.last()];
            let at = |it: Option<&Improvement>| known(it, |it| format!("{:.3}", it.at.0));
            let excess = |it: Option<&Improvement>| {
                points(it.and_then(|it| search.excess(it.at.0, known_of)))
            };
            vec![
                search.graph.clone(),
                name(search.fraction),
                at(first),
                excess(first),
                at(last),
                excess(last),
            ]
        })
        .collect();
    format!("## Searches\n{}", table(&head, &rows))
}
