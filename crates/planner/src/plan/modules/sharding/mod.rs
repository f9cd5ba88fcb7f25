//! Sharding of modules over devices: which modules gather their parameters by themselves, which of
//! their shards wait on the host, and which modules recompute, in the least time beyond
//! computation, within a budget. Invariant: the solver chooses modules only; peak and seconds of a
//! plan are sums over the statistics, not the solver's values.
//!
//! Source: PyTorch at 79f1d16a, `torch/distributed/_tools/fsdp_ilp.py` (`fsdp_milp`). Departures:
//! see `doc/theory/shard.md`.

mod cost;
mod milp;

use crate::analysis::modules::{ModuleIndex, ModuleInfo};
use crate::effort::Meter;
use crate::plan::milp::{Goal, SolverLimits, own_clock, within_tolerance};
use crate::plan::modules::candidate::{CheckpointedUnit, candidates, fill};
use crate::plan::modules::infeasible::ModuleInfeasible;
use crate::plan::modules::{ModulePlanError, answered};
use crate::units::{Bytes, Seconds};

use crate::machine::Link;
use crate::plan::modules::sharding::cost::Costs;
use crate::plan::modules::sharding::milp::ShardingChoice;

/// The rules for how long communication takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShardVariant {
    /// As in PyTorch's program: all bytes pass every link, and after the last unit one more latency
    /// is waited for.
    Published,
    /// A device sends and receives what others hold: (w−1)/w of the bytes, nothing if it is alone;
    /// after the last unit there is nothing to fetch, and a module without parameters is not a
    /// unit.
    #[default]
    Ours,
}

/// A sharding problem.
#[derive(Clone, Debug)]
pub struct ShardTask {
    /// The peak of every device, at most.
    pub budget: Bytes,
    /// Devices that parameters and gradients are divided among.
    pub world_size: u32,
    /// The link over which parameters are gathered.
    pub all_gather: Link,
    /// The link over which gradients are reduced.
    pub reduce_scatter: Link,
    /// Which rules apply.
    pub variant: ShardVariant,
    /// Exactly these modules and the root are units; absent: the solver chooses.
    pub units: Option<Vec<ModuleIndex>>,
    /// Modules may be checkpointed too.
    pub checkpointing: bool,
    /// Shards of units may wait on the host, over this link; absent: all stay on the device.
    pub host: Option<Link>,
    /// For the solver.
    pub limits: SolverLimits,
}

/// A module that gathers its parameters by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardUnit {
    /// The module.
    pub module: ModuleIndex,
    /// Its shard waits on the host between gathers.
    pub offloaded: bool,
}

/// Units of sharding, modules that recompute, and the costs of both.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardPlan {
    /// The root, then units, none of which contains another, in forward pre-order.
    pub units: Vec<ShardUnit>,
    /// Modules that recompute; none of them contains a unit but itself.
    pub checkpointed: Vec<CheckpointedUnit>,
    /// Communication and transfers that no computation hides.
    pub exposed: Seconds,
    /// The seconds of all recomputation.
    pub recompute: Seconds,
    /// The peak.
    pub peak: Bytes,
    /// The module where it is reached.
    pub binding: ModuleIndex,
    /// The optimum lies at most this share below; absent if the solver's time was up.
    pub gap: Option<f64>,
}

impl ShardPlan {
    /// Seconds that the step takes beyond its computation.
    pub fn seconds(&self) -> Seconds {
        self.exposed + self.recompute
    }
}

/// The plan that takes the least time beyond computation, or the proof that the lowest one does not
/// fit.
pub fn shard(info: &ModuleInfo, task: &ShardTask) -> Result<ShardPlan, ModulePlanError> {
    shard_on(info, task, &own_clock())
}

/// The same on the caller's clock; a clock that jumps to infinity ends it.
pub fn shard_on(
    info: &ModuleInfo,
    task: &ShardTask,
    clock: &(dyn Fn() -> Seconds + Sync),
) -> Result<ShardPlan, ModulePlanError> {
    verify(info, task)?;
    let effort = task.limits.effort(clock);
    // A plan without the host gets the time that a plan with it leaves.
    let meter = Meter::new(&effort);
    let first = if task.host.is_some() { meter.until(WITH_HOST) } else { meter.clone() };
    let plan = best(info, task, &first)?;
    Ok(or_without_host(info, task, plan, &meter))
}

