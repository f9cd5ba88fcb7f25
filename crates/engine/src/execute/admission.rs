//! What execution needs and planning does not. Invariant: in an admitted graph every node that runs
//! has an operator, strides and types that kernels know, and what it writes has places of its own:
//! no two elements of an output share a byte, nor do two outputs, nor an output and an input,
//! except where the operator reads an element before it writes that very element. And what is read
//! was written: a view shows no byte that the node producing its storage left unwritten.

use std::collections::BTreeMap;
use std::ops::Range;

use tightfit::graph::{Graph, Node, Value};
use tightfit::id::{NodeId, ValueId};
use tightfit::operator::{Kind, Operator, Unsuited};
use tightfit::tensor::{Argument, DType};

use crate::execute::error::{CompileError, UnknownOperator};

/// Refuses a graph that cannot be executed.
pub(super) fn admit(graph: &Graph) -> Result<(), CompileError> {
    operators_are_known(graph)?;
    for (id, node) in graph.nodes() {
        let refuse = |what| CompileError::NotExecutable { node: node.name.clone(), what };
        for &value in node.outputs.iter().flatten() {
            is_computable(&graph.values()[value]).map_err(refuse)?;
        }
        conforms(graph, id)?;
        if graph.runs(id) {
            writes_places_of_its_own(graph, id).map_err(refuse)?;
        } else if node.operator == Some(Operator::AsStrided) {
            shows_what_was_written(graph, id).map_err(refuse)?;
        }
    }
    Ok(())
}

fn operators_are_known(graph: &Graph) -> Result<(), CompileError> {
    let mut unknown: BTreeMap<&str, UnknownOperator> = BTreeMap::new();
    // Views too: the operator table decides whether a view shows the elements that its operator
    // means.
    for node in graph.nodes().values().filter(|node| !node.phase.is_placeholder()) {
        if node.operator.is_none() {
            let entry = unknown.entry(&node.op).or_insert_with(|| UnknownOperator {
                op: node.op.clone(),
                count: 0,
                first: node.name.clone(),
            });
            entry.count += 1;
        }
    }
    if unknown.is_empty() {
        Ok(())
    } else {
        Err(CompileError::UnknownOperators { operators: unknown.into_values().collect() })
    }
}

/// A call of the table has the arguments, types, shapes and places that its row derives.
fn conforms(graph: &Graph, id: NodeId) -> Result<(), CompileError> {
    let node = &graph.nodes()[id];
    let Some(operator) = node.operator else { return Ok(()) };
    let result = marked(graph, id, operator).and_then(|()| operator.conform(&graph.call(id)));
    let (name, op) = (node.name.clone(), node.op.clone());
    result.map_err(|reason| CompileError::Unsuited { node: name, op, reason })
}

/// The graph treats a call as its row says: a call that computes is run, one that writes is known
/// to write, one that draws random numbers is replayed.
fn marked(graph: &Graph, id: NodeId, operator: Operator) -> Result<(), Unsuited> {
    let node = &graph.nodes()[id];
    let kind = operator.row().kind;
    match kind {
        Kind::Random if !node.random => Err(Unsuited::NotMarkedRandom),
        Kind::Mutating | Kind::Update if !node.mutates => Err(Unsuited::NotMarkedMutating),
        Kind::Pure | Kind::Random | Kind::View if node.mutates => Err(Unsuited::MarkedMutating),
        Kind::Pure | Kind::Random if graph.is_view(id) => Err(Unsuited::TakenForView),
        Kind::Pure | Kind::Random | Kind::Mutating | Kind::Update | Kind::View => Ok(()),
    }
}

/// Refuses a graph whose batch and weights cannot be written as a whole: from a placeholder's first
/// byte on, without gaps.
pub(super) fn placeholders_are_whole(graph: &Graph) -> Result<(), CompileError> {
    for node in graph.nodes().values().filter(|node| node.phase.is_placeholder()) {
        for &value in node.outputs.iter().flatten() {
            let tensor = &graph.values()[value].tensor;
            if !tensor.contiguous || tensor.offset > 0 {
                let what = "a placeholder is not contiguous from the start of its storage";
                let (node, what) = (node.name.clone(), what.to_string());
                return Err(CompileError::NotExecutable { node, what });
            }
        }
    }
    Ok(())
}

fn is_computable(value: &Value) -> Result<(), String> {
    if !value.tensor.contiguous && value.tensor.strides.is_none() {
        return Err("an output is not contiguous and carries no strides".to_string());
    }
    if !matches!(value.tensor.dtype, DType::F32 | DType::I64 | DType::Bool) {
        return Err(format!(
            "the engine computes in f32, i64 and bool, not in {}",
            value.tensor.dtype.name()
        ));
    }
    Ok(())
}

