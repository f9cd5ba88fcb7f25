//! The recorded order of one graph's accesses. Invariant: only the non-model bytes of an order ever
//! change; the next use of a block is its first position that is not before the given one.

use cranelift_entity::EntityRef;
use tightfit::units::Bytes;

use super::error::ResidencyError;
use super::id::BlockId;

/// Accesses while they are being observed.
#[derive(Clone, Default)]
pub struct Recorder {
    /// Where in `blocks` each access ends.
    ends: Vec<u32>,
    blocks: Vec<BlockId>,
    non_model: Vec<Bytes>,
    /// The largest of them.
    most: Bytes,
}

/// Accesses as they were observed, with the positions of each block.
#[derive(Clone)]
pub struct Order {
    accesses: Recorder,
    /// Where in `positions` those of each block begin; the last entry is the end of the last block.
    begins: Vec<u32>,
    /// At which accesses a block is used, in ascending order, block by block.
    positions: Vec<u32>,
}

impl Recorder {
    /// Adds an access to these blocks.
    pub fn push(&mut self, blocks: &[BlockId]) {
        self.blocks.extend_from_slice(blocks);
        self.ends.push(self.blocks.len() as u32);
        self.non_model.push(Bytes::ZERO);
    }

    /// Whether one more access to this many blocks can be recorded.
    ///
    /// # Errors
    /// Positions would exceed what an order can number.
    pub fn admit(&self, blocks: usize) -> Result<(), ResidencyError> {
        let most = u32::MAX as usize;
        if self.ends.len() >= most || blocks > most - self.blocks.len() {
            return Err(ResidencyError::TooLong { accesses: self.ends.len() });
        }
        Ok(())
    }

    /// Records non-model bytes seen since an access; the largest of several reports counts.
    pub fn observe(&mut self, position: u32, bytes: Bytes) {
        if let Some(known) = self.non_model.get_mut(position as usize) {
            *known = bytes.max(*known);
            self.most = bytes.max(self.most);
        }
    }

    fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    fn blocks(&self, position: u32) -> &[BlockId] {
        let position = position as usize;
        let begin = position.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.blocks[begin..self.ends[position] as usize]
    }
}

impl Order {
    /// The order of the accesses that were observed.
    pub fn new(accesses: Recorder) -> Order {
        let blocks = accesses.blocks.iter().map(|block| block.index() + 1).max().unwrap_or(0);
        let mut begins = vec![0; blocks + 1];
        for block in &accesses.blocks {
            begins[block.index() + 1] += 1;
        }
        for block in 0..blocks {
            begins[block + 1] += begins[block];
        }
        let mut positions = vec![0; accesses.blocks.len()];
        let mut free = begins.clone();
        for position in 0..accesses.len() {
            for block in accesses.blocks(position) {
                let at = &mut free[block.index()];
                positions[*at as usize] = position;
                *at += 1;
            }
        }
        Order { accesses, begins, positions }
    }

    /// Number of accesses.
    pub fn accesses(&self) -> u32 {
        self.accesses.len()
    }

    /// The blocks of an access, in the order of registration; none past the last access.
    pub fn blocks(&self, position: u32) -> &[BlockId] {
        if position < self.accesses() { self.accesses.blocks(position) } else { &[] }
    }

    /// The most non-model bytes between an access and the next one.
    pub fn non_model(&self, position: u32) -> Bytes {
        self.accesses.non_model.get(position as usize).copied().unwrap_or_default()
    }

    /// The most non-model bytes of any access.
    pub fn most_non_model(&self) -> Bytes {
        self.accesses.most
    }

    /// Raises the non-model bytes of an access to those seen.
    pub fn observe(&mut self, position: u32, bytes: Bytes) {
        self.accesses.observe(position, bytes);
    }

    /// The first access at or after `from` that uses the block.
    pub fn next_use(&self, block: BlockId, from: u32) -> Option<u32> {
        let begin = *self.begins.get(block.index())? as usize;
        let end = *self.begins.get(block.index() + 1)? as usize;
        let mine = &self.positions[begin..end];
        mine.get(mine.partition_point(|&position| position < from)).copied()
    }

    /// The accesses before `end`, as a record to continue.
    pub fn prefix(&self, end: u32) -> Recorder {
        let ends = self.accesses.ends[..end as usize].to_vec();
        let blocks = ends.last().map_or(0, |&last| last as usize);
        Recorder {
            most: self.accesses.most,
            blocks: self.accesses.blocks[..blocks].to_vec(),
            non_model: self.accesses.non_model[..ends.len()].to_vec(),
            ends,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_uses_and_prefixes() {
        let block = BlockId::new;
        let mut accesses = Recorder::default();
        for blocks in [&[block(0)][..], &[block(1), block(2)], &[], &[block(0), block(2)]] {
            accesses.push(blocks);
        }
        accesses.observe(1, Bytes(5));
        accesses.observe(1, Bytes(3));
        accesses.observe(9, Bytes(3));
        let order = Order::new(accesses);
        let uses = |from| [0, 1, 2, 3].map(|index| order.next_use(block(index), from));
        assert_eq!(uses(0), [Some(0), Some(1), Some(1), None]);
        assert_eq!(uses(2), [Some(3), None, Some(3), None]);
        assert_eq!((order.blocks(1), order.blocks(4)), (&[block(1), block(2)][..], &[][..]));
        assert_eq!((order.non_model(1), order.non_model(7)), (Bytes(5), Bytes(0)));
        let prefix = Order::new(order.prefix(2));
        assert_eq!((prefix.accesses(), prefix.non_model(1)), (2, Bytes(5)));
    }
}
