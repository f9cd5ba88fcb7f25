//! Keeps tensors where they are needed, for graphs whose order is not known ahead: the caller
//! reports accesses and gets moves in return. Invariant: once the moves of an access are made, in
//! their order, everything that it computes with is on the device, within the limit; every move
//! passed [`Verifier`] before it was returned.

use cranelift_entity::PrimaryMap;
use tightfit::units::{Bytes, Seconds};

use super::error::ResidencyError;
use super::figures::Figures;
use super::forecast::Forecast;
use super::id::{BlockId, GraphKey, TensorId};
use super::moves::{Move, Purpose};
use super::occupancy::Occupancy;
use super::packing::Packing;
use super::room;
use super::settings::Settings;
use super::state::{Phase, TensorState, transition};
use super::verify::Verifier;
use super::violation::Violation;

/// The tensors that a module computes with. One that is both read and written is named once, as
/// written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Access<'a> {
    /// What is only read.
    pub reads: &'a [TensorId],
    /// What is written to, whether or not it is read.
    pub writes: &'a [TensorId],
}

/// The state of all tensors, and what is known of the accesses to come.
#[derive(Clone)]
pub struct Residency {
    settings: Settings,
    tensors: PrimaryMap<TensorId, Use>,
    occupancy: Occupancy,
    forecast: Forecast,
    verifier: Verifier,
    figures: Figures,
    /// The most bytes that were on the device, model and non-model data.
    peak: Bytes,
    in_iteration: bool,
    refused: Option<Violation>,
    /// The blocks of the access that is being laid out, in the order of registration.
    wanted: Vec<BlockId>,
}

#[derive(Clone, Copy, Default)]
struct Use {
    state: TensorState,
    users: u64,
}

impl Residency {
    /// Tensors of the given bytes, in the order of registration, all held in the host tier.
    ///
    /// # Errors
    /// The settings describe an impossible region, or the tensors do not fit into chunks.
    pub fn new(
        settings: Settings,
        sizes: impl IntoIterator<Item = Bytes>,
    ) -> Result<Residency, ResidencyError> {
        settings.check()?;
        let packing = Packing::new(settings.chunk, settings.alignment, sizes)?;
        Ok(Residency {
            tensors: packing.tensors.keys().map(|_| Use::default()).collect(),
            verifier: Verifier::new(&packing, settings.slots).map_err(ResidencyError::Refused)?,
            occupancy: Occupancy::new(packing, settings.slots),
            forecast: Forecast::default(),
            settings,
            figures: Figures::default(),
            peak: Bytes::ZERO,
            in_iteration: false,
            refused: None,
            wanted: Vec::new(),
        })
    }

    /// Begins an iteration of a graph.
    ///
    /// # Errors
    /// The previous one has not ended.
    pub fn begin(&mut self, graph: GraphKey) -> Result<(), ResidencyError> {
        self.usable()?;
        if self.in_iteration {
            return Err(ResidencyError::Inside);
        }
        self.in_iteration = true;
        if !self.forecast.begin(graph) {
            self.look_ahead_anew();
        }
        Ok(())
    }

    /// A module is about to compute. The moves for it have to be made first, in their order, with
    /// those of earlier accesses; those for later accesses may go on while it computes.
    ///
    /// # Errors
    /// No iteration has begun, a tensor is unknown or free, or there is not enough space. In that
    /// case no tensor has moved or changed its state, and the call may be repeated.
    pub fn acquire(&mut self, access: Access<'_>) -> Result<&[Move], ResidencyError> {
        self.usable()?;
        if !self.in_iteration {
            return Err(ResidencyError::Outside);
        }
        self.gather(access)?;
        self.forecast.admit(self.wanted.len())?;
        if !self.forecast.expects(&self.wanted) {
            self.forecast.deviate();
            self.look_ahead_anew();
            self.forecast.admit(self.wanted.len())?;
        }
        self.occupancy.moves.clear();
        for &block in &self.wanted {
            self.occupancy.standing_mut(block).wanted = true;
            self.occupancy.farthest.withdraw(block);
        }
        let laid_out =
            room::lay_out(&self.settings, &mut self.occupancy, &self.forecast, &self.wanted);
        if laid_out.is_err() {
            self.occupancy.undo(0);
        }
        for &block in &self.wanted {
            let standing = self.occupancy.standing_mut(block);
            standing.wanted = false;
            let key = standing.key;
            if laid_out.is_err() {
                self.occupancy.queue(block, key);
            }
        }
        let limit = laid_out?;
        let verified = self.commit(access, limit);
        self.end_run_on(verified)?;
        Ok(&self.occupancy.moves)
    }

