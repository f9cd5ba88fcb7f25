//! Another plan for a run that goes on. Invariant: parameters and state are afterwards what they
//! were, bit for bit, wherever they lie; if the other plan cannot be taken up, the run keeps the
//! one that it had.
//!
//! During the search for a plan, what stays from step to step is moved out of the way: with a tier
//! it lies in a file of its own, and the slab's memory serves the search, as it did before the
//! first step. Without one it stays where it is, and the rest of the slab serves.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use tightfit::check::Checked;
use tightfit::units::Bytes;

use crate::execute::error::{SessionError, of_tier};
use crate::execute::ready::{Ready, TierFolder, ready, within};
use crate::execute::residents::{Below, Place, Resident, Staging};
use crate::execute::session::Session;
use crate::memory::slab::Slab;
use crate::memory::tier::{BLOCK, CHUNK, TierError, TierFile};
use crate::step::Step;

/// What stays from step to step, while the slab is needed otherwise.
pub struct SetAside {
    /// Where each tensor lies now; empty if they stayed in the slab.
    away: BTreeMap<String, Away>,
    /// Bytes of the file that holds what was in the slab.
    bytes: Bytes,
}

/// A tensor in a file.
struct Away {
    file: Arc<TierFile>,
    address: u64,
    /// Bytes of its buffer there, in whole blocks.
    buffer: u64,
}

impl Away {
    /// Reads bytes of the tensor from `from` on, the beginning of a chunk, through `staging`.
    fn read(&self, staging: &mut Slab, mut from: u64, out: &mut [u8]) -> Result<(), TierError> {
        let checksums = self.file.checksums(self.address).ok_or(TierError::Failed)?;
        for part in out.chunks_mut(CHUNK as usize) {
            let chunk = staging.write(0, self.buffer.saturating_sub(from).min(CHUNK));
            self.file.read(self.address, from, chunk, &checksums)?;
            part.copy_from_slice(&chunk[..part.len()]);
            from += CHUNK;
        }
        Ok(())
    }
}

impl Session {
    /// Moves parameters and state out of the slab if there is a tier, and gives memory of the slab
    /// back: with a tier all of it, else what only the middle of a step needs. No step may run
    /// before [`Session::put_back`] or [`Session::take_up`].
    ///
    /// # Errors
    /// If the folder has no space; nothing has changed then. If the tier failed; no step can follow
    /// then. [`Session::has_failed`] tells these apart. If tensors are placed at run time: there is
    /// no plan of their moves that another one could replace.
    pub fn set_aside(&mut self, tier: Option<&TierFolder>) -> Result<SetAside, SessionError> {
        if self.placement.is_some() {
            return Err(SessionError::Placed);
        }
        if let Err(error) = self.settle() {
            self.has_failed = true;
            return Err(SessionError::Step { step: self.next_step, error });
        }
        let Some(tier) = tier else {
            self.slab.clear_from(self.end_of_residents());
            return Ok(SetAside { away: BTreeMap::new(), bytes: Bytes::ZERO });
        };
        let aside = self.carried_away(tier)?;
        self.slab.clear();
        Ok(aside)
    }

    /// Copies what lies in the slab into a file.
    fn carried_away(&self, tier: &TierFolder) -> Result<SetAside, SessionError> {
        let below = |resident: &Resident| {
            resident.places.iter().find_map(|place| match *place {
                Place::Tier(Below { address, buffer, .. }) => Some((address, buffer)),
                Place::Slab(_) | Place::Placed(_) => None,
            })
        };
        let in_slab = |resident: &&Resident| below(resident).is_none();
        let buffer = |resident: &Resident| Bytes(resident.bytes).align_up(BLOCK.0);
        let bytes: Bytes = self.residents.values().filter(in_slab).map(buffer).sum();
        let used = self.lanes.as_ref().map_or(Bytes::ZERO, |lanes| lanes.file().bytes());
        within(tier, used + bytes)?;
        let mut file = TierFile::create(&tier.folder, bytes)?;
        let mut address = 0;
        for resident in self.residents.values().filter(in_slab) {
            file.declare(address, buffer(resident).0);
            address += buffer(resident).0;
        }
        let file = Arc::new(file);
        let mut staging = Slab::new(Bytes(CHUNK))?;
        let mut away = BTreeMap::new();
        address = 0;
        for (name, resident) in &self.residents {
            if let (Some((address, buffer)), Some(lanes)) = (below(resident), &self.lanes) {
                let file = Arc::clone(lanes.file());
                away.insert(name.clone(), Away { file, address, buffer });
                continue;
            }
            let checksums = file.checksums(address).ok_or(TierError::Failed)?;
            let mut from = 0;
            self.stream(resident, &mut |bytes| {
                for part in bytes.chunks(CHUNK as usize) {
                    let chunk = staging.write(0, Bytes(part.len() as u64).align_up(BLOCK.0).0);
                    chunk[..part.len()].copy_from_slice(part);
                    file.write(address, from, chunk, &checksums).map_err(io::Error::other)?;
                    from += CHUNK;
                }
                Ok(())
            })
            .map_err(of_tier)?;
            let buffer = buffer(resident).0;
            away.insert(name.clone(), Away { file: Arc::clone(&file), address, buffer });
            address += buffer;
        }
        Ok(SetAside { away, bytes })
    }

