//! What verbs are given: a graph file or a step's folder, a machine by name. Invariant: a step is planned as the engine
//! will run it, so budgets mean the same to `plan` and to `train`.

use std::path::Path;

use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::Planner;
use tightfit::profile::Profile;
use tightfit::schedule::Residents;
use tightfit::units::Bytes;
use tightfit::{Fitted, fit, fit_smallest};
use tightfit_engine::process;
use tightfit_engine::step::{Step, read_graph};

use crate::budget::{Budget, BudgetError};
use crate::calibrate;

/// The training graph of a step's folder, or the graph of a file; `true` for a step.
pub fn graph(path: &Path) -> anyhow::Result<(Graph, bool)> {
    if path.is_dir() { Ok((Step::open(path)?.training, true)) } else { Ok((read_graph(path)?, false)) }
}

/// The machine called `name`; without a name the processor for steps, an A100 for graphs.
pub fn machine(name: Option<&str>, is_step: bool, threads: Option<u32>) -> anyhow::Result<Machine> {
    match name.unwrap_or(if is_step { "cpu" } else { "a100-80gb" }) {
        "cpu" => Ok(calibrate::machine(threads)),
        name => Ok(Machine::preset(name)?),
    }
}

/// `none`, `chen`, `capuchin` or `auto`.
pub fn planner(name: &str) -> Result<Planner, String> {
    Planner::from_name(name).ok_or_else(|| format!("planners are {}", Planner::ALL.map(|(_, name)| name).join(", ")))
}

/// A graph fitted into a budget.
pub struct FittedGraph {
    pub fitted: Fitted,
    /// The whole budget.
    pub budget: Bytes,
    /// The part of it that is not the slab's.
    pub reserve: Bytes,
    /// The step as captured.
    pub unplanned: Fitted,
}

/// Fits a graph; on the engine's machine the slab is the budget less the reserve.
pub fn fit_into(graph: &Graph, profile: &Profile, machine: &Machine, budget: Budget, planner: Planner) -> anyhow::Result<FittedGraph> {
    let reserve = if machine.engine { tightfit_engine::reserve(graph, machine.threads) } else { Bytes::ZERO };
    let unplanned = tightfit::unplanned(graph, profile)?;
    let nowhere = Residents::default();
    // What the matrix product packs belongs to the step's peak, so a share is one of both together.
    let Some(bytes) = budget.bytes(unplanned.timeline.peak + reserve) else {
        let fitted = fit_smallest(graph, profile, planner, &nowhere)?;
        let budget = fitted.schedule.slab + reserve;
        return Ok(FittedGraph { fitted, budget, reserve, unplanned });
    };
    if bytes == Bytes::ZERO {
        return Err(BudgetError::Zero.into());
    }
    if let Some(memory) = process::physical_memory().filter(|&memory| machine.engine && bytes > memory) {
        return Err(BudgetError::BeyondMemory { budget: bytes, memory }.into());
    }
    if bytes <= reserve {
        return Err(BudgetError::BelowReserve { budget: bytes, reserve }.into());
    }
    let fitted = fit(graph, profile, bytes - reserve, planner, &nowhere)?;
    Ok(FittedGraph { fitted, budget: bytes, reserve, unplanned })
}
