//! The part of a step that a graph executes: all of it, or what one of several ranks has.
//! Invariant: all ranks agree about the sizes; outputs and micro-batches have the numbers that they
//! have in the whole step.

use std::collections::BTreeMap;
use std::ops::Range;

use tightfit::graph::Graph;
use tightfit::id::MicroBatchId;

use crate::step::input;

/// The part of a step that a graph executes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The micro-batches of an update.
    pub micro_batches: u32,
    /// Rows of a micro-batch.
    pub rows: usize,
    /// Elements of the target of a micro-batch: tokens, or rows.
    pub targets: u64,
    /// The outputs of the step that the graph makes; `None` if it makes them all.
    pub outputs: Option<Vec<usize>>,
    /// This rank's share, if ranks share parameters and micro-batches.
    pub share: Option<Share>,
}

/// The share of one of several ranks that share parameters and micro-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// The whole shape of each tensor of which it keeps a shard, by name.
    pub shapes: BTreeMap<String, Vec<u64>>,
}

impl Share {
    /// The elements that are this rank's, of a tensor that has `whole` elements.
    pub fn elements(&self, whole: u64) -> Range<u64> {
        let piece = whole.div_ceil(self.ranks.into());
        let first = |rank: u32| (u64::from(rank) * piece).min(whole);
        first(self.rank)..first(self.rank + 1)
    }
}

impl Part {
    /// All of a step, whose graph is for one micro-batch.
    pub fn whole(graph: &Graph) -> Part {
        let tensor = |name| input(graph, name).map(|(_, value)| &graph.values()[value].tensor);
        let rows = tensor("input").and_then(|tensor| tensor.shape.first().copied());
        Part {
            micro_batches: 1,
            rows: rows.unwrap_or(1) as usize,
            targets: tensor("target").map_or(0, |tensor| tensor.elements()),
            outputs: None,
            share: None,
        }
    }

    /// The number in the whole step of a micro-batch of this graph: ranks that share them take one
    /// each in turn.
    pub fn number_of(&self, micro_batch: MicroBatchId) -> MicroBatchId {
        let number = micro_batch.as_u32();
        let of_all = |share: &Share| number * share.ranks + share.rank;
        MicroBatchId::from_u32(self.share.as_ref().map_or(number, of_all))
    }

    /// The micro-batches of the whole step.
    pub fn all_micro_batches(&self) -> u32 {
        self.micro_batches * self.share.as_ref().map_or(1, |share| share.ranks)
    }

    /// The place among the graph's outputs of an output of the step.
    pub fn place_of(&self, number: usize) -> Option<usize> {
        match &self.outputs {
            Some(outputs) => outputs.iter().position(|&other| other == number),
            None => Some(number),
        }
    }
}
