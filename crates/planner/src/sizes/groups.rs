//! Which dimensions of the tensors of a call go together. Invariant: dimensions are together
//! because of what the call does along them, never because they have the same extent.

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Node};
use crate::id::{NodeId, ValueId};
use crate::operator::{Along, Axis, Linear, Part, TypedCall, axes_of};
use crate::tensor::Argument;

/// An axis of a call, with the values that lie along it.
#[derive(Clone, Debug)]
pub struct Group {
    /// The axis.
    pub axis: Axis,
    /// Arguments along it.
    pub read: Vec<(ValueId, Along)>,
    /// Outputs along it.
    pub made: Vec<(ValueId, Along)>,
}

impl Group {
    /// Everything along the axis.
    pub fn members(&self) -> impl Iterator<Item = (ValueId, Along)> {
        self.read.iter().chain(&self.made).copied()
    }

    /// Where a value lies along the axis.
    pub fn place(&self, value: ValueId, dim: usize) -> Option<Along> {
        self.members().find(|(member, along)| *member == value && along.dim == dim).map(|it| it.1)
    }
}

/// The axes of every call.
pub type Groups = SecondaryMap<NodeId, Vec<Group>>;

/// The axes of every call that has known ones.
pub fn groups(graph: &Graph) -> Groups {
    let mut groups = Groups::new();
    for (id, node) in graph.nodes() {
        let Some(axes) = axes_of(&node.op) else { continue };
        let call = TypedCall {
            args: &node.args,
            kwargs: &node.kwargs,
            outputs: &node.outputs,
            types: graph,
        };
        let axes = axes(&call).unwrap_or_default().into_iter();
        groups[id] = axes.map(|axis| group(graph, node, axis)).collect();
    }
    groups
}

fn group(graph: &Graph, node: &Node, axis: Axis) -> Group {
    let positional = node.args.iter().zip(&axis.arguments).filter_map(|(argument, along)| {
        along.map(|along| argument.values().into_iter().map(move |value| (value, along)))
    });
    let named = axis.keywords.iter().filter_map(|&(name, along)| {
        Some(node.kwarg(name)?.values().into_iter().map(move |value| (value, along)))
    });
    let made = node.outputs.iter().zip(&axis.outputs).filter_map(|(value, part)| match part {
        Part::Rows(along) => Some(((*value)?, *along)),
        Part::Terms | Part::Whole => None,
    });
    // Of a list, those that are broadcast there do not lie along the axis.
    let lies = |&(value, along): &(ValueId, Along)| {
        let extent = graph.values()[value].tensor.shape.get(along.dim);
        extent.copied() == along.extent.at(axis.extent)
    };
    let read = positional.flatten().chain(named.flatten()).filter(lies).collect();
    let made = made.filter(lies).collect();
    Group { axis, read, made }
}

/// A dimension of a tensor in which a call looks up by an index that counts through all of it, as
/// masks of packed sequences are looked up for each sample in turn.
#[derive(Clone, Copy, Debug)]
pub struct LookUp {
    /// The tensor, and the dimension of it.
    pub table: (ValueId, usize),
    /// The index, and the dimension along which it counts.
    pub index: (ValueId, usize),
}

/// A table whose rows a call looks up by an index that counts through them, as one of positions.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// The table.
    pub table: ValueId,
    /// The index, and the dimension along which it counts.
    pub index: (ValueId, usize),
}

/// Operators whose output has the elements of argument 0.
const SAME: [&str; 10] = [
    "aten._to_copy.default",
    "aten.alias.default",
    "aten.clone.default",
    "aten.detach.default",
    "aten.expand.default",
    "aten.permute.default",
    "aten.slice.Tensor",
    "aten.transpose.int",
    "aten.unsqueeze.default",
    "aten.view.default",
];

/// Along which dimension each value counts 0, 1, 2, …, if it does; along others it does not change.
type Counts = SecondaryMap<ValueId, Option<usize>>;

fn counts(graph: &Graph, groups: &Groups) -> Counts {
    let mut counts = Counts::new();
    for (id, node) in graph.nodes() {
        if let Some(value) = node.outputs.first().copied().flatten() {
            counts[value] = along(node, &groups[id], &counts, value);
        }
    }
    counts
}

/// The tables of which rows are looked up by counting, by node.
pub fn tables(graph: &Graph, groups: &Groups) -> SecondaryMap<NodeId, Option<Rows>> {
    let counts = counts(graph, groups);
    let mut found = SecondaryMap::new();
    for (id, node) in graph.nodes() {
        if let ("aten.embedding.default", [Argument::Value(table), Argument::Value(index), ..]) =
            (&node.op[..], &node.args[..])
        {
            found[id] = counts[*index].map(|dim| Rows { table: *table, index: (*index, dim) });
        }
    }
    found
}

/// The look-ups of every call of `index`.
pub fn look_ups(graph: &Graph, groups: &Groups) -> SecondaryMap<NodeId, Vec<LookUp>> {
    let counts = counts(graph, groups);
    let mut found = SecondaryMap::new();
    for (id, node) in graph.nodes() {
        let ("aten.index.Tensor", [Argument::Value(table), Argument::List(indices), ..]) =
            (&node.op[..], &node.args[..])
        else {
            continue;
        };
        let shape = &graph.values()[*table].tensor.shape;
        let all = indices.iter().enumerate().filter_map(|(dim, index)| {
            let Argument::Value(index) = index else { return None };
            let place = counts[*index]?;
            let is_whole = graph.values()[*index].tensor.shape[place] == shape[dim];
            is_whole.then_some(LookUp { table: (*table, dim), index: (*index, place) })
        });
        found[id] = all.collect::<Vec<LookUp>>();
    }
    found
}

/// Along which dimension an output counts, if it does.
fn along(node: &Node, groups: &[Group], counts: &Counts, value: ValueId) -> Option<usize> {
    if node.op.starts_with("aten.arange.") {
        return groups.iter().find_map(|group| Some(group.made.first()?.1.dim));
    }
    let adds_nothing = node.op == "aten.add.Tensor" && node.args.get(1) == Some(&Argument::Int(0));
    if !adds_nothing && !SAME.contains(&node.op.as_str()) {
        return None;
    }
    let &input = node.inputs.first()?;
    let dim = counts[input]?;
    let is_plain = |along: Along| (along.extent == Linear::ONE).then_some(along.dim);
    let group = groups.iter().find(|group| group.place(input, dim).and_then(is_plain).is_some())?;
    group.made.iter().find(|(made, _)| *made == value).and_then(|(_, along)| is_plain(*along))
}
