//! Which part of a step is divided. Invariant: it is the largest one by its first product, and by
//! its rows if that can be; in other forms only the last product's part is divided.

use std::cmp::Reverse;

use crate::graph::{Graph, Node, Phase};
use crate::id::{NodeId, ValueId};
use crate::operator::Operator;
use crate::split::growth::Growth;
use crate::split::region::{Form, LEAST, Obstacle, Region, Step, Whole};
use crate::split::{BLOCK, SplitError, Sums};

/// What adds rows of a gradient up into a table, by their indices.
const SCATTERS: [&str; 3] = [
    "aten.embedding_dense_backward.default",
    "aten.index_put.default",
    "aten._unsafe_index_put.default",
];

/// What `write` makes of the part around the largest product of the forward pass that can be
/// divided: what reads it, and what takes its gradient. If nothing can be, the error is that of
/// the last product, which makes the logits.
pub fn first<T>(
    graph: &Graph,
    sums: Sums,
    write: impl Fn(&Region) -> Result<T, SplitError>,
) -> Result<T, SplitError> {
    let step = Step::of(graph);
    let mut products: Vec<(NodeId, ValueId)> = graph.nodes().iter().filter_map(product).collect();
    let shape = |value: ValueId| &graph.values()[value].tensor.shape;
    let Some(most) = products.iter().map(|&(_, value)| shape(value)[0]).max() else {
        return Err(SplitError::NoProduct);
    };
    products.retain(|&(_, value)| shape(value)[0] > BLOCK);
    if products.is_empty() {
        return Err(SplitError::Few { rows: most, least: LEAST });
    }
    let last = products.iter().map(|&(id, _)| id).max();
    products.sort_by_key(|&(id, value)| Reverse((graph.values()[value].tensor.elements(), id)));
    let mut refused = None;
    for (id, value) in products {
        let is_last = last == Some(id);
        let mut first = None;
        for form in step.forms(value).into_iter().take(if is_last { usize::MAX } else { 1 }) {
            match part(&step, (id, value), form, sums).and_then(|region| write(&region)) {
                Ok(made) => return Ok(made),
                Err(error) => first = first.or(Some(error)),
            }
        }
        if refused.is_none() || is_last {
            refused = first;
        }
    }
    Err(refused.expect("there is a product"))
}

/// The part of a step around a product, in this form.
pub fn part(
    step: &Step<'_>,
    product: (NodeId, ValueId),
    form: Form,
    sums: Sums,
) -> Result<Region, SplitError> {
    let unsuited = |Obstacle(id, why)| {
        let node = step.graph.nodes()[id].name.clone();
        SplitError::Unsuited { node, why }
    };
    Growth::of(step, product, form).grown(sums).map_err(unsuited)
}

/// The gradient of the largest table that is looked up in, by columns: what adds it up, and
/// what becomes of that, up to the last tensor of its size. `None` if nothing becomes of it.
pub fn of_table(graph: &Graph) -> Option<Region> {
    let step = Step::of(graph);
    let scatters = graph.nodes().iter().filter(|(_, node)| SCATTERS.contains(&&*node.op));
    let tables = scatters.filter_map(|(id, node)| Some((id, node.outputs.first().copied()??)));
    let elements = |value: ValueId| graph.values()[value].tensor.elements();
    let (id, value) = tables.max_by_key(|&(id, value)| (elements(value), Reverse(id)))?;
    let &[_, columns] = &graph.values()[value].tensor.shape[..] else { return None };
    Growth::of(&step, (id, value), Form { rows: columns, border: None, whole: Whole::Step })
        .along_columns()
}

/// A product of two matrices of the forward pass, and its output.
pub fn product((id, node): (NodeId, &Node)) -> Option<(NodeId, ValueId)> {
    let is_one = matches!(node.operator, Some(Operator::Mm | Operator::Addmm))
        && node.phase == Phase::Forward;
    Some((id, node.outputs.first().copied().flatten()?)).filter(|_| is_one)
}
