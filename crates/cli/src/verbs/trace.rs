//! `tightfit trace`: one step over time, for Perfetto. Invariant: a plan is drawn only if the
//! checker lets it pass.

use std::path::PathBuf;

use clap::Args;
use tightfit_report::{Course, Trace};

use crate::batches::Batches;
use crate::exit_code::ExitCode;
use crate::failure::Result;
use crate::input::{self, OnTiers};
use crate::output::Written;
use crate::{output, places};

/// Write one step as predicted as Chrome trace events: what runs when, and memory by role.
#[derive(Args)]
#[command(after_help = "\
The file opens at https://ui.perfetto.dev and at chrome://tracing. `tightfit train --trace` writes \
a measured one.

Example:
  tightfit trace corpus/graphs/cuda/llama_1b_b2_s2048.json.gz --plan plan.json -o trace.json")]
pub struct Arguments {
    /// A graph file (tightfit-graph/1, plain or gzip) or a step's folder
    graph: PathBuf,
    /// A plan (tightfit-plan/1) for that graph [default: the step as captured]
    #[arg(long)]
    plan: Option<PathBuf>,
    /// Write the trace here
    #[arg(short, long)]
    output: PathBuf,
    #[command(flatten)]
    batches: Batches,
    #[command(flatten)]
    on: OnTiers,
}

/// Reads, checks and writes.
pub fn trace(arguments: &Arguments) -> Result<ExitCode> {
    output::writable(&arguments.output)?;
    let (graph, is_step) = input::graph(&arguments.graph)?;
    let sources = input::files_with(&arguments.graph, arguments.plan.as_deref())?;
    places::distinct(&[("--output", Some(&arguments.output))], &sources)?;
    let machine = arguments.on.machine(is_step)?;
    let (graph, schedule, timeline) = match &arguments.plan {
        Some(path) => {
            let sized = arguments.batches.sized(graph)?;
            let (graph, schedule) =
                arguments.batches.of_plan(&sized, |graph| input::plan(path, graph))?;
            let profile = input::profile(&graph, &machine);
            let timeline = input::checked(&graph, &profile, &machine, &schedule)?;
            (graph, schedule, timeline)
        }
        None => {
            let graph = arguments.batches.of(graph)?;
            let unplanned = tightfit::unplanned(&graph, &input::profile(&graph, &machine))?;
            (graph, unplanned.schedule().clone(), unplanned.timeline().clone())
        }
    };
    let course = Course::of(&graph, &schedule, &timeline);
    let events = Trace::predicted(&course, &machine.name).write();
    let mut written = Written::default();
    written.write(&arguments.output, events.as_bytes(), "open it in https://ui.perfetto.dev")?;
    written.tell()?;
    Ok(ExitCode::SUCCESS)
}
