//! Why a step is not replayed, or is stopped. Invariant: a caller that gets one of these has been
//! given no memory, and nothing was overwritten.

use thiserror::Error;

use crate::backing::{OutOfMemory, Size};

/// What stops a step.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReplayError {
    /// The device has no more memory.
    #[error("out of memory: {} bytes were asked for, and {reason}", .asked.0)]
    OutOfMemory {
        /// The size that was requested.
        asked: Size,
        /// The device's error.
        reason: OutOfMemory,
    },
    /// An allocation of another size than the recorded one.
    #[error(
        "allocation {position} of this step asks for {} bytes, and when the step was recorded it \
         asked for {}", .asked.0, .recorded.0
    )]
    OtherSize {
        /// Which allocation of the step, counted from 0.
        position: usize,
        /// The size that was recorded.
        recorded: Size,
        /// The size that was requested.
        asked: Size,
    },
    /// More allocations than were recorded.
    #[error(
        "this step asks for {} bytes after the last of the {recorded} allocations that it made \
         when it was recorded", .asked.0
    )]
    OneMore {
        /// How many there are to the end of this pass.
        recorded: usize,
        /// The size that was requested.
        asked: Size,
    },
    /// Fewer allocations than were recorded.
    #[error("this step made {made} allocations, and {recorded} when it was recorded")]
    Fewer {
        /// How many it made.
        made: usize,
        /// How many there are to the end of this pass.
        recorded: usize,
    },
    /// The planned place is taken.
    #[error(
        "allocation {position} of this step is to lie where a tensor still lies that was gone by \
         then when the step was recorded"
    )]
    Occupied {
        /// Which allocation of the step, counted from 0.
        position: usize,
    },
    /// A step cannot begin in a slab that is not empty.
    #[error("{} bytes of tensors of an earlier step still lie in the slab", .0.0)]
    StillHeld(Size),
    /// A slab that is too small for the placement.
    #[error("the placement needs a slab of {} bytes, and there is one of {}", .needed.0, .slab.0)]
    SlabTooSmall {
        /// The placement's size.
        needed: Size,
        /// The slab's.
        slab: Size,
    },
    /// A pass that the recorded step did not have.
    #[error("this step goes on with pass {0}, which it did not have when it was recorded")]
    OneMorePass(usize),
    /// A pass within a pass.
    #[error("a pass of this step begins while another one runs")]
    PassInPass,
}
