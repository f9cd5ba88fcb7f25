//! `tightfit modules`: what each module of a model holds, and how long it takes. Invariant: the
//! table and the JSON show the same statistics; statistics that were given are printed as they
//! were.

use crate::exit::ExitCode;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tightfit::analysis::modules::{ModuleIndex, ModuleInfo};

use crate::input::{self, OnMachine, Statistics};
use crate::output::milliseconds;
use crate::table::{Cell, Table};

/// Show what each module of a step holds in the forward and the backward pass, and how long it
/// takes.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit modules corpus/graphs/llama_1b_b2_s2048.json.gz --depth 4
  tightfit modules corpus/steps/gpt-small --json > modules.json
  tightfit modules corpus/cases/module_info/module_info_llama_tiny_4l.json --depth 2")]
pub struct Arguments {
    /// A graph file, a step's folder, or statistics of modules as JSON (`tightfit modules --json`,
    /// or PyTorch's tools)
    input: PathBuf,
    #[command(flatten)]
    on: OnMachine,
    /// How many levels of modules to show below the root [default: all]
    #[arg(long)]
    depth: Option<usize>,
    /// Print the statistics of all modules as JSON, as PyTorch's tools write them, each with its
    /// places in the forward pre-order and post-order
    #[arg(long)]
    json: bool,
    /// Add to the JSON who contains whom, a matrix of all modules by all modules: `ad_matrix` of
    /// PyTorch's `parse_module_info`
    #[arg(long, requires = "json")]
    ancestors: bool,
}

const HEADS: [&str; 11] = [
    "module",
    "params",
    "input",
    "saved",
    "output",
    "held",
    "held back",
    "gradients",
    "temporary",
    "fwd ms",
    "bwd ms",
];

const LEGEND: &str = "\
saved: made inside for the backward pass, freed by checkpointing; held: all activations when the \
forward pass of the\nmodule ends; held back, gradients, temporary: all activations, gradients and \
temporaries at the peak of its backward pass";

/// Reads or measures, and prints.
pub fn modules(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let statistics = input::modules(&arguments.input, &arguments.on)?;
    if arguments.json {
        println!("{}", document(&statistics, arguments.ancestors));
        return Ok(ExitCode::SUCCESS);
    }
    let Statistics { info, machine, .. } = statistics;
    let deepest = arguments.depth.unwrap_or(usize::MAX);
    let shown: Vec<(ModuleIndex, usize)> = info
        .modules()
        .keys()
        .map(|module| (module, info.lineage(module).count() - 1))
        .filter(|&(_, depth)| depth <= deepest)
        .collect();
    let root = &info.modules()[info.root()];
    println!(
        "{}: {} modules, {} forward and {} backward {}",
        root.name,
        info.modules().len(),
        milliseconds(root.forward),
        milliseconds(root.backward),
        machine.map_or("as recorded".to_string(), |machine| format!("on {machine}"))
    );
    println!(
        "baseline {}, peak {} ({} bytes) of parameters, gradients and activations, without \
         batch, buffers and optimizer state",
        milliseconds(info.baseline_seconds()),
        info.baseline_peak(),
        info.baseline_peak().0
    );
    println!("{LEGEND}\n");
    let rows = shown.iter().map(|&(module, depth)| row(&info, module, depth));
    Table::new(&HEADS, rows.collect()).print(usize::MAX);
    Ok(ExitCode::SUCCESS)
}

/// One module; the indent says how deep it is.
fn row(info: &ModuleInfo, module: ModuleIndex, depth: usize) -> Vec<Cell> {
    let figures = &info.modules()[module];
    let sizes = [
        figures.parameters,
        figures.input,
        figures.forward_activations,
        figures.output,
        figures.total_activations,
        figures.backward_activations,
        figures.total_gradients,
        figures.activation_gradients,
    ];
    let mut row = vec![Cell::branch(name(info, module), depth)];
    row.extend(sizes.map(Cell::bytes));
    row.extend([figures.forward, figures.backward].map(Cell::milliseconds));
    row
}

/// The statistics as JSON, with the baseline, and with what else was recorded of operators.
pub fn document(statistics: &Statistics, ancestors: bool) -> Value {
    let info = &statistics.info;
    let mut document = info.document();
    document["baseline_peak_bytes"] = json!(info.baseline_peak());
    document["baseline_ms"] = json!(info.baseline_seconds().0 * 1e3);
    if ancestors {
        document["ad_matrix"] = json!(info.ancestor_matrix());
    }
    if let Some(operators) = input::operators(&statistics.text) {
        document["sac_stats"] = operators;
    }
    document
}

/// What is behind the name of the nearest module above; for the root all of its name.
fn name(info: &ModuleInfo, module: ModuleIndex) -> &str {
    let name = &info.modules()[module].name;
    info.parent(module).map_or(name, |parent| &name[info.modules()[parent].name.len() + 1..])
}
