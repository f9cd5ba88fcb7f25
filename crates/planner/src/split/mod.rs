//! A part of the step in chunks of rows: logits, their logarithms and their gradient exist for some
//! rows at a time. Invariant: the step computes what it did. Rows are computed as before; what is
//! summed over rows, the gradient of the weight that makes the logits, is summed at once, or is a
//! running total that each chunk continues; the loss is reduced at once, over what was picked of
//! each row. The gradient of a table that is looked up in is computed by columns.
//!
//! In an engine whose products sum blocks of [`BLOCK`] rows, borders between chunks are borders of
//! blocks, so that nothing changes a bit. Elsewhere chunks may be finer, and are tried first. Where
//! a call needs other rows of its sequence, chunks have whole sequences; then totals change bits.

mod along;
mod choice;
mod emit;
mod error;
mod growth;
mod loss;
mod region;
mod span;
mod writer;

pub use error::{NotParts, SplitError};

use std::fmt;
use std::str::FromStr;

use crate::graph::{Graph, Node};
use crate::operator::Operator;
use crate::split::emit::Emitter;
use crate::split::region::Region;

/// Borders between chunks are multiples of this many rows, of which there are more; the engine's
/// products sum as many at once.
pub const BLOCK: u64 = 256;
/// Borders between chunks are multiples of this many rows where products sum otherwise: of
/// tensors with any number of columns, chunks are whole vectors.
pub const FINE: u64 = 64;
/// The most chunks that can be asked for.
const MOST: u64 = 1 << 10;
/// What says on the command line that sums are totals.
const TOTALS: &str = "totals";
/// Borders between columns are multiples of this many.
const COLUMNS: u64 = 64;
/// A chunk has this many rows or more: with fewer, products are other ones.
const LEAST: u64 = 16;

/// How sums over the rows are made, such as the products that make gradients of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// At once, after the chunks: what they read exists for all rows.
    AtOnce,
    /// As a total to which each chunk adds its term.
    Totals,
}

/// How a step is divided. Displays as it is written on the command line: `8`, `8:totals`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The number of chunks; one: all at once.
    pub chunks: u64,
    /// How sums over the rows are made.
    pub sums: Sums,
}

impl Parts {
    /// The step as it is.
    pub const WHOLE: Parts = Parts { chunks: 1, sums: Sums::AtOnce };
}

impl fmt::Display for Parts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.chunks, self.sums) {
            (1, _) => write!(formatter, "off"),
            (chunks, Sums::AtOnce) => write!(formatter, "{chunks}"),
            (chunks, Sums::Totals) => write!(formatter, "{chunks}:{TOTALS}"),
        }
    }
}

impl FromStr for Parts {
    type Err = NotParts;

    fn from_str(text: &str) -> Result<Parts, NotParts> {
        let (chunks, sums) = match text.split_once(':') {
            Some((chunks, TOTALS)) => (chunks, Sums::Totals),
            Some(_) => return Err(NotParts),
            None if text == "off" => return Ok(Parts::WHOLE),
            None => (text, Sums::AtOnce),
        };
        let chunks = chunks.parse().ok().filter(|chunks| (2..=MOST).contains(chunks));
        Ok(Parts { chunks: chunks.ok_or(NotParts)?, sums })
    }
}

/// The step with the largest part that can be divided computed in as many chunks of rows, or fewer
/// if there are not that many blocks of rows, and the gradient of its largest table in as many of
/// columns. A chunk's calls have the names of the calls that they stand for, with the number of the
/// chunk.
///
/// # Errors
/// [`SplitError`] if no part can be divided by rows.
pub fn split(graph: &Graph, parts: Parts) -> Result<Graph, SplitError> {
    split_at(graph, parts, BLOCK)
}

/// The same with borders at multiples of `block` rows.
///
/// # Errors
/// As those of [`split`].
pub fn split_at(graph: &Graph, parts: Parts, block: u64) -> Result<Graph, SplitError> {
    if parts.chunks <= 1 {
        return Ok(graph.clone());
    }
    let graph = by_rows(graph, parts, block)?;
    Ok(by_columns(&graph, parts.chunks).unwrap_or(graph))
}

/// The step with the largest part that can be divided by rows.
fn by_rows(graph: &Graph, parts: Parts, block: u64) -> Result<Graph, SplitError> {
    let graph = loss::picked(graph)?;
    choice::first(&graph, parts.sums, |region| written(&graph, region, parts.chunks, block))
}