/// Worker threads write the elements of all outputs in parallel, so no two may overlap.
fn writes_places_of_its_own(graph: &Graph, id: NodeId) -> Result<(), String> {
    let (node, values) = (&graph.nodes()[id], graph.values());
    let outputs: Vec<(usize, &Value)> = node
        .outputs
        .iter()
        .enumerate()
        .filter_map(|(index, output)| Some((index, &values[(*output)?])))
        .collect();
    for (place, &(index, output)) in outputs.iter().enumerate() {
        if elements_overlap(output) {
            return Err(format!(
                "elements of output {index} overlap: shape {:?} with strides {:?}",
                output.tensor.shape,
                output.tensor.strides_or_contiguous()
            ));
        }
        if let Some((other, _)) =
            outputs[..place].iter().find(|(_, other)| share_bytes(output, other))
        {
            return Err(format!("outputs {other} and {index} overlap"));
        }
        let given = graph.reads(id).contains(&output.storage);
        if given && !graph.mutated(id).contains(&output.storage) {
            return Err(format!(
                "output {index} lies in the storage of an input, which the node does not mutate"
            ));
        }
        for &input in &node.inputs {
            if share_bytes(output, &values[input]) && !in_place(node, index, output, input, graph) {
                return Err(format!("output {index} overlaps an input that is read meanwhile"));
            }
        }
    }
    Ok(())
}

/// Whether elements may share a place. In a dense tensor, a slice, or any permutation of them, each
/// stride leads past everything that the smaller strides reach.
fn elements_overlap(value: &Value) -> bool {
    if value.tensor.elements() == 0 {
        return false;
    }
    let strides = value.tensor.strides_or_contiguous();
    let mut steps: Vec<(u64, u64)> = strides
        .into_iter()
        .zip(value.tensor.shape.iter().copied())
        .filter(|step| step.1 > 1)
        .collect();
    steps.sort_unstable();
    let mut reached = 0;
    steps.into_iter().any(|(stride, extent)| {
        let overlaps = stride <= reached;
        reached += stride * (extent - 1);
        overlaps
    })
}

/// From the first byte of a value to the end of its last one, within its storage.
fn span(value: &Value) -> Range<u64> {
    if value.tensor.elements() == 0 {
        return 0..0;
    }
    let strides = value.tensor.strides_or_contiguous();
    let last: u64 =
        value.tensor.shape.iter().zip(strides).map(|(&extent, stride)| (extent - 1) * stride).sum();
    let size = value.tensor.dtype.size();
    value.tensor.offset * size..(value.tensor.offset + last + 1) * size
}

fn share_bytes(a: &Value, b: &Value) -> bool {
    let (x, y) = (span(a), span(b));
    a.storage == b.storage && x.start < y.end && y.start < x.end
}

/// `as_strided` can reach any byte of a storage; all other views show elements of their input. What
/// it shows must lie within what the storage's producer writes, without gaps or in the same layout.
fn shows_what_was_written(graph: &Graph, id: NodeId) -> Result<(), String> {
    let values = graph.values();
    for &view in graph.nodes()[id].outputs.iter().flatten() {
        let (view, shown) = (&values[view], span(&values[view]));
        let producer = graph.producer(view.storage).map(|node| &graph.nodes()[node]);
        let mut written = producer.into_iter().flat_map(|node| node.outputs.iter().flatten());
        let covers = |value: &ValueId| {
            let value = &values[*value];
            let place = span(value);
            let gapless = place.end - place.start == value.tensor.bytes().0;
            let inside = place.start <= shown.start && shown.end <= place.end;
            value.storage == view.storage
                && (gapless && inside || value.tensor.same_layout(&view.tensor))
        };
        if !shown.is_empty() && !written.any(covers) {
            return Err(format!(
                "it shows bytes {} to {} of its storage, not all of which anything writes",
                shown.start, shown.end
            ));
        }
    }
    Ok(())
}

/// Whether the operator may write `output` where `input` lies: it reads each element, if at all,
/// before it writes that one.
fn in_place(node: &Node, index: usize, output: &Value, input: ValueId, graph: &Graph) -> bool {
    let Some(operator) = node.operator else { return false };
    let may = |argument: usize| match operator {
        // Its first argument is written and never read.
        Operator::CopyInto | Operator::Post | Operator::Send | Operator::Receive => argument == 0,
        // Its second argument is the gradient, which no output overwrites.
        update if update.is_update() => argument == index + usize::from(index > 0),
        elementwise => index == 0 && elementwise.row().in_place.contains(&argument),
    };
    let named = |argument: &Argument| argument.values().contains(&input);
    graph.values()[input].tensor.same_layout(&output.tensor)
        && !node.kwargs.iter().any(|(_, argument)| named(argument))
        && (node.args.iter().enumerate()).all(|(place, argument)| !named(argument) || may(place))
}

#[cfg(test)]
mod tests {
    use tightfit::graph::{GraphBuilder, NodeSpec, Phase, ValueSpec};
    use tightfit::units::Bytes;

    use super::*;

    #[test]
    fn placeholders_with_strides_or_an_offset_are_refused() {
        for (strides, offset) in [(vec![1, 4], 0), (vec![0, 0], 0), (vec![4, 1], 8)] {
            let mut builder = GraphBuilder::new("strided");
            let storage = builder.storage(Bytes(128));
            let spec = ValueSpec {
                contiguous: strides == [4, 1],
                strides: Some(strides),
                offset,
                ..ValueSpec::contiguous(&[4, 4], DType::F32, storage)
            };
            builder.node(NodeSpec::new("x", "placeholder", Phase::Input), &[Some(spec)]);
            let refused = placeholders_are_whole(&builder.build().unwrap());
            let named = |node: &str| node == "x";
            assert!(
                matches!(refused, Err(CompileError::NotExecutable { node, .. }) if named(&node))
            );
        }
    }
}
