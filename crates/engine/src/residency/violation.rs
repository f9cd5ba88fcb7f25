//! Why a move must not be made. Invariant: each kind of error is a variant of its own, which says
//! where it is.

use thiserror::Error;
use tightfit::units::Bytes;

use super::id::{ChunkId, SlotId, TensorId};

/// Why a move must not be made, or an access must not begin.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Violation {
    /// A tensor lies outside its chunks, or over another one.
    #[error("{tensor} lies outside its chunks, or over the tensor before it")]
    Packing {
        /// The tensor.
        tensor: TensorId,
    },
    /// A move or an access names something that does not exist.
    #[error("a move names a chunk, a slot or a tensor that does not exist")]
    Unknown,
    /// A chunk is not where the move says.
    #[error("{chunk} is not where the move takes it from")]
    NotThere {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The slot that a chunk goes to has another one.
    #[error("{chunk} goes to {slot}, which has another chunk")]
    Taken {
        /// The chunk.
        chunk: ChunkId,
        /// The slot.
        slot: SlotId,
    },
    /// A chunk that is computed with was to leave its slot.
    #[error("{chunk} leaves its slot while it is computed with")]
    InUse {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The only copy of the newest bytes was to be dropped, or outdated ones were to be read.
    #[error("{chunk} moves without a copy, and its newest bytes are lost")]
    Lost {
        /// The chunk.
        chunk: ChunkId,
    },
    /// More bytes than allowed.
    #[error("{held} lie on the device, where {limit} may")]
    OverCapacity {
        /// The bytes of all slots that are taken.
        held: Bytes,
        /// The bytes that the device has for them.
        limit: Bytes,
    },
    /// A tensor is computed with that is not on the device, or not in one piece.
    #[error("{tensor} is computed with, and does not lie on the device in one piece")]
    Absent {
        /// The tensor.
        tensor: TensorId,
    },
}
