//! What verbs are given: a graph file or a step's folder, a machine by name. Invariant: a step is
//! planned as the engine will run it, so budgets mean the same to `plan` and to `train`.

use std::path::Path;

use anyhow::Context;
use clap::Args;
use tightfit::analysis::modules::{ModuleInfo, measure};
use tightfit::check::Timeline;
use tightfit::effort::Effort;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::{Infeasible, LiveTensor, PlanError, Planner};
use tightfit::profile::Profile;
use tightfit::schedule;
use tightfit::schedule::{Residents, Schedule};
use tightfit::units::Bytes;
use tightfit::{FitError, Fitted, fit, fit_smallest};
use tightfit_engine::process;
use tightfit_engine::step::read_graph;
use tightfit_engine::{Dataset, Step, step};

use crate::budget::{Budget, BudgetError};
use crate::{calibrate, seconds};

/// The training graph of a step's folder, or the graph of a file; `true` for a step.
pub fn graph(path: &Path) -> anyhow::Result<(Graph, bool)> {
    if path.is_dir() {
        Ok((Step::open(path)?.training, true))
    } else {
        Ok((read_graph(path)?, false))
    }
}

/// Statistics of a model's modules: from a file that holds them, or of a graph or a step on a
/// machine; and the text of the file. Files are told apart by what is in them.
pub fn modules(path: &Path, on: &OnMachine) -> anyhow::Result<(ModuleInfo, Vec<u8>)> {
    let text = if path.is_dir() {
        Vec::new()
    } else {
        std::fs::read(path).with_context(|| path.display().to_string())?
    };
    let has = |key: &str| text.windows(key.len()).any(|window| window == key.as_bytes());
    if !has("tightfit-graph/")
        && ["\"mod_stats\"", "\"mod_order\"", "\"module_info\""].into_iter().any(has)
    {
        let info = ModuleInfo::from_json(&text).with_context(|| path.display().to_string())?;
        return Ok((info, text));
    }
    let (graph, is_step) = self::graph(path)?;
    let machine = on.machine(is_step)?;
    let profile = Profile { in_place: false, ..self::profile(&graph, &machine) };
    Ok((measure(&graph, &profile)?, Vec::new()))
}

/// More threads than any processor runs at once.
pub const MOST_THREADS: i64 = 256;

/// The machine that a step is planned for, as it is given on the command line.
#[derive(Args, Default)]
pub struct OnMachine {
    /// cpu, a100-80gb or h100-80gb [default: cpu for steps, a100-80gb for graphs]
    #[arg(long)]
    machine: Option<String>,
    /// Worker threads of the cpu machine [default: all processors]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=MOST_THREADS))]
    threads: Option<u32>,
}

impl OnMachine {
    /// The machine called so; without a name the processor for steps, an A100 for graphs.
    pub fn machine(&self, is_step: bool) -> anyhow::Result<Machine> {
        match self.machine.as_deref().unwrap_or(if is_step { "cpu" } else { "a100-80gb" }) {
            "cpu" => Ok(calibrate::machine(self.threads)),
            name => Ok(Machine::preset(name)?),
        }
    }
}

/// Costs on a machine from what is known already; nothing is measured.
pub fn profile(graph: &Graph, machine: &Machine) -> Profile {
    Profile::measured(graph, machine, &seconds::known(machine))
}

/// The plan of a file, for `graph`.
pub fn plan(path: &Path, graph: &Graph) -> anyhow::Result<Schedule> {
    let file = || path.display().to_string();
    schedule::read(graph, &std::fs::read(path).with_context(file)?).with_context(file)
}

/// A plan executed abstractly, in the budget that it was made for.
pub fn checked(
    graph: &Graph,
    profile: &Profile,
    machine: &Machine,
    schedule: &Schedule,
) -> anyhow::Result<Timeline> {
    let wrong = || {
        format!(
            "the plan does not hold on {}; name the machine and the threads that it was made for",
            machine.name
        )
    };
    tightfit::check::check(graph, profile, schedule, schedule.budget).with_context(wrong)
}

/// Refuses data that the step's graphs do not take.
pub fn suits(data: &Dataset, step: &Step) -> anyhow::Result<()> {
    for graph in [Some(&step.training), step.evaluation.as_ref()].into_iter().flatten() {
        if let (Some((_, input)), Some((_, target))) =
            (step::input(graph, "input"), step::input(graph, "target"))
        {
            data.suits(&graph.values()[input], &graph.values()[target])?;
        }
    }
    Ok(())
}

/// The planner called `name`.
pub fn planner(name: &str) -> Result<Planner, String> {
    Planner::from_name(name)
        .ok_or_else(|| format!("planners are {}", Planner::ALL.map(|(_, name)| name).join(", ")))
}

/// The part of a budget that libraries of the engine need beside the slab.
pub fn reserve(graph: &Graph, machine: &Machine) -> Bytes {
    if machine.runtime.rules().runs_here {
        tightfit_engine::reserve(graph, machine.threads)
    } else {
        Bytes::ZERO
    }
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
pub fn fit_into(
    graph: &Graph,
    profile: &Profile,
    machine: &Machine,
    budget: Budget,
    planner: Planner,
    effort: &Effort<'_>,
) -> anyhow::Result<FittedGraph> {
    let reserve = reserve(graph, machine);
    let unplanned = tightfit::unplanned(graph, profile)?;
    let nowhere = Residents::default();
    // What the matrix product packs belongs to the step's peak, so a share is one of both together.
    let Some(mut bytes) = budget.bytes(unplanned.timeline.peak + reserve) else {
        let fitted = fit_smallest(graph, profile, planner, &nowhere, effort)?;
        let budget = fitted.schedule.slab + reserve;
        return Ok(FittedGraph { fitted, budget, reserve, unplanned });
    };
    if matches!(budget, Budget::Share(share) if share >= 1.0) {
        // Aligned addresses take a few bytes more than the tensors hold; all of it is to be enough
        // for the step itself.
        bytes = bytes.max(unplanned.schedule.slab + reserve);
    }
    if bytes == Bytes::ZERO {
        return Err(BudgetError::Zero.into());
    }
    if let Some(memory) = process::physical_memory()
        .filter(|&memory| machine.runtime.rules().runs_here && bytes > memory)
    {
        return Err(BudgetError::BeyondMemory { budget: bytes, memory }.into());
    }
    if bytes <= reserve {
        return Err(BudgetError::BelowReserve { budget: bytes, reserve }.into());
    }
    let fitted = fit(graph, profile, bytes - reserve, planner, &nowhere, effort)
        .map_err(|error| with_reserve(error, reserve))?;
    Ok(FittedGraph { fitted, budget: bytes, reserve, unplanned })
}

/// The proof in terms of the whole budget, so that the number it names can be asked for.
fn with_reserve(error: FitError, reserve: Bytes) -> FitError {
    let FitError::Plan(PlanError::Infeasible(proof)) = error else { return error };
    let mut proof = Infeasible {
        budget: proof.budget + reserve,
        needed: proof.needed + reserve,
        reached: proof.reached + reserve,
        ..*proof
    };
    if reserve > Bytes::ZERO {
        let name = "what the matrix product packs".to_string();
        let tensor = LiveTensor { name, module: String::new(), phase: "reserve", bytes: reserve };
        let place = proof.live.partition_point(|other| other.bytes >= reserve);
        proof.live.insert(place, tensor);
    }
    PlanError::Infeasible(Box::new(proof)).into()
}
