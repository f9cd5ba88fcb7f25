//! Capuchin's hybrid: swap what free time hides, then recompute. Invariant: what is swapped is away
//! from its last forward access to its first backward one, and what it holds and takes is
//! simulated with both lanes, never a sum of free times.
//!
//! Source: Peng et al., "Capuchin", ASPLOS 2020, section 4.4 and algorithm 2: the tensor with the
//! longest free time first, as long as that is not negative, and then recomputation by MSPS.
//! Departures: `doc/theory/capuchin.md`.

use cranelift_entity::SecondaryMap;

use crate::analysis::access_profile;
use crate::effort::Meter;
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::plan::offload::Offloading;
use crate::plan::published::capuchin::msps::Choosing;
use crate::plan::published::capuchin::ours::{Greedy, capuchin};
use crate::plan::{Infeasible, NotFound, Plan, PlanError, Planner, simulate};
use crate::profile::Profile;
use crate::units::Bytes;

/// The hybrid; where the machine has no tier below the device, recomputation alone.
pub fn capuchin_swap(
    graph: &Graph,
    profile: &Profile,
    order: &[NodeId],
    budget: Bytes,
    meter: &mut Meter<'_>,
) -> Result<Plan, PlanError> {
    let Some(route) = profile.hierarchy.main_route() else {
        return capuchin(graph, profile, order, budget, meter);
    };
    let mut by_free_time = by_free_time(graph, profile, order, meter).into_iter();
    let mut swapped: SecondaryMap<StorageId, bool> = SecondaryMap::new();
    let mut greedy = Greedy::new(graph, profile, order, meter);
    let (mut runs, mut tried) = (order.to_vec(), 0);
    loop {
        let offloading = Offloading::new(graph, profile, &runs, route);
        // As many as it takes, and all of them as long as that does not suffice.
        loop {
            tried += 1;
            meter.spend(3 * runs.len() as u64);
            if let Some(found) = offloading.of_storages(&|storage| swapped[storage], budget) {
                return Ok(Plan::with_moves(Planner::CapuchinSwap, &runs, &found.moves));
            }
            let Some(node) = by_free_time.next() else { break };
            graph.fresh(node).iter().for_each(|&storage| swapped[storage] = true);
        }
        let chosen = if meter.is_late() { None } else { greedy.choose(meter) };
        let Some(chosen) = chosen else {
            let lowest = Plan::of_runs(Planner::CapuchinSwap, runs.clone());
            if meter.is_late() {
                let lowest = (tried, runs);
                let planner = Planner::CapuchinSwap;
                return Err(NotFound::error(graph, profile, budget, planner, lowest));
            }
            let proof = Infeasible::new(graph, profile, budget, lowest);
            return Err(PlanError::Infeasible(Box::new(proof)));
        };
        // What is made again is not swapped.
        graph.fresh(chosen.node).iter().for_each(|&storage| swapped[storage] = false);
        runs = greedy.runs();
    }
}

/// Nodes whose outputs can be away and back between their last forward access and their first
/// backward one, by falling free time: idle seconds less swap seconds (the case `idle_time`).
fn by_free_time(
    graph: &Graph,
    profile: &Profile,
    order: &[NodeId],
    meter: &mut Meter<'_>,
) -> Vec<NodeId> {
    meter.spend(2 * order.len() as u64);
    let curve = simulate(graph, profile, order).curve;
    let table = access_profile(graph, profile, order, &curve, None);
    let free_time = |node: NodeId| {
        let row = &table[node];
        let free = row.idle?.0 - row.swap?.0;
        (free >= 0.0).then_some((free, node))
    };
    let mut free: Vec<(f64, NodeId)> = order.iter().filter_map(|&node| free_time(node)).collect();
    free.sort_by(|a, b| b.0.total_cmp(&a.0));
    free.into_iter().map(|(_, node)| node).collect()
}
