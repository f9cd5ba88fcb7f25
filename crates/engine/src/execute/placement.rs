//! Persistent tensors where the residency manager puts them during a run: its moves, carried
//! out. Invariant: every move passed the manager's judge before it begins; a call that computes
//! with a tensor has waited for it; and no bytes move out of a place, or into it, before what moved
//! there earlier has arrived.

use std::io;
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cranelift_entity::PrimaryMap;
use tightfit::units::{Bytes, Seconds};

use crate::execute::error::StepError;
use crate::execute::lanes::{Job, Lanes, Way};
use crate::execute::region::{Operands, Region};
use crate::execute::residents::{Below, Place, Reach, Staging};
use crate::memory::slab::Slab;
use crate::memory::tier::{BLOCK, Checksums, TierError, TierFile};
use crate::residency::{
    self, Access, BlockId, Figures, GraphKey, Move, Phase, Purpose, Residency, ResidencyError,
    TensorId,
};

/// Transfers that may be in flight without allocating more memory.
pub(super) const UNDER_WAY: usize = 256;

/// What the iterations of one graph have moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Iterations {
    /// Number of iterations.
    pub count: u64,
    /// What they moved, in total.
    pub figures: Figures,
}

/// The graphs of a step, as the manager tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Training,
    Evaluation,
}

/// A block's place in the tier.
struct Home {
    /// First byte.
    address: u64,
    /// Its size, in whole blocks of the tier.
    bytes: u64,
    checksums: Checksums,
    /// The last transfer of it, by its number on its lane.
    last: Option<(Way, u64)>,
}

/// The residency manager, and the lanes that carry out its moves.
pub(super) struct Placement {
    residency: Residency,
    lanes: Arc<Lanes>,
    homes: PrimaryMap<BlockId, Home>,
    /// For each slot, the number of the last transfer that freed it.
    freed: Vec<u64>,
    chunk: Bytes,
    /// The moves of the access that is being laid out.
    moves: Vec<Move>,
    /// The last transfer of each lane.
    started: [u64; 2],
    /// Since they were last taken: those of the training, and of the evaluation.
    done: [Iterations; 2],
    turn: Turn,
}

/// A placement that graphs use in turn.
pub(super) type Shared = Arc<Mutex<Placement>>;

/// A thread that panics while holding it ends the run.
pub(super) fn lock(shared: &Shared) -> MutexGuard<'_, Placement> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reserves space in the tier for the checksums of every block.
pub(super) fn declare(region: &Region, file: &mut TierFile) -> Result<(), ResidencyError> {
    for block in region.packing()?.blocks.values() {
        let address = u64::from(block.first.as_u32()) * region.chunk.0;
        file.declare(address, block.bytes.align_up(BLOCK.0).0);
    }
    Ok(())
}

impl Placement {
    /// Everything starts in the tier, where nothing may be read yet.
    pub fn new(region: &Region, lanes: &Arc<Lanes>) -> Result<Placement, StepError> {
        let residency = Residency::new(region.settings(), region.sizes())?;
        let mut homes = PrimaryMap::new();
        for block in residency.packing().blocks.values() {
            let address = u64::from(block.first.as_u32()) * region.chunk.0;
            let checksums = lanes.file().checksums(address).ok_or(TierError::Failed)?;
            let bytes = block.bytes.align_up(BLOCK.0).0;
            homes.push(Home { address, bytes, checksums, last: None });
        }
        Ok(Placement {
            residency,
            lanes: Arc::clone(lanes),
            homes,
            freed: vec![0; region.slots as usize],
            chunk: region.chunk,
            moves: Vec::new(),
            started: [0; 2],
            done: [Iterations::default(); 2],
            turn: Turn::Training,
        })
    }

    /// Fills blocks that several tensors share, so that they can be read before the first of these
    /// is.
    pub fn clear(&self, staging: &Staging) -> io::Result<()> {
        let file = Some(&**self.lanes.file());
        let shared = self.residency.packing().blocks.values().zip(self.homes.values());
        for (_, home) in shared.filter(|(block, _)| block.chunks == 1) {
            let whole = Below::whole(home.address, home.bytes);
            Reach { tier: file, staging }.fill(whole, 0, &mut |_, _| Ok(()))?;
        }
        Ok(())
    }

    /// Begins an iteration of a graph.
    pub fn begin(&mut self, turn: Turn) -> Result<(), StepError> {
        self.turn = turn;
        Ok(self.residency.begin(GraphKey(turn as u64))?)
    }

    /// Ends it.
    pub fn end(&mut self) -> Result<(), StepError> {
        let figures = self.residency.end()?;
        let done = &mut self.done[self.turn as usize];
        done.count += 1;
        done.figures += figures;
        Ok(())
    }

    /// What iterations of the training and of the evaluation have moved since the last call.
    pub fn take_figures(&mut self) -> [Iterations; 2] {
        std::mem::take(&mut self.done)
    }

