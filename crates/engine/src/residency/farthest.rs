//! Which block is used farthest in the future. Invariant: a block that is taken out was queued, was
//! not withdrawn since, and has the largest key of all that are queued.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use cranelift_entity::SecondaryMap;

use super::id::BlockId;

/// Below this number of entries, cleaning up is not worth it.
const FEW: usize = 64;

#[derive(Clone, Copy, Default)]
struct Queued {
    /// The number of times that the block was queued, which tells its entries apart.
    times: u32,
    is_queued: bool,
}

/// A key, the block, and the value of `times` when it was queued.
type Entry = (u64, Reverse<u32>, u32);

/// Blocks by next use. Entries are withdrawn lazily: they stay in the heap until they reach its top
/// or are the larger part of it, so that each operation is logarithmic on average.
#[derive(Clone, Default)]
pub struct Farthest {
    heap: BinaryHeap<Entry>,
    blocks: SecondaryMap<BlockId, Queued>,
    queued: usize,
}

impl Farthest {
    /// Queues a block with a key, in place of its previous one.
    pub fn push(&mut self, block: BlockId, key: u64) {
        let queued = &mut self.blocks[block];
        self.queued += usize::from(!queued.is_queued);
        *queued = Queued { times: queued.times.wrapping_add(1), is_queued: true };
        self.heap.push((key, Reverse(block.as_u32()), queued.times));
        if self.heap.len() > 2 * self.queued + FEW {
            let blocks = &self.blocks;
            self.heap.retain(|entry| is_valid(blocks, entry));
        }
    }

    /// Withdraws a block, if it is queued.
    pub fn withdraw(&mut self, block: BlockId) {
        self.queued -= usize::from(self.blocks[block].is_queued);
        self.blocks[block].is_queued = false;
    }

    /// Takes out the block with the largest key, the one registered first among equals.
    pub fn pop(&mut self) -> Option<(BlockId, u64)> {
        while let Some(entry) = self.heap.pop() {
            if is_valid(&self.blocks, &entry) {
                let block = BlockId::from_u32(entry.1.0);
                self.withdraw(block);
                return Some((block, entry.0));
            }
        }
        None
    }

    /// Withdraws everything.
    pub fn clear(&mut self) {
        for (_, Reverse(block), _) in self.heap.drain() {
            self.blocks[BlockId::from_u32(block)].is_queued = false;
        }
        self.queued = 0;
    }
}

fn is_valid(blocks: &SecondaryMap<BlockId, Queued>, &(_, block, times): &Entry) -> bool {
    let queued = blocks[BlockId::from_u32(block.0)];
    queued.is_queued && queued.times == times
}

#[cfg(test)]
mod tests {
    use cranelift_entity::EntityRef;

    use super::*;

    #[test]
    fn what_was_withdrawn_or_queued_anew_does_not_come_up() {
        let block = BlockId::new;
        let mut farthest = Farthest::default();
        for (index, key) in [5, 9, 9, 7].into_iter().enumerate() {
            farthest.push(block(index), key);
        }
        farthest.push(block(1), 1);
        farthest.withdraw(block(3));
        farthest.push(block(0), 5);
        let order: Vec<_> = std::iter::from_fn(|| farthest.pop()).collect();
        assert_eq!(order, [(block(2), 9), (block(0), 5), (block(1), 1)]);
    }

    #[test]
    fn the_heap_stays_small() {
        let mut farthest = Farthest::default();
        for key in 0..10_000 {
            let block = BlockId::new(key as usize % 8);
            farthest.push(block, key);
            farthest.withdraw(block);
            farthest.push(block, key);
        }
        assert!(farthest.heap.len() <= 2 * 8 + FEW + 1);
        assert_eq!(farthest.pop(), Some((BlockId::new(9_999 % 8), 9_999)));
    }
}
