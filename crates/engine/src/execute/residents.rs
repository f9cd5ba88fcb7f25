//! What stays from step to step: parameters, buffers and state. Invariant: between two steps each
//! has its last version in every place that it has, in the slab or in the tier; who reads it need
//! not know where that is.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use tightfit::graph::{Graph, Phase};
use tightfit::id::DEVICE;
use tightfit::schedule::{Residents, Schedule};
use tightfit::tensor::DType;
use tightfit::units::Bytes;

use crate::memory::slab::{Slab, SlabError};
use crate::memory::tier::{CHUNK, TierError, TierFile};

/// A tensor that stays from step to step.
#[derive(Clone, Debug, PartialEq)]
pub struct Resident {
    /// Parameter, buffer or state.
    pub phase: Phase,
    /// Where it lies between two steps.
    pub(super) places: Vec<Place>,
    /// Its size in bytes.
    pub bytes: u64,
    /// Extent of each dimension.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At an address of the slab.
    Slab(u64),
    /// At an address of the tier, in a buffer of so many bytes.
    Tier(u64, u64),
}

/// All tensors that stay from step to step under a schedule, by name.
pub(super) fn residents(graph: &Graph, schedule: &Schedule) -> BTreeMap<String, Resident> {
    let mut residents: BTreeMap<String, Resident> = BTreeMap::new();
    for &(id, buffer) in &schedule.placeholders {
        let node = &graph.nodes()[id];
        let (Some(name), Some(&Some(value))) = (&node.parameter, node.outputs.first()) else {
            continue;
        };
        let value = &graph.values()[value];
        if !node.phase.is_persistent() {
            continue;
        }
        let lies = schedule.buffers[buffer];
        let place = match lies.tier {
            DEVICE => Place::Slab(lies.address),
            _ => Place::Tier(lies.address, lies.bytes.0),
        };
        let resident = residents.entry(name.clone()).or_insert_with(|| Resident {
            phase: node.phase,
            places: Vec::new(),
            bytes: value.tensor.bytes().0,
            shape: value.tensor.shape.iter().map(|&x| x as usize).collect(),
            dtype: value.tensor.dtype,
        });
        resident.places.push(place);
    }
    residents
}

/// The first of the tensors that an evaluation looks for elsewhere than the training has put them.
pub(super) fn moved(
    training: (&Graph, &Schedule),
    evaluation: &BTreeMap<String, Resident>,
) -> Option<String> {
    let known = Residents::of(training.0, training.1);
    let is_elsewhere = |name: &String, place: &Place| match *place {
        Place::Slab(address) => match known.addresses.get(name) {
            Some(&there) => there != address,
            None => known.below.contains_key(name),
        },
        Place::Tier(address, _) => known.below.get(name) != Some(&address),
    };
    let mut moved = evaluation
        .iter()
        .filter(|(name, resident)| resident.places.iter().any(|place| is_elsewhere(name, place)));
    moved.next().map(|(name, _)| name.clone())
}

/// Reads and writes what stays, wherever it lies.
pub(super) struct Reach<'a> {
    pub slab: &'a Slab,
    pub tier: Option<&'a TierFile>,
    pub staging: &'a Staging,
}

/// Memory through which what lies in the tier is read and written; none where there is no tier.
pub(super) struct Staging(Mutex<Option<Slab>>);

impl Staging {
    /// Memory for one chunk of a tier.
    pub fn new(has_tier: bool) -> Result<Staging, SlabError> {
        let chunk = has_tier.then(|| Slab::new(Bytes(CHUNK))).transpose()?;
        Ok(Staging(Mutex::new(chunk)))
    }
}

impl Reach<'_> {
    /// Hands the bytes of a tensor on, in order and in parts.
    pub fn stream(
        &self,
        resident: &Resident,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(&place) = resident.places.first() else { return Ok(()) };
        match place {
            Place::Slab(address) => sink(self.slab.read(address, resident.bytes)),
            Place::Tier(address, buffer) => self.chunks(buffer, |staging, from, len| {
                let part = staging.write(0, len);
                self.read(address, from, part)?;
                let used = resident.bytes.saturating_sub(from).min(len);
                sink(&part[..used as usize])
            }),
        }
    }

    fn read(&self, address: u64, from: u64, out: &mut [u8]) -> io::Result<()> {
        let tier = self.tier.ok_or_else(|| io::Error::other(TierError::Failed))?;
        let checksums =
            tier.checksums(address).ok_or_else(|| io::Error::other(TierError::Failed))?;
        tier.read(address, from, out, &checksums).map_err(io::Error::other)
    }

    /// Visits a buffer of the tier chunk by chunk.
    fn chunks(
        &self,
        buffer: u64,
        mut visit: impl FnMut(&mut Slab, u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut staging = self.staging.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(staging) = staging.as_mut() else { return Ok(()) };
        let mut from = 0;
        while from < buffer {
            let len = (buffer - from).min(CHUNK);
            visit(staging, from, len)?;
            from += len;
        }
        Ok(())
    }

    /// Writes a tensor into the tier, in parts that `source` fills: with the first byte of each.
    pub fn fill_below(
        &self,
        (address, buffer): (u64, u64),
        bytes: u64,
        source: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let tier = self.tier.ok_or_else(|| io::Error::other(TierError::Failed))?;
        let checksums =
            tier.checksums(address).ok_or_else(|| io::Error::other(TierError::Failed))?;
        self.chunks(buffer, |staging, from, len| {
            let part = staging.write(0, len);
            let used = bytes.saturating_sub(from).min(len) as usize;
            part[used..].fill(0);
            source(from, &mut part[..used])?;
            tier.write(address, from, part, &checksums).map_err(io::Error::other)
        })
    }
}
