//! `tightfit analyze`: where the bytes of the unplanned step are. Invariant: every figure is one of
//! the step as captured, in the graph's order; nothing is planned.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use tightfit::analysis::{access_profile, dataflow};
use tightfit::graph::Graph;
use tightfit::id::NodeId;
use tightfit::plan::{LiveTensor, live_tensors, simulate};
use tightfit::profile::Profile;
use tightfit::units::{Bytes, Seconds};

use crate::input::{self, OnMachine};

/// Show the peak of a step, what is alive there, and a table per module.
#[derive(Args)]
#[command(after_help = "Example:\n  tightfit analyze corpus/graphs/gpt2_small_b8_s512.json.gz")]
pub struct Arguments {
    /// A graph file or a step's folder
    graph: PathBuf,
    #[command(flatten)]
    on: OnMachine,
    /// How many of the largest tensors to show
    #[arg(long, default_value_t = 20)]
    top: usize,
    /// Depth of the module table, in path components
    #[arg(long, default_value_t = 2)]
    depth: usize,
    /// Print everything as JSON, with a row for each node
    #[arg(long)]
    json: bool,
}

/// A module's row: its own nodes and those of the modules below it.
#[derive(Default)]
struct ModuleRow {
    nodes: usize,
    parameters: Bytes,
    /// Forward storages that a backward node reads.
    saved: Bytes,
    seconds: Seconds,
}

/// Analyzes and prints.
pub fn analyze(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (graph, is_step) = input::graph(&arguments.graph)?;
    let machine = arguments.on.machine(is_step)?;
    let profile = Profile { in_place: false, ..input::profile(&graph, &machine) };
    let order = graph.compute_nodes();
    let simulation = simulate(&graph, &profile, &order);
    let curve = &simulation.curve;
    let live = live_tensors(&graph, &profile, &order, curve.at);
    let modules = modules(&graph, &profile, arguments.depth);
    let at = order.get(curve.at).copied();
    let name = |node: Option<NodeId>| node.map(|node| graph.nodes()[node].name.clone());
    if arguments.json {
        let table = access_profile(&graph, &profile, &order, curve, None);
        let flow = dataflow(&graph, &profile);
        let nodes: Vec<Value> = order
            .iter()
            .map(|&node| {
                let row = &table[node];
                json!({
                    "name": graph.nodes()[node].name,
                    "op": graph.nodes()[node].op,
                    "phase": graph.nodes()[node].phase.name(),
                    "module": graph.module_of(node),
                    "rank": row.rank,
                    "seconds": row.seconds,
                    "active_bytes": row.active,
                    "in_peak_interval": row.in_peak_interval,
                    "first_forward_access": name(row.first_forward_access),
                    "last_forward_access": name(row.last_forward_access),
                    "first_backward_access": name(row.first_backward_access),
                    "last_backward_access": name(row.last_backward_access),
                    "dataflow": flow.nodes[node],
                })
            })
            .collect();
        let rows = modules.iter().map(|(path, row)| {
            json!({
                "module": path,
                "nodes": row.nodes,
                "parameter_bytes": row.parameters,
                "saved_bytes": row.saved,
                "seconds": row.seconds,
            })
        });
        let branches = flow.tree.branches().iter().map(|(module, branch)| {
            json!({
                "module": branch.path,
                "share": flow.modules[module].share,
                "alone": flow.modules[module].alone,
            })
        });
        let result = json!({
            "graph": graph.name(),
            "machine": machine.name,
            "peak_bytes": curve.peak,
            "static_bytes": graph.static_bytes(),
            "step_us": simulation.seconds.micros(),
            "peak_node": name(at),
            "peak_module": at.map(|node| graph.module_of(node)),
            "live": live.iter().map(tensor_json).collect::<Vec<_>>(),
            "modules": rows.collect::<Vec<_>>(),
            "nodes": nodes,
            "dataflow": { "graph": flow.graph, "modules": branches.collect::<Vec<_>>() },
        });
        println!("{result}");
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{}: {} nodes, {:.2} ms on {}",
        graph.name(),
        order.len(),
        simulation.seconds.0 * 1e3,
        machine.name
    );
    println!(
        "peak {} ({} bytes) at `{}` in module `{}`; {} of it is parameters, state and batch",
        curve.peak,
        curve.peak.0,
        name(at).unwrap_or_default(),
        at.map_or("", |node| graph.module_of(node)),
        graph.static_bytes()
    );
    println!("\nalive there, the {} largest of {}:", arguments.top.min(live.len()), live.len());
    println!("{:>12}  {:<10} {:<40} module", "size", "phase", "tensor");
    for tensor in live.iter().take(arguments.top) {
        println!(
            "{:>12}  {:<10} {:<40} {}",
            tensor.bytes.to_string(),
            tensor.phase,
            tensor.name,
            tensor.module
        );
    }
    println!("\n{:<40} {:>7} {:>12} {:>12} {:>10}", "module", "nodes", "parameters", "saved", "ms");
    for (path, row) in &modules {
        let path = if path.is_empty() { "(whole model)" } else { path };
        println!(
            "{path:<40} {:>7} {:>12} {:>12} {:>10.2}",
            row.nodes,
            row.parameters.to_string(),
            row.saved.to_string(),
            row.seconds.0 * 1e3
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn tensor_json(tensor: &LiveTensor) -> Value {
    json!({
        "name": tensor.name,
        "module": tensor.module,
        "phase": tensor.phase,
        "bytes": tensor.bytes,
    })
}

/// Rows of all modules down to `depth`, by path; the root's row sums up the whole graph.
fn modules(graph: &Graph, profile: &Profile, depth: usize) -> BTreeMap<String, ModuleRow> {
    let mut saved: BTreeMap<NodeId, Bytes> = BTreeMap::new();
    let mut counted = std::collections::BTreeSet::new();
    for node in
        graph.compute_nodes().into_iter().filter(|&node| !graph.nodes()[node].phase.is_forward())
    {
        for &storage in graph.reads(node) {
            let Some(producer) = graph
                .producer(storage)
                .filter(|&producer| graph.nodes()[producer].phase.is_forward())
            else {
                continue;
            };
            if counted.insert(storage) {
                *saved.entry(producer).or_default() += graph.storages()[storage];
            }
        }
    }
    let mut rows: BTreeMap<String, ModuleRow> = BTreeMap::new();
    for (id, node) in graph.nodes() {
        let parts: Vec<&str> =
            graph.module_of(id).split('.').filter(|part| !part.is_empty()).collect();
        for level in 0..=parts.len().min(depth) {
            let row = rows.entry(parts[..level].join(".")).or_default();
            row.nodes += usize::from(graph.runs(id));
            row.seconds = row.seconds + profile.seconds[id];
            row.saved += saved.get(&id).copied().unwrap_or_default();
            if node.phase == tightfit::graph::Phase::Parameter {
                row.parameters +=
                    graph.fresh(id).iter().map(|&storage| graph.storages()[storage]).sum();
            }
        }
    }
    rows
}
