//! A step written again at another size. Invariant: nodes, values and storages keep their ids;
//! every output of an operator of the table has the shape and the place that the operator makes.

use cranelift_entity::PrimaryMap;

use crate::graph::{Dimension, Graph, GraphBuilder, Node, NodeSpec, Recapture, ValueSpec};
use crate::id::{NodeId, ValueId};
use crate::operator::{Operator, TypedCall, Types};
use crate::sizes::SizeError;
use crate::sizes::changes::Changes;
use crate::sizes::groups::Rows;
use crate::sizes::layout::{Input, laid_out, span};
use crate::sizes::varying::carried;
use crate::tensor::{Argument, DType, TensorType, placed_mut};
use crate::units::{Bytes, Flops};

/// Operators that read of their first tensor only what they look up.
const LOOKS_UP: [&str; 5] = [
    "aten.embedding.default",
    "aten.gather.default",
    "aten.index.Tensor",
    "aten.index_select.default",
    "aten.take.default",
];

/// Types of values at another size, as far as they are known.
struct Resized<'a> {
    graph: &'a Graph,
    types: PrimaryMap<ValueId, TensorType>,
}

impl Types for Resized<'_> {
    fn type_of(&self, value: ValueId) -> &TensorType {
        self.types.get(value).unwrap_or(&self.graph.values()[value].tensor)
    }
}

/// The step at size `to` instead of `from`.
pub fn rewritten(graph: &Graph, changes: &Changes, from: u64, to: u64) -> Result<Graph, SizeError> {
    let mut resized = Resized { graph, types: PrimaryMap::new() };
    let mut args: PrimaryMap<NodeId, Vec<Argument>> = PrimaryMap::new();
    for (id, node) in graph.nodes() {
        if let Some(Rows { table, index: (index, dim) }) = changes.tables[id] {
            let (rows, asked) =
                (resized.type_of(table).shape[0], resized.type_of(index).shape[dim]);
            if asked > rows {
                return Err(SizeError::Rows { node: node.name.clone(), rows, asked });
            }
        }
        let given = arguments(node, changes, id, to, graph);
        let given = given.ok_or_else(|| large(node))?;
        for tensor in outputs(&resized, changes, node, &given, to)? {
            resized.types.push(tensor);
        }
        args.push(given);
    }
    let mut builder = GraphBuilder::without_nodes(graph);
    for (storage, &bytes) in graph.storages() {
        let made = graph.producer(storage).map(|node| &graph.nodes()[node]);
        let first = made.and_then(|node| {
            let of = |value: &&ValueId| graph.values()[**value].storage == storage;
            Some((node, *node.outputs.iter().flatten().find(of)?))
        });
        let bytes = match first {
            Some((node, value)) => {
                let (old, new) = (&graph.values()[value].tensor, &resized.types[value]);
                let change = |old, new| grown(bytes.0, old, new);
                Bytes(
                    span(old)
                        .zip(span(new))
                        .map_or(Some(bytes.0), |(old, new)| change(old, new))
                        .ok_or_else(|| large(node))?,
                )
            }
            None => bytes,
        };
        builder.storage(bytes);
    }
    for (id, node) in graph.nodes() {
        let spec = costs(&resized, changes, id, node, args[id].clone(), from, to)?;
        let values = node.outputs.iter().map(|value| {
            value.map(|value| ValueSpec {
                shape: resized.types[value].shape.clone(),
                contiguous: resized.types[value].contiguous,
                strides: resized.types[value].strides.clone(),
                offset: resized.types[value].offset,
                ..ValueSpec::from(&graph.values()[value])
            })
        });
        builder.node(spec, &values.collect::<Vec<_>>());
    }
    for &output in graph.outputs() {
        builder.output(output);
    }
    for dimension in Dimension::ALL {
        let is_along = dimension == changes.followed.dimension;
        if let Some(seen) = graph.recapture(dimension) {
            let found = carried(seen, graph, &changes.varying, &changes.followed, (is_along, to));
            builder.recapture(dimension, found.unwrap_or_else(|| lost(seen, changes, to)));
        }
    }
    if let Some(names) = graph.output_names() {
        builder.output_names(names.to_vec());
    }
    Ok(builder.build()?)
}

