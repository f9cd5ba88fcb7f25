//! Transfers: everything that happens at the same time as the computation. Invariant: a transfer
//! occupies one lane from its start until it arrives, and its destination is not touched before it
//! was waited for. One that is waited for before it is started crosses the border of the step.
//!
//! There is one notion for everything asynchronous. What moves is a [`Movement`]; its beginning and
//! its end are two instructions, whatever moves.

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
    /// The contents of one buffer are copied into another one at the other end of the lane: offload
    /// and prefetch. The source keeps its contents.
    Copy {
        /// The source; nothing may overwrite or free it until the transfer was waited for.
        from: BufferId,
        /// The destination; allocated when the transfer starts.
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
