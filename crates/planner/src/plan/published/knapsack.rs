//! The knapsack of torch.compile's `activation_memory_budget`: save those activations that take
//! longest to make again, within a share of the bytes that saving all of them takes. Invariant: the
//! promised peak is the simulated one; the capacity of the knapsack is only what is searched over.
//!
//! Source: PyTorch, `torch/_functorch/partitioners.py` (`choose_saved_values_set`) and
//! `torch/_functorch/_activation_checkpointing/knapsack.py` (`dp_knapsack`). Departures: see
//! `doc/theory/knapsack.md`.

use cranelift_entity::SecondaryMap;

use crate::effort::Meter;
use crate::id::NodeId;
use crate::plan::published::family::fastest;
use crate::plan::rematerialize::{Readers, Retention, Retentions, may_run_again, mutated_storages};
use crate::plan::{Instance, NotFound, Plan, PlanError, Planner};
use crate::units::{Bytes, Seconds};

/// Bytes are rounded to this many parts of all items together, as PyTorch does.
const SLOTS: usize = 10_000;

/// Capacities that are tried, evenly spaced from nothing to everything.
const CAPACITIES: usize = 40;

/// Capacities of one item that are filled in the time of one operation.
const CELLS_PER_OPERATION: usize = 32;

/// The fastest plan over all capacities whose peak fits.
pub fn knapsack(
    instance: Instance<'_>,
    budget: Bytes,
    meter: &mut Meter<'_>,
) -> Result<Plan, PlanError> {
    let Instance { graph, order, .. } = instance;
    let items = items(instance, meter);
    let all: Bytes = items.iter().map(|item| item.bytes).sum();
    let slots =
        |bytes: Bytes| (bytes.0 as f64 / all.0.max(1) as f64 * SLOTS as f64).round() as usize;
    let weights: Vec<usize> = items.iter().map(|item| slots(item.bytes)).collect();
    let values: Vec<f64> = items.iter().map(|item| item.seconds.0).collect();
    let filled = Filled::new(&weights, &values, SLOTS, meter);
    let readers = Readers::new(graph, order);
    // If there was no time to fill, everything is saved.
    let first = if filled.is_some() { 0 } else { CAPACITIES };
    let member = |number: usize, meter: &mut Meter<'_>| {
        let share = Some(first + number).filter(|&share| share <= CAPACITIES)?;
        let mut retentions = Retentions::new();
        if let Some(filled) = filled.as_ref().filter(|_| share < CAPACITIES) {
            for (item, saved) in items.iter().zip(filled.best(&weights, SLOTS * share / CAPACITIES))
            {
                retentions[item.node] = if saved { Retention::Save } else { Retention::Recompute };
            }
        }
        meter.spend(order.len() as u64);
        Some(readers.rematerialize(graph, order, &retentions))
    };
    let result = fastest(instance, budget, Planner::Knapsack, member, meter);
    match result {
        // What was not tried proves nothing.
        Err(PlanError::Infeasible(refused)) if filled.is_none() => {
            Err(NotFound::error(budget, (1, refused.plan)))
        }
        result => result,
    }
}

/// A forward node that the backward pass reads.
struct Item {
    node: NodeId,
    bytes: Bytes,
    /// Seconds to make it again.
    seconds: Seconds,
}

/// Tensors that may be saved or made again, in the order of `order`. The time of an item is its own
/// plus that of the nodes between it and other items: those are not held, and run again with it. If
/// time is up, the items so far.
fn items(instance: Instance<'_>, meter: &mut Meter<'_>) -> Vec<Item> {
    let Instance { graph, profile, order } = instance;
    let is_mutated = mutated_storages(graph);
    let mut read_by_backward: SecondaryMap<NodeId, bool> = SecondaryMap::new();
    for &node in order.iter().filter(|&&node| !graph.nodes()[node].phase.is_forward()) {
        for producer in graph.reads(node).iter().filter_map(|&storage| graph.producer(storage)) {
            read_by_backward[producer] = true;
        }
    }
    let again = |node: NodeId| may_run_again(graph, &is_mutated, node);
    let nodes = order.iter().copied().filter(|&node| read_by_backward[node] && again(node));
    let mut seen: SecondaryMap<NodeId, Option<NodeId>> = SecondaryMap::new();
    nodes
        .map_while(|node| {
            if meter.is_late() {
                return None;
            }
            let mut seconds = profile.seconds[node];
            let mut pending = vec![node];
            while let Some(next) = pending.pop() {
                meter.spend(1);
                for source in
                    graph.reads(next).iter().filter_map(|&storage| graph.producer(storage))
                {
                    if !read_by_backward[source] && again(source) && seen[source] != Some(node) {
                        seen[source] = Some(node);
                        seconds = seconds + profile.seconds[source];
                        pending.push(source);
                    }
                }
            }
            let free = graph.fresh(node).iter().filter(|&&storage| !graph.is_kept(storage));
            let bytes = free.map(|&storage| graph.storages()[storage]).sum();
            Some(Item { node, bytes, seconds })
        })
        .collect()
}

/// 0/1 knapsacks of every capacity at once.
struct Filled {
    /// For each item and each capacity, a bit: whether a best filling of that capacity with the
    /// items up to it has it.
    taken: Vec<Vec<u64>>,
}

impl Filled {
    /// best(i, c) = max(best(i−1, c), best(i−1, c − wᵢ) + vᵢ); `None` if time is up before all
    /// items are included.
    fn new(
        weights: &[usize],
        values: &[f64],
        most: usize,
        meter: &mut Meter<'_>,
    ) -> Option<Filled> {
        let mut best = vec![0.0; most + 1];
        let taken = weights.iter().zip(values).map(|(&weight, &value)| {
            if meter.is_late() {
                return None;
            }
            meter.spend((most / CELLS_PER_OPERATION) as u64);
            let mut taken = vec![0; most / 64 + 1];
            for capacity in (weight..=most).rev() {
                let with = best[capacity - weight] + value;
                if with > best[capacity] {
                    best[capacity] = with;
                    taken[capacity / 64] |= 1 << (capacity % 64);
                }
            }
            Some(taken)
        });
        Some(Filled { taken: taken.collect::<Option<_>>()? })
    }

    /// For each item: whether the best filling of `capacity` has it.
    fn best(&self, weights: &[usize], capacity: usize) -> Vec<bool> {
        let mut left = capacity;
        let mut chosen = vec![false; weights.len()];
        for item in (0..weights.len()).rev() {
            if self.taken[item][left / 64] >> (left % 64) & 1 == 1 {
                chosen[item] = true;
                left -= weights[item];
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effort::Effort;

    #[test]
    fn a_knapsack_takes_what_is_worth_most() {
        let (weights, values) = ([5, 4, 3], [10.0, 40.0, 30.0]);
        let effort = Effort::default();
        let filled = Filled::new(&weights, &values, 12, &mut Meter::new(&effort)).unwrap();
        assert_eq!(filled.best(&weights, 12), [true, true, true]);
        assert_eq!(filled.best(&weights, 7), [false, true, true]);
        assert_eq!(filled.best(&weights, 5), [false, true, false]);
        assert_eq!(filled.best(&weights, 2), [false, false, false]);
    }
}
