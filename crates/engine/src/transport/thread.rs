//! Ranks as threads of one process. Invariant: bytes are copied once, from where the sender has
//! them to where the receiver wants them, by the receiver.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tightfit::id::RankId;

use crate::transport::{Header, Lent, Link, LinkError};

/// A message on its way.
#[derive(Clone, Copy, Debug)]
enum UnderWay {
    Lent(Lent),
    Taken,
}

#[derive(Debug, Default)]
struct Shared {
    messages: BTreeMap<Header, UnderWay>,
    failure: Option<LinkError>,
}

#[derive(Debug, Default)]
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

/// The ends of so many ranks; who waits longer than `deadline` gives up, and with it all others.
pub fn thread_links(ranks: u32, deadline: Duration) -> Vec<ThreadLink> {
    let exchange = Arc::new(Exchange::default());
    (0..ranks)
        .map(RankId::from_u32)
        .map(|rank| ThreadLink { rank, deadline, exchange: Arc::clone(&exchange) })
        .collect()
}

impl ThreadLink {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.exchange.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` finds something in the messages, or something failed.
    fn wait<T>(
        &self,
        header: Header,
        mut ready: impl FnMut(&mut BTreeMap<Header, UnderWay>) -> Option<T>,
    ) -> Result<T, LinkError> {
        let begun = Instant::now();
        let mut shared = self.lock();
        loop {
            if let Some(failure) = &shared.failure {
                return Err(failure.clone());
            }
            if let Some(found) = ready(&mut shared.messages) {
                return Ok(found);
            }
            let Some(left) = self.deadline.checked_sub(begun.elapsed()) else {
                let failure =
                    LinkError::Deadline { rank: self.rank, header, waited: self.deadline };
                shared.failure = Some(failure.clone());
                self.exchange.changed.notify_all();
                return Err(failure);
            };
            let waited = self.exchange.changed.wait_timeout(shared, left);
            shared = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn fail(&self, failure: LinkError) {
        self.lock().failure.get_or_insert(failure);
        self.exchange.changed.notify_all();
    }
}

impl Link for ThreadLink {
    fn send(&self, header: Header, bytes: Lent) -> Result<(), LinkError> {
        let mut shared = self.lock();
        if let Some(failure) = &shared.failure {
            return Err(failure.clone());
        }
        shared.messages.insert(header, UnderWay::Lent(bytes));
        self.exchange.changed.notify_all();
        Ok(())
    }

    fn receive(&self, header: Header, into: &mut [u8]) -> Result<(), LinkError> {
        let lent = self.wait(header, |messages| match messages.get(&header) {
            Some(&UnderWay::Lent(lent)) => Some(lent),
            Some(UnderWay::Taken) | None => None,
        })?;
        if lent.length != into.len() {
            let (found, expected) = (lent.length, into.len());
            let failure = LinkError::Size { header, found, expected };
            self.fail(failure.clone());
            return Err(failure);
        }
        // SAFETY: the sender leaves these bytes as they are until they are marked as taken below;
        // and they lie in its slab, `into` in this rank's own.
        let from = unsafe { std::slice::from_raw_parts(lent.bytes, lent.length) };
        into.copy_from_slice(from);
        self.lock().messages.insert(header, UnderWay::Taken);
        self.exchange.changed.notify_all();
        Ok(())
    }

    fn sent(&self, header: Header) -> Result<(), LinkError> {
        self.wait(header, |messages| match messages.get(&header) {
            Some(UnderWay::Taken) => messages.remove(&header).map(drop),
            Some(UnderWay::Lent(_)) | None => None,
        })
    }

    fn abort(&self, cause: &str) {
        self.fail(LinkError::Aborted { rank: self.rank, cause: cause.to_string() });
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
        let links = thread_links(2, Duration::from_secs(60));
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
        assert_eq!(links[0].lock().messages.len(), 0, "nothing is left behind");
    }

    #[test]
    fn who_waits_is_told_of_the_first_failure() {
        let links = thread_links(3, Duration::from_secs(60));
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
    fn a_silent_peer_and_another_size_are_errors() {
        let links = thread_links(2, Duration::from_millis(1));
        let error = links[1].receive(HEADER, &mut [0; 3]).unwrap_err();
        assert_eq!(error.to_string(), "rank1 waited 0 s for message 3 of step 1, which never came");
        assert_eq!(links[0].failure(), Some(error));
        let links = thread_links(2, Duration::from_secs(60));
        links[0].send(HEADER, lent(&[1, 2])).unwrap();
        let error = links[1].receive(HEADER, &mut [0; 3]).unwrap_err();
        assert!(matches!(error, LinkError::Size { found: 2, expected: 3, .. }));
    }
}
