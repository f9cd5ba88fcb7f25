//! The allocator of one device: it passes on, records, or replays. Invariant: every address that it
//! gave out lies in a block of the backing or in the slab, and is known here until it is given
//! back; an address that is not known is never given to the backing.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::backing::{Address, Backing, Size};
use crate::error::ReplayError;
use crate::placement::Placement;
use crate::recording::Recording;
use crate::tenants::{Offset, Tenants};
use crate::trace::Trace;

/// A thread of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread(pub usize);

/// A stream of a device; 0 if the device has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(pub usize);

/// Counts of what was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes of blocks that were passed on and have not been given back.
    pub beside: Size,
    /// The most bytes of these and the slab together since the last reset.
    pub peak: Size,
    /// Allocations that got their planned address.
    pub placed: u64,
    /// Allocations that were passed on.
    pub passed_on: u64,
    /// Addresses that were given back but not known.
    pub strays: u64,
}

/// The allocations of one pass of a step: by its own thread, for its own stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    thread: Thread,
    stream: Stream,
}

/// How allocations of a step are handled.
#[derive(Debug)]
enum Course {
    /// All are passed on.
    PassOn,
    /// All are passed on, and recorded.
    Record(Recording),
    /// Those of the windows get the next planned address.
    Replay { placement: Arc<Placement>, next: usize, pass: usize },
}

/// A block that was passed on; if it was recorded, the number of the recording, and its position if
/// it is an allocation of the step.
#[derive(Clone, Copy, Debug)]
struct Block {
    size: Size,
    recorded: Option<(u64, Option<usize>)>,
}

/// The allocator of one device.
#[derive(Debug)]
pub struct Allocator<B: Backing> {
    backing: B,
    slab: Option<(Address, Size)>,
    tenants: Tenants,
    blocks: HashMap<Address, Block>,
    course: Course,
    /// The number of the last recording.
    recordings: u64,
    window: Option<Window>,
    /// Why the step was stopped.
    failure: Option<ReplayError>,
    counters: Counters,
}

impl<B: Backing> Allocator<B> {
    /// An allocator that passes everything on.
    pub fn new(backing: B) -> Allocator<B> {
        Allocator {
            backing,
            slab: None,
            tenants: Tenants::default(),
            blocks: HashMap::new(),
            course: Course::PassOn,
            recordings: 0,
            window: None,
            failure: None,
            counters: Counters::default(),
        }
    }

    /// This many bytes for a thread and a stream; zero bytes have no address. Failing ends the
    /// replay.
    pub fn allocate(
        &mut self,
        size: Size,
        thread: Thread,
        stream: Stream,
    ) -> Result<Option<Address>, ReplayError> {
        if size == Size::ZERO {
            return Ok(None);
        }
        let is_own = self.window == Some(Window { thread, stream });
        let address = match self.planned(size, is_own) {
            Ok(Some(address)) => Ok(address),
            Ok(None) => self.pass_on(size, is_own),
            Err(error) => Err(error),
        };
        if let (Err(error), true) = (&address, is_own) {
            // Allocations made while the step is abandoned belong to no step.
            self.leave();
            self.failure = Some(error.clone());
        }
        address.map(Some)
    }

    /// Takes an address back. One that is not known is left alone, and counted.
    pub fn free(&mut self, address: Address, thread: Thread) {
        if let Some(offset) = self.offset(address) {
            if self.tenants.release(offset).is_none() {
                self.counters.strays += 1;
            }
            return;
        }
        let Some(block) = self.blocks.remove(&address) else {
            self.counters.strays += 1;
            return;
        };
        self.counters.beside = self.counters.beside.minus(block.size);
        let is_beside = self.window.is_some_and(|window| window.thread != thread);
        if let Course::Record(recording) = &mut self.course {
            match block.recorded {
                Some((number, index)) if number == self.recordings => {
                    recording.went(block.size, index, is_beside);
                }
                Some(_) | None => recording.left(block.size),
            }
        }
        self.backing.free(address, block.size);
    }

    /// Begins a step that is to be recorded; a step that was begun before is over.
    pub fn record(&mut self) {
        self.leave();
        self.recordings += 1;
        self.course = Course::Record(Recording::default());
    }

    /// Begins a step that is to be replayed in the slab, which has to be empty; a step that was
    /// begun before is over.
    pub fn replay(&mut self, placement: Arc<Placement>) -> Result<(), ReplayError> {
        self.leave();
        if !self.tenants.is_empty() {
            return Err(ReplayError::StillHeld(self.tenants.held()));
        }
        if placement.slab() > self.slab() {
            return Err(ReplayError::SlabTooSmall { needed: placement.slab(), slab: self.slab() });
        }
        self.course = Course::Replay { placement, next: 0, pass: 0 };
        Ok(())
    }

    /// Begins, or continues, a step all of whose allocations are passed on. Returns the recording
    /// of the step before, if there is one.
    pub fn leave(&mut self) -> Option<Trace> {
        (self.window, self.failure) = (None, None);
        match std::mem::replace(&mut self.course, Course::PassOn) {
            Course::Record(recording) => Some(recording.trace()),
            Course::PassOn | Course::Replay { .. } => None,
        }
    }

