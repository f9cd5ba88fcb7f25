//! The lanes between slab and tier, each on a thread of its own. Invariant: a lane carries one
//! transfer after another, in the order in which they were started, and none before the transfer of
//! the other lane that it depends on; an error is returned by the next wait on that lane.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::memory::slab::Part;
use crate::memory::tier::{CHUNK, Checksums, TierError, TierFile};

/// Bytes of stack of a lane's thread.
pub(crate) const STACK: usize = 128 << 10;

/// The direction of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the slab to the tier.
    Out,
    /// From the tier to the slab.
    Back,
}

/// One transfer.
pub(super) struct Job {
    pub slab: Part,
    /// First byte of the buffer in the tier.
    pub below: u64,
    pub checksums: Checksums,
    /// The number of a transfer of the other lane, started before, that has to end first; 0 for
    /// none.
    pub after: u64,
}

/// When a lane took up a transfer, and how long it took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    pub start: Instant,
    pub seconds: f64,
}

/// How lanes are used; set to measure what other tiers, or no overlap, would cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// The most bytes that a lane moves in a second.
    pub throttle: Option<f64>,
    /// Whether calls go on during transfers.
    pub overlaps: bool,
}

/// As fast as possible, at the same time as the calls.
impl Default for Traffic {
    fn default() -> Traffic {
        Traffic { throttle: None, overlaps: true }
    }
}

/// Both lanes.
pub(super) struct Lanes {
    out: Lane,
    back: Lane,
    file: Arc<TierFile>,
    overlaps: bool,
}

struct Lane {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    /// Transfers that were started, and those that have ended, since the run began.
    started: u64,
    done: u64,
    failed: Option<TierError>,
    is_closing: bool,
    /// The last transfers that have ended, by their numbers; as many as may be in flight at once.
    moved: Vec<Option<(u64, Moved)>>,
}

impl Lanes {
    /// Two threads for a tier; at most `most` transfers are in flight at once.
    pub fn new(file: TierFile, most: usize, traffic: Traffic) -> Result<Lanes, std::io::Error> {
        let file = Arc::new(file);
        let [outward, homeward] = [(); 2].map(|()| Arc::new(Shared::with_room(most)));
        let lane = |way, own: &Arc<Shared>, other: &Arc<Shared>| {
            Lane::new(way, &file, [own, other], traffic.throttle)
        };
        let out = lane(Way::Out, &outward, &homeward)?;
        let back = lane(Way::Back, &homeward, &outward)?;
        Ok(Lanes { out, back, file, overlaps: traffic.overlaps })
    }

    /// Whether calls go on during transfers.
    pub fn overlaps(&self) -> bool {
        self.overlaps
    }

    /// The tier's file.
    pub fn file(&self) -> &Arc<TierFile> {
        &self.file
    }

    fn lane(&self, way: Way) -> &Lane {
        match way {
            Way::Out => &self.out,
            Way::Back => &self.back,
        }
    }

    /// Starts a transfer and returns its number on its lane.
    pub fn start(&self, way: Way, job: Job) -> u64 {
        let mut state = self.lane(way).shared.lock();
        state.waiting.push_back(job);
        state.started += 1;
        self.lane(way).shared.changed.notify_all();
        state.started
    }

    /// Returns when the transfer of this number has ended, with its times if it was one of the
    /// last.
    ///
    /// # Errors
    /// If something failed on the lane, be it this transfer or one before.
    pub fn wait(&self, way: Way, number: u64) -> Result<Option<Moved>, TierError> {
        let shared = &self.lane(way).shared;
        shared.wait(number)?;
        let state = shared.lock();
        let slot = number.checked_rem(state.moved.len() as u64);
        let moved = slot.and_then(|slot| state.moved[slot as usize]);
        Ok(moved.filter(|moved| moved.0 == number).map(|moved| moved.1))
    }

    /// Returns when nothing is in flight.
    ///
    /// # Errors
    /// If something failed on a lane.
    pub fn settle(&self) -> Result<(), TierError> {
        let [out, back] = [Way::Out, Way::Back].map(|way| {
            let shared = &self.lane(way).shared;
            let started = shared.lock().started;
            shared.drain(started);
            shared.wait(started)
        });
        match (out, back) {
            // The failure of the other lane says why.
            (Err(TierError::Failed), Err(error)) => Err(error),
            (out, back) => out.and(back),
        }
    }
}

