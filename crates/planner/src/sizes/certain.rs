//! What might grow with the size of a step although no call says so. Invariant: where a number of
//! the step may be the size, or follow from it, and nothing shows that it does not, the step is
//! refused.

use std::collections::HashSet;

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Node};
use crate::id::{NodeId, ValueId};
use crate::operator::{Linear, axes_of};
use crate::sizes::SizeError;
use crate::sizes::elements::packet;
use crate::sizes::follow::Followed;
use crate::sizes::groups::{Group, Groups};
use crate::tensor::Argument;

/// For each dimension of each value, whether it is known not to grow.
type Constant = SecondaryMap<ValueId, Vec<bool>>;

/// A slice may leave out or take this many elements, whatever the size is.
const TRUSTED: u64 = 2;

/// Refuses numbers that might follow from the size: those of `numbers`, the extents that grow.
pub fn check(
    graph: &Graph,
    groups: &Groups,
    followed: &Followed,
    numbers: &HashSet<u64>,
) -> Result<(), SizeError> {
    let constant = constant(graph, groups, followed);
    for (id, node) in graph.nodes().iter().filter(|(_, node)| !node.phase.is_placeholder()) {
        for &value in node.outputs.iter().flatten() {
            for (dim, &extent) in graph.values()[value].tensor.shape.iter().enumerate() {
                let is_open = followed.extents[value][dim].is_none() && !constant[value][dim];
                if is_open && numbers.contains(&extent) && is_made(node, &groups[id], value, dim) {
                    let (node, dimension) = (node.name.clone(), followed.dimension.name());
                    return Err(SizeError::Made { node, extent, dimension, dim });
                }
            }
        }
        if let Some(dim) = looked_up(graph, node, followed) {
            let (node, dimension) = (node.name.clone(), followed.dimension.name());
            return Err(SizeError::LookUp { node, dimension, dim });
        }
        if let Some(position) = doubtful(graph, node, followed) {
            let (node, dimension) = (node.name.clone(), followed.dimension.name());
            return Err(SizeError::Ends { node, position, dimension });
        }
    }
    Ok(())
}

/// Whether a call alone says what extent a dimension of its output has.
fn is_made(node: &Node, groups: &[Group], value: ValueId, dim: usize) -> bool {
    let along =
        |group: &&Group| group.made.iter().any(|(made, along)| *made == value && along.dim == dim);
    let mut along = groups.iter().filter(along).peekable();
    match along.peek() {
        None => node.inputs.is_empty() || axes_of(&node.op).is_none(),
        Some(_) => along.any(|group| group.read.is_empty() && !group.axis.literals.is_empty()),
    }
}

/// A dimension that grows in which a call looks up at positions of which there are not more then,
/// as an interpolation does whose positions were computed for one size.
fn looked_up(graph: &Graph, node: &Node, followed: &Followed) -> Option<usize> {
    let [Argument::Value(x), given @ ..] = &node.args[..] else { return None };
    let rank = graph.values()[*x].tensor.shape.len() as i64;
    let pairs: Vec<(usize, ValueId)> = match (packet(node), given) {
        ("index", [Argument::List(indices), ..]) => {
            let all = indices.iter().enumerate();
            all.filter_map(|(dim, index)| Some((dim, *index.values().first()?))).collect()
        }
        ("index_select" | "gather", [Argument::Int(dim), Argument::Value(index), ..]) => {
            let dim = if *dim < 0 { dim + rank } else { *dim };
            vec![(usize::try_from(dim).ok()?, *index)]
        }
        _ => return None,
    };
    let grows = |dim: usize| matches!(followed.extents[*x].get(dim), Some(Some(_)));
    let mut open = pairs.into_iter().filter(|&(dim, index)| grows(dim) && !followed.grows(index));
    open.next().map(|(dim, _)| dim)
}

