//! `tightfit pareto`: what each budget costs. Invariant: table, JSON and drawing show the same
//! points.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tightfit::exit::Exit;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::split::Parts;
use tightfit::units::Seconds;

use crate::batches::Batches;
use crate::effort::Search;
use crate::exit_code::ExitCode;
use crate::failure::Result;
use crate::frontier::{Point, Refusal, drawn, frontier};
use crate::input::{self, OnTiers};
use crate::output::Written;
use crate::table::{Cell, Table};
use crate::{interrupt, output, places, progress};

/// Plan a step at many budgets: what would half the memory cost, what is the smallest machine for
/// it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit pareto corpus/graphs/cuda/gpt2_medium_b4_s1024.json.gz
  tightfit pareto corpus/steps/gpt-small --points 6 --json
  tightfit pareto corpus/graphs/cuda/resnet50_b32.json.gz --deadline 5s --svg frontier.svg")]
pub struct Arguments {
    /// A graph file (tightfit-graph/1, plain or gzip) or a step's folder
    graph: PathBuf,
    /// How many budgets
    #[arg(
        long,
        value_name = "N",
        default_value_t = 12,
        value_parser = clap::value_parser!(u32).range(2..=1000)
    )]
    points: u32,
    #[command(flatten)]
    search: Search,
    #[command(flatten)]
    batches: Batches,
    #[command(flatten)]
    on: OnTiers,
    /// Draw time over budget, with the bound below it, into this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object, with a list of points
    #[arg(long)]
    json: bool,
}

/// Plans and prints.
pub fn pareto(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(path) = &arguments.svg {
        output::writable(path)?;
    }
    let (graph, is_step) = input::graph(&arguments.graph)?;
    places::distinct(&[("--svg", arguments.svg.as_ref())], &input::files(&arguments.graph)?)?;
    let sized = arguments.batches.sized(graph)?;
    let graph = arguments.batches.accumulated(sized.clone())?;
    let machine = arguments.on.machine(is_step)?;
    interrupt::listen();
    let profile = input::profile(&graph, &machine);
    let unplanned = tightfit::unplanned(&graph, &profile)?;
    let (search, points) = (arguments.search.of_each(), arguments.points);
    let points = progress::during("planning budget by budget", search.of_all(points), || {
        frontier((&sized, arguments.batches), &machine, &unplanned, search, points)
    })?;
    let mut written = Written::default();
    if let Some(path) = &arguments.svg {
        let drawn = drawing(&graph, &machine, &points, unplanned.timeline().seconds);
        written.write(path, drawn.as_bytes(), "a drawing")?;
    }
    if arguments.json {
        output::answer(json!({
            "graph": graph.name(),
            "machine": machine.name,
            "unplanned_step_seconds": unplanned.timeline().seconds,
            "points": document(&points),
            "interrupted": interrupt::raised(),
        }))?;
    } else {
        show(&graph, &machine, &points, unplanned.timeline().seconds)?;
        if interrupt::raised() {
            tell!("interrupted: the best plans so far")?;
        }
        written.tell()?;
    }
    Ok(if interrupt::raised() { interrupt::code() } else { exit_code(&points) })
}

/// Not all budgets have an answer if for one of them neither a plan nor a proof was found.
fn exit_code(points: &[Point]) -> ExitCode {
    let is_unproven = |point: &Point| point.figures.err() == Some(Refusal::NotFound);
    match points.iter().any(is_unproven) {
        true => ExitCode::from(Exit::NotFound),
        false => ExitCode::SUCCESS,
    }
}

const HEADS: [&str; 8] =
    ["budget", "bytes", "slowdown", "bound", "gap", "peak", "split", "seconds"];

fn show(graph: &Graph, machine: &Machine, points: &[Point], unplanned: Seconds) -> output::Printed {
    tell!(
        "{} on {}: {} unplanned; predicted slowdown by budget",
        graph.name(),
        machine.name,
        output::milliseconds(unplanned)
    )?;
    // Sums in another order may leave a tiny remainder, which is no reason for a sign.
    let hundredths = |share: f64| (share * 1e4).round() / 1e2 + 0.0;
    let figure = |share: Option<f64>, unit: &str| {
        let cell = |share: f64| Cell::figure(share, format!("{:.2} {unit}", hundredths(share)));
        share.map_or_else(Cell::nothing, cell)
    };
    let rows = points.iter().map(|Point { budget, parts, figures, seconds }| {
        let mut row = vec![Cell::bytes(*budget), Cell::figure(0.0, budget.0.to_string())];
        match figures {
            Ok(figures) => row.extend([
                figure(Some(figures.overhead), "%"),
                figure(figures.bound, "%"),
                figure(figures.gap, "points"),
                Cell::bytes(figures.peak),
                Cell::figure(parts.chunks as f64, parts.to_string()),
                // Not known if Ctrl-C ended the search.
                if seconds.0.is_finite() {
                    Cell::figure(seconds.0, format!("{:.2}", seconds.0))
                } else {
                    Cell::nothing()
                },
            ]),
            Err(refusal) => {
                row.push(Cell::figure(0.0, refusal.words().to_string()));
                row.extend([(); 5].map(|()| Cell::nothing()));
            }
        }
        row
    });
    Table::new(&HEADS, rows.collect()).print(usize::MAX)
}

/// The points as JSON.
pub fn document(points: &[Point]) -> Value {
    Value::Array(points.iter().map(point_json).collect())
}

fn point_json(point: &Point) -> Value {
    let (figures, refusal) = (point.figures.ok(), point.figures.err());
    json!({
        "budget_bytes": point.budget,
        "feasible": figures.is_some(),
        "refusal": refusal.map(Refusal::words),
        "step_seconds": figures.map(|figures| figures.step),
        "overhead": figures.map(|figures| figures.overhead),
        "bound": figures.and_then(|figures| figures.bound),
        "gap": figures.and_then(|figures| figures.gap),
        "split": (point.parts != Parts::WHOLE).then(|| point.parts.to_string()),
        "peak_bytes": figures.map(|figures| figures.peak),
        "slab_bytes": figures.map(|figures| figures.slab),
        "recomputed_nodes": figures.map(|figures| figures.recomputed),
        "planning_seconds": point.seconds,
    })
}

fn drawing(graph: &Graph, machine: &Machine, points: &[Point], unplanned: Seconds) -> String {
    let title = format!("{} on {}: time of a step by budget", graph.name(), machine.name);
    tightfit_report::frontier_svg(&title, unplanned, &drawn(points))
}

#[cfg(test)]
mod tests {
    use tightfit::units::Bytes;

    use super::*;

    #[test]
    fn a_budget_without_plan_and_proof_has_an_exit_code() {
        let refused = |refusal| Point {
            budget: Bytes(1),
            parts: Parts::WHOLE,
            figures: Err(refusal),
            seconds: Seconds(0.0),
        };
        let code = |points: &[Point]| u8::from(exit_code(points));
        assert_eq!(code(&[refused(Refusal::Proven)]), 0);
        assert_eq!(code(&[refused(Refusal::Proven), refused(Refusal::NotFound)]), 10);
    }
}
