//! `tightfit check`: hold a plan file to the rules. Invariant: who made the plan does not matter;
//! the checker alone decides.

use crate::exit::ExitCode;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use tightfit_engine::{Budget, BudgetError, reserve};

use crate::input::{self, OnMachine};
use crate::output;

/// Execute a plan abstractly and report the first rule that it breaks.
#[derive(Args)]
#[command(
    after_help = "Example:\n  tightfit check corpus/steps/gpt-small plan.json --budget 320MiB"
)]
pub struct Arguments {
    /// A graph file or a step's folder
    graph: PathBuf,
    /// A plan (tightfit-plan/1) for that graph
    plan: PathBuf,
    /// Bytes, 320MiB, 2.5GB, or 60% of the unplanned peak
    #[arg(long, allow_hyphen_values = true)]
    budget: String,
    #[command(flatten)]
    on: OnMachine,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Checks and prints.
pub fn check(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let budget: Budget = arguments.budget.parse()?;
    let (graph, is_step) = input::graph(&arguments.graph)?;
    let machine = arguments.on.machine(is_step)?;
    let profile = input::profile(&graph, &machine);
    let schedule = input::plan(&arguments.plan, &graph)?;
    let unplanned = tightfit::unplanned(&graph, &profile)?;
    let unplanned = unplanned.timeline();
    // A share means to `check` what it means to `plan`: it includes the reserve.
    let reserve = reserve(&graph, &machine);
    let Some(budget) = budget.bytes(unplanned.peak + reserve) else {
        return Err(BudgetError::Unreadable("min".to_string()).into());
    };
    let timeline = tightfit::check::check(&graph, &profile, &schedule, budget)?;
    let overhead = timeline.seconds.0 / unplanned.seconds.0 - 1.0;
    if arguments.json {
        let result = json!({
            "graph": graph.name(),
            "planner": schedule.planner,
            "budget_bytes": budget,
            "peak_bytes": timeline.peak,
            "slab_bytes": schedule.slab,
            "recomputed_nodes": schedule.recomputed(),
            "step_us": timeline.seconds.micros(),
            "overhead": overhead,
            "legal": true,
        });
        println!("{result}");
    } else {
        println!(
            "legal: peak {} within {budget}, slab {}, {} nodes recomputed, {} time (predicted)",
            timeline.peak,
            schedule.slab,
            schedule.recomputed(),
            output::percent(overhead)
        );
    }
    Ok(ExitCode::SUCCESS)
}