    /// A module has computed with what it acquired, in this phase. `non_model` is the most
    /// non-model bytes that were seen since the last access; an iteration in the warm-up records
    /// them.
    ///
    /// # Errors
    /// A tensor was not acquired; nothing has changed then.
    pub fn release(
        &mut self,
        access: Access<'_>,
        phase: Phase,
        non_model: Bytes,
    ) -> Result<(), ResidencyError> {
        self.usable()?;
        let named = || access.reads.iter().chain(access.writes).copied();
        for (count, tensor) in named().enumerate() {
            let known = self.tensors.get_mut(tensor).filter(|known| known.users > 0);
            let Some(known) = known else {
                for tensor in named().take(count) {
                    self.tensors[tensor].users += 1;
                }
                return Err(ResidencyError::NotInUse { tensor });
            };
            known.users -= 1;
        }
        self.forecast.observe(non_model);
        let overall = self.held().0.saturating_add(non_model.0);
        self.peak = self.peak.max(Bytes(overall));
        for tensor in named() {
            if self.tensors[tensor].users == 0 {
                self.tensors[tensor].state = TensorState::after(phase);
            }
            if let Some(block) = self.occupancy.packing.block(tensor) {
                self.occupancy.standing_mut(block).users -= 1;
                let key = self.occupancy.standing(block).key;
                self.occupancy.queue(block, key);
            }
            let released = self.verifier.release(tensor);
            self.end_run_on(released)?;
        }
        Ok(())
    }

    /// Ends the iteration; no phase of it computes with anything any more. Returns what it moved.
    ///
    /// # Errors
    /// None has begun, or a tensor is still computed with.
    pub fn end(&mut self) -> Result<Figures, ResidencyError> {
        self.usable()?;
        if !self.in_iteration {
            return Err(ResidencyError::Outside);
        }
        if let Some((tensor, _)) = self.tensors.iter().find(|(_, known)| known.users > 0) {
            return Err(ResidencyError::InUse { tensor });
        }
        for known in self.tensors.values_mut().filter(|known| known.state.is_hold()) {
            known.state = TensorState::Hold;
        }
        self.in_iteration = false;
        self.forecast.end();
        Ok(std::mem::take(&mut self.figures))
    }

    /// A tensor gives up its bytes. A block without any is evicted at once, without a copy.
    ///
    /// # Errors
    /// The tensor is unknown, or computed with.
    pub fn free(&mut self, tensor: TensorId) -> Result<&[Move], ResidencyError> {
        self.usable()?;
        let known = self.known(tensor)?;
        if known.users > 0 {
            return Err(ResidencyError::InUse { tensor });
        }
        self.occupancy.moves.clear();
        if known.state != TensorState::Free {
            self.tensors[tensor].state = TensorState::Free;
            let booked = self.verifier.set_free(tensor, true);
            self.end_run_on(booked)?;
            if let Some(block) = self.occupancy.packing.block(tensor) {
                let standing = self.occupancy.standing_mut(block);
                standing.live -= 1;
                if standing.live == 0 {
                    self.occupancy.evict(block, Purpose::Demand);
                }
            }
            let made = self.verify(0);
            self.end_run_on(made)?;
        }
        Ok(&self.occupancy.moves)
    }

    /// Gives bytes again to a tensor that gave up its own; they may not be read before a write.
    ///
    /// # Errors
    /// The tensor is unknown.
    pub fn refill(&mut self, tensor: TensorId) -> Result<(), ResidencyError> {
        self.usable()?;
        if self.known(tensor)?.state == TensorState::Free {
            self.tensors[tensor].state = TensorState::Hold;
            if let Some(block) = self.occupancy.packing.block(tensor) {
                self.occupancy.standing_mut(block).live += 1;
            }
            let booked = self.verifier.set_free(tensor, false);
            self.end_run_on(booked)?;
        }
        Ok(())
    }

    /// Everything leaves the device, so that the host tier has the newest bytes of every tensor.
    /// What is known of the accesses to come stays known.
    ///
    /// # Errors
    /// An iteration has begun and has not ended.
    pub fn flush(&mut self) -> Result<&[Move], ResidencyError> {
        self.usable()?;
        if self.in_iteration {
            return Err(ResidencyError::Inside);
        }
        self.occupancy.moves.clear();
        for block in self.occupancy.packing.blocks.keys() {
            self.occupancy.evict(block, Purpose::Demand);
        }
        let made = self.verify(0);
        self.end_run_on(made)?;
        // Moves between iterations do not count in their figures.
        self.figures = Figures::default();
        Ok(&self.occupancy.moves)
    }

    /// From the next access on, chunks and non-model data share this many bytes.
    pub fn set_capacity(&mut self, capacity: Bytes) {
        self.settings.capacity = capacity;
    }

