//! What the caller is to do with chunks. Invariant: a move names all chunks of a block, and has its
//! stated effect if moves are executed one after another, in the order in which they were returned.

use tightfit::units::Bytes;

use super::id::{BlockId, ChunkId, SlotId};

/// Where a chunk lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the host tier, where every chunk has a place of its own.
    Host,
    /// In the region of the device, from this slot on.
    Device(SlotId),
}

/// What a move is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The access that is about to compute: it waits for the move.
    Demand,
    /// A later access: the move may go on during the access that is about to compute, which touches
    /// none of its chunks.
    Prefetch,
}

/// Consecutive chunks that go from one place to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The block that they make up.
    pub block: BlockId,
    /// The first of the chunks.
    pub first: ChunkId,
    /// The number of chunks.
    pub chunks: u32,
    /// Where they lie.
    pub from: Place,
    /// Where they are to lie; the chunks after the first go to the slots after it. From slot to
    /// slot the two places may overlap if the chunks move down: the first is copied first.
    pub to: Place,
    /// Bytes to be copied, from the beginning of the first chunk; if nothing is, those it would
    /// take.
    pub bytes: Bytes,
    /// Whether they are to be copied. An eviction without a copy leaves the host's copy, which is
    /// up to date.
    pub copies: bool,
    /// What the move is made for.
    pub purpose: Purpose,
}
