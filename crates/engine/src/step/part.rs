//! What of a step a graph executes: all of it, or what one rank of a pipeline has. Invariant: all
//! ranks agree about the sizes; outputs have the numbers that they have in the whole step.

use tightfit::graph::Graph;

use crate::step::input;

/// What of a step a graph executes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The micro-batches of an update.
    pub micro_batches: u32,
    /// Rows of a micro-batch.
    pub rows: usize,
    /// Elements of the target of a micro-batch: tokens, or rows.
    pub targets: u64,
    /// Which outputs of the step the graph makes; `None` where it makes them all.
    pub outputs: Option<Vec<usize>>,
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
        }
    }

    /// The place among the graph's outputs of an output of the step.
    pub fn place_of(&self, number: usize) -> Option<usize> {
        match &self.outputs {
            Some(outputs) => outputs.iter().position(|&other| other == number),
            None => Some(number),
        }
    }
}
