//! Which blocks are on the device, and where. Invariant: what is on the device has slots of the
//! region, what is in use does not leave them, and undoing all moves since an instant restores what
//! was there then.

use cranelift_entity::PrimaryMap;
use cranelift_entity::packed_option::PackedOption;
use tightfit::units::Bytes;

use super::farthest::Farthest;
use super::id::{BlockId, SlotId};
use super::moves::{Move, Place, Purpose};
use super::packing::{Block, Packing};
use super::region::Region;

/// What is known of a block.
#[derive(Clone, Copy, Default)]
pub struct Standing {
    /// Its first slot; absent if it lies in the host tier.
    pub slot: PackedOption<SlotId>,
    /// Number of its tensors that have bytes.
    pub live: u32,
    /// Acquisitions of its tensors that have not ended.
    pub users: u64,
    /// When it was used last, as the number of accesses before that.
    pub last: u64,
    /// How soon it is used again: the larger, the later.
    pub key: u64,
    /// Whether the access that is being laid out computes with it.
    pub wanted: bool,
    /// Whether only the device has its newest bytes.
    newer: bool,
    /// Whether it was brought ahead of a use that is still to come.
    ahead: bool,
}

/// All blocks and the region.
#[derive(Clone)]
pub struct Occupancy {
    /// What the blocks consist of.
    pub packing: Packing,
    /// The slots.
    pub region: Region,
    /// The blocks that may be evicted, by next use.
    pub farthest: Farthest,
    /// The moves of the access that is being laid out.
    pub moves: Vec<Move>,
    /// Number of accesses after which it is worth while to bring more ahead.
    pub ahead_from: u64,
    standings: PrimaryMap<BlockId, Standing>,
    /// The bytes of all blocks that were brought ahead of their use.
    ahead: u64,
}

impl Occupancy {
    /// Everything lies in the host tier.
    pub fn new(packing: Packing, slots: u32) -> Occupancy {
        let mut standings: PrimaryMap<BlockId, Standing> =
            packing.blocks.keys().map(|_| Standing::default()).collect();
        for block in packing.tensors.values().filter_map(|span| span.block) {
            standings[block].live += 1;
        }
        Occupancy {
            packing,
            region: Region::new(slots),
            farthest: Farthest::default(),
            moves: Vec::new(),
            ahead_from: 0,
            standings,
            ahead: 0,
        }
    }

    /// What is known of a block.
    pub fn standing(&self, block: BlockId) -> &Standing {
        &self.standings[block]
    }

    /// What is known of a block, mutable.
    pub fn standing_mut(&mut self, block: BlockId) -> &mut Standing {
        &mut self.standings[block]
    }

    /// All blocks, in the order of registration.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockId, &Standing)> {
        self.standings.iter()
    }

    /// Whether a block is on the device.
    pub fn is_on_device(&self, block: BlockId) -> bool {
        self.standings[block].slot.is_some()
    }

    /// Number of slots that a block takes.
    pub fn chunks(&self, block: BlockId) -> u32 {
        self.packing.blocks[block].chunks
    }

    /// The bytes of all blocks that were brought ahead of their use.
    pub fn ahead(&self) -> Bytes {
        Bytes(self.ahead)
    }

    /// Lets a block be evicted, once its next use is known.
    pub fn queue(&mut self, block: BlockId, key: u64) {
        let standing = &mut self.standings[block];
        standing.key = key;
        if standing.slot.is_some() && standing.users == 0 {
            self.farthest.push(block, key);
        }
    }

    /// Adds a user to a block on the device, which writes to it or does not.
    pub fn hold(&mut self, block: BlockId, writes: bool) {
        self.used(block);
        self.farthest.withdraw(block);
        let standing = &mut self.standings[block];
        standing.users += 1;
        standing.newer |= writes;
    }

    /// Takes a block off the device; it is copied if the host does not have its bytes.
    pub fn evict(&mut self, block: BlockId, purpose: Purpose) {
        let Block { first, chunks, bytes } = self.packing.blocks[block];
        let Some(from) = self.standings[block].slot.take() else { return };
        self.farthest.withdraw(block);
        self.used(block);
        self.region.give_back(from, chunks);
        let standing = &mut self.standings[block];
        let copies = standing.newer && standing.live > 0;
        standing.newer = false;
        let from = Place::Device(from);
        self.moves.push(Move {
            block,
            first,
            chunks,
            from,
            to: Place::Host,
            bytes,
            copies,
            purpose,
        });
    }

    /// Brings a block to the device; false if there are not enough free slots in a row.
    pub fn bring(&mut self, block: BlockId, purpose: Purpose) -> bool {
        let Block { first, chunks, bytes } = self.packing.blocks[block];
        let Some(slot) = self.region.find(chunks) else { return false };
        self.region.take(block, slot, chunks);
        let standing = &mut self.standings[block];
        standing.slot = slot.into();
        standing.ahead = purpose == Purpose::Prefetch;
        self.ahead += if standing.ahead { bytes.0 } else { 0 };
        let to = Place::Device(slot);
        self.moves.push(Move {
            block,
            first,
            chunks,
            from: Place::Host,
            to,
            bytes,
            copies: true,
            purpose,
        });
        true
    }

    /// Moves a block to other slots; false if there are not enough free ones in a row.
    pub fn relocate(&mut self, block: BlockId, purpose: Purpose) -> bool {
        let to = self.region.find(self.chunks(block));
        to.inspect(|&to| self.relocate_to(block, to, purpose)).is_some()
    }

    /// Moves a block to slots that are free or its own.
    pub fn relocate_to(&mut self, block: BlockId, to: SlotId, purpose: Purpose) {
        let Block { first, chunks, bytes } = self.packing.blocks[block];
        let Some(from) = self.standings[block].slot.expand() else { return };
        self.region.give_back(from, chunks);
        self.region.take(block, to, chunks);
        self.standings[block].slot = to.into();
        let (from, to) = (Place::Device(from), Place::Device(to));
        let copies = true;
        self.moves.push(Move { block, first, chunks, from, to, bytes, copies, purpose });
    }

    /// Undoes all moves but the first `kept`. Blocks that may be evicted again are queued again.
    pub fn undo(&mut self, kept: usize) {
        while self.moves.len() > kept {
            let Some(Move { block, from, to, chunks, copies, .. }) = self.moves.pop() else {
                return;
            };
            match to {
                Place::Host => self.standings[block].newer = copies,
                Place::Device(slot) => self.region.give_back(slot, chunks),
            }
            match from {
                Place::Host => {
                    self.used(block);
                    self.farthest.withdraw(block);
                    self.standings[block].slot = None.into();
                }
                Place::Device(slot) => {
                    self.region.take(block, slot, chunks);
                    self.standings[block].slot = slot.into();
                    if !self.standings[block].wanted {
                        self.queue(block, self.standings[block].key);
                    }
                }
            }
        }
    }

    /// Clears the mark that a block was brought ahead.
    fn used(&mut self, block: BlockId) {
        let standing = &mut self.standings[block];
        if std::mem::take(&mut standing.ahead) {
            self.ahead = self.ahead.saturating_sub(self.packing.blocks[block].bytes.0);
        }
    }
}