/// The step with a part in chunks.
fn written(graph: &Graph, region: &Region, chunks: u64, block: u64) -> Result<Graph, SplitError> {
    let borders = borders(region.rows, chunks, block, region.each);
    if borders.len() <= 2 {
        return Err(SplitError::Few { rows: region.rows * region.each });
    }
    let emitter = Emitter::new(graph, region);
    if !emitter.saves() {
        let node = graph.nodes()[region.product].name.clone();
        return Err(SplitError::Unsuited { node, why: "makes rows that others need all of" });
    }
    emitter.split(&borders)
}

/// The step with the gradient of its largest table by columns, if that can be divided.
fn by_columns(graph: &Graph, chunks: u64) -> Option<Graph> {
    let region = choice::of_table(graph)?;
    let each = region.rows.div_ceil(chunks).next_multiple_of(COLUMNS);
    let mut borders: Vec<u64> = (0..region.rows.div_ceil(each)).map(|chunk| chunk * each).collect();
    borders.push(region.rows);
    if borders.len() <= 2 {
        return None;
    }
    Emitter::new(graph, &region).split(&borders).ok()
}

/// Whether an engine whose products sum blocks of rows computes the same bits in these parts: other
/// sums over rows, as of the gradient of a bias, may not be totals.
pub fn keeps_bits(graph: &Graph, parts: Parts) -> bool {
    let sums_products = |graph: Graph| {
        choice::first(&graph, parts.sums, |region| {
            written(&graph, region, parts.chunks, BLOCK)?;
            Ok(region.sums_products(&graph))
        })
    };
    parts.sums == Sums::AtOnce || loss::picked(graph).and_then(sums_products).unwrap_or(false)
}

/// The number of chunks of rows in a step that [`split`] made: there may not be as many blocks as
/// were asked for.
pub fn chunks_of(divided: &Graph) -> u64 {
    let of_forward_pass = divided.nodes().values().filter(|node| node.phase.is_forward());
    let number = |name: &str| name.rsplit_once(".chunk")?.1.parse::<u64>().ok();
    of_forward_pass.filter_map(|node| number(&node.name)).max().map_or(1, |last| last + 1)
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

/// Where chunks begin, and where the last one ends. If a row is several rows of the product, as a
/// sequence is, chunks may begin with any.
fn borders(rows: u64, chunks: u64, block: u64, rows_each: u64) -> Vec<u64> {
    let block = if rows_each > 1 { 1 } else { block };
    let least = LEAST.div_ceil(rows_each);
    let mut each = rows.div_ceil(chunks.max(1)).max(1).next_multiple_of(block);
    if chunks > 1 && each > block && rows < each + least {
        each -= block;
    }
    let mut borders: Vec<u64> = (0..rows.div_ceil(each)).map(|chunk| chunk * each).collect();
    if borders.len() > 1 && borders.last().is_some_and(|last| rows - last < least) {
        borders.pop();
    }
    borders.push(rows);
    borders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_written_as_they_are_read() {
        for text in ["off", "2", "8:totals", "1024"] {
            assert_eq!(text.parse::<Parts>().unwrap().to_string(), text);
        }
        for text in ["", "1", "0", "-2", "8:", "8:sums", "off:totals", "1025"] {
            assert_eq!(text.parse::<Parts>(), Err(NotParts), "{text}");
        }
    }

    #[test]
    fn chunks_end_at_blocks_and_none_is_small() {
        assert_eq!(super::borders(200, 3, FINE, 1), [0, 128, 200]);
        assert_eq!(super::borders(257, 2, FINE, 1), [0, 192, 257]);
        assert_eq!(super::borders(9, 4, BLOCK, 128), [0, 3, 6, 9]);
        assert_eq!(super::borders(9, 16, FINE, 100), (0..=9).collect::<Vec<_>>());
        assert_eq!(super::borders(9, 16, FINE, 10), [0, 1, 2, 3, 4, 5, 6, 7, 9]);
        let borders = |rows, chunks| super::borders(rows, chunks, BLOCK, 1);
        assert_eq!(borders(2048, 4), [0, 512, 1024, 1536, 2048]);
        assert_eq!(borders(2048, 100), (0..=8).map(|block| block * 256).collect::<Vec<_>>());
        assert_eq!(borders(1000, 2), [0, 512, 1000]);
        assert_eq!(borders(520, 8), [0, 256, 520]);
        assert_eq!(borders(520, 2), [0, 256, 520]);
        assert_eq!(borders(1024, 2), [0, 512, 1024]);
        assert_eq!(borders(200, 8), [0, 200]);
        assert_eq!(borders(2048, 1), [0, 2048]);
        assert_eq!(borders(0, 4), [0]);
    }
}
