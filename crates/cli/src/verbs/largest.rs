//! `tightfit largest`: the largest batch that fits, and the one with the most samples per second.
//! Invariant: table, JSON and drawing show the same sizes.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use thiserror::Error;
use tightfit::exit::coded;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::sizes::{Dimension, Sizes};
use tightfit::split::Parts;
use tightfit::units::Seconds;
use tightfit_engine::Budget;
use tightfit_report::{SizePoint, sizes_svg};

use crate::batches::{Batches, Unseen};
use crate::effort::Search;
use crate::exit_code::ExitCode;
use crate::failure::Result;
use crate::input::{self, OnTiers};
use crate::output::Written;
use crate::sizes::{Found, MOST, Question, Tried};
use crate::table::{Cell, Table};
use crate::{interrupt, output, places, progress};

/// The longest search at each size, unless told.
const DEADLINE: Seconds = Seconds(0.25);

/// Find the largest batch of a step that fits into a budget, and the one with the most samples per
/// second; --deadline is for the plan of each size [default: 250ms]
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit largest corpus/graphs/cuda/llama_1b_b2_s2048.json.gz --budget 24GiB
  tightfit largest corpus/steps/gpt-small --budget 320MiB --json
  tightfit largest corpus/graphs/cuda/gpt2_small_b8_s512.json.gz --budget 16GiB --axis length
  tightfit largest corpus/graphs/cuda/resnet50_b32.json.gz --budget 16GB --svg sizes.svg")]
pub struct Arguments {
    /// A graph file (tightfit-graph/1, plain or gzip) or a step's folder
    graph: PathBuf,
    /// Bytes of the whole process: 1000000, 320MiB, 2.5GB
    #[arg(long, allow_hyphen_values = true)]
    budget: String,
    /// What grows: the samples of a batch, or the elements of each sample, such as words
    #[arg(long, value_enum, default_value_t = Axis::Batch)]
    axis: Axis,
    #[command(flatten)]
    search: Search,
    #[command(flatten)]
    batches: Batches,
    #[command(flatten)]
    on: OnTiers,
    /// Draw samples per second over the size, with the bound above it, into this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object, with a list of the sizes that were tried
    #[arg(long)]
    json: bool,
}

/// What grows.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Axis {
    /// The first dimension of the batch's tensors
    Batch,
    /// The second one
    Length,
}

impl Axis {
    fn dimension(self) -> Dimension {
        match self {
            Axis::Batch => Dimension::Batch,
            Axis::Length => Dimension::Length,
        }
    }
}

/// A share of the peak is no budget of steps of several sizes.
#[derive(Debug, Error)]
#[error(
    "the budget `{0}` is not a number of bytes; give one, such as 320MiB or 2.5GB (a share of the \
     peak is another for each size)"
)]
struct NoBytes(String);

coded!(Budget: NoBytes);

/// Plans and prints.
pub fn largest(arguments: &Arguments) -> Result<ExitCode> {
    let Ok(Budget::Absolute(budget)) = arguments.budget.parse() else {
        return Err(NoBytes(arguments.budget.clone()).into());
    };
    if let Some(path) = &arguments.svg {
        output::writable(path)?;
    }
    let (graph, is_step) = input::graph(&arguments.graph)?;
    places::distinct(&[("--svg", arguments.svg.as_ref())], &input::files(&arguments.graph)?)?;
    let graph = arguments.batches.sized(graph)?;
    let machine = arguments.on.machine(is_step)?;
    interrupt::listen();
    let mut search = arguments.search;
    if search.limits.iterations.is_none() {
        search.limits.deadline = search.limits.deadline.or(Some(DEADLINE));
    }
    let dimension = arguments.axis.dimension();
    let sizes = Sizes::along(&graph, dimension)?;
    let question = Question {
        sizes,
        batches: arguments.batches,
        machine: &machine,
        budget,
        planner: search.planner,
        effort: search.effort(),
    };
    let most = Seconds(f64::INFINITY);
    let found = progress::during("planning size by size", most, || question.answer())?;
    let unseen = |&size: &u64| Unseen::of(&graph, dimension, size);
    [found.size, found.fastest].iter().find_map(unseen).into_iter().for_each(Unseen::tell);
    let mut written = Written::default();
    if let Some(path) = &arguments.svg {
        let name = arguments.axis.dimension().name();
        let drawn = drawing(&graph, &machine, name, &found);
        written.write(path, drawn.as_bytes(), "a drawing")?;
    }
    if arguments.json {
        output::answer(json!({
            "graph": graph.name(),
            "machine": machine.name,
            "axis": arguments.axis.dimension().name(),
            "budget_bytes": budget,
            "size": found.size,
            "fastest_size": found.fastest,
            "is_proven": found.is_proven,
            "end": found.end.as_ref().map(ToString::to_string),
            "tried": found.tried.iter().map(document).collect::<Vec<_>>(),
            "interrupted": interrupt::raised(),
        }))?;
    } else {
        show(arguments, &graph, &machine, &found)?;
        written.tell()?;
    }
    Ok(interrupt::code())
}

