//! Ranks as threads of one process. Invariant: bytes are copied once, from where the sender has
//! them to where the receiver wants them, by the receiver; and once a rank has aborted nobody reads
//! what it lends.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tightfit::id::RankId;

use crate::transport::{Header, Lent, Link, LinkError};

/// A message of a step, on its way.
#[derive(Clone, Copy, Debug, Default)]
enum Slot {
    #[default]
    Free,
    Lent(u32, Lent),
    Copied,
    Taken(u32),
}

#[derive(Debug)]
struct Shared {
    /// By the numbers of messages; there from the beginning, so that a step allocates nothing.
    slots: Vec<Slot>,
    failure: Option<LinkError>,
}

#[derive(Debug)]
struct Exchange {
    shared: Mutex<Shared>,
    changed: Condvar,
}

/// One thread's end.
#[derive(Clone, Debug)]
pub struct ThreadLink {
    rank: RankId,
    deadline: Duration,
    exchange: Arc<Exchange>,
}

/// The ends of so many ranks, for so many messages in a step; who waits longer than `deadline`
/// gives up, and with it all others.
pub fn thread_links(ranks: u32, messages: usize, deadline: Duration) -> Vec<ThreadLink> {
    let shared = Shared { slots: vec![Slot::Free; messages], failure: None };
    let exchange = Exchange { shared: Mutex::new(shared), changed: Condvar::new() };
    let exchange = Arc::new(exchange);
    (0..ranks)
        .map(RankId::from_u32)
        .map(|rank| ThreadLink { rank, deadline, exchange: Arc::clone(&exchange) })
        .collect()
}