/// The number of elements that a slice of what grows takes, or leaves out at its start, where that
/// may follow from the size, as in a half of it.
fn doubtful(graph: &Graph, node: &Node, followed: &Followed) -> Option<u64> {
    let ("aten.slice.Tensor", [Argument::Value(x), Argument::Int(dim), ends @ ..]) =
        (&node.op[..], &node.args[..])
    else {
        return None;
    };
    let shape = &graph.values()[*x].tensor.shape;
    let dim = usize::try_from(if *dim < 0 { dim + shape.len() as i64 } else { *dim }).ok()?;
    let extent = shape[dim];
    let output = node.outputs.first().copied().flatten()?;
    followed.extents[*x][dim]?;
    let position = |index: usize| match ends.get(index) {
        Some(Argument::Int(position)) => u64::try_from(*position).ok(),
        _ => None,
    };
    let is_constant = followed.extents[output][dim].is_none();
    let end = position(1).filter(|&end| is_constant && end < extent);
    let given = position(0).into_iter().chain(end);
    let mut far = given.filter(|&number| number > TRUSTED || 2 * number >= extent && number > 0);
    far.next()
}

/// Operators of images. The extents of channels, rows and columns follow from the weights and from
/// numbers.
const OF_IMAGES: [&str; 9] = [
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward",
    "avg_pool2d",
    "avg_pool2d_backward",
    "convolution",
    "convolution_backward",
    "max_pool2d_with_indices",
    "upsample_bilinear2d",
    "upsample_nearest2d",
];

/// Spreads from placeholders that do not grow along the axes of all calls.
fn constant(graph: &Graph, groups: &Groups, followed: &Followed) -> Constant {
    let mut constant = Constant::new();
    for (value, described) in graph.values() {
        constant[value] = vec![false; described.tensor.shape.len()];
    }
    for node in graph.nodes().values() {
        let is_known = node.phase.is_placeholder() || OF_IMAGES.contains(&packet(node));
        for &value in node.outputs.iter().flatten().filter(|_| is_known) {
            let stays = followed.extents[value].iter().map(Option::is_none);
            constant[value] = stays.collect();
        }
    }
    let forwards: Vec<NodeId> = graph.nodes().keys().collect();
    loop {
        let mut is_new = false;
        for &id in forwards.iter().chain(forwards.iter().rev()) {
            is_new |= spread(graph, followed, &groups[id], &mut constant);
        }
        if !is_new {
            return constant;
        }
    }
}

/// Lets what is constant spread along the axes of a call; whether something new is.
fn spread(graph: &Graph, followed: &Followed, groups: &[Group], constant: &mut Constant) -> bool {
    // What is repeated in a dimension that grows, or has as many elements for each step, is
    // constant.
    let is_apart = |grown: Linear, along: Linear, steps: u64| {
        grown.outer.is_multiple_of(along.outer * steps)
            || along.more == 0 && grown.block.is_multiple_of(along.block * steps)
    };
    let is_constant = |group: &&Group| {
        group.members().any(|(value, along)| match followed.extents[value][along.dim] {
            Some(grown) => is_apart(grown, along.extent, group.axis.extent),
            None => constant[value][along.dim],
        })
    };
    let found: Vec<&Group> = groups.iter().filter(is_constant).collect();
    let mut is_new = false;
    for (value, along) in found.iter().flat_map(|group| group.members()) {
        // A dimension of several axes is constant if all of them are.
        let axes = found.iter().filter(|group| group.place(value, along.dim).is_some());
        let steps = axes.map(|group| group.axis.extent).fold(1, u64::saturating_mul);
        let is_whole = along.extent.outer == 1 && along.extent.block == 1;
        let is_all = is_whole || steps == graph.values()[value].tensor.shape[along.dim];
        let stays = followed.extents[value][along.dim].is_none();
        is_new |= stays && is_all && !std::mem::replace(&mut constant[value][along.dim], true);
    }
    is_new
}
