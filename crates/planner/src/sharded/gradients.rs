//! Which gradients ranks exchange, and when. Invariant: what an update reads is a mean over all
//! micro-batches of all ranks, whether these are summed before they are exchanged or afterwards.

use std::collections::BTreeSet;

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Node, Phase};
use crate::id::{MicroBatchId, NodeId, ValueId};
use crate::operator::Operator;

/// How often gradients are reduced in an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reductions {
    /// Once: between micro-batches each rank holds whole gradients.
    Once,
    /// For each micro-batch: between them each rank holds its shards of them.
    EachMicroBatch,
}

/// The gradients that are reduced.
pub(super) struct Gradients {
    /// Those that each node makes, or shows as a view.
    pub reduced: SecondaryMap<NodeId, Vec<ValueId>>,
    /// Sums and means over micro-batches that are computed on shards.
    pub on_shards: SecondaryMap<NodeId, bool>,
    /// The nodes that sum, by the summand that they add.
    pub sums: SecondaryMap<ValueId, Option<NodeId>>,
}

impl Gradients {
    pub fn of(graph: &Graph, reductions: Reductions) -> Gradients {
        let values = graph.values();
        let mut gradients = Gradients {
            reduced: SecondaryMap::new(),
            on_shards: SecondaryMap::new(),
            sums: SecondaryMap::new(),
        };
        let mut readers: SecondaryMap<ValueId, u32> = SecondaryMap::new();
        let inputs = graph.nodes().values().flat_map(|node| &node.inputs);
        inputs.chain(graph.outputs()).for_each(|&value| readers[value] += 1);
        let mut seen: BTreeSet<ValueId> = BTreeSet::new();
        let mut left: Vec<ValueId> = Vec::new();
        for (id, node) in graph.nodes().iter().filter(|(_, node)| is_update(node)) {
            let written = graph.mutated(id);
            let read = node.inputs.iter().copied();
            left.extend(read.filter(|&value| !written.contains(&values[value].storage)));
        }
        while let Some(value) = left.pop() {
            let producer = values[value].producer;
            let node = &graph.nodes()[producer];
            if graph.is_persistent(values[value].storage) || !seen.insert(value) {
                continue;
            }
            let sums = reductions == Reductions::EachMicroBatch && readers[value] == 1;
            if sums && is_over_micro_batches(graph, node) {
                gradients.on_shards[producer] = true;
                for &summand in &node.inputs {
                    gradients.sums[summand] = Some(producer);
                    left.push(summand);
                }
            } else {
                gradients.reduced[producer].push(value);
            }
        }
        gradients
    }
}

/// A sum or a mean over several micro-batches, as accumulation appends it.
fn is_over_micro_batches(graph: &Graph, node: &Node) -> bool {
    let micro_batch = |&value: &ValueId| graph.nodes()[graph.values()[value].producer].micro_batch;
    let of: BTreeSet<MicroBatchId> =
        node.inputs.iter().map(micro_batch).chain([node.micro_batch]).collect();
    let adds = matches!(node.operator, Some(Operator::AddTensor | Operator::MulScalar));
    adds && node.phase == Phase::Backward && of.len() > 1
}

/// An update of each element by itself.
pub(super) fn is_update(node: &Node) -> bool {
    node.operator.is_some_and(Operator::is_update)
}
