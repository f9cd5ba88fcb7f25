//! What two captures of a step differ in. Invariant: two graphs without a difference are planned
//! and executed alike; names, origins and measured seconds do not count.

use crate::graph::{Graph, Node};
use crate::id::NodeId;
use crate::tensor::TensorType;

/// The first difference of a graph from another one of the same step.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The node, by name; `None` if it is about the whole graph.
    pub node: Option<String>,
    /// What differs, with its article.
    pub what: &'static str,
    /// What the first graph has there.
    pub one: String,
    /// What the second graph has there.
    pub other: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(node) = &self.node {
            write!(formatter, "node `{node}`: ")?;
        }
        write!(formatter, "{}: {} and {}", self.what, self.one, self.other)
    }
}

/// The first difference between two graphs, in the order of their nodes.
pub fn difference(one: &Graph, other: &Graph) -> Option<Difference> {
    for ((id, a), b) in one.nodes().iter().zip(other.nodes().values()) {
        if let Some(found) = of_nodes((one, id, a), (other, b)) {
            return Some(Difference { node: Some(a.name.clone()), ..found });
        }
    }
    differs("the number of nodes", one.nodes().len(), other.nodes().len())
        .or_else(|| differs("the outputs", one.outputs(), other.outputs()))
        .or_else(|| differs("the names of outputs", one.output_names(), other.output_names()))
}

/// A difference, if there is one.
fn differs<T: PartialEq + std::fmt::Debug>(
    what: &'static str,
    one: T,
    other: T,
) -> Option<Difference> {
    let is_other = one != other;
    let shown = |it: T| format!("{it:?}");
    is_other.then(|| Difference { node: None, what, one: shown(one), other: shown(other) })
}

/// The first difference between two calls that are to have the same arguments but for numbers.
pub fn of_calls(a: &Node, b: &Node) -> Option<Difference> {
    let found = differs("the operator", &a.op, &b.op)
        .or_else(|| differs("the number of arguments", a.args.len(), b.args.len()));
    found.map(|found| Difference { node: Some(a.name.clone()), ..found })
}

fn of_nodes(
    (one, id, a): (&Graph, NodeId, &Node),
    (other, b): (&Graph, &Node),
) -> Option<Difference> {
    differs("the operator", &a.op, &b.op)
        .or_else(|| differs("the part of the step", a.phase, b.phase))
        .or_else(|| differs("the parameter", &a.parameter, &b.parameter))
        .or_else(|| differs("the module", &one.modules()[a.module], &other.modules()[b.module]))
        .or_else(|| differs("the arguments", &a.args, &b.args))
        .or_else(|| differs("the arguments by name", &a.kwargs, &b.kwargs))
        .or_else(|| differs("the tensors it reads", &a.inputs, &b.inputs))
        .or_else(|| differs("the outputs it has", &a.outputs, &b.outputs))
        .or_else(|| outputs(one, id, other))
        .or_else(|| differs("the operations", a.flops, b.flops))
        .or_else(|| differs("the bytes it reads", a.bytes_read, b.bytes_read))
        .or_else(|| differs("the bytes it writes", a.bytes_written, b.bytes_written))
        .or_else(|| differs("the workspace", a.workspace, b.workspace))
        .or_else(|| differs("what it differentiates", a.differentiates, b.differentiates))
        .or_else(|| differs("what it recomputes", a.recomputes, b.recomputes))
        .or_else(|| differs("what it overwrites", &a.overwrites, &b.overwrites))
        .or_else(|| {
            let flags = |node: &Node| (node.random, node.seed_slot, node.stream, node.mutates);
            differs("randomness, or what it writes into", flags(a), flags(b))
        })
}

/// The first difference of the outputs of a node that two graphs have at the same place.
fn outputs(one: &Graph, id: NodeId, other: &Graph) -> Option<Difference> {
    one.nodes()[id].outputs.iter().flatten().find_map(|&value| {
        let (a, b) = (&one.values()[value], &other.values()[value]);
        differs("the shape", &a.tensor.shape, &b.tensor.shape)
            .or_else(|| differs("the type", a.tensor.dtype, b.tensor.dtype))
            .or_else(|| differs("the strides", strides(&a.tensor), strides(&b.tensor)))
            .or_else(|| differs("the offset", a.tensor.offset, b.tensor.offset))
            .or_else(|| differs("the storage", a.storage, b.storage))
            .or_else(|| {
                let bytes = |graph: &Graph| graph.storages()[a.storage];
                differs("the bytes of its storage", bytes(one), bytes(other))
            })
    })
}

/// The strides of dimensions with two elements or more; `None` if they are not known.
fn strides(tensor: &TensorType) -> Option<Vec<u64>> {
    if !tensor.contiguous && tensor.strides.is_none() {
        return None;
    }
    let all = tensor.strides_or_contiguous();
    let extents = all.into_iter().zip(&tensor.shape).filter(|(_, extent)| **extent > 1);
    Some(extents.map(|(stride, _)| stride).collect())
}
