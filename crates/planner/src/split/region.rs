//! A part of a step that can be computed for some rows at a time. Invariant: it begins with a
//! product of matrices and ends with others; it holds every call that reads what the first one
//! makes, or something as wide that follows from it, and every call between two of its own; each
//! computes rows from the same rows, or adds up a term for each of them. If a barrier separates the
//! forward pass from the backward pass, or a call between them needs all rows, each pass has calls
//! of it, and what lies between them stays outside, and so does whatever makes something wide that
//! is a result. If a call needs other rows of its sequence, a row of the part is a sequence. The
//! gradient of a table is such a part along its columns.

use std::collections::{BTreeMap, BTreeSet};

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Node, Phase};
use crate::id::{NodeId, ValueId};
use crate::operator::{Axis, Operator, axes_of};
use crate::split::along::{Along, Piece};
use crate::split::span::Span;

/// A part of a step, along its rows.
pub struct Region {
    /// The product that it begins with.
    pub product: NodeId,
    /// The rows.
    pub rows: u64,
    /// How many rows of the product are one of them.
    pub each: u64,
    /// What it is a part of.
    pub whole: Whole,
    /// Its calls, in the order of the step.
    pub calls: BTreeMap<NodeId, Along>,
    /// The first call of the backward pass, if the passes are separate.
    pub border: Option<NodeId>,
    /// Where what it makes has its rows.
    pub spans: BTreeMap<ValueId, Span>,
    /// What is wide; what others read of that is written into a tensor of its size.
    pub wide: BTreeSet<ValueId>,
    /// What it makes in the end, and what it reads that is as large and not needed afterwards: the
    /// rows of the one may replace those of the other.
    pub into: Option<(ValueId, ValueId)>,
}

/// How a part is divided.
#[derive(Clone, Copy)]
pub struct Form {
    /// The number of rows.
    pub rows: u64,
    /// Where the backward pass begins, if the passes are separate.
    pub border: Option<NodeId>,
    /// What it is a part of.
    pub whole: Whole,
}

/// What a part is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    /// The loss, or a table: other products are ends of the part.
    Step,
    /// A layer: other products that make something wide belong to the part.
    Layer,
}

impl Whole {
    /// What the names of its chunks' calls end in, before their numbers.
    pub fn suffix(self) -> &'static str {
        match self {
            Whole::Step => ".chunk",
            Whole::Layer => ".part",
        }
    }
}

/// Why a call keeps a part from being divided.
pub struct Obstacle(pub NodeId, pub &'static str);

impl Region {
    /// The fewest rows of a chunk with which products sum as they do with all rows.
    pub fn least(&self, graph: &Graph) -> u64 {
        if self.is_of_matrices(graph) {
            return 1;
        }
        let columns = self.calls.iter().filter_map(|(&id, along)| {
            let node = &graph.nodes()[id];
            let makes_rows = is_product(node) && matches!(along.outputs[..], [Piece::Rows(_)]);
            let tensor = &graph.values()[node.outputs.first().copied().flatten()?].tensor;
            let of_all = tensor.shape.iter().rev().take(2).product::<u64>();
            makes_rows.then(|| of_all / (self.rows * self.each))
        });
        let narrowest = columns.min().unwrap_or(FEW).max(1);
        LEAST.max(FEW / narrowest + 1).div_ceil(self.each)
    }

    /// Whether the product is of many matrices, and each row is one of them, or several.
    pub fn is_of_matrices(&self, graph: &Graph) -> bool {
        graph.nodes()[self.product].operator == Some(Operator::Bmm)
    }

    /// Whether only products sum over its rows, in blocks that end where chunks do.
    pub fn sums_products(&self, graph: &Graph) -> bool {
        self.calls.iter().all(|(&id, along)| {
            let is_product = graph.nodes()[id].operator == Some(Operator::Mm);
            is_product && self.each == 1 || !along.outputs.contains(&Piece::Term)
        })
    }
}

/// A chunk has this many rows or more: with fewer, loops and products are other ones.
pub const LEAST: u64 = 16;
/// Products of no more elements are summed in another order.
const FEW: u64 = 256;

/// What separates the passes: all that the forward pass returns is there, and its gradients come.
pub const BARRIER: &str = "tightfit.barrier";
pub fn is_product(node: &Node) -> bool {
    matches!(node.operator, Some(Operator::Mm | Operator::Addmm | Operator::Bmm))
}

/// A step with what is known of its calls.
pub struct Step<'a> {
    pub graph: &'a Graph,
    pub axes: SecondaryMap<NodeId, Vec<Axis>>,
    pub readers: SecondaryMap<ValueId, Vec<NodeId>>,
    /// The last barrier between the passes, with which the backward pass begins.
    pub border: Option<NodeId>,
}

