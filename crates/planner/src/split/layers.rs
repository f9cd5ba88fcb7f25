//! What layers make and do not keep, such as the hidden units of an MLP, in chunks of rows: a wide
//! product of the forward pass, what follows from it, and what the backward pass makes of that.
//! Invariant: each layer is divided by itself, or stays as it is. Sums over the rows are made at
//! once, so chunks change no bit.

use std::cmp::Reverse;

use crate::graph::Graph;
use crate::id::{NodeId, ValueId};
use crate::split::choice::{self, Products};
use crate::split::region::Step;
use crate::split::{SplitError, Sums, written};

/// The step with its layers in as many chunks: those with a product that makes at least half as
/// many elements as the widest one that can be divided.
///
/// # Errors
/// That of the widest product, if no layer can be divided.
pub fn divided(graph: &Graph, chunks: u64, block: u64) -> Result<Graph, SplitError> {
    let (mut made, mut widest, mut refused) = (None, 0, None);
    for (elements, name) in products(graph) {
        if elements < widest / 2 {
            break;
        }
        match layer(made.as_ref().unwrap_or(graph), &name, chunks, block) {
            Ok(divided) => (made, widest) = (Some(divided), widest.max(elements)),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    made.ok_or_else(|| refused.unwrap_or(SplitError::NoLayer))
}

/// How much each product of a layer makes, and its name; the widest first.
fn products(graph: &Graph) -> Vec<(u64, String)> {
    let Products { of_layers: mut products, .. } = Products::of(&Step::of(graph));
    let elements = |value: ValueId| graph.values()[value].tensor.elements();
    products.sort_by_key(|&(id, value)| (Reverse(elements(value)), id));
    let named = |(id, value): (NodeId, _)| (elements(value), graph.nodes()[id].name.clone());
    products.into_iter().map(named).collect()
}

/// The step with what follows from one product in chunks.
fn layer(graph: &Graph, name: &str, chunks: u64, block: u64) -> Result<Graph, SplitError> {
    let step = Step::of(graph);
    // It may be in chunks by now, with another product of its layer.
    let product = graph.node_named(name).and_then(|id| choice::product((id, &graph.nodes()[id])));
    let (id, value) = product.ok_or(SplitError::NoLayer)?;
    let divided = |form| {
        choice::part(&step, (id, value), form, Sums::AtOnce)
            .and_then(|region| written(graph, &region, chunks, block))
    };
    let (by_rows, by_sequences) = step.forms_of_layer(value);
    divided(by_rows).or_else(|error| by_sequences.and_then(|form| divided(form).ok()).ok_or(error))
}
