//! Where a part is cut into chunks of rows, and what others read of it. Invariant: there are two
//! chunks or more, none smaller than its products allow, and something wide of which others read
//! nothing.

use std::collections::HashSet;

use crate::graph::{Graph, Node};
use crate::id::{NodeId, StorageId, ValueId};
use crate::split::SplitError;
use crate::split::region::Region;

/// Borders between columns are multiples of this many.
const COLUMNS: u64 = 64;

/// A part, and its chunks.
pub struct Cut {
    pub region: Region,
    /// Where chunks begin, and where the last one ends.
    pub borders: Vec<u64>,
    /// The calls on each side of a barrier.
    pub sides: Vec<Vec<NodeId>>,
    /// What others read of the part, and the views of it that they read, the last one first.
    pub leaving: HashSet<ValueId>,
    pub shown: Vec<NodeId>,
}

impl Cut {
    /// A part in as many chunks of rows, or fewer if there are not that many blocks of them.
    pub fn by_rows(
        graph: &Graph,
        region: Region,
        chunks: u64,
        block: u64,
    ) -> Result<Cut, SplitError> {
        // If a row is several rows of the product, as a sequence is, or a matrix, chunks may begin
        // with any.
        let block = if region.each > 1 || region.is_of_matrices(graph) { 1 } else { block };
        let least = region.least(graph);
        let borders = borders(region.rows, chunks, block, least);
        if borders.len() <= 2 {
            let [rows, least] = [region.rows, least].map(|count| count * region.each);
            return Err(SplitError::Few { rows, block: block * region.each, least });
        }
        let cut = Cut::at(graph, region, borders);
        if !cut.saves(graph) {
            let node = graph.nodes()[cut.region.product].name.clone();
            return Err(SplitError::Unsuited { node, why: "makes rows that others need all of" });
        }
        Ok(cut)
    }

    /// A part along its columns in as many chunks, or fewer if there are not that many blocks.
    pub fn by_columns(graph: &Graph, region: Region, chunks: u64) -> Option<Cut> {
        let each = region.rows.div_ceil(chunks).next_multiple_of(COLUMNS);
        let mut borders: Vec<u64> =
            (0..region.rows.div_ceil(each)).map(|chunk| chunk * each).collect();
        borders.push(region.rows);
        (borders.len() > 2).then(|| Cut::at(graph, region, borders))
    }

    fn at(graph: &Graph, region: Region, borders: Vec<u64>) -> Cut {
        let others = graph.nodes().iter().filter(|(id, _)| !region.calls.contains_key(id));
        let read = others.flat_map(|(_, node)| &node.inputs).chain(graph.outputs());
        let is_made_here =
            |value: &&ValueId| region.calls.contains_key(&graph.values()[**value].producer);
        let mut leaving: HashSet<ValueId> = read.filter(is_made_here).copied().collect();
        // A view that others read is made again, of what it shows.
        let mut shown = Vec::new();
        for &id in region.calls.keys().rev() {
            let node = &graph.nodes()[id];
            let outputs = node.outputs.iter().flatten();
            if is_view(graph, node) && outputs.filter(|&output| leaving.remove(output)).count() > 0
            {
                leaving.extend(&node.inputs);
                shown.push(id);
            }
        }
        let is_late = |id: &NodeId| region.border.is_some_and(|border| border <= *id);
        let (after, before): (Vec<NodeId>, Vec<NodeId>) =
            region.calls.keys().copied().partition(is_late);
        let sides = [before, after].into_iter().filter(|side| !side.is_empty()).collect();
        Cut { region, borders, sides, leaving, shown }
    }

    /// Whether something wide exists for some rows at a time: others read none of it.
    fn saves(&self, graph: &Graph) -> bool {
        let storage = |value: &ValueId| graph.values()[*value].storage;
        let left: HashSet<StorageId> = self.leaving.iter().map(storage).collect();
        !self.region.wide.iter().all(|value| left.contains(&storage(value)))
    }
}

/// Whether a call shows what it reads.
fn is_view(graph: &Graph, node: &Node) -> bool {
    let storage = |value: ValueId| graph.values()[value].storage;
    let mut outputs = node.outputs.iter().flatten();
    outputs.any(|&output| node.inputs.iter().any(|&input| storage(input) == storage(output)))
}

/// Where chunks begin, at multiples of `block` but with `least` rows or more each, and where the
/// last one ends.
fn borders(rows: u64, chunks: u64, block: u64, least: u64) -> Vec<u64> {
    let mut each = rows.div_ceil(chunks.max(1)).max(least).next_multiple_of(block);
    if chunks > 1 && each >= block + least && rows < each + least {
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
    use crate::split::{BLOCK, FINE};

    #[test]
    fn chunks_end_at_blocks_and_none_is_small() {
        assert_eq!(super::borders(200, 3, FINE, 16), [0, 128, 200]);
        assert_eq!(super::borders(257, 2, FINE, 16), [0, 192, 257]);
        assert_eq!(super::borders(9, 4, 1, 1), [0, 3, 6, 9]);
        assert_eq!(super::borders(9, 16, 1, 1), (0..=9).collect::<Vec<_>>());
        assert_eq!(super::borders(9, 16, 1, 2), [0, 2, 4, 6, 9]);
        assert_eq!(super::borders(1040, 8, BLOCK, 17), [0, 256, 512, 768, 1040]);
        assert_eq!(super::borders(1040, 8, BLOCK, 257), [0, 512, 1040]);
        let borders = |rows, chunks| super::borders(rows, chunks, BLOCK, 16);
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