/// What is left of a second capture whose numbers at the new size are not known.
fn lost(seen: &Recapture, changes: &Changes, to: u64) -> Recapture {
    let name = changes.followed.dimension.name();
    let difference = format!("how numbers follow from it with a {name} of {to} was not captured");
    Recapture { size: None, numbers: Vec::new(), difference: Some(difference), ..seen.clone() }
}

fn large(node: &Node) -> SizeError {
    SizeError::Large { node: node.name.clone() }
}

/// `now`, of which `old` has become `new`.
fn grown(now: u64, old: u64, new: u64) -> Option<u64> {
    if new >= old { now.checked_add(new - old) } else { Some(now.saturating_sub(old - new)) }
}

/// The arguments of a call at another size.
fn arguments(
    node: &Node,
    changes: &Changes,
    id: NodeId,
    to: u64,
    graph: &Graph,
) -> Option<Vec<Argument>> {
    let mut args = node.args.clone();
    for literal in &changes.literals[id] {
        let value = Argument::Int(i64::try_from(literal.extent.at(to)?).ok()?);
        *placed_mut(&mut args, literal.argument, literal.item)? = value;
    }
    for varying in &changes.varying[id] {
        let now = placed_mut(&mut args, varying.argument, varying.item)?;
        *now = varying.at(now, graph, &changes.followed, to)?;
    }
    Some(args)
}

/// The types of a call's outputs that are used.
fn outputs(
    resized: &Resized<'_>,
    changes: &Changes,
    node: &Node,
    args: &[Argument],
    to: u64,
) -> Result<Vec<TensorType>, SizeError> {
    let call = TypedCall { args, kwargs: &node.kwargs, outputs: &node.outputs, types: resized };
    let refused = |error| SizeError::Call { node: node.name.clone(), error };
    let is_known = !node.phase.is_placeholder();
    let operator = match node.op.as_str() {
        "aten._unsafe_view.default" => Some(Operator::View),
        _ => node.operator,
    };
    let row = operator.filter(|_| is_known).map(|operator| operator.row());
    let derived = row.map(|row| (row.outputs)(&call)).transpose().map_err(refused)?;
    let mut found = Vec::new();
    for (index, value) in node.outputs.iter().enumerate() {
        let Some(value) = value else { continue };
        let old = &resized.graph.values()[*value].tensor;
        let extents = old.shape.iter().zip(&changes.followed.extents[*value]);
        let shape: Option<Vec<u64>> = extents
            .map(|(&extent, grown)| grown.map_or(Some(extent), |grown| grown.at(to)))
            .collect();
        let shape = shape.filter(|shape| bytes(shape, old.dtype).is_some());
        let shape = shape.ok_or_else(|| large(node))?;
        let made = derived.as_ref().and_then(|derived| derived.get(index));
        if let Some(made) = made.filter(|made| made.shape != shape) {
            let (node, made) = (node.name.clone(), made.shape.clone());
            return Err(SizeError::Shape { node, made, followed: shape });
        }
        let storage = |value: ValueId| resized.graph.values()[value].storage;
        let input = |&input: &ValueId| Input {
            old: &resized.graph.values()[input].tensor,
            new: resized.type_of(input),
            is_shown: made.is_none() && storage(input) == storage(*value),
        };
        let inputs: Vec<Input<'_>> = node.inputs.iter().map(input).collect();
        let tensor = laid_out(old, shape, made, &inputs);
        found.push(tensor.ok_or_else(|| SizeError::Layout { node: node.name.clone() })?);
    }
    Ok(found)
}

