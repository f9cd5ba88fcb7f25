//! `tightfit-bench dataflow`: how long dataflow analysis and module statistics of a step take.
//! Invariant: every time is the best of several runs, and every run analyzes from scratch.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tightfit::analysis::dataflow;
use tightfit::analysis::modules::measure;
use tightfit_cli::clock::wall;
use tightfit_cli::exit_code::ExitCode;
use tightfit_cli::failure::Result;
use tightfit_cli::input::{self, OnMachine};
use tightfit_cli::{note, say};

use crate::markdown::table;

/// Time dataflow analysis and module statistics.
#[derive(Args)]
#[command(
    after_help = "Example:\n  tightfit-bench dataflow corpus/graphs/llama_1b_b2_s2048.json.gz \
        corpus/synthetic/transformer-1850.json.gz"
)]
pub struct Arguments {
    /// Graph files [default: those in corpus/graphs, and a transformer of 55,504 nodes]
    graphs: Vec<PathBuf>,
    /// How many times to analyze each graph
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    runs: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Times both analyses on each graph, and prints the results.
pub fn analyses(arguments: &Arguments) -> Result<ExitCode> {
    let mut paths = arguments.graphs.clone();
    if paths.is_empty() {
        let files =
            std::fs::read_dir("corpus/graphs")?.map(|entry| entry.map(|entry| entry.path()));
        paths = files.collect::<Result<_, _>>()?;
        paths.sort();
        paths.push(PathBuf::from("corpus/synthetic/transformer-1850.json.gz"));
    }
    let (mut rows, mut results): (Vec<Vec<String>>, Vec<Value>) = (Vec::new(), Vec::new());
    for path in paths {
        let (graph, is_step) = input::graph(&path)?;
        note!("{}", graph.name());
        let profile = input::profile(&graph, &OnMachine::default().machine(is_step)?);
        let (mut analysis, mut statistics) = (f64::INFINITY, f64::INFINITY);
        let mut flow = dataflow(&graph, &profile);
        for _ in 0..arguments.runs {
            let start = wall().0;
            flow = dataflow(&graph, &profile);
            let between = wall().0;
            measure(&graph, &profile)?;
            analysis = analysis.min(between - start);
            statistics = statistics.min(wall().0 - between);
        }
        let milliseconds = |seconds: f64| format!("{:.2}", seconds * 1e3);
        let (nodes, modules) = (graph.nodes().len(), flow.tree.branches().len());
        rows.push(vec![
            graph.name().to_string(),
            nodes.to_string(),
            modules.to_string(),
            milliseconds(analysis),
            milliseconds(statistics),
            flow.curve.peak.0.to_string(),
        ]);
        results.push(json!({
            "graph": graph.name(),
            "nodes": nodes,
            "modules": modules,
            "dataflow_seconds": analysis,
            "statistics_seconds": statistics,
            "peak_bytes": flow.curve.peak,
        }));
    }
    if arguments.json {
        say!("{}", Value::Array(results))?;
    } else {
        say!(
            "{}",
            table(
                &[
                    "graph",
                    "nodes",
                    "modules",
                    "dataflow, ms",
                    "module statistics, ms",
                    "peak, bytes"
                ],
                &rows
            )
            .trim_end()
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