    /// End of what stays in the slab.
    fn end_of_residents(&self) -> u64 {
        let end = |resident: &Resident| {
            let places = resident.places.iter().map(|place| match *place {
                Place::Slab(address) => address + resident.bytes,
                Place::Tier(_) | Place::Placed(_) => 0,
            });
            places.max().unwrap_or(0)
        };
        self.residents.values().map(end).max().unwrap_or(0)
    }

    /// Goes on as if nothing had been set aside.
    ///
    /// # Errors
    /// If the tier failed; no step can follow then.
    pub fn put_back(&mut self, aside: &SetAside) -> Result<(), SessionError> {
        if self.has_failed {
            return Err(TierError::Failed.into());
        }
        self.fill_from(aside, |resident| {
            resident.places.iter().any(|place| matches!(place, Place::Slab(_)))
        })
    }

    /// Goes on with other schedules of the same step.
    ///
    /// # Errors
    /// If they cannot be executed in this slab, or the folder has no space: the run still has what
    /// it had and may go on after [`Session::put_back`]. If the tier failed: no step can follow.
    /// [`Session::has_failed`] tells these apart.
    pub fn take_up(
        &mut self,
        step: &Step,
        schedules: (&Checked, Option<&Checked>),
        tier: Option<&TierFolder>,
        aside: &SetAside,
    ) -> Result<(), SessionError> {
        let (training, evaluation) = schedules;
        for schedule in [Some(training), evaluation].into_iter().flatten().map(Checked::schedule) {
            if schedule.slab > self.slab_bytes() {
                return Err(SessionError::Slab(crate::SlabError(schedule.slab)));
            }
        }
        if let Some(tier) = tier {
            let below = |checked: &Checked| checked.schedule().below.values().copied().sum();
            let most = [Some(training), evaluation].into_iter().flatten().map(below).max();
            let used = self.lanes.as_ref().map_or(Bytes::ZERO, |lanes| lanes.file().bytes());
            within(tier, used + aside.bytes + most.unwrap_or(Bytes::ZERO))?;
        }
        let pool = Arc::clone(self.training.executable.pool());
        let Ready { lanes, training, evaluation, residents, .. } =
            ready(step, schedules, (tier, None), &pool)?;
        let staging = Staging::new(lanes.is_some())?;
        let stays = |(name, resident): (&String, &Resident)| {
            aside.away.contains_key(name)
                || self.residents.get(name).is_some_and(|known| known.places == resident.places)
        };
        if let Some((name, _)) = residents.iter().find(|&known| !stays(known)) {
            return Err(SessionError::Moved { name: name.clone() });
        }
        // What is set aside holds on to the previous tier's file.
        (self.training, self.evaluation) = (training, evaluation);
        (self.lanes, self.staging, self.residents) = (lanes, staging, residents);
        self.fill_from(aside, |_| true)
    }

    /// Fills tensors from where they were set aside.
    fn fill_from(
        &mut self,
        aside: &SetAside,
        is_wanted: impl Fn(&Resident) -> bool,
    ) -> Result<(), SessionError> {
        self.begin_anew();
        if aside.away.is_empty() {
            return Ok(());
        }
        // Reset when all of it is where it belongs.
        self.has_failed = true;
        let mut staging = Slab::new(Bytes(CHUNK))?;
        let wanted = self.residents.iter().filter(|(_, resident)| is_wanted(resident));
        let names: Vec<String> = wanted.map(|(name, _)| name.clone()).collect();
        for name in names {
            let Some(away) = aside.away.get(&name) else { continue };
            let filled = self.fill(&name, &mut |from, out| {
                away.read(&mut staging, from, out).map_err(io::Error::other)
            });
            filled.map_err(of_tier)?;
        }
        self.has_failed = false;
        Ok(())
    }
}
