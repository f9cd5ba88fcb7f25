//! What calls put together, and derivatives spread again: tensors of which numbers may count the
//! elements. Invariant: which elements those are follows from the axes of the calls.

use std::collections::HashSet;

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Node, Phase};
use crate::id::{NodeId, ValueId};
use crate::operator::Part;
use crate::sizes::follow::Followed;
use crate::sizes::groups::{Group, Groups};

/// Elements of a tensor along some of its dimensions.
#[derive(Clone, Debug)]
pub struct Elements {
    value: ValueId,
    dims: Vec<usize>,
}

impl Elements {
    /// How many there are in the graph.
    pub fn count(&self, graph: &Graph) -> u64 {
        let shape = &graph.values()[self.value].tensor.shape;
        self.dims.iter().map(|&dim| shape[dim]).fold(1, u64::saturating_mul)
    }

    /// How many there are at another size.
    pub fn count_at(&self, graph: &Graph, followed: &Followed, size: u64) -> Option<u64> {
        let shape = &graph.values()[self.value].tensor.shape;
        let extents = &followed.extents[self.value];
        let extent = |dim: usize| extents[dim].map_or(Some(shape[dim]), |grown| grown.at(size));
        self.dims.iter().try_fold(1u64, |all, &dim| all.checked_mul(extent(dim)?))
    }

    /// Whether there are more at a larger size.
    pub fn grow(&self, followed: &Followed) -> bool {
        self.dims.iter().any(|&dim| followed.extents[self.value][dim].is_some())
    }

    /// How many of the dimensions have two elements or more.
    pub fn long(&self, graph: &Graph) -> usize {
        let shape = &graph.values()[self.value].tensor.shape;
        self.dims.iter().filter(|&&dim| shape[dim] > 1).count()
    }
}

/// What the numbers of a node may count, for all nodes.
pub struct Known {
    derived: Derived,
    /// The elements that were summed in each element of a value, or that each of its own was.
    origins: SecondaryMap<ValueId, Option<Elements>>,
}

impl Known {
    /// That of a graph.
    pub fn of(graph: &Graph, groups: &Groups) -> Known {
        let mut origins: SecondaryMap<ValueId, Option<Elements>> = SecondaryMap::new();
        for (id, node) in graph.nodes() {
            for &value in node.outputs.iter().flatten() {
                origins[value] = origin(graph, &groups[id], node, value, &origins);
            }
        }
        Known { derived: Derived::of(graph, groups), origins }
    }

    /// What the numbers of a node may count, the likely first.
    pub fn elements(&self, node: &Node) -> Vec<Elements> {
        let of_inputs = node.inputs.iter().filter_map(|&value| self.origins[value].clone());
        self.reduced(node).into_iter().chain(of_inputs).collect()
    }

    /// What the reductions whose derivative a node computes put together.
    pub fn reduced(&self, node: &Node) -> Vec<Elements> {
        let found = node.differentiates.map(|of| &self.derived.reductions[of]);
        found.into_iter().flatten().map(|(_, elements)| elements.clone()).collect()
    }

    /// Whether a node is part of the derivative of a variance.
    pub fn is_of_variance(&self, graph: &Graph, node: &Node) -> bool {
        let of = node.differentiates.map(|of| &self.derived.reductions[of]);
        let mut of = of.into_iter().flatten().map(|(node, _)| packet(&graph.nodes()[*node]));
        of.any(|packet| matches!(packet, "var" | "std" | "var_mean"))
    }
}

/// The operator's name without its overload.
pub fn packet(node: &Node) -> &str {
    node.op.strip_prefix("aten.").and_then(|name| name.split('.').next()).unwrap_or("")
}

/// Reductions whose derivatives calls compute.
struct Derived {
    /// For each node, the reductions among the parts of its operator: one that PyTorch takes apart,
    /// such as a loss, is known by the first of its parts.
    reductions: SecondaryMap<NodeId, Vec<(NodeId, Elements)>>,
}

impl Derived {
    fn of(graph: &Graph, groups: &Groups) -> Derived {
        let mut reductions: SecondaryMap<NodeId, Vec<(NodeId, Elements)>> = SecondaryMap::new();
        let sources: HashSet<NodeId> =
            graph.nodes().values().filter_map(|node| node.differentiates).collect();
        for &id in &sources {
            let (mut from, mut found) = (Vec::new(), Vec::new());
            let parts = graph.nodes().iter().skip_while(|(other, _)| *other != id);
            let is_part = |other: NodeId| other == id || !sources.contains(&other);
            for (other, node) in parts.take_while(|(other, _)| is_part(*other)) {
                let follows = other == id || node.inputs.iter().any(|input| from.contains(input));
                if !follows || matches!(node.phase, Phase::Backward | Phase::Optimizer) {
                    continue;
                }
                match reduced(graph, &groups[other], node) {
                    Some(of) => found.push((other, of)),
                    None => from.extend(node.outputs.iter().copied().flatten()),
                }
            }
            reductions[id] = found;
        }
        Derived { reductions }
    }
}

/// What a call puts together in each element of its output, if it does.
pub fn reduced(graph: &Graph, groups: &[Group], node: &Node) -> Option<Elements> {
    let &value = node.inputs.first()?;
    let elements = |value: ValueId| graph.values()[value].tensor.elements();
    let output = node.outputs.first().copied().flatten()?;
    let goes = |group: &&Group| !matches!(group.axis.outputs.first(), Some(Part::Rows(_)));
    let read = groups.iter().filter(goes).flat_map(|group| &group.read);
    let mut dims: Vec<usize> =
        read.filter(|(member, _)| *member == value).map(|(_, along)| along.dim).collect();
    dims.sort_unstable();
    dims.dedup();
    let is_reduced = !dims.is_empty() && elements(output) < elements(value);
    is_reduced.then_some(Elements { value, dims })
}

/// Which elements an element of an output is the sum of, or was one of: those of a reduction, those
/// that `expand` makes of one, or else those of an input that has as many elements.
fn origin(
    graph: &Graph,
    groups: &[Group],
    node: &Node,
    output: ValueId,
    origins: &SecondaryMap<ValueId, Option<Elements>>,
) -> Option<Elements> {
    if let Some(of) = reduced(graph, groups, node) {
        return Some(of);
    }
    if packet(node) == "expand" {
        let made = groups.iter().filter(|group| group.read.is_empty());
        let dims: Vec<usize> =
            made.flat_map(|group| &group.made).map(|(_, along)| along.dim).collect();
        if !dims.is_empty() {
            return Some(Elements { value: output, dims });
        }
    }
    let elements = |value: ValueId| graph.values()[value].tensor.elements();
    let mut alike = node.inputs.iter().filter(|&&input| elements(input) == elements(output));
    alike.find_map(|&input| origins[input].clone())
}
