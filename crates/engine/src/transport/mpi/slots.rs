//! What the ranks' threads and the one that carries tell each other. Invariant: bytes of a transfer
//! that was asked for belong to it until it is done or everything was made quiet; a failure is told
//! no earlier than that.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tightfit::id::RankId;

use crate::transport::{Awaited, Awaiting, Lent, LinkError};

/// What is to be carried.
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
    /// Bytes of all ranks, as many of each.
    Gather(Lent, Awaiting),
}

/// Where a transfer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Slot {
    /// Nobody asked for it.
    #[default]
    Free,
    /// So many of its parts are to come, and so many bytes came.
    UnderWay { parts: u32, bytes: usize },
    /// It has ended, with so many bytes.
    Done(usize),
}

/// The slots of what goes between steps; those of messages come behind.
pub const GIVE: usize = 0;
pub const TAKE: usize = 1;
pub const GATHER: usize = 2;
pub const FIRST: usize = 3;

/// What all threads see.
#[derive(Debug, Default)]
pub struct State {
    /// By what goes between steps, then by the numbers of messages.
    pub slots: Vec<Slot>,
    /// What was asked for and was not begun.
    pub asked: VecDeque<(usize, Transfer)>,
    /// Somebody has begun to wait.
    pub is_urgent: bool,
    /// How long somebody waits; for ever before that is known.
    pub deadline: Option<Duration>,
    /// What failed here first, and is to be told to the others.
    pub failed: Option<LinkError>,
    /// Why nothing goes any more: everything is quiet.
    pub failure: Option<LinkError>,
    /// This rank has nothing more to say; the exit code of its process.
    pub ends: Option<u8>,
    /// The exit codes of all ranks, once all of them have come to their end.
    pub codes: Vec<u8>,
    /// This process ends by a panic.
    pub panics: bool,
}

/// The state, and who waits for it to change.
#[derive(Debug, Default)]
pub struct Board {
    state: Mutex<State>,
    /// Something was asked for.
    pub asked: Condvar,
    /// Something was done.
    pub done: Condvar,
}

impl Board {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a transfer begun, by its slot.
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

    /// Waits for the end of a transfer, and says how many bytes it brought.
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
                // A failure is told when everything is quiet.
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

    /// Notes a failure unless there was one, and waits until everything is quiet.
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