fn document(tried: &Tried) -> Value {
    let (plan, lacking) = (tried.plan.ok(), tried.plan.err());
    json!({
        "size": tried.size,
        "feasible": plan.is_some(),
        "is_proven": lacking.map(|lacking| lacking.is_proven),
        "needed_bytes": lacking.and_then(|lacking| lacking.needed),
        "peak_bytes": plan.map(|plan| plan.figures.peak),
        "slab_bytes": plan.map(|plan| plan.figures.slab),
        "step_seconds": plan.map(|plan| plan.figures.step),
        "unplanned_step_seconds": plan.map(|plan| plan.unplanned),
        "bound_step_seconds": plan.and_then(|plan| plan.bound),
        "split": plan.map(|plan| plan.parts).filter(|&parts| parts != Parts::WHOLE)
            .map(|parts| parts.to_string()),
        "recomputed_nodes": plan.map(|plan| plan.figures.recomputed),
        "per_second": plan.map(|plan| plan.per_second),
        "most_per_second": plan.and_then(|plan| plan.most_per_second),
    })
}

const HEADS: [&str; 8] =
    ["size", "held", "time", "slowdown", "per second", "at most", "again", "split"];

fn show(arguments: &Arguments, graph: &Graph, machine: &Machine, found: &Found) -> output::Printed {
    let name = arguments.axis.dimension().name();
    output::heading(format_args!("{} on {}", graph.name(), machine.name))?;
    // Where only multiples are known, that is not the next number.
    let next = match found.next - found.size {
        1 => "one more".to_string(),
        grid => format!("{}, the next multiple of {grid},", found.next),
    };
    let end = match (&found.end, found.is_proven) {
        _ if interrupt::raised() => "interrupted: the largest so far".to_string(),
        (Some(error), _) => format!("{next} is no step: {error}"),
        (None, _) if found.size >= MOST => "the largest that is asked for".to_string(),
        (None, true) => format!("{next} is proven not to fit"),
        (None, false) => format!("no plan was found for {next}; a longer --deadline may find one"),
    };
    row!(format!("largest {name}"), found.size, "{end}")?;
    row!(
        format!("fastest {name}"),
        found.fastest,
        "the most per second of these (predicted from rates)"
    )?;
    let rows = found.tried.iter().map(|tried| {
        let size = Cell::figure(tried.size as f64, tried.size.to_string());
        let mut row = vec![size];
        match &tried.plan {
            Ok(plan) => row.extend([
                Cell::bytes(plan.held),
                Cell::figure(plan.figures.step.0, output::milliseconds(plan.figures.step)),
                Cell::figure(plan.figures.overhead, output::percent(plan.figures.overhead)),
                Cell::figure(plan.per_second, rate(plan.per_second)),
                plan.most_per_second
                    .map_or_else(Cell::nothing, |most| Cell::figure(most, rate(most))),
                Cell::figure(plan.figures.recomputed as f64, plan.figures.recomputed.to_string()),
                Cell::figure(plan.parts.chunks as f64, plan.parts.to_string()),
            ]),
            Err(lacking) => {
                let words = match (lacking.is_proven, lacking.needed) {
                    (true, Some(needed)) => {
                        format!("lacks {}", needed.saturating_sub(found.budget))
                    }
                    (true, None) => "too large".to_string(),
                    (false, _) => "no plan found".to_string(),
                };
                row.push(Cell::figure(0.0, words));
                row.extend([(); 6].map(|()| Cell::nothing()));
            }
        }
        row
    });
    Table::new(&HEADS, rows.collect()).print(usize::MAX)
}

/// Three digits or more.
fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate >= 100.0 => format!("{rate:.0}"),
        rate if rate >= 10.0 => format!("{rate:.1}"),
        rate => format!("{rate:.2}"),
    }
}

fn drawing(graph: &Graph, machine: &Machine, name: &str, found: &Found) -> String {
    let points: Vec<SizePoint> = found
        .tried
        .iter()
        .filter_map(|tried| {
            let plan = tried.plan.ok()?;
            let (per_second, most) = (plan.per_second, plan.most_per_second);
            Some(SizePoint { size: tried.size, per_second, most })
        })
        .collect();
    let title = format!("{} on {}: what fits, and how fast it is", graph.name(), machine.name);
    sizes_svg(&title, name, &points, found.size)
}
