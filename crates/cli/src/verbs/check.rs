//! `tightfit check`: hold a plan file to the rules. Invariant: how the plan was made does not
//! matter; the checker alone decides.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tightfit::check::Violation;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::schedule::Schedule;
use tightfit::timeline::Timeline;
use tightfit::units::Bytes;
use tightfit_engine::{Budget, BudgetError, Reserve, reserve};

use crate::batches::Batches;
use crate::exit_code::ExitCode;
use crate::failure::{Context, Failure, Result};
use crate::figures::{Moves, overhead};
use crate::input::{self, OnTiers};
use crate::output;
use crate::values::BelowReserve;

/// Execute a plan abstractly and report the first rule that it breaks.
#[derive(Args)]
#[command(after_help = "Examples:\n  tightfit check corpus/steps/gpt-small plan.json\n  \
        tightfit check corpus/steps/gpt-small plan.json --budget 320MiB")]
pub struct Arguments {
    /// A graph file or a step's folder
    graph: PathBuf,
    /// A plan (tightfit-plan/1) for that graph
    plan: PathBuf,
    /// Bytes of the whole process: 1000000, 320MiB, 2.5GB; or 60%, as of `tightfit plan` [default:
    /// the budget that the plan was made for]
    #[arg(long, allow_hyphen_values = true)]
    budget: Option<String>,
    #[command(flatten)]
    batches: Batches,
    #[command(flatten)]
    on: OnTiers,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The checker's account of a plan that breaks no rule.
pub struct Legal {
    /// The whole budget.
    pub budget: Bytes,
    /// The part of it that is not the slab's.
    pub reserve: Reserve,
    /// The plan's timeline.
    pub timeline: Timeline,
    /// How much more it takes than the step as captured, in no chunks, as a share.
    pub overhead: f64,
}

/// Holds a plan of a step, or of the `whole` in chunks, to the rules, within its own budget if none
/// is given.
pub fn judge(
    (whole, graph): (&Graph, &Graph),
    machine: &Machine,
    schedule: &Schedule,
    budget: Option<Budget>,
) -> Result<Legal> {
    let profile = input::profile(graph, machine);
    let captured = tightfit::unplanned(whole, &input::profile(whole, machine))?;
    let unplanned = captured.timeline();
    // A budget means to `check` what it means to `plan`: slab and reserve together.
    let reserve = reserve(graph, machine);
    let budget = match budget {
        Some(budget) => budget.bytes_of(&captured, tightfit_engine::reserve(whole, machine)),
        None => Some(schedule.budget + reserve.total()),
    };
    let Some(budget) = budget else {
        return Err(BudgetError::HasItsSize.into());
    };
    if budget <= reserve.total() && reserve.total() > Bytes::ZERO {
        return Err(BelowReserve { budget, reserve }.into());
    }
    let slab = budget - reserve.total();
    let beside = || {
        format!(
            "{budget} less a base of {} and packing of {} leave {slab} for the slab",
            reserve.base, reserve.packing
        )
    };
    let timeline = match tightfit::check::check(graph, &profile, schedule, slab) {
        // A budget smaller than the one the plan was made for: no machine makes it fit.
        Err(over @ (Violation::OverBudget { .. } | Violation::SlabOverBudget { .. }))
            if slab < schedule.budget =>
        {
            let over = Failure::from(over);
            return Err(if reserve.total() > Bytes::ZERO { over.context(beside()) } else { over });
        }
        checked => checked.with_context(|| input::made_for_another(machine))?,
    };
    let overhead = overhead(timeline.seconds, unplanned.seconds);
    Ok(Legal { budget, reserve, timeline, overhead })
}

impl Legal {
    /// As JSON.
    pub fn document(&self, graph: &Graph, schedule: &Schedule) -> Value {
        let mut result = json!({
            "graph": graph.name(),
            "planner": schedule.planner,
            "budget_bytes": self.budget,
            "base_bytes": self.reserve.base,
            "packing_bytes": self.reserve.packing,
            "reserve_bytes": self.reserve.total(),
            "peak_bytes": self.timeline.peak,
            "slab_bytes": schedule.slab,
            "recomputed_nodes": schedule.recomputed(),
            "step_seconds": self.timeline.seconds,
            "overhead": self.overhead,
            "legal": true,
        });
        Moves::of(schedule, &self.timeline).add_to(&mut result);
        result
    }
}

/// Checks and prints.
pub fn check(arguments: &Arguments) -> Result<ExitCode> {
    let budget = arguments.budget.as_deref().map(str::parse).transpose()?;
    let (graph, is_step) = input::graph(&arguments.graph)?;
    let machine = arguments.on.machine(is_step)?;
    let batches = arguments.batches;
    let sized = batches.sized(graph)?;
    let whole = batches.accumulated(sized.clone())?;
    let (graph, schedule) = batches.of_plan(&sized, |graph| input::plan(&arguments.plan, graph))?;
    let legal = judge((&whole, &graph), &machine, &schedule, budget)?;
    if arguments.json {
        output::answer(legal.document(&graph, &schedule))?;
    } else {
        let moves = Moves::of(&schedule, &legal.timeline);
        let moves = moves.words().map_or(String::new(), |it| format!(", {it}"));
        tell!(
            "legal: peak {} within {}, slab {}, {} calls run again{moves}, {} time (predicted)",
            legal.timeline.peak,
            legal.budget,
            schedule.slab,
            schedule.recomputed(),
            output::percent(legal.overhead)
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
