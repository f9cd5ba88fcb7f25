//! `tightfit modules`: what each module of a model holds, and how long it takes. Invariant: the
//! table and the JSON show the same statistics; statistics that were given are printed as they
//! were.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tightfit::analysis::modules::{ModuleIndex, ModuleInfo};

use crate::exit_code::ExitCode;
use crate::failure::Result;
use crate::input::{self, OnMachine, Statistics};
use crate::output::milliseconds;
use crate::table::{Cell, Table};
use crate::{alike, output};

/// Show what each module of a step holds in the forward and the backward pass, and how long it
/// takes.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit modules corpus/graphs/cuda/llama_1b_b2_s2048.json.gz --depth 4
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
    /// Add to the JSON which module contains which, a matrix of all modules by all modules:
    /// `ad_matrix` of PyTorch's `parse_module_info`
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

/// The columns of a line of usual width: those that do not depend on a module's place in the model.
const USUAL: [&str; 7] = ["module", "params", "saved", "output", "temporary", "fwd ms", "bwd ms"];

const USUAL_LEGEND: &str = "\
saved: made inside for the backward pass, freed by checkpointing; temporary: at the peak of the \
backward pass; `0–3`: modules that are alike, with the figures of each";

const LEGEND: &str = "\
saved: made inside for the backward pass, freed by checkpointing; held: all activations when the \
forward pass of the module ends; held back, gradients, temporary: all activations, gradients and \
temporaries at the peak of its backward pass";

/// Reads or measures, and prints.
pub fn modules(arguments: &Arguments) -> Result<ExitCode> {
    let statistics = input::modules(&arguments.input, &arguments.on)?;
    if arguments.json {
        output::answer(document(&statistics, arguments.ancestors))?;
        return Ok(ExitCode::SUCCESS);
    }
    let Statistics { info, machine, .. } = statistics;
    let deepest = arguments.depth.unwrap_or(usize::MAX);
    let root = &info.modules()[info.root()];
    tell!(
        "{}: {} modules, {} forward and {} backward {}",
        root.name,
        info.modules().len(),
        milliseconds(root.forward),
        milliseconds(root.backward),
        machine.map_or("as recorded".to_string(), |machine| format!("on {machine}"))
    )?;
    tell!(
        "unplanned: {}, peak {} ({} bytes) of parameters, gradients and activations, without \
         batch, buffers and optimizer state",
        milliseconds(info.baseline_seconds()),
        info.baseline_peak(),
        info.baseline_peak().0
    )?;
    tell!("{}", if output::is_wide() { LEGEND } else { USUAL_LEGEND })?;
    say!()?;
    let mut rows = vec![row(&info, info.root(), &root.name, 0)];
    let mut children: BTreeMap<ModuleIndex, Vec<ModuleIndex>> = BTreeMap::new();
    for child in info.modules().keys() {
        if let Some(parent) = info.parent(child) {
            children.entry(parent).or_default().push(child);
        }
    }
    rows.append(&mut below(&info, &children, (info.root(), 0), deepest));
    Table::new(&HEADS, rows).usually(&USUAL).print(usize::MAX)?;
    Ok(ExitCode::SUCCESS)
}

/// What a module contains, down to a depth; in lines of usual width, one subtree stands for all
/// siblings that look alike.
fn below(
    info: &ModuleInfo,
    of_all: &BTreeMap<ModuleIndex, Vec<ModuleIndex>>,
    (module, depth): (ModuleIndex, usize),
    deepest: usize,
) -> Vec<Vec<Cell>> {
    if depth == deepest {
        return Vec::new();
    }
    let children = of_all.get(&module).map_or(&[][..], Vec::as_slice);
    let names: Vec<&str> = children.iter().map(|&child| name(info, child)).collect();
    let mut subtrees: Vec<_> =
        children.iter().map(|&child| below(info, of_all, (child, depth + 1), deepest)).collect();
    let is_same = |a: usize, b: usize| {
        !output::is_wide()
            && alike(info, children[a], children[b])
            && same(&subtrees[a], &subtrees[b])
    };
    let mut rows = Vec::new();
    for run in alike::runs(&names, is_same) {
        rows.push(row(info, children[run.first], &run.name, depth + 1));
        rows.append(&mut subtrees[run.first]);
    }
    rows
}

/// Whether two modules show the same in lines of usual width, apart from their names.
fn alike(info: &ModuleInfo, a: ModuleIndex, b: ModuleIndex) -> bool {
    same(&[row(info, a, "", 0)], &[row(info, b, "", 0)])
}

fn same(some: &[Vec<Cell>], others: &[Vec<Cell>]) -> bool {
    let is_usual = |head: &&str| USUAL.contains(head);
    some.len() == others.len()
        && some.iter().zip(others).all(|(row, other)| {
            let cells = HEADS.iter().zip(row.iter().zip(other));
            cells.filter(|(head, _)| is_usual(head)).all(|(_, (a, b))| a.shows_as(b))
        })
}

/// One module; the indent shows how deep it is.
fn row(info: &ModuleInfo, module: ModuleIndex, name: &str, depth: usize) -> Vec<Cell> {
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
    let mut row = vec![Cell::branch(name, depth)];
    row.extend(sizes.map(Cell::bytes));
    row.extend([figures.forward, figures.backward].map(Cell::milliseconds));
    row
}

/// The statistics as JSON, with the baseline, and with whatever else was recorded of operators.
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

/// The part of the name after that of the nearest module above; for the root its whole name.
fn name(info: &ModuleInfo, module: ModuleIndex) -> &str {
    let name = &info.modules()[module].name;
    info.parent(module).map_or(name, |parent| &name[info.modules()[parent].name.len() + 1..])
}
