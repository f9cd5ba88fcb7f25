//! Selective checkpointing of modules: which modules recompute how much of what they make, in the
//! least time, within a budget. Invariant: the search and the solver choose modules only; how much
//! each discards follows exactly, and peak and seconds of a plan are sums over the statistics, not
//! the solver's values.
//!
//! Source: PyTorch, `torch/distributed/_tools/sac_ilp.py` (`sac_milp`). Departures: see
//! `doc/theory/selective.md`.

mod labels;
pub mod milp;
mod series;

pub use series::SelectiveSeries;

use crate::analysis::modules::{ModuleIndex, ModuleInfo, ModuleStats};
use crate::effort::Meter;
use crate::plan::milp::{Goal, SolverLimits, own_clock, within_tolerance};
use crate::plan::modules::candidate::{
    CheckpointCandidate, CheckpointedUnit, candidates, fill, units,
};
use crate::plan::modules::checkpointing::labels::cheapest;
use crate::plan::modules::checkpointing::milp::solve;
use crate::plan::modules::infeasible::ModuleInfeasible;
use crate::plan::modules::memory::{MemoryRow, activations, binding};
use crate::plan::modules::{ModulePlanError, answered};
use crate::units::{Bytes, Seconds};

/// A selective checkpointing problem.
#[derive(Clone, Debug)]
pub struct SelectiveTask {
    /// The peak of every device, at most.
    pub budget: Bytes,
    /// Devices that parameters and gradients are divided among.
    pub world_size: u32,
    /// The only modules that may be checkpointed; absent: all that are not leaves.
    pub allowed: Option<Vec<ModuleIndex>>,
    /// Units of sharding: modules that contain one of them are not checkpointed.
    pub sharded: Vec<ModuleIndex>,
    /// For the solver.
    pub limits: SolverLimits,
}

/// Modules that recompute, and their total costs.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectivePlan {
    /// None contains another; in forward pre-order.
    pub units: Vec<CheckpointedUnit>,
    /// The seconds of all recomputation.
    pub recompute: Seconds,
    /// The peak.
    pub peak: Bytes,
    /// The module where it is reached.
    pub binding: ModuleIndex,
    /// The optimum lies at most this share below; absent if the solver's time was up.
    pub gap: Option<f64>,
}

/// The plan that recomputes least, or the proof that the lowest one does not fit.
pub fn selective(
    info: &ModuleInfo,
    task: &SelectiveTask,
) -> Result<SelectivePlan, ModulePlanError> {
    selective_on(info, task, &own_clock())
}

/// The same on the caller's clock; a clock that jumps to infinity ends it.
pub fn selective_on(
    info: &ModuleInfo,
    task: &SelectiveTask,
    clock: &(dyn Fn() -> Seconds + Sync),
) -> Result<SelectivePlan, ModulePlanError> {
    let effort = task.limits.effort(clock);
    let mut meter = Meter::new(&effort);
    if task.world_size == 0 {
        return Err(ModulePlanError::WorldSize);
    }
    let choice = Choice { info, task };
    let none = choice.plan(&[], Some(0.0));
    if none.peak <= task.budget {
        return Ok(none);
    }
    let candidates = candidates(info, |module| choice.allows(module));
    let rows = MemoryRow::binding(info, &candidates, &[], |module| choice.persistent(module));
    let optimum = within_tolerance(task.budget, |target| {
        let chosen = cheapest(info, &candidates, &rows, target, &mut meter);
        Ok::<_, ModulePlanError>(chosen.map(|chosen| choice.filled(&chosen, target, Some(0.0))))
    })?;
    if let Some(plan) = optimum {
        return Ok(plan);
    }
    let persistent = |stats: &ModuleStats| choice.share(stats);
    let solve = |goal, meter: &Meter<'_>| {
        solve(info, &candidates, goal, &persistent, (task.limits.gap, meter))
    };
    // Whether anything fits is the easier question, and its answer is what to report if nothing
    // does.
    let (chosen, lowest_gap) = solve(Goal::Lowest, &meter)?.unwrap_or_default();
    let all: Vec<(ModuleIndex, Bytes)> =
        chosen.iter().map(|unit| (unit.module, unit.most)).collect();
    let least = choice.plan(&all, None);
    if least.peak > task.budget {
        let proof = choice.infeasible(&all, &least, lowest_gap == Some(0.0));
        return Err(ModulePlanError::Infeasible(Box::new(proof)));
    }
    let fastest = within_tolerance(task.budget, |target| {
        let answer = answered(solve(Goal::Fastest(target), &meter))?;
        Ok::<_, ModulePlanError>(answer.map(|(chosen, gap)| choice.filled(&chosen, target, gap)))
    })?;
    // If the solver fails, the modules with the smallest peak fit.
    Ok(fastest.unwrap_or_else(|| choice.filled(&chosen, task.budget, None).0))
}

/// What modules may be chosen, and what follows from a choice.
struct Choice<'a> {
    info: &'a ModuleInfo,
    task: &'a SelectiveTask,
}

impl Choice<'_> {
    /// Whether a module may be checkpointed.
    fn allows(&self, module: ModuleIndex) -> bool {
        let SelectiveTask { allowed, sharded, .. } = self.task;
        let named = allowed.as_ref().is_none_or(|allowed| allowed.contains(&module));
        named && !sharded.iter().any(|&unit| unit != module && self.info.contains(module, unit))
    }

    /// A device's parameters and gradients during a module's backward pass.
    fn persistent(&self, module: ModuleIndex) -> Bytes {
        self.share(&self.info.modules()[module])
    }

    /// The same by the module's statistics.
    fn share(&self, stats: &ModuleStats) -> Bytes {
        let whole = self.info.modules()[self.info.root()].parameters + stats.total_gradients;
        Bytes(whole.0.div_ceil(u64::from(self.task.world_size)))
    }

    /// The plan in which modules discard these bytes.
    fn plan(&self, discards: &[(ModuleIndex, Bytes)], gap: Option<f64>) -> SelectivePlan {
        let (peak, binding) = binding(self.info, discards, |module| self.persistent(module));
        let units = units(self.info, discards);
        SelectivePlan {
            recompute: units.iter().map(|unit| unit.recompute).sum(),
            units,
            peak,
            binding,
            gap,
        }
    }

    /// The plan in which the chosen modules discard as little as the target permits, with its peak.
    fn filled(
        &self,
        chosen: &[&CheckpointCandidate],
        target: Bytes,
        gap: Option<f64>,
    ) -> (SelectivePlan, Bytes) {
        let discards = fill(self.info, chosen, |module| self.persistent(module), target);
        let plan = self.plan(&discards, gap);
        let peak = plan.peak;
        (plan, peak)
    }

    /// What the lowest plan holds where it exceeds the budget.
    fn infeasible(
        &self,
        discards: &[(ModuleIndex, Bytes)],
        least: &SelectivePlan,
        proven: bool,
    ) -> ModuleInfeasible {
        let stats = &self.info.modules()[least.binding];
        let activations = activations(self.info, discards, least.binding);
        let gradients = stats.activation_gradients.min(activations);
        ModuleInfeasible {
            budget: self.task.budget,
            least: least.peak,
            proven,
            module: stats.name.clone(),
            held: vec![
                ("parameters and gradients", self.share(stats)),
                ("activations", activations - gradients),
                ("gradients of activations", gradients),
            ],
        }
    }
}
