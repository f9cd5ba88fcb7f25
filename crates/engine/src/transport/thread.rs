//! Ranks as threads of one process. Invariant: bytes are copied once, from where the sender has
//! them to where the receiver wants them, by the receiver; and once a rank has aborted, no one
//! reads what it lends.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tightfit::id::RankId;

use crate::transport::{Awaited, Awaiting, Header, Lent, Link, LinkError, Route};

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
    /// By the numbers of messages; allocated at the beginning, so that a step allocates nothing.
    slots: Vec<Slot>,
    /// What each rank says.
    said: Vec<Option<Vec<u8>>>,
    /// The number of ranks that have read all of that.
    heard: usize,
    /// Bytes that one rank gives to another, by giver and taker.
    given: BTreeMap<(RankId, RankId), Lent>,
    failure: Option<LinkError>,
}

#[derive(Debug)]
struct Exchange {
    routes: Vec<Route>,
    ranks: u32,
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

/// The ends of this many ranks, which send these messages in a step; a rank that waits longer than
/// `deadline` gives up, and all others with it.
pub fn thread_links(ranks: u32, routes: Vec<Route>, deadline: Duration) -> Vec<ThreadLink> {
    let shared = Shared {
        slots: vec![Slot::Free; routes.len()],
        said: vec![None; ranks as usize],
        heard: 0,
        given: BTreeMap::new(),
        failure: None,
    };
    let exchange = Exchange { routes, ranks, shared: Mutex::new(shared), changed: Condvar::new() };
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

    fn wait_on<'a>(&'a self, shared: MutexGuard<'a, Shared>) -> MutexGuard<'a, Shared> {
        self.exchange.changed.wait(shared).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` returns something, or something failed.
    fn wait<T>(
        &self,
        awaited: impl Fn() -> Awaited,
        mut ready: impl FnMut(&mut Shared) -> Option<T>,
    ) -> Result<T, LinkError> {
        let begun = Instant::now();
        let mut shared = self.lock();
        loop {
            if let Some(failure) = &shared.failure {
                return Err(failure.clone());
            }
            if let Some(found) = ready(&mut shared) {
                self.exchange.changed.notify_all();
                return Ok(found);
            }
            let Some(left) = self.deadline.checked_sub(begun.elapsed()) else {
                let (rank, awaited, waited) = (self.rank, awaited(), self.deadline);
                let failure = LinkError::Deadline { rank, awaited, waited };
                return Err(self.failed(&mut shared, failure));
            };
            let waited = self.exchange.changed.wait_timeout(shared, left);
            shared = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The route of a message.
    fn route(&self, header: Header) -> Result<&Route, LinkError> {
        let routes = &self.exchange.routes;
        routes.get(header.message as usize).ok_or_else(|| {
            let failure = LinkError::Unknown { header, messages: routes.len() };
            self.failed(&mut self.lock(), failure)
        })
    }

    /// Tells all ranks; the first failure counts.
    fn failed(&self, shared: &mut Shared, failure: LinkError) -> LinkError {
        let failure = shared.failure.get_or_insert(failure).clone();
        self.exchange.changed.notify_all();
        failure
    }
}

impl Link for ThreadLink {
    fn rank(&self) -> RankId {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.exchange.ranks
    }

    fn send(&self, header: Header, bytes: Lent) -> Result<(), LinkError> {
        let route = self.route(header)?;
        // The slot is free: in the step before, this sender waited until its message was taken.
        self.wait(
            || Awaited::Taken(header, route.clone()),
            |shared| {
                let slot = &mut shared.slots[header.message as usize];
                let is_free = matches!(slot, Slot::Free);
                is_free.then(|| *slot = Slot::Lent(header.step, bytes))
            },
        )
    }

    fn post(&self, header: Header, _: Awaiting) -> Result<(), LinkError> {
        // The receiver copies when it waits.
        self.route(header).map(drop)
    }

    fn receive(&self, header: Header, into: &mut [u8]) -> Result<(), LinkError> {
        let route = self.route(header)?;
        let awaited = || Awaited::Message(header, route.clone());
        let lent = self.wait(awaited, |shared| {
            let slot = &mut shared.slots[header.message as usize];
            match *slot {
                Slot::Lent(step, lent) if step == header.step => {
                    *slot = Slot::Copied;
                    Some(lent)
                }
                Slot::Lent(..) | Slot::Copied | Slot::Taken(_) | Slot::Free => None,
            }
        })?;
        let fits = lent.length == into.len();
        if fits {
            // SAFETY: these bytes lie in the sender's slab; they are not changed, nor is the slab
            // dropped, until they are marked as taken below; `into` lies in this rank's own.
            let from = unsafe { std::slice::from_raw_parts(lent.bytes, lent.length) };
            into.copy_from_slice(from);
        }
        let mut shared = self.lock();
        shared.slots[header.message as usize] = Slot::Taken(header.step);
        self.exchange.changed.notify_all();
        if fits {
            return Ok(());
        }
        let (found, expected, awaited) = (lent.length, into.len(), awaited());
        Err(self.failed(&mut shared, LinkError::Size { awaited, found, expected }))
    }

    fn sent(&self, header: Header) -> Result<(), LinkError> {
        let route = self.route(header)?;
        self.wait(
            || Awaited::Taken(header, route.clone()),
            |shared| {
                let slot = &mut shared.slots[header.message as usize];
                match *slot {
                    Slot::Taken(step) if step == header.step => {
                        *slot = Slot::Free;
                        Some(())
                    }
                    Slot::Lent(..) | Slot::Copied | Slot::Taken(_) | Slot::Free => None,
                }
            },
        )
    }

    fn gather(&self, said: &[u8]) -> Result<Vec<Vec<u8>>, LinkError> {
        let own = self.rank.as_u32() as usize;
        // Free once all ranks have read what was said before.
        self.wait(
            || Awaited::Everybody,
            |shared| {
                let is_free = shared.said[own].is_none();
                is_free.then(|| shared.said[own] = Some(said.to_vec()))
            },
        )?;
        self.wait(
            || Awaited::Everybody,
            |shared| {
                let all: Vec<Vec<u8>> = shared.said.iter().cloned().collect::<Option<_>>()?;
                shared.heard += 1;
                if shared.heard == all.len() {
                    shared.heard = 0;
                    shared.said.fill(None);
                }
                Some(all)
            },
        )
    }

    fn give(&self, to: RankId, bytes: &[u8]) -> Result<(), LinkError> {
        let lent = Lent { bytes: bytes.as_ptr(), length: bytes.len() };
        let key = (self.rank, to);
        let begin = |shared: &mut Shared| {
            let is_free = !shared.given.contains_key(&key);
            is_free.then(|| shared.given.insert(key, lent)).map(drop)
        };
        self.wait(|| Awaited::To(to), begin)?;
        let is_taken = |shared: &mut Shared| (!shared.given.contains_key(&key)).then_some(());
        self.wait(|| Awaited::To(to), is_taken)
    }

    fn take(&self, from: RankId, into: &mut [u8]) -> Result<(), LinkError> {
        let key = (from, self.rank);
        let found = self.wait(
            || Awaited::From(from),
            |shared| {
                let lent = shared.given.remove(&key)?;
                if lent.length == into.len() {
                    // SAFETY: the giver waits until they were taken, or until some rank has failed,
                    // which none can report while the lock is held.
                    let given = unsafe { std::slice::from_raw_parts(lent.bytes, lent.length) };
                    into.copy_from_slice(given);
                }
                Some(lent.length)
            },
        )?;
        if found == into.len() {
            return Ok(());
        }
        let (expected, awaited) = (into.len(), Awaited::From(from));
        Err(self.failed(&mut self.lock(), LinkError::Size { awaited, found, expected }))
    }

    fn abort(&self, cause: &str) {
        let mut shared = self.lock();
        let cause = cause.to_string();
        self.failed(&mut shared, LinkError::Aborted { rank: self.rank, cause });
        // A rank that has begun to copy what this rank lends finishes its copy.
        while shared.slots.iter().any(|slot| matches!(slot, Slot::Copied)) {
            shared = self.wait_on(shared);
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

    fn links(ranks: u32, messages: usize, deadline: Duration) -> Vec<ThreadLink> {
        let route = |number| Route {
            from: RankId::from_u32(0),
            to: RankId::from_u32(1),
            what: format!("tensor {number}"),
        };
        thread_links(ranks, (0..messages).map(route).collect(), deadline)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn bytes_arrive_and_the_sender_learns_of_it() {
        let links = links(2, 4, LONG);
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
        assert!(matches!(links[0].lock().slots[3], Slot::Free), "nothing is left over");
    }

    #[test]
    fn who_waits_is_told_of_the_first_failure() {
        let links = links(3, 4, LONG);
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
        let links = links(2, 4, LONG);
        links[0].send(HEADER, Lent { bytes: std::ptr::null(), length: 3 }).unwrap();
        links[0].abort("its memory goes");
        let mut into = [7; 3];
        assert!(links[1].receive(HEADER, &mut into).is_err());
        assert_eq!(into, [7; 3]);
    }

    #[test]
    fn a_silent_peer_and_another_size_are_errors() {
        let silent = links(2, 4, Duration::from_millis(1));
        let error = silent[1].receive(HEADER, &mut [0; 3]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "rank1 waited 0 s for message 3 of step 1, tensor 3, from rank0: nothing came; \
             where the others are only slow, pass a longer --peer-deadline"
        );
        assert_eq!(silent[0].failure(), Some(error));
        let other = links(2, 4, LONG);
        other[0].send(HEADER, lent(&[1, 2])).unwrap();
        let error = other[1].receive(HEADER, &mut [0; 3]).unwrap_err();
        assert!(matches!(error, LinkError::Size { found: 2, expected: 3, .. }));
        let few = links(2, 3, LONG);
        let error = few[0].send(HEADER, lent(&[1, 2])).unwrap_err();
        assert!(matches!(error, LinkError::Unknown { messages: 3, .. }));
    }

    #[test]
    fn everybody_hears_everybody() {
        let links = links(3, 0, LONG);
        thread::scope(|scope| {
            for link in &links {
                scope.spawn(move || {
                    for round in 0..100u8 {
                        let number = link.rank().as_u32() as u8;
                        let heard = link.gather(&[number, round]).unwrap();
                        assert_eq!(heard, [0, 1, 2].map(|rank| vec![rank, round]));
                    }
                });
            }
        });
    }

    #[test]
    fn bytes_are_given_and_taken_in_their_order() {
        let links = links(2, 0, LONG);
        let (to, from) = (RankId::from_u32(1), RankId::from_u32(0));
        thread::scope(|scope| {
            scope.spawn(|| (0..100u8).for_each(|byte| links[0].give(to, &[byte]).unwrap()));
            for expected in 0..100 {
                let mut byte = [0];
                links[1].take(from, &mut byte).unwrap();
                assert_eq!(byte, [expected]);
            }
        });
        thread::scope(|scope| {
            let gives = scope.spawn(|| links[0].give(to, &[1, 2]));
            let error = links[1].take(from, &mut [0]).unwrap_err();
            assert!(matches!(error, LinkError::Size { found: 2, expected: 1, .. }));
            gives.join().unwrap().ok();
        });
    }
}
