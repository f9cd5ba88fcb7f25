//! State shared by the ranks' threads and the carrier. Invariant: bytes of a requested transfer
//! belong to it until it is done or everything was made quiet; a failure is reported no earlier
//! than that.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tightfit::id::RankId;

use crate::transport::{Awaited, Awaiting, Lent, LinkError};

/// A transfer to be carried.
#[derive(Clone, Copy, Debug)]
pub enum Transfer {
    /// A message, by its tag, to a rank.
    Send(Lent, u32, u32),
    /// A message, by its tag, from a rank.
    Receive(Awaiting, u32, u32),
    /// Bytes that a rank takes.
    Give(Lent, u32),
    /// Bytes that a rank gives.
    Take(Awaiting, u32),
    /// Bytes of all ranks, the same number from each.
    Gather(Lent, Awaiting),
}

/// The state of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Slot {
    /// It was not requested.
    #[default]
    Free,
    /// This many of its parts have not ended, and this many bytes have come.
    UnderWay { parts: u32, bytes: usize },
    /// It has ended, with this many bytes.
    Done(usize),
}

/// The slots of transfers between steps; those of messages follow.
pub const GIVE: usize = 0;
pub const TAKE: usize = 1;
pub const GATHER: usize = 2;
pub const FIRST: usize = 3;

/// The state that all threads see.
#[derive(Debug, Default)]
pub struct State {
    /// First the transfers between steps, then messages by their numbers.
    pub slots: Vec<Slot>,
    /// Requested transfers that have not begun.
    pub asked: VecDeque<(usize, Transfer)>,
    /// Whether a thread has begun to wait.
    pub is_urgent: bool,
    /// The longest that a thread waits; forever if not known yet.
    pub deadline: Option<Duration>,
    /// What failed here first, which the others are to be told.
    pub failed: Option<LinkError>,
    /// Why the link no longer works; set once everything is quiet.
    pub failure: Option<LinkError>,
    /// Set when this rank has ended: the exit code of its process.
    pub ends: Option<u8>,
    /// The exit codes of all ranks, once all of them have come to their end.
    pub codes: Vec<u8>,
    /// Whether this process panics.
    pub panics: bool,
}

/// The state, and the conditions that signal its changes.
#[derive(Debug, Default)]
pub struct Board {
    state: Mutex<State>,
    /// A transfer was requested.
    pub asked: Condvar,
    /// A transfer ended, or everything is quiet.
    pub done: Condvar,
}

impl Board {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a transfer, by its slot.
    pub fn begin(&self, slot: usize, transfer: Transfer) -> Result<(), LinkError> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        state.slots[slot] = Slot::UnderWay { parts: 0, bytes: 0 };
        state.asked.push_back((slot, transfer));
        self.asked.notify_one();
        Ok(())
    }

    /// Waits for the end of a transfer, and returns how many bytes it brought.
    pub fn end(
        &self,
        slot: usize,
        rank: RankId,
        awaited: impl Fn() -> Awaited,
    ) -> Result<usize, LinkError> {
        let begun = Instant::now();
        let mut state = self.lock();
        if !matches!(state.slots[slot], Slot::Done(_)) {
            state.is_urgent = true;
            self.asked.notify_one();
        }
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if let Slot::Done(bytes) = state.slots[slot] {
                state.slots[slot] = Slot::Free;
                return Ok(bytes);
            }
            let left = match state.deadline {
                // A failure is reported once everything is quiet.
                Some(deadline) if state.failed.is_none() => {
                    let left = deadline.checked_sub(begun.elapsed());
                    if left.is_none() {
                        let waited = deadline;
                        let failure = LinkError::Deadline { rank, awaited: awaited(), waited };
                        state.failed = Some(failure);
                        self.asked.notify_one();
                    }
                    left
                }
                _ => None,
            };
            state = match left {
                Some(left) => {
                    let waited = self.done.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.done.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Records a failure unless there was one, and waits until everything is quiet.
    pub fn fail(&self, failure: LinkError) -> LinkError {
        let mut state = self.lock();
        state.failed.get_or_insert(failure);
        self.asked.notify_one();
        loop {
            if let Some(failure) = &state.failure {
                return failure.clone();
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
