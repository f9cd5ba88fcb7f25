//! Transfers: everything that goes on beside the computation. Invariant: a transfer occupies one
//! lane from its start until it arrives, and nobody touches its destination before it was waited
//! for. One that is waited for before it is started crosses the border of the step.
//!
//! There is one notion for all that is asynchronous. What moves is a [`Movement`]; that it begins
//! and that it is over are two instructions, whatever moves.

use crate::id::{BufferId, LaneId, TransferId};

/// Something that moves over a lane while calls run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Its number, which no other transfer of the schedule has.
    pub id: TransferId,
    /// The lane that it occupies; lanes move one thing after another, in the order of their starts.
    pub lane: LaneId,
    /// What moves.
    pub movement: Movement,
}

/// What a transfer moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movement {
    /// What lies in one buffer goes into another one at the other end of the lane: offload and
    /// prefetch. The source keeps what it holds.
    Copy {
        /// Where it is read; nothing may overwrite or free it until the transfer was waited for.
        from: BufferId,
        /// Where it arrives; allocated when the transfer starts.
        to: BufferId,
    },
}

impl Movement {
    /// Every buffer that it touches.
    pub fn buffers(&self) -> [BufferId; 2] {
        match *self {
            Movement::Copy { from, to } => [from, to],
        }
    }
    /// The buffer that it fills.
    pub fn target(&self) -> BufferId {
        match *self {
            Movement::Copy { to, .. } => to,
        }
    }
}
