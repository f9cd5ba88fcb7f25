//! `tightfit analyze`: where the bytes of the unplanned step are. Invariant: every figure is of the
//! step as captured, in the graph's order; nothing is planned.

mod facts;
mod json;
mod rows;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde_json::Value;
use tightfit::analysis::PeakInterval;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::units::Bytes;
use tightfit_engine::Budget;

use crate::exit_code::ExitCode;
use crate::failure::Result;

pub use facts::Refused;

use crate::input::{self, OnTiers};
use crate::output::{self, Printed, milliseconds};
use facts::{Facts, Limit};
use rows::{FIGURE_LEGEND, NODE_LEGEND, USUAL_NODE_LEGEND};

/// Show the peak of a step, what is alive there, and where its bytes come from: by module, by
/// operator or by node.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit analyze corpus/graphs/cuda/gpt2_small_b8_s512.json.gz
  tightfit analyze corpus/graphs/cuda/gpt2_small_b8_s512.json.gz --nodes --sort saved --top 30
  tightfit analyze corpus/steps/gpt-small --operators --module h.3
  tightfit analyze corpus/graphs/cuda/llama_1b_b2_s2048.json.gz --budget 14GiB --json")]
pub struct Arguments {
    /// A graph file or a step's folder
    graph: PathBuf,
    #[command(flatten)]
    on: OnTiers,
    /// Bytes, 320MiB, 2.5GB or 60% of the peak: mark where the step is over it, instead of the peak
    #[arg(long, allow_hyphen_values = true)]
    budget: Option<String>,
    /// Print a row for each node, placeholders and views included
    #[arg(long, group = "rows")]
    nodes: bool,
    /// Print a row for each operator of the forward pass, together with the backward nodes that
    /// differentiate it
    #[arg(long, group = "rows")]
    operators: bool,
    /// Sort the nodes or operators by this column: numbers from the largest down
    #[arg(long, value_name = "COLUMN", requires = "rows", conflicts_with = "json")]
    sort: Option<String>,
    /// Show only rows of this module and those below it, in tables and JSON alike; totals remain
    /// those of the step
    #[arg(long, value_name = "PATH")]
    module: Option<String>,
    /// How many rows to show of tensors, nodes or operators [default: 20 tensors; all nodes and
    /// operators]
    #[arg(long)]
    top: Option<usize>,
    /// Depth of the module table, in path components below the module that is shown
    #[arg(long, default_value_t = 2)]
    depth: usize,
    /// Print everything as JSON, with a row for each node and each operator
    #[arg(long)]
    json: bool,
}