impl Shared {
    /// With space for this many transfers in flight.
    fn with_room(most: usize) -> Shared {
        let state = State {
            waiting: VecDeque::with_capacity(most),
            moved: vec![None; most.max(1)],
            ..State::default()
        };
        Shared { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// A thread that panicked leaves the change it was about to make undone, and its message.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the transfer of this number has ended, even if something failed.
    fn drain(&self, number: u64) {
        let mut state = self.lock();
        while state.done < number {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns when the transfer of this number has ended, with whether everything up to it was
    /// carried; it was not if the lane was closed before.
    fn has_carried(&self, number: u64) -> bool {
        let mut state = self.lock();
        while state.done < number && !state.is_closing {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.done >= number && state.failed.is_none()
    }

    fn wait(&self, number: u64) -> Result<(), TierError> {
        let mut state = self.lock();
        while state.done < number && state.failed.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        // Later waits must not succeed either.
        match state.failed.take() {
            Some(error) => {
                state.failed = Some(TierError::Failed);
                Err(error)
            }
            None => Ok(()),
        }
    }
}

impl Lane {
    fn new(
        way: Way,
        file: &Arc<TierFile>,
        [own, other]: [&Arc<Shared>; 2],
        throttle: Option<f64>,
    ) -> Result<Lane, std::io::Error> {
        let shared = Arc::clone(own);
        let (file, mine, other) = (Arc::clone(file), Arc::clone(own), Arc::clone(other));
        let name = if way == Way::Out { "tightfit-out" } else { "tightfit-back" };
        let thread = std::thread::Builder::new()
            .name(name.to_string())
            .stack_size(STACK)
            .spawn(move || serve(way, &file, [&mine, &other], throttle))?;
        Ok(Lane { shared, thread: Some(thread) })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closing = true;
        state.waiting.clear();
        drop(state);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // If it panicked, the panic was already reported.
            let _ = thread.join();
        }
    }
}

/// Takes up one transfer after another, until the lane is closed.
fn serve(way: Way, file: &TierFile, [shared, other]: [&Shared; 2], throttle: Option<f64>) {
    let mut state = shared.lock();
    loop {
        if state.is_closing {
            return;
        }
        let Some(job) = state.waiting.pop_front() else {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let has_failed = state.failed.is_some();
        drop(state);
        // If the transfer it depends on was not carried, this one would overwrite what is there
        // now.
        let may_begin = job.after == 0 || other.has_carried(job.after);
        let start = Instant::now();
        // A panic would leave others waiting forever.
        let carried = || match (has_failed, may_begin) {
            (true, _) => Ok(()),
            (false, false) => Err(TierError::Failed),
            (false, true) => carry(way, file, job, throttle),
        };
        let result = catch_unwind(AssertUnwindSafe(carried)).unwrap_or(Err(TierError::Failed));
        state = shared.lock();
        state.done += 1;
        let moved = (state.done, Moved { start, seconds: start.elapsed().as_secs_f64() });
        let slot = state.done % state.moved.len() as u64;
        state.moved[slot as usize] = Some(moved);
        if let Err(error) = result {
            state.failed.get_or_insert(error);
        }
        shared.changed.notify_all();
    }
}

/// Carries one transfer, chunk by chunk.
fn carry(way: Way, file: &TierFile, mut job: Job, throttle: Option<f64>) -> Result<(), TierError> {
    let begun = Instant::now();
    let whole = job.slab.len();
    let mut from = 0;
    while from < whole {
        let to = (from + CHUNK).min(whole);
        let range = from as usize..to as usize;
        match way {
            Way::Out => {
                // SAFETY: the lanes end before the slab does, and neither the checker lets a
                // schedule pass, nor the judge of residency a move, in which something writes to
                // what is leaving.
                let bytes = unsafe { job.slab.read() };
                file.write(job.below, from, &bytes[range], &job.checksums)?;
            }
            Way::Back => {
                // SAFETY: as above; nothing touches what is arriving.
                let bytes = unsafe { job.slab.write() };
                file.read(job.below, from, &mut bytes[range], &job.checksums)?;
            }
        }
        from = to;
        if let Some(rate) = throttle {
            let due = Duration::try_from_secs_f64(from as f64 / rate).unwrap_or_default();
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }
    Ok(())
}