impl ThreadLink {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.exchange.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` finds something in the message's slot, or something failed.
    fn wait<T>(
        &self,
        header: Header,
        mut ready: impl FnMut(&mut Slot) -> Option<T>,
    ) -> Result<T, LinkError> {
        let begun = Instant::now();
        let mut shared = self.lock();
        loop {
            if let Some(failure) = &shared.failure {
                return Err(failure.clone());
            }
            let messages = shared.slots.len();
            let Some(slot) = shared.slots.get_mut(header.message as usize) else {
                return Err(self.failed(&mut shared, LinkError::Unknown { header, messages }));
            };
            if let Some(found) = ready(slot) {
                return Ok(found);
            }
            let Some(left) = self.deadline.checked_sub(begun.elapsed()) else {
                let (rank, waited) = (self.rank, self.deadline);
                return Err(self.failed(&mut shared, LinkError::Deadline { rank, header, waited }));
            };
            let waited = self.exchange.changed.wait_timeout(shared, left);
            shared = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Tells everybody; the first failure counts.
    fn failed(&self, shared: &mut Shared, failure: LinkError) -> LinkError {
        let failure = shared.failure.get_or_insert(failure).clone();
        self.exchange.changed.notify_all();
        failure
    }
}

impl Link for ThreadLink {
    fn send(&self, header: Header, bytes: Lent) -> Result<(), LinkError> {
        // A slot is free: the sender of the step before has waited until that was taken.
        self.wait(header, |slot| {
            let is_free = matches!(slot, Slot::Free);
            is_free.then(|| *slot = Slot::Lent(header.step, bytes))
        })?;
        self.exchange.changed.notify_all();
        Ok(())
    }

    fn receive(&self, header: Header, into: &mut [u8]) -> Result<(), LinkError> {
        let lent = self.wait(header, |slot| match *slot {
            Slot::Lent(step, lent) if step == header.step => {
                *slot = Slot::Copied;
                Some(lent)
            }
            Slot::Lent(..) | Slot::Copied | Slot::Taken(_) | Slot::Free => None,
        })?;
        let fits = lent.length == into.len();
        if fits {
            // SAFETY: these bytes lie in the sender's slab, which leaves them as they are, and does
            // not go, until they are marked as taken below; `into` lies in this rank's own.
            let from = unsafe { std::slice::from_raw_parts(lent.bytes, lent.length) };
            into.copy_from_slice(from);
        }
        let mut shared = self.lock();
        shared.slots[header.message as usize] = Slot::Taken(header.step);
        self.exchange.changed.notify_all();
        if fits {
            return Ok(());
        }
        let (found, expected) = (lent.length, into.len());
        Err(self.failed(&mut shared, LinkError::Size { header, found, expected }))
    }

    fn sent(&self, header: Header) -> Result<(), LinkError> {
        self.wait(header, |slot| match *slot {
            Slot::Taken(step) if step == header.step => {
                *slot = Slot::Free;
                Some(())
            }
            Slot::Lent(..) | Slot::Copied | Slot::Taken(_) | Slot::Free => None,
        })
    }

    fn abort(&self, cause: &str) {
        let mut shared = self.lock();
        let cause = cause.to_string();
        self.failed(&mut shared, LinkError::Aborted { rank: self.rank, cause });
        // Whoever has begun to copy what this rank lends comes to the end of it.
        while shared.slots.iter().any(|slot| matches!(slot, Slot::Copied)) {
            let changed = self.exchange.changed.wait(shared);
            shared = changed.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn failure(&self) -> Option<LinkError> {
        self.lock().failure.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn lent(bytes: &[u8]) -> Lent {
        Lent { bytes: bytes.as_ptr(), length: bytes.len() }
    }

    const HEADER: Header = Header { step: 0, message: 3 };

    #[test]
    fn bytes_arrive_and_the_sender_learns_of_it() {
        let links = thread_links(2, 4, Duration::from_secs(60));
        let bytes = [1, 2, 3];
        thread::scope(|scope| {
            scope.spawn(|| {
                links[0].send(HEADER, lent(&bytes)).unwrap();
                links[0].sent(HEADER).unwrap();
            });
            let mut into = [0; 3];
            links[1].receive(HEADER, &mut into).unwrap();
            assert_eq!(into, bytes);
        });
        assert!(matches!(links[0].lock().slots[3], Slot::Free), "nothing is left behind");
    }

    #[test]
    fn who_waits_is_told_of_the_first_failure() {
        let links = thread_links(3, 4, Duration::from_secs(60));
        thread::scope(|scope| {
            let waits = scope.spawn(|| links[1].receive(HEADER, &mut [0; 3]));
            links[0].abort("no room");
            links[2].abort("something else");
            let rank = RankId::from_u32(0);
            let expected = LinkError::Aborted { rank, cause: "no room".to_string() };
            assert_eq!(waits.join().unwrap(), Err(expected.clone()));
            assert_eq!(links[2].failure(), Some(expected));
        });
    }

    #[test]
    fn what_an_aborted_rank_lends_is_not_read() {
        let links = thread_links(2, 4, Duration::from_secs(60));
        links[0].send(HEADER, Lent { bytes: std::ptr::null(), length: 3 }).unwrap();
        links[0].abort("its memory goes");
        let mut into = [7; 3];
        assert!(links[1].receive(HEADER, &mut into).is_err());
        assert_eq!(into, [7; 3]);
    }

    #[test]
    fn a_silent_peer_and_another_size_are_errors() {
        let links = thread_links(2, 4, Duration::from_millis(1));
        let error = links[1].receive(HEADER, &mut [0; 3]).unwrap_err();
        assert_eq!(error.to_string(), "rank1 waited 0 s for message 3 of step 1, which never came");
        assert_eq!(links[0].failure(), Some(error));
        let links = thread_links(2, 4, Duration::from_secs(60));
        links[0].send(HEADER, lent(&[1, 2])).unwrap();
        let error = links[1].receive(HEADER, &mut [0; 3]).unwrap_err();
        assert!(matches!(error, LinkError::Size { found: 2, expected: 3, .. }));
        let links = thread_links(2, 3, Duration::from_secs(60));
        let error = links[0].send(HEADER, lent(&[1, 2])).unwrap_err();
        assert!(matches!(error, LinkError::Unknown { messages: 3, .. }));
    }
}
