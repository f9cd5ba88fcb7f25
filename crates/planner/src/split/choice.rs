//! Which part of a step is divided as the loss. Invariant: it begins with a product that no other
//! product of the forward pass follows from, as one that makes logits; the largest one whose part
//! can be divided.

use std::cmp::Reverse;

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Phase};
use crate::id::{NodeId, ValueId};
use crate::split::growth::Growth;
use crate::split::region::{Form, LEAST, Obstacle, Region, Step, Whole, is_product};
use crate::split::{BLOCK, SplitError, Sums};

/// What adds rows of a gradient up into a table, by their indices.
const SCATTERS: [&str; 3] = [
    "aten.embedding_dense_backward.default",
    "aten.index_put.default",
    "aten._unsafe_index_put.default",
];

/// What `write` makes of the part around the largest product that makes logits and can be divided:
/// what reads it, and what takes its gradient.
///
/// # Errors
/// That of the largest one, if none can be divided.
pub fn first<T>(
    graph: &Graph,
    sums: Sums,
    write: impl Fn(Region) -> Result<T, SplitError>,
) -> Result<T, SplitError> {
    let step = Step::of(graph);
    let tensor = |value: ValueId| &graph.values()[value].tensor;
    let Products { of_logits: mut products, .. } = Products::of(&step);
    products.sort_by_key(|&(id, value)| Reverse((tensor(value).elements(), id)));
    let mut refused = None;
    for product in products {
        let rows = tensor(product.1).shape[0];
        if rows <= BLOCK {
            refused = refused.or(Some(SplitError::Few { rows, block: BLOCK, least: LEAST }));
            continue;
        }
        for form in step.forms(product.1) {
            match part(&step, product, form, sums).and_then(&write) {
                Ok(made) => return Ok(made),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
    }
    Err(refused.unwrap_or(SplitError::NoProduct))
}

/// The products of a forward pass, with what they make.
pub struct Products {
    /// Those of two matrices that no other product of the forward pass follows from.
    pub of_logits: Vec<(NodeId, ValueId)>,
    /// The others, which layers have.
    pub of_layers: Vec<(NodeId, ValueId)>,
}

impl Products {
    pub fn of(step: &Step<'_>) -> Products {
        let nodes = step.graph.nodes();
        let mut is_followed: SecondaryMap<NodeId, bool> = SecondaryMap::new();
        for id in nodes.keys().rev() {
            let made = nodes[id].outputs.iter().flatten();
            let mut readers = made.flat_map(|&value| &step.readers[value]);
            is_followed[id] = readers.any(|&reader| {
                let node = &nodes[reader];
                node.phase.is_forward() && (is_product(node) || is_followed[reader])
            });
        }
        let all = nodes.iter().filter(|(_, node)| is_product(node) && node.phase == Phase::Forward);
        let made =
            all.filter_map(|(id, node)| Some((id, node.outputs.first().copied().flatten()?)));
        let made = made.filter(|&(_, value)| step.graph.values()[value].tensor.elements() > 0);
        let (of_layers, others): (Vec<_>, Vec<_>) = made.partition(|&(id, _)| is_followed[id]);
        let is_matrix =
            |&(_, value): &(NodeId, ValueId)| step.graph.values()[value].tensor.shape.len() == 2;
        Products { of_logits: others.into_iter().filter(is_matrix).collect(), of_layers }
    }
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
