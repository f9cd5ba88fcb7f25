//! A part of the step in chunks of rows: logits, their logarithms and their gradient exist for some
//! rows at a time. Invariant: the step computes what it did. Rows are computed as before; what is
//! summed over rows, the gradient of the weight that makes the logits, is summed at once, or is a
//! running total that each chunk continues; the loss is reduced at once, over what was picked of
//! each row. The gradient of a table that is looked up in is computed by columns.
//!
//! What layers make and do not keep, such as the hidden units of an MLP and the scores of
//! attention, may be in chunks as well.
//!
//! In an engine whose products sum blocks of [`BLOCK`] rows, borders between chunks are borders of
//! blocks, so that nothing changes a bit. Elsewhere chunks may be finer, and are tried first. Where
//! a call needs other rows of its sequence, chunks have whole sequences; then totals change bits.

mod along;
mod choice;
mod cut;
mod emit;
mod error;
mod growth;
mod layers;
mod loss;
mod order;
mod parts;
mod region;
mod span;
mod writer;

pub use error::{NotParts, SplitError};
pub use parts::{Parts, Sums};

use std::collections::HashSet;

use crate::graph::{Graph, Node};
use crate::operator::Operator;
use crate::split::cut::Cut;
use crate::split::emit::written;
use crate::split::region::Whole;

/// Borders between chunks are multiples of this many rows, of which there are more; the engine's
/// products sum as many at once.
pub const BLOCK: u64 = 256;
/// Borders between chunks are multiples of this many rows where products sum otherwise: of
/// tensors with any number of columns, chunks are whole vectors.
pub const FINE: u64 = 64;
/// The step with the largest part that can be divided computed in as many chunks of rows, or fewer
/// if there are not that many blocks of rows, and the gradient of its largest table in as many of
/// columns; and what layers do not keep in as many as are asked for. A chunk's calls have the names
/// of the calls that they stand for, with the number of the chunk.
///
/// # Errors
/// [`SplitError`] if no part can be divided by rows, or no layer, if layers are asked for.
pub fn split(graph: &Graph, parts: Parts) -> Result<Graph, SplitError> {
    split_at(graph, parts, BLOCK)
}

/// The same with borders at multiples of `block` rows.
///
/// # Errors
/// As those of [`split`].
pub fn split_at(graph: &Graph, parts: Parts, block: u64) -> Result<Graph, SplitError> {
    let mut graph = graph.clone();
    if parts.chunks > 1 {
        graph = by_rows(&graph, parts, block)?;
        graph = by_columns(&graph, parts.chunks).unwrap_or(graph);
    }
    if parts.layers > 1 {
        graph = layers::divided(&graph, parts.layers, block)?;
    }
    Ok(graph)
}

/// The step with the largest part that can be divided by rows.
fn by_rows(graph: &Graph, parts: Parts, block: u64) -> Result<Graph, SplitError> {
    let graph = loss::picked(graph)?;
    choice::first(&graph, parts.sums, |region| {
        let cut = Cut::by_rows(&graph, region, parts.chunks, block)?;
        Ok(written(&graph, &[&cut])?)
    })
}

/// The step with the gradient of its largest table by columns, if that can be divided.
fn by_columns(graph: &Graph, chunks: u64) -> Option<Graph> {
    let cut = Cut::by_columns(graph, choice::of_table(graph)?, chunks)?;
    written(graph, &[&cut]).ok()
}

/// Whether an engine whose products sum blocks of rows computes the same bits in these parts: other
/// sums over rows, as of the gradient of a bias, may not be totals.
pub fn keeps_bits(graph: &Graph, parts: Parts) -> bool {
    let sums_products = |graph: Graph| {
        choice::first(&graph, parts.sums, |region| {
            let sums_products = region.sums_products(&graph);
            written(&graph, &[&Cut::by_rows(&graph, region, parts.chunks, BLOCK)?])?;
            Ok(sums_products)
        })
    };
    parts.sums == Sums::AtOnce || loss::picked(graph).and_then(sums_products).unwrap_or(false)
}

/// In which parts a step is that [`split`] made: there may not be as many blocks of rows as were
/// asked for.
pub fn parts_of(divided: &Graph) -> Parts {
    let of_forward_pass = divided.nodes().values().filter(|node| node.phase.is_forward());
    let names: HashSet<&str> = of_forward_pass.map(|node| &*node.name).collect();
    let count = |whole: Whole| {
        let first = format!("{}0", whole.suffix());
        let all = names.iter().filter_map(|name| name.strip_suffix(&*first));
        let is_there =
            |name: &str, number: u64| names.contains(&*format!("{name}{}{number}", whole.suffix()));
        let counts = all.map(|name| (1..).take_while(|&number| is_there(name, number)).count() + 1);
        counts.max().unwrap_or(1) as u64
    };
    Parts::of_loss(count(Whole::Step)).and_layers(count(Whole::Layer))
}

/// The name of the call, a product if there is one, of which a step that [`split`] made has some
/// rows at a time, if any.
pub fn divided_at(divided: &Graph) -> Option<&str> {
    let is_product = |node: &Node| matches!(node.operator, Some(Operator::Mm | Operator::Addmm));
    let made = |node: &Node| node.phase.is_forward() && node.op != "aten.slice.Tensor";
    let calls = divided.nodes().values().filter(|node| made(node));
    let mut first = calls.filter_map(|node| Some((node, node.name.strip_suffix(".chunk0")?)));
    let product = first.clone().find(|(node, _)| is_product(node));
    product.or_else(|| first.next()).map(|(_, name)| name)
}