/// Analyzes and prints.
pub fn analyze(arguments: &Arguments) -> Result<ExitCode> {
    let budget: Option<Budget> = arguments.budget.as_deref().map(str::parse).transpose()?;
    let (graph, is_step) = input::graph(&arguments.graph)?;
    let machine = arguments.on.machine(is_step)?;
    let facts = Facts::new(Arc::new(graph), machine, budget, arguments.module.as_deref())?;
    if arguments.json {
        output::answer(json::json(&facts, arguments.depth))?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = match (arguments.nodes, arguments.operators) {
        (true, _) => Some((rows::nodes(&facts), node_legend(&facts))),
        (_, true) => Some((rows::operators(&facts), format!("{FIGURE_LEGEND} the operator"))),
        _ => None,
    };
    match rows {
        Some((mut table, legend)) => {
            if let Some(column) = &arguments.sort {
                table.sort(column)?;
            }
            summary(&facts)?;
            say!()?;
            tell!("{legend}")?;
            say!()?;
            table.print(arguments.top.unwrap_or(usize::MAX))?;
        }
        None => {
            summary(&facts)?;
            overview(&facts, arguments.top.unwrap_or(20), arguments.depth)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What `--json` prints of a step.
pub fn document(
    graph: Arc<Graph>,
    machine: Machine,
    budget: Option<Budget>,
    module: Option<&str>,
    depth: usize,
) -> Result<Value> {
    Ok(json::json(&Facts::new(graph, machine, budget, module)?, depth))
}

/// How long the step takes, its peak, and where it is over the budget.
fn summary(facts: &Facts) -> Printed {
    let (graph, curve) = (&facts.graph, facts.curve());
    let work = facts.flow.modules[facts.flow.tree.root()].work;
    tell!(
        "{}: {} nodes run, {} on {}: {} forward and {} backward",
        graph.name(),
        facts.order.len(),
        milliseconds(work.all),
        facts.machine.name,
        milliseconds(work.forward),
        milliseconds(work.backward),
    )?;
    let at = facts.order.get(curve.at).copied();
    tell!(
        "peak {} ({} bytes) at `{}` in {}; {} of it is parameters, state and batch",
        curve.peak,
        curve.peak.0,
        at.map_or("", |node| facts.name(node)),
        match at.map_or("", |node| facts.module(node)) {
            "" => "the root module".to_string(),
            module => format!("module `{module}`"),
        },
        graph.static_bytes()
    )?;
    if let Some(limit) = facts.limit {
        over(facts, limit)?;
    }
    Ok(())
}

/// From where to where the step is over the budget, and by how much.
fn over(facts: &Facts, limit: Limit) -> Printed {
    const SHOWN: usize = 8;
    let reserve = match limit.reserve.total() {
        Bytes::ZERO => String::new(),
        reserve => format!(", {reserve} of it for the process itself and the matrix product"),
    };
    let budget = format!("budget {} ({} bytes){reserve}", limit.budget, limit.budget.0);
    let nodes: u32 =
        facts.intervals.iter().map(|interval| interval.last - interval.first + 1).sum();
    let needed = limit.reserve.total() + facts.curve().peak;
    if needed <= limit.budget {
        let left = limit.budget - needed;
        return tell!("{budget}: never exceeded, {left} are left at the peak");
    }
    if nodes == 0 {
        let more = needed - limit.budget;
        return tell!("{budget}: exceeded by {more} by what is there before anything runs");
    }
    tell!(
        "{budget}: exceeded while {nodes} of {} nodes run, in {} interval{}:",
        facts.order.len(),
        facts.intervals.len(),
        if facts.intervals.len() == 1 { "" } else { "s" }
    )?;
    let name = |rank: u32| facts.order.get(rank as usize).map_or("", |&node| facts.name(node));
    // The intervals that exceed it most, in the order in which they run.
    let mut shown: Vec<&PeakInterval> = facts.intervals.iter().collect();
    shown.sort_by_key(|interval| std::cmp::Reverse(interval.held));
    shown.truncate(SHOWN);
    shown.sort_by_key(|interval| interval.first);
    for interval in &shown {
        output::sentence(
            "  ",
            format_args!(
                "from `{}` ({}) to `{}` ({}), by {} at most, at `{}`",
                name(interval.first),
                interval.first,
                name(interval.last),
                interval.last,
                interval.held + limit.reserve.total() - limit.budget,
                name(interval.at),
            ),
        )?;
    }
    if facts.intervals.len() > SHOWN {
        say!("  and {} where it is less", facts.intervals.len() - SHOWN)?;
    }
    Ok(())
}

fn node_legend(facts: &Facts) -> String {
    let mark = if facts.limit.is_some() { "over the budget" } else { "at the peak" };
    let legend = if output::is_wide() { NODE_LEGEND } else { USUAL_NODE_LEGEND };
    format!("{legend}; *: {mark}")
}

/// What is alive at the peak, and the modules.
fn overview(facts: &Facts, top: usize, depth: usize) -> Printed {
    let live = facts.live();
    let within = match facts.flow.tree.branches()[facts.within].path.as_str() {
        "" => String::new(),
        module => format!(" in module `{module}`"),
    };
    say!("\nalive there{within}, the {} largest of {}:", top.min(live.len()), live.len())?;
    rows::tensors(&live[..top.min(live.len())]).print(usize::MAX)?;
    say!()?;
    tell!("{FIGURE_LEGEND} the module")?;
    say!()?;
    rows::modules(facts, depth).print(usize::MAX)
}