    /// Adds to the seconds that the moves of this iteration took, from when an access was reported
    /// until they were made, and to the part of them spent on evictions.
    pub fn took(&mut self, layout: Seconds, eviction: Seconds) {
        self.figures.layout = self.figures.layout + layout;
        self.figures.eviction = self.figures.eviction + eviction;
    }

    /// What the iteration has moved so far.
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    /// The most bytes that were on the device at the end of any access, model and non-model data:
    /// the margin is computed from it.
    pub fn peak(&self) -> Bytes {
        self.peak
    }

    /// The bytes of the device that chunks take now.
    pub fn held(&self) -> Bytes {
        self.settings.bytes(u64::from(self.occupancy.region.taken()))
    }

    /// The bytes on the device that were brought ahead of a use that is still to come.
    pub fn ahead(&self) -> Bytes {
        self.occupancy.ahead()
    }

    /// The state of a tensor; none if it is unknown.
    pub fn state(&self, tensor: TensorId) -> Option<TensorState> {
        self.tensors.get(tensor).map(|known| known.state)
    }

    /// Where a tensor begins, from the beginning of the region; none if it is not on the device.
    pub fn address(&self, tensor: TensorId) -> Option<Bytes> {
        let span = self.occupancy.packing.tensors.get(tensor)?;
        let slot = self.occupancy.standing(span.block?).slot.expand()?;
        Some(self.settings.bytes(u64::from(slot.as_u32())) + span.offset)
    }

    /// Which tensor lies in which chunk.
    pub fn packing(&self) -> &Packing {
        &self.occupancy.packing
    }

    /// Whether the order of the graph is known and has been followed so far.
    pub fn is_steady(&self) -> bool {
        self.in_iteration && self.forecast.order().is_some()
    }

    /// Collects the blocks of an access, if its tensors may be computed with.
    fn gather(&mut self, access: Access<'_>) -> Result<(), ResidencyError> {
        self.wanted.clear();
        for &tensor in access.reads.iter().chain(access.writes) {
            let state = self.known(tensor)?.state;
            transition(state, TensorState::Compute)
                .map_err(|illegal| ResidencyError::Illegal { tensor, illegal })?;
            self.wanted.extend(self.occupancy.packing.block(tensor));
        }
        self.wanted.sort_unstable();
        self.wanted.dedup();
        Ok(())
    }

    /// Judges the moves, and starts the access.
    fn commit(&mut self, access: Access<'_>, limit: Bytes) -> Result<(), Violation> {
        self.verifier.allow(limit);
        self.verify(0)?;
        self.verifier.compute(access.reads, access.writes)?;
        let time = self.forecast.time();
        self.forecast.advance(&self.wanted);
        self.figures.accesses += 1;
        for (tensors, writes) in [(access.reads, false), (access.writes, true)] {
            for &tensor in tensors {
                let known = &mut self.tensors[tensor];
                (known.state, known.users) = (TensorState::Compute, known.users + 1);
                if let Some(block) = self.occupancy.packing.block(tensor) {
                    self.occupancy.hold(block, writes);
                }
            }
        }
        for &block in &self.wanted {
            let key = self.forecast.key(block, time);
            let standing = self.occupancy.standing_mut(block);
            (standing.last, standing.key) = (time, key);
        }
        let made = self.occupancy.moves.len();
        room::look_ahead(&self.settings, &mut self.occupancy, &self.forecast, &self.wanted, limit);
        self.verify(made)
    }

    /// Judges and counts the moves after the first `made`.
    fn verify(&mut self, made: usize) -> Result<(), Violation> {
        for step in &self.occupancy.moves[made..] {
            self.verifier.make(step)?;
            self.figures.count(step);
        }
        Ok(())
    }

    /// Computes next uses again, since the forecast has changed.
    fn look_ahead_anew(&mut self) {
        self.occupancy.farthest.clear();
        self.occupancy.ahead_from = 0;
        for block in self.occupancy.packing.blocks.keys() {
            if self.occupancy.is_on_device(block) {
                let key = self.forecast.key(block, self.occupancy.standing(block).last);
                self.occupancy.queue(block, key);
            }
        }
    }

    fn known(&self, tensor: TensorId) -> Result<Use, ResidencyError> {
        let count = self.tensors.len();
        self.tensors.get(tensor).copied().ok_or(ResidencyError::UnknownTensor { tensor, count })
    }

    fn usable(&self) -> Result<(), ResidencyError> {
        self.refused.map_or(Ok(()), |violation| Err(ResidencyError::Refused(violation)))
    }

    /// After a refused move, which is a defect, the verifier's books differ from these.
    fn end_run_on(&mut self, judged: Result<(), Violation>) -> Result<(), ResidencyError> {
        judged.map_err(|violation| {
            self.refused = Some(violation);
            ResidencyError::Refused(violation)
        })
    }
}
