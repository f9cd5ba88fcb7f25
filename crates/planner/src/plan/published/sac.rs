//! Selective checkpointing of modules, executed: modules as `sac_milp` chooses them, and in each
//! the operators as the policy under a module saves them. Invariant: what the policy saves stays
//! from a module's forward to its backward pass; anything else that the module makes for itself
//! does not, unless it cannot be made again.
//!
//! Source: PyTorch, `torch/distributed/_tools/sac_ilp.py` (`sac_milp`,
//! `get_optimal_checkpointing_policy_per_module`). How a decision is executed, and departures: see
//! `doc/theory/selective.md`.

use cranelift_entity::SecondaryMap;

use crate::analysis::modules::{Groups, MeasuredModules, OperatorStats, measure_with_nodes};
use crate::effort::Meter;
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::plan::modules::{CheckpointedUnit, ModulePlanError, SelectiveSeries, policy};
use crate::plan::published::family::fastest;
use crate::plan::rematerialize::{Readers, Retention, Retentions, may_run_again, mutated_storages};
use crate::plan::{Instance, Plan, PlanError, Planner, none};
use crate::units::Bytes;

/// The binary logarithm of the number of budgets of the program that are tried.
const BITS: u32 = 5;

/// The fastest plan over all budgets of the program whose peak fits.
///
/// The program counts neither batch, buffers and optimizer state nor the peak of the forward pass,
/// so its budget is not that of the step.
pub fn sac(
    instance: Instance<'_>,
    budget: Bytes,
    meter: &mut Meter<'_>,
) -> Result<Plan, PlanError> {
    let Instance { graph, profile, order } = instance;
    if let Ok(plan) = none(instance, budget) {
        return Ok(Plan { planner: Planner::Sac, ..plan });
    }
    let modules = measure_with_nodes(graph, profile).map_err(PlanError::ModuleStatistics)?;
    meter.spend(16 * order.len() as u64);
    let info = &modules.info;
    if info.modules().len() == 1 {
        return Err(PlanError::NoModules);
    }
    let series = SelectiveSeries::new(info, &meter.uncounted()).map_err(unsolved)?;
    let decision = Decision::new(graph, order, &modules);
    let (least, baseline) = (series.least(), info.baseline_peak());
    // From the lowest budget on, and then ever more finely in between: if time runs out, those
    // tried so far are spread evenly.
    let member = |number: usize, meter: &mut Meter<'_>| match number.checked_sub(1) {
        None => Some(order.to_vec()),
        Some(turn) => {
            let turn = u32::try_from(turn).ok().filter(|turn| turn >> BITS == 0)?;
            let part = turn.reverse_bits() >> (u32::BITS - BITS);
            let target =
                least + Bytes(baseline.saturating_sub(least).0 / (1 << BITS) * u64::from(part));
            let units = series.within(target, meter);
            meter.spend(4 * order.len() as u64);
            Some(decision.runs(order, &units))
        }
    };
    fastest(instance, budget, Planner::Sac, member, meter)
}

fn unsolved(error: ModulePlanError) -> PlanError {
    let reason = match error {
        ModulePlanError::Unsolved { reason } => reason,
        error => error.to_string(),
    };
    PlanError::Unsolved { reason }
}

/// The data for executing decisions about the modules of a step.
struct Decision<'a> {
    graph: &'a Graph,
    modules: &'a MeasuredModules,
    readers: Readers,
    is_mutated: SecondaryMap<StorageId, bool>,
}

impl<'a> Decision<'a> {
    fn new(graph: &'a Graph, order: &[NodeId], modules: &'a MeasuredModules) -> Decision<'a> {
        let (readers, is_mutated) = (Readers::new(graph, order), mutated_storages(graph));
        Decision { graph, modules, readers, is_mutated }
    }

    /// The step in which these modules are checkpointed.
    fn runs(&self, order: &[NodeId], units: &[CheckpointedUnit]) -> Vec<NodeId> {
        self.readers.rematerialize(self.graph, order, &self.retentions(units))
    }

    fn retentions(&self, units: &[CheckpointedUnit]) -> Retentions {
        let mut retentions = Retentions::new();
        // Nodes whose outputs only the module reads, and which are not saved.
        let mut discarded: SecondaryMap<NodeId, bool> = SecondaryMap::new();
        for unit in units {
            // An output that leaves the module is held for its outside readers, and made again for
            // those within.
            for &node in &self.modules.forward[unit.module] {
                if !self.readers.is_read_by_backward(node) {
                    retentions[node] = Retention::Recompute;
                }
            }
            let groups = &self.modules.groups[unit.module];
            for (group, saved) in groups.groups.iter().zip(self.saved(groups, unit)) {
                for &node in &group.nodes {
                    retentions[node] =
                        if saved { Retention::Checkpoint } else { Retention::Recompute };
                    discarded[node] = !saved;
                }
            }
        }
        // The input of each module is kept.
        for unit in units {
            let forward = &self.modules.forward[unit.module];
            let again = |node: &&NodeId| retentions[**node] == Retention::Recompute;
            let read = forward.iter().filter(again).flat_map(|&node| self.graph.reads(node));
            let makers = read.filter_map(|&storage| self.graph.producer(storage));
            let inputs: Vec<NodeId> = makers
                .filter(|&maker| !discarded[maker] && forward.binary_search(&maker).is_err())
                .collect();
            inputs.into_iter().for_each(|maker| retentions[maker] = Retention::Checkpoint);
        }
        retentions
    }

    /// For each group of operators whether it is saved. Groups that cannot run again are saved even
    /// if that exceeds the allowed share.
    fn saved(&self, groups: &Groups, unit: &CheckpointedUnit) -> Vec<bool> {
        let again = |&node: &NodeId| may_run_again(self.graph, &self.is_mutated, node);
        let operators = groups.groups.iter().enumerate().map(|(at, group)| OperatorStats {
            name: String::new(),
            seconds: group.seconds,
            bytes: group.bytes,
            is_view: false,
            // Groups already combine all random operators, and in-place ones.
            is_random: false,
            in_place_of: (!group.nodes.iter().all(again)).then_some(at),
        });
        let operators: Vec<OperatorStats> = operators.collect();
        let share = (1.0 - unit.discard_ratio).clamp(0.0, 1.0);
        match policy(&operators, false, share) {
            Ok(policy) => policy.saved,
            Err(_) => operators.iter().map(|operator| operator.in_place_of.is_some()).collect(),
        }
    }
}
