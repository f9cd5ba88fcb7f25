//! The loss in chunks of rows: logits, their logarithms and their gradient exist for some rows at a
//! time. Invariant: the step computes what it did. Rows are computed as before; what is summed over
//! rows, the gradient of the weight that makes the logits, is a running total that each chunk
//! continues; the loss is reduced at once, over what was picked of each row.
//!
//! In an engine whose products sum blocks of [`BLOCK`] rows, borders between chunks are borders of
//! blocks, so that nothing changes a bit.

mod emit;
mod error;
mod head;
mod writer;

pub use error::SplitError;

use crate::graph::Graph;
use crate::split::emit::Emitter;
use crate::split::head::Head;

/// Borders between chunks are multiples of this many rows; the engine's products sum as many at
/// once.
pub const BLOCK: u64 = 256;
/// A chunk has this many rows or more: with fewer, products are other ones.
const LEAST: u64 = 16;

/// The step with its largest loss computed in as many chunks of rows, or fewer if there are not
/// that many blocks of rows. A chunk's calls have the names of the calls that they stand for, with
/// the number of the chunk.
///
/// # Errors
/// [`SplitError`] if the step has no loss that can be divided.
pub fn split(graph: &Graph, chunks: u64) -> Result<Graph, SplitError> {
    let head = Head::of(graph)?;
    let borders = borders(head.rows, chunks);
    if borders.len() <= 2 {
        return if chunks <= 1 {
            Ok(graph.clone())
        } else {
            Err(SplitError::Few { rows: head.rows })
        };
    }
    Emitter::new(graph, &head).split(&borders)
}

/// Where chunks begin, and where the last one ends.
fn borders(rows: u64, chunks: u64) -> Vec<u64> {
    let each = rows.div_ceil(chunks.max(1)).max(1).next_multiple_of(BLOCK);
    let mut borders: Vec<u64> = (0..rows.div_ceil(each)).map(|chunk| chunk * each).collect();
    if borders.len() > 1 && borders.last().is_some_and(|last| rows - last < LEAST) {
        borders.pop();
    }
    borders.push(rows);
    borders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_end_at_blocks_and_none_is_small() {
        assert_eq!(borders(2048, 4), [0, 512, 1024, 1536, 2048]);
        assert_eq!(borders(2048, 100), (0..=8).map(|block| block * 256).collect::<Vec<_>>());
        assert_eq!(borders(1000, 2), [0, 512, 1000]);
        assert_eq!(borders(520, 8), [0, 256, 520]);
        assert_eq!(borders(200, 8), [0, 200]);
        assert_eq!(borders(2048, 1), [0, 2048]);
        assert_eq!(borders(0, 4), [0]);
    }
}