/// A node at another size, with what it costs there.
fn costs(
    resized: &Resized<'_>,
    changes: &Changes,
    id: NodeId,
    node: &Node,
    args: Vec<Argument>,
    from: u64,
    to: u64,
) -> Result<NodeSpec, SizeError> {
    let graph = resized.graph;
    let mut values = node.inputs.iter().chain(node.outputs.iter().flatten());
    let mut spec = NodeSpec::from(node);
    if !values.any(|&value| changes.followed.grows(value)) {
        return Ok(NodeSpec { args, ..spec });
    }
    let scaled = |now: u64| {
        let all = u128::from(now) * u128::from(to) / u128::from(from);
        u64::try_from(all).ok()
    };
    let changed = |now: u64, old: u64, new: u64| match now {
        0 => Some(0),
        now if now == old => Some(new),
        now => grown(now, old, new),
    };
    let outputs = &node.outputs;
    let old = TypedCall { args: &node.args, kwargs: &node.kwargs, outputs, types: graph };
    let new = TypedCall { args: &args, kwargs: &node.kwargs, outputs, types: resized };
    let row = node.operator.map(|operator| operator.row());
    let flops = match row.map(|row| row.cost.flops) {
        Some(flops) if flops(&old) == node.flops => Some(flops(&new).0),
        // Each axis of a product is gone through for each step of the others.
        _ => changes.steps[id].iter().try_fold(node.flops.0, |flops, steps| {
            let all = u128::from(flops) * u128::from(steps.at(to)?) / u128::from(steps.at(from)?);
            u64::try_from(all).ok()
        }),
    };
    let (before, after) = (moved(node, graph), moved(node, resized));
    let unused = |call: &TypedCall<'_>| -> Option<u64> {
        let derived = (row?.outputs)(call).ok()?;
        let none = outputs.iter().zip(&derived).filter(|(output, _)| output.is_none());
        none.map(|(_, made)| bytes(&made.shape, made.dtype))
            .try_fold(0u64, |all, bytes| all.checked_add(bytes?))
    };
    let now = node.workspace.0;
    let none_grows = !changes.unused[id].is_empty() && !changes.unused[id].contains(&true);
    let workspace = match unused(&old).zip(unused(&new)) {
        Some((old, new)) if now >= old => grown(now, old, new),
        None if none_grows => Some(now),
        _ => scaled(now),
    };
    let all = || {
        Some((
            Flops(flops?),
            Bytes(changed(node.bytes_read.0, before?.0, after?.0)?),
            Bytes(changed(node.bytes_written.0, before?.1, after?.1)?),
            Bytes(workspace?),
        ))
    };
    let (flops, bytes_read, bytes_written, workspace) = all().ok_or_else(|| large(node))?;
    spec = NodeSpec { flops, bytes_read, bytes_written, workspace, seconds: None, ..spec };
    Ok(NodeSpec { args, ..spec })
}

/// The bytes of a tensor without gaps, if there may be as many.
fn bytes(shape: &[u64], dtype: DType) -> Option<u64> {
    let all = shape.iter().try_fold(dtype.size(), |all, &extent| all.checked_mul(extent))?;
    Some(all).filter(|&all| all <= Bytes::LIMIT.0)
}

/// The bytes that a call reads and writes.
fn moved(node: &Node, types: &dyn Types) -> Option<(u64, u64)> {
    let bytes = |value: ValueId| {
        let tensor = types.type_of(value);
        bytes(&tensor.shape, tensor.dtype)
    };
    let sum = |sizes: &[u64]| sizes.iter().try_fold(0u64, |all, &size| all.checked_add(size));
    let written: Option<Vec<u64>> =
        node.outputs.iter().flatten().map(|&value| bytes(value)).collect();
    let written = sum(&written?)?;
    let mut read: Vec<u64> =
        node.inputs.iter().map(|&value| bytes(value)).collect::<Option<_>>()?;
    if let Some(first) = read.first_mut().filter(|_| LOOKS_UP.contains(&node.op.as_str())) {
        *first = (*first).min(written);
    }
    Some((sum(&read)?, written))
}