impl<'a> Step<'a> {
    pub fn of(graph: &'a Graph) -> Step<'a> {
        let mut axes: SecondaryMap<NodeId, Vec<Axis>> = SecondaryMap::new();
        let mut readers: SecondaryMap<ValueId, Vec<NodeId>> = SecondaryMap::new();
        for (id, node) in graph.nodes() {
            let known = axes_of(&node.op).and_then(|axes| axes(&graph.call(id)).ok());
            axes[id] = known.unwrap_or_default();
            node.inputs.iter().for_each(|&input| readers[input].push(id));
        }
        let barriers = graph.nodes().iter().filter(|(_, node)| node.op == BARRIER);
        Step { graph, axes, readers, border: barriers.map(|(id, _)| id).next_back() }
    }

    /// Ways to divide what follows from a product, the least costly first: by its rows, by
    /// sequences, and both with passes that are separate though no barrier lies between them, so
    /// that some calls have to be made twice.
    pub fn forms(&self, product: ValueId) -> Vec<Form> {
        let (rows, sequences) =
            (self.graph.values()[product].tensor.shape[0], self.sequences(product));
        let mut nodes = self.graph.nodes().iter();
        let backward = nodes.find(|(_, node)| node.phase == Phase::Backward).map(|(id, _)| id);
        // A barrier between the passes is the first call of the backward pass.
        let apart = backward.filter(|first| self.border != Some(*first));
        let form = |rows, border| Some(Form { rows: rows?, border, whole: Whole::Step });
        let forms = [
            form(Some(rows), self.border),
            form(sequences, self.border),
            apart.and_then(|border| form(Some(rows), Some(border))),
            apart.and_then(|border| form(sequences, Some(border))),
        ];
        forms.into_iter().flatten().collect()
    }

    /// Ways to divide what a layer makes of a product, and what the backward pass makes of that: by
    /// rows, and by sequences if there are any. All of the backward pass that follows from more
    /// than placeholders and is no view comes after the product.
    pub fn forms_of_layer(&self, product: ValueId) -> Vec<Form> {
        let start = self.graph.values()[product].producer;
        let is_after = |(id, node): &(NodeId, &Node)| {
            let is_new = !node.inputs.is_empty() && self.makes_its_own(node);
            *id > start && node.phase == Phase::Backward && is_new
        };
        let border = self.graph.nodes().iter().find(is_after).map(|(id, _)| id);
        let rows = self.graph.values()[product].tensor.shape[0];
        let form = |rows| Form { rows, border, whole: Whole::Layer };
        Some(rows).into_iter().chain(self.sequences(product)).map(form).collect()
    }

    /// How many sequences the rows of a matrix, or matrices of several, are, if they are shown as
    /// such.
    fn sequences(&self, matrix: ValueId) -> Option<u64> {
        let values = self.graph.values();
        let rows = values[matrix].tensor.shape[0];
        let made = self.readers[matrix].iter().flat_map(|&id| &self.graph.nodes()[id].outputs);
        let shown = made.flatten().map(|&value| &values[value]);
        let of_matrix = shown.filter(|value| value.storage == values[matrix].storage);
        let mut counts = of_matrix.filter_map(|value| {
            let extents = value.tensor.shape.iter();
            let mut counts = extents.scan(1, |count, extent| {
                *count *= extent;
                Some(*count)
            });
            counts.find(|&count| count > 1)
        });
        counts.find(|&count| count < rows && rows.is_multiple_of(count))
    }

    /// Whether what a call makes lies in storages of its own, in order.
    pub fn makes_its_own(&self, node: &Node) -> bool {
        let values = self.graph.values();
        let reads = |storage| node.inputs.iter().any(|&input| values[input].storage == storage);
        node.outputs.iter().flatten().all(|&output| {
            let output = &values[output];
            output.tensor.contiguous && !reads(output.storage)
        })
    }
}
