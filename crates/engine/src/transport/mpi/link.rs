//! A rank's end of an MPI job. Invariant: a thread that waits holds bytes that belong to the
//! transfer, and gives them up no earlier than that has ended or everything was made quiet.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tightfit::id::RankId;

use crate::transport::mpi::slots::{Board, FIRST, GATHER, GIVE, Slot, TAKE, Transfer};
use crate::transport::{Awaited, Awaiting, Header, Lent, Link, LinkError, Route};

/// One process's end.
#[derive(Clone, Debug)]
pub struct MpiLink {
    pub(super) rank: RankId,
    pub(super) ranks: u32,
    /// The largest number that a message may have.
    pub(super) most_tags: u32,
    pub(super) board: Arc<Board>,
    /// The messages of a step.
    pub(super) routes: Arc<OnceLock<Vec<Route>>>,
}

/// Bytes of a rank's data that are sent together with its length.
const SHORT: usize = 56;
/// Bytes of the length and the first part of a rank's data.
const SAID: usize = size_of::<u64>() + SHORT;

impl MpiLink {
    /// Called once in a run: from now on a step has these messages, and a rank that waits longer
    /// than `deadline` gives up; before this call, ranks wait forever.
    ///
    /// # Errors
    /// [`LinkError::Numbers`] if this MPI cannot number this many messages.
    pub fn expects(&self, routes: Vec<Route>, deadline: Duration) -> Result<(), LinkError> {
        let (messages, most) = (routes.len(), self.most_tags);
        if messages > most as usize {
            return Err(LinkError::Numbers { messages, most });
        }
        let mut state = self.board.lock();
        state.slots.resize(FIRST + messages, Slot::Free);
        state.deadline = Some(deadline);
        drop(state);
        self.routes.set(routes).ok();
        Ok(())
    }

    /// The route of a message.
    fn route(&self, header: Header) -> Result<&Route, LinkError> {
        let routes = self.routes.get().map_or(&[][..], Vec::as_slice);
        routes
            .get(header.message as usize)
            .ok_or_else(|| self.board.fail(LinkError::Unknown { header, messages: routes.len() }))
    }

    fn failed(&self, awaited: Awaited, found: usize, expected: usize) -> LinkError {
        self.board.fail(LinkError::Size { awaited, found, expected })
    }

    /// Gathers data of the same length from all ranks.
    fn gather_equal(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, LinkError> {
        let length = own.len();
        let mut all = vec![0; length * self.ranks as usize];
        let into = Awaiting { bytes: all.as_mut_ptr(), length: all.len() };
        let lent = Lent { bytes: own.as_ptr(), length };
        let done = self
            .board
            .begin(GATHER, Transfer::Gather(lent, into))
            .and_then(|()| self.board.end(GATHER, self.rank, || Awaited::Everybody));
        if let Err(failure) = done {
            // A collective operation cannot be cancelled, so its memory is leaked.
            Vec::leak(own);
            Vec::leak(all);
            return Err(failure);
        }
        Ok(all.chunks(length.max(1)).map(<[u8]>::to_vec).collect())
    }
}

impl Link for MpiLink {
    fn rank(&self) -> RankId {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn send(&self, header: Header, bytes: Lent) -> Result<(), LinkError> {
        let route = self.route(header)?;
        let transfer = Transfer::Send(bytes, route.to.as_u32(), header.message);
        self.board.begin(FIRST + header.message as usize, transfer)
    }

    fn post(&self, header: Header, into: Awaiting) -> Result<(), LinkError> {
        let route = self.route(header)?;
        let transfer = Transfer::Receive(into, route.from.as_u32(), header.message);
        self.board.begin(FIRST + header.message as usize, transfer)
    }

    fn receive(&self, header: Header, into: &mut [u8]) -> Result<(), LinkError> {
        let slot = FIRST + header.message as usize;
        let route = self.route(header)?;
        if self.board.lock().slots[slot] == Slot::Free {
            self.post(header, Awaiting { bytes: into.as_mut_ptr(), length: into.len() })?;
        }
        let awaited = || Awaited::Message(header, route.clone());
        match self.board.end(slot, self.rank, awaited)? {
            found if found == into.len() => Ok(()),
            found => Err(self.failed(awaited(), found, into.len())),
        }
    }

    fn sent(&self, header: Header) -> Result<(), LinkError> {
        let route = self.route(header)?;
        let awaited = || Awaited::Taken(header, route.clone());
        self.board.end(FIRST + header.message as usize, self.rank, awaited).map(drop)
    }

    fn gather(&self, said: &[u8]) -> Result<Vec<Vec<u8>>, LinkError> {
        let mut first = (said.len() as u64).to_le_bytes().to_vec();
        first.extend_from_slice(&said[..said.len().min(SHORT)]);
        first.resize(SAID, 0);
        let mut all = Vec::with_capacity(self.ranks as usize);
        for own in self.gather_equal(first)? {
            let length = own.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            all.push((length as usize, own[size_of::<u64>()..].to_vec()));
        }
        let longest = all.iter().map(|(length, _)| *length).max().unwrap_or(0);
        if longest > SHORT {
            let mut own = said.to_vec();
            own.resize(longest, 0);
            for ((_, said), whole) in all.iter_mut().zip(self.gather_equal(own)?) {
                *said = whole;
            }
        }
        let cut = all.into_iter().map(|(length, mut said)| {
            said.truncate(length);
            said
        });
        Ok(cut.collect())
    }

    fn give(&self, to: RankId, bytes: &[u8]) -> Result<(), LinkError> {
        let lent = Lent { bytes: bytes.as_ptr(), length: bytes.len() };
        self.board.begin(GIVE, Transfer::Give(lent, to.as_u32()))?;
        self.board.end(GIVE, self.rank, || Awaited::To(to)).map(drop)
    }

    fn take(&self, from: RankId, into: &mut [u8]) -> Result<(), LinkError> {
        let awaiting = Awaiting { bytes: into.as_mut_ptr(), length: into.len() };
        self.board.begin(TAKE, Transfer::Take(awaiting, from.as_u32()))?;
        match self.board.end(TAKE, self.rank, || Awaited::From(from))? {
            found if found == into.len() => Ok(()),
            found => Err(self.failed(Awaited::From(from), found, into.len())),
        }
    }

    fn abort(&self, cause: &str) {
        let (rank, cause) = (self.rank, cause.to_string());
        self.board.fail(LinkError::Aborted { rank, cause });
    }

    fn failure(&self) -> Option<LinkError> {
        self.board.lock().failure.clone()
    }
}