    /// Begins a pass of the step, run by this thread on this stream.
    pub fn open(&mut self, thread: Thread, stream: Stream) -> Result<(), ReplayError> {
        if self.window.is_some() {
            return Err(ReplayError::PassInPass);
        }
        if let Course::Replay { placement, pass, .. } = &self.course
            && placement.end(*pass).is_none()
        {
            return Err(ReplayError::OneMorePass(*pass));
        }
        if let Course::Record(recording) = &mut self.course {
            recording.begins();
        }
        self.window = Some(Window { thread, stream });
        Ok(())
    }

    /// Ends the pass. Fails if it was stopped, or made fewer allocations than recorded.
    pub fn close(&mut self) -> Result<(), ReplayError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        if self.window.take().is_none() {
            return Ok(());
        }
        match &mut self.course {
            Course::PassOn => Ok(()),
            Course::Record(recording) => {
                recording.passed();
                Ok(())
            }
            Course::Replay { placement, next, pass } => {
                let (made, recorded) = (*next, placement.end(*pass).unwrap_or(*next));
                *pass += 1;
                if made < recorded {
                    self.course = Course::PassOn;
                    return Err(ReplayError::Fewer { made, recorded });
                }
                Ok(())
            }
        }
    }

    /// Gives the step up. Returns why it was stopped, if it was stopped here.
    pub fn stop(&mut self) -> Option<ReplayError> {
        let failure = self.failure.take();
        self.leave();
        failure
    }

    /// Makes the slab as large as this, or frees it. It has to be empty.
    pub fn reserve(&mut self, size: Size) -> Result<(), ReplayError> {
        if !self.tenants.is_empty() {
            return Err(ReplayError::StillHeld(self.tenants.held()));
        }
        // A step that is being replayed loses its slab.
        self.leave();
        // The old one is freed first, so that there are never both at once.
        if let Some((address, size)) = self.slab.take() {
            self.backing.free(address, size);
        }
        if size > Size::ZERO {
            let address = self.backing.allocate(size);
            let found = address.map_err(|reason| ReplayError::OutOfMemory { asked: size, reason });
            self.slab = Some((found?, size));
        }
        self.counters.peak = self.counters.peak.max(self.reserved());
        Ok(())
    }

    /// Bytes of the slab.
    pub fn slab(&self) -> Size {
        self.slab.map_or(Size::ZERO, |(_, size)| size)
    }

    /// Bytes of the slab that are held.
    pub fn held(&self) -> Size {
        self.tenants.held()
    }

    /// Bytes that are reserved of the device: the slab's, and those that were passed on.
    pub fn reserved(&self) -> Size {
        self.slab().plus(self.counters.beside)
    }

    /// Counts of what was done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Resets the peak to what is reserved now.
    pub fn reset_peak(&mut self) {
        self.counters.peak = self.reserved();
    }

    /// The planned address, if a step is replayed and this is one of its allocations that lies in
    /// the slab.
    fn planned(&mut self, size: Size, is_own: bool) -> Result<Option<Address>, ReplayError> {
        let (Course::Replay { placement, next, pass }, true) = (&mut self.course, is_own) else {
            return Ok(None);
        };
        let position = *next;
        let end = placement.end(*pass).unwrap_or(0);
        let found = placement.allocation(position).filter(|_| position < end);
        let Some((recorded, offset)) = found else {
            return Err(ReplayError::OneMore { recorded: end, asked: size });
        };
        if recorded != size {
            return Err(ReplayError::OtherSize { position, recorded, asked: size });
        }
        let Some(offset) = offset else {
            *next += 1;
            return Ok(None);
        };
        let occupied = ReplayError::Occupied { position };
        let Some((slab, _)) = self.slab else { return Err(occupied) };
        let Some(address) = slab.0.checked_add(offset.0) else { return Err(occupied) };
        self.tenants.claim(offset, size).map_err(|_| occupied)?;
        *next += 1;
        self.counters.placed += 1;
        Ok(Some(Address(address)))
    }

    fn pass_on(&mut self, size: Size, is_own: bool) -> Result<Address, ReplayError> {
        let found = self.backing.allocate(size);
        let address = found.map_err(|reason| ReplayError::OutOfMemory { asked: size, reason })?;
        self.counters.passed_on += 1;
        self.counters.beside = self.counters.beside.plus(size);
        self.counters.peak = self.counters.peak.max(self.reserved());
        let recorded = match &mut self.course {
            Course::Record(recording) => Some((self.recordings, recording.came(size, is_own))),
            Course::PassOn | Course::Replay { .. } => None,
        };
        self.blocks.insert(address, Block { size, recorded });
        Ok(address)
    }

    /// Where in the slab an address lies, if it does.
    fn offset(&self, address: Address) -> Option<Offset> {
        let (base, size) = self.slab?;
        let offset = address.0.get().checked_sub(NonZeroUsize::get(base.0))?;
        (offset < size.0).then_some(Offset(offset))
    }
}
