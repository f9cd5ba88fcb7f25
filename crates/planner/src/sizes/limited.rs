//! Positions that are counted along what grows, as a router counts the words of each expert.
//! Invariant: where a number limits such positions, as the room of an expert does, the step is
//! refused: the number may follow from how many there are. So it is where a number in the second
//! half is compared with positions that only number elements, since it may count from the end.

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Node};
use crate::id::ValueId;
use crate::sizes::SizeError;
use crate::sizes::elements::packet;
use crate::sizes::follow::Followed;
use crate::tensor::{Argument, DType};

/// Operators that compare with a number, or put it in place of what is larger.
const COMPARES: [&str; 13] = [
    "clamp",
    "clamp_max",
    "clamp_min",
    "eq",
    "fmod",
    "ge",
    "gt",
    "le",
    "lt",
    "masked_fill",
    "minimum",
    "remainder",
    "where",
];

/// Operators of which positions are still positions.
const KEEPS: [&str; 16] = [
    "_to_copy",
    "abs",
    "add",
    "alias",
    "clone",
    "expand",
    "index",
    "mul",
    "neg",
    "permute",
    "rsub",
    "slice",
    "sub",
    "transpose",
    "unsqueeze",
    "view",
];

/// Refuses numbers that limit such positions.
pub fn check(graph: &Graph, followed: &Followed) -> Result<(), SizeError> {
    // The numbers that may follow from how many positions there are, of values that hold some.
    let mut open: SecondaryMap<ValueId, Option<(f64, f64)>> = SecondaryMap::new();
    // Numbers, as tensors.
    let mut numbers: SecondaryMap<ValueId, Option<f64>> = SecondaryMap::new();
    for node in graph.nodes().values().filter(|node| !node.phase.is_placeholder()) {
        let of_inputs = node.inputs.iter().filter_map(|&value| open[value]);
        let both = |a: (f64, f64), b: (f64, f64)| (a.0.min(b.0), a.1.max(b.1));
        let found = counted(graph, node, followed).or_else(|| of_inputs.reduce(both));
        let packet = packet(node);
        for &value in node.outputs.iter().flatten() {
            let tensor = &graph.values()[value].tensor;
            let is_whole = matches!(tensor.dtype, DType::I64 | DType::I32);
            let is_kept = is_whole || KEEPS.contains(&packet) || node.inputs.is_empty();
            open[value] = found.filter(|_| is_kept);
            let first = node.args.iter().find_map(Argument::number);
            numbers[value] = first.filter(|_| tensor.shape.is_empty() && node.inputs.is_empty());
        }
        let Some((least, most)) = found.filter(|_| COMPARES.contains(&packet)) else { continue };
        let given = node.args.iter().filter_map(|argument| match argument {
            Argument::Value(value) => numbers[*value],
            other => other.number(),
        });
        let is_open = |number: &f64| number.abs() > 1.0 && (least..=most).contains(&number.abs());
        if let Some(number) = given.into_iter().find(is_open) {
            let (node, dimension) = (node.name.clone(), followed.dimension.name());
            return Err(SizeError::Limited { node, number, dimension });
        }
    }
    Ok(())
}

/// For a call that counts along a dimension that grows, the numbers that may follow from how many
/// there are: any, if it counts what is there; from half of them to all, if it numbers all.
fn counted(graph: &Graph, node: &Node, followed: &Followed) -> Option<(f64, f64)> {
    let output = node.outputs.first().copied().flatten()?;
    let shape = &graph.values()[output].tensor.shape;
    match (packet(node), &node.args[..]) {
        ("cumsum", [_, Argument::Int(dim), ..]) => {
            let dim = if *dim < 0 { dim + shape.len() as i64 } else { *dim };
            let grown = followed.extents[output].get(usize::try_from(dim).ok()?)?;
            grown.map(|_| (0.0, f64::INFINITY))
        }
        ("arange", _) => {
            let all = *shape.first()? as f64;
            followed.extents[output].first()?.map(|_| (all / 2.0, all))
        }
        _ => None,
    }
}