    /// Returns when everything that a call computes with is on the device, with the seconds that it
    /// took.
    pub fn acquire(&mut self, operands: &Operands, slab: &Slab) -> Result<Seconds, StepError> {
        let begun = Instant::now();
        let Operands { reads, writes } = operands;
        self.moves.clear();
        self.moves.extend_from_slice(self.residency.acquire(Access { reads, writes })?);
        let moves = std::mem::take(&mut self.moves);
        // The lane waits for an eviction anyway; waiting here lets its time be counted separately.
        let mut evicted = 0;
        let mut is_awaited = false;
        for step in &moves {
            self.start(step, slab)?;
            let is_demanded = step.purpose == Purpose::Demand;
            match (step.from, step.to) {
                (residency::Place::Device(_), residency::Place::Host) if is_demanded => {
                    evicted = self.started[Way::Out as usize];
                }
                (residency::Place::Host, _) if is_demanded => is_awaited = true,
                _ => {}
            }
        }
        self.moves = moves;
        let evicting = Instant::now();
        if is_awaited && evicted > 0 {
            self.wait(Way::Out, evicted)?;
        }
        let eviction = evicting.elapsed().as_secs_f64();
        for &tensor in reads.iter().chain(writes) {
            let block = self.residency.packing().block(tensor);
            if let Some((Way::Back, number)) = block.and_then(|block| self.homes[block].last) {
                self.wait(Way::Back, number)?;
            }
        }
        let layout = Seconds(begun.elapsed().as_secs_f64());
        self.residency.took(layout, Seconds(eviction));
        Ok(layout)
    }

    /// Ends a call's use of its tensors.
    pub fn release(&mut self, operands: &Operands, phase: Phase) -> Result<(), StepError> {
        let Operands { reads, writes } = operands;
        Ok(self.residency.release(Access { reads, writes }, phase, Bytes::ZERO)?)
    }

    /// Where a tensor that was acquired begins in the slab.
    pub fn address(&self, tensor: TensorId) -> Option<u64> {
        self.residency.address(tensor).map(|address| address.0)
    }

    /// Where the newest bytes of a tensor lie, with nothing in flight.
    pub fn place(&mut self, tensor: TensorId) -> Result<Place, StepError> {
        self.settle()?;
        if let Some(address) = self.address(tensor) {
            return Ok(Place::Slab(address));
        }
        let span = self.residency.packing().tensors.get(tensor).copied();
        let Some((block, offset)) = span.and_then(|span| Some((span.block?, span.offset))) else {
            return Ok(Place::Slab(0));
        };
        let Home { address, bytes: buffer, .. } = self.homes[block];
        let is_shared = self.residency.packing().blocks[block].chunks == 1;
        Ok(Place::Tier(Below { address, buffer, offset: offset.0, is_shared }))
    }

    /// Moves everything out of the slab, so that it can be written in the tier.
    pub fn flush(&mut self, slab: &Slab) -> Result<(), StepError> {
        let moves = self.residency.flush()?.to_vec();
        moves.iter().try_for_each(|step| self.start(step, slab))?;
        self.settle()
    }

    /// Returns when nothing is in flight.
    pub fn settle(&self) -> Result<(), StepError> {
        [Way::Out, Way::Back].into_iter().try_for_each(|way| self.wait(way, self.number(way)))
    }

    fn number(&self, way: Way) -> u64 {
        self.started[way as usize]
    }

    /// Begins a move.
    fn start(&mut self, step: &Move, slab: &Slab) -> Result<(), StepError> {
        let address = |slot: residency::SlotId| u64::from(slot.as_u32()) * self.chunk.0;
        let slots = |slot: residency::SlotId| {
            let first = slot.as_u32() as usize;
            first..first + step.chunks as usize
        };
        let Home { address: below, bytes, last, .. } = self.homes[step.block];
        let (way, at, after) = match (step.from, step.to) {
            (residency::Place::Device(from), residency::Place::Device(to)) => {
                self.settle()?;
                // SAFETY: nothing is in flight, nothing computes, and the judge of residency lets
                // nothing move that is computed with, nor over anything else.
                unsafe { slab.copy_within(address(from), address(to), bytes) }
                return Ok(());
            }
            (residency::Place::Device(from), residency::Place::Host) => {
                // The block may not have arrived yet.
                let after =
                    last.map_or(0, |(way, number)| if way == Way::Back { number } else { 0 });
                if !step.copies {
                    // What takes its place must not arrive before it has.
                    if after > 0 {
                        self.wait(Way::Back, after)?;
                    }
                    self.homes[step.block].last = None;
                    return Ok(());
                }
                self.freed[slots(from)].fill(self.started[Way::Out as usize] + 1);
                (Way::Out, address(from), after)
            }
            (residency::Place::Host, residency::Place::Device(to)) => {
                let left = last.map_or(0, |(way, number)| if way == Way::Out { number } else { 0 });
                let freed = self.freed[slots(to)].iter().copied().max().unwrap_or(0);
                (Way::Back, address(to), left.max(freed))
            }
            (residency::Place::Host, residency::Place::Host) => return Ok(()),
        };
        let checksums = self.homes[step.block].checksums.clone();
        let number =
            self.lanes.start(way, Job { slab: slab.part(at, bytes), below, checksums, after });
        self.homes[step.block].last = Some((way, number));
        self.started[way as usize] = number;
        if !self.lanes.overlaps() {
            self.wait(way, number)?;
        }
        Ok(())
    }

    /// Returns when the transfer of this number has ended.
    fn wait(&self, way: Way, number: u64) -> Result<(), StepError> {
        let Err(error) = self.lanes.wait(way, number) else { return Ok(()) };
        if !matches!(error, TierError::Failed) {
            return Err(error.into());
        }
        // It waited for something that failed on the other lane.
        let other = if way == Way::Out { Way::Back } else { Way::Out };
        Err(self.lanes.wait(other, self.number(other)).err().unwrap_or(error).into())
    }
}
