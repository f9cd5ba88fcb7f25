//! Errors that the residency manager returns in place of moves. Invariant: after an error all
//! tensors are as they were before the call, except after [`ResidencyError::Refused`], which ends
//! the run.

use thiserror::Error;
use tightfit::units::Bytes;

use super::id::TensorId;
use super::state::IllegalTransition;
use super::violation::Violation;

/// Why there are no moves.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ResidencyError {
    /// Chunks cannot have this size.
    #[error(
        "chunks of {chunk} with an alignment of {alignment}: a chunk needs bytes, and the \
         alignment must be a power of two that divides them"
    )]
    Chunk {
        /// The bytes of a chunk.
        chunk: Bytes,
        /// The alignment of tensors within it.
        alignment: u64,
    },
    /// A tensor has more bytes than any machine.
    #[error("{tensor} has {bytes}: no tensor may have more than {}", Bytes::LIMIT)]
    Tensor {
        /// The tensor.
        tensor: TensorId,
        /// Its bytes.
        bytes: Bytes,
    },
    /// The tensors fill too many chunks.
    #[error("with {tensor} there are more than {most} chunks of {chunk}: choose larger chunks")]
    TooManyChunks {
        /// The first tensor that does not fit.
        tensor: TensorId,
        /// The bytes of a chunk.
        chunk: Bytes,
        /// The most chunks that there may be.
        most: u32,
    },
    /// The region has too many slots or too many bytes.
    #[error(
        "a region of {slots} slots of {chunk} is too large: at most {most} slots, and {} in all",
        Bytes::LIMIT
    )]
    Region {
        /// The slots.
        slots: u32,
        /// The bytes of a slot.
        chunk: Bytes,
        /// The most slots that there may be.
        most: u32,
    },
    /// A share is not between 0 and 1.
    #[error("the share `{name}` is {value}: it must be between 0 and 1")]
    Share {
        /// The name of the setting.
        name: &'static str,
        /// Its value.
        value: f64,
    },
    /// A tensor was named that was not registered.
    #[error("{tensor} is unknown: {count} tensors were registered")]
    UnknownTensor {
        /// The tensor.
        tensor: TensorId,
        /// The number of registered tensors.
        count: usize,
    },
    /// A tensor cannot change to the requested state.
    #[error("{tensor}: {illegal}")]
    Illegal {
        /// The tensor.
        tensor: TensorId,
        /// The transition.
        illegal: IllegalTransition,
    },
    /// The tensors of an access do not fit, even if everything that may be evicted is.
    #[error(
        "not enough memory on the device: {needed} more are needed, {freed} can be freed; give \
         the region more, or compute with fewer tensors at a time"
    )]
    NotEnough {
        /// The bytes that have to be freed.
        needed: Bytes,
        /// The bytes that can be freed.
        freed: Bytes,
    },
    /// There are enough slots, but not in a row.
    #[error(
        "{chunks} slots in a row are needed, and tensors that are computed with lie between the \
         {free} slots that can be freed; give the region more slots, or use larger chunks"
    )]
    Fragmented {
        /// The slots that one tensor needs.
        chunks: u32,
        /// The slots that are free.
        free: u32,
    },
    /// An access outside an iteration.
    #[error("no iteration has begun: begin one with the key of its graph")]
    Outside,
    /// An iteration began within another one.
    #[error("the iteration before has not ended: end it first")]
    Inside,
    /// A tensor is still computed with.
    #[error("{tensor} is computed with: release it first")]
    InUse {
        /// The tensor.
        tensor: TensorId,
    },
    /// A tensor was released that was not acquired.
    #[error("{tensor} is released, but is not computed with: acquire it first")]
    NotInUse {
        /// The tensor.
        tensor: TensorId,
    },
    /// An iteration has too many accesses to be recorded.
    #[error("the iteration is too long after {accesses} accesses: divide it")]
    TooLong {
        /// The accesses so far.
        accesses: usize,
    },
    /// A move was found to be wrong before it was returned: a defect of this program. No moves were
    /// returned, and none will be.
    #[error("a move was refused: {0}; this is a defect, please report it")]
    Refused(Violation),
}