/// Fraction of the time that a plan with the host gets.
const WITH_HOST: f64 = 0.75;

fn best(
    info: &ModuleInfo,
    task: &ShardTask,
    meter: &Meter<'_>,
) -> Result<ShardPlan, ModulePlanError> {
    let costs = Costs::new(info, task);
    let candidates = candidates(info, |_| task.checkpointing);
    let evaluate = |units: &[ShardUnit], discards: &[(ModuleIndex, Bytes)], gap| {
        let (peak, binding) = costs.peak(units, discards);
        let checkpointed = crate::plan::modules::candidate::units(info, discards);
        let recompute = checkpointed.iter().map(|unit| unit.recompute).sum();
        ShardPlan {
            units: units.to_vec(),
            checkpointed,
            exposed: costs.exposed(units),
            recompute,
            peak,
            binding,
            gap,
        }
    };
    let solve = |goal, meter: &Meter<'_>| milp::solve(&costs, &candidates, goal, meter);
    // Whether anything fits is the easier question, and its answer is what to report if nothing
    // does.
    let lowest = solve(Goal::Lowest, meter)?.unwrap_or_else(|| ShardingChoice::root_alone(info));
    let all: Vec<(ModuleIndex, Bytes)> =
        lowest.checkpointed.iter().map(|unit| (unit.module, unit.most)).collect();
    let least = evaluate(&lowest.units, &all, None);
    if least.peak > task.budget {
        return Err(ModulePlanError::Infeasible(Box::new(ModuleInfeasible {
            budget: task.budget,
            least: least.peak,
            proven: lowest.gap == Some(0.0),
            module: info.modules()[least.binding].name.clone(),
            held: costs.held(&lowest.units, &all, least.binding),
        })));
    }
    let fastest = within_tolerance(task.budget, |target| {
        let answer = answered(solve(Goal::Fastest(target), meter))?;
        Ok::<_, ModulePlanError>(answer.map(|choice| {
            let persistent = |module| costs.persistent(&choice.units, module);
            let discards = fill(info, &choice.checkpointed, persistent, target);
            let plan = evaluate(&choice.units, &discards, choice.gap);
            let peak = plan.peak;
            (plan, peak)
        }))
    })?;
    if let Some(plan) = fastest {
        return Ok(plan);
    }
    // If the solver fails, the plan with the smallest peak fits.
    let discards = fill(
        info,
        &lowest.checkpointed,
        |module| costs.persistent(&lowest.units, module),
        task.budget,
    );
    Ok(evaluate(&lowest.units, &discards, None))
}

/// The plan; or, if the solver did not do all that was asked and finds a better one without a host,
/// that one.
fn or_without_host(
    info: &ModuleInfo,
    task: &ShardTask,
    plan: ShardPlan,
    meter: &Meter<'_>,
) -> ShardPlan {
    if task.host.is_none() || plan.gap.is_some_and(|gap| gap <= task.limits.gap) {
        return plan;
    }
    match best(info, &ShardTask { host: None, ..task.clone() }, meter) {
        Ok(without) if without.seconds().0 < plan.seconds().0 => {
            ShardPlan { gap: plan.gap, ..without }
        }
        _ => plan,
    }
}

fn verify(info: &ModuleInfo, task: &ShardTask) -> Result<(), ModulePlanError> {
    if task.world_size == 0 {
        return Err(ModulePlanError::WorldSize);
    }
    let links = [
        ("all-gather", Some(task.all_gather)),
        ("reduce-scatter", Some(task.reduce_scatter)),
        ("the host", task.host),
    ];
    for (link, given) in links {
        let Some(Link { latency: Seconds(latency), bandwidth }) = given else { continue };
        if !(bandwidth >= 1.0 && latency >= 0.0 && latency.is_finite()) {
            return Err(ModulePlanError::Link { link, bytes_per_second: bandwidth, latency });
        }
    }
    let units = task.units.iter().flatten().filter(|&&unit| unit != info.root());
    for &upper in units.clone() {
        if let Some(&lower) =
            units.clone().find(|&&lower| lower != upper && info.contains(upper, lower))
        {
            let name = |module: ModuleIndex| info.modules()[module].name.clone();
            return Err(ModulePlanError::Nested { upper: name(upper), lower: name(lower) });
        }
    }
    Ok(())
}
