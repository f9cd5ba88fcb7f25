//! What stays from step to step: parameters, buffers and state. Invariant: between two steps each
//! has its last version in every place that it has, in the slab or in the tier, or where the
//! residency manager has put it; a reader need not know where that is.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use tightfit::graph::{Graph, Phase};
use tightfit::id::DEVICE;
use tightfit::schedule::{Residents, Schedule};
use tightfit::tensor::DType;
use tightfit::units::Bytes;

use crate::execute::region::Region;
use crate::memory::slab::{Slab, SlabError};
use crate::memory::tier::{CHUNK, Checksums, TierError, TierFile};
use crate::residency::TensorId;
use crate::step::Share;

/// A tensor that stays from step to step.
#[derive(Clone, Debug, PartialEq)]
pub struct Resident {
    /// Parameter, buffer or state.
    pub phase: Phase,
    /// Where it lies between two steps.
    pub(super) places: Vec<Place>,
    /// Its size in bytes.
    pub bytes: u64,
    /// Extent of each dimension; of the whole tensor if this is a shard.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// The size in bytes of the whole tensor.
    pub whole: u64,
    /// The range of the tensor's bytes that this one holds; bytes past its end are zero.
    pub kept: Range<u64>,
}

/// The bytes of a tensor that belong in a part of a shard, with the position of the first. What
/// lies past the tensor's end is filled with zeros.
pub(super) fn within<'a>(
    kept: &Range<u64>,
    (from, out): (u64, &'a mut [u8]),
) -> (u64, &'a mut [u8]) {
    let left = (kept.end - kept.start).saturating_sub(from).min(out.len() as u64);
    let (inside, behind) = out.split_at_mut(left as usize);
    behind.fill(0);
    (kept.start + from, inside)
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At an address of the slab.
    Slab(u64),
    /// In the tier.
    Tier(Below),
    /// Where the residency manager has put it.
    Placed(TensorId),
}

/// Where something lies in the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Below {
    /// The buffer that it is part of: its first byte, and its size in whole blocks.
    pub address: u64,
    pub buffer: u64,
    /// From the beginning of the buffer to its own.
    pub offset: u64,
    /// Whether other tensors lie in the same buffer.
    pub is_shared: bool,
}

impl Below {
    /// All of a buffer.
    pub fn whole(address: u64, buffer: u64) -> Below {
        Below { address, buffer, offset: 0, is_shared: false }
    }
}

/// All tensors that stay from step to step under a schedule, by name; those of a region lie where
/// the residency manager puts them.
pub(super) fn residents(
    graph: &Graph,
    schedule: &Schedule,
    region: Option<&Region>,
    share: Option<&Share>,
) -> BTreeMap<String, Resident> {
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
        let placed = region.and_then(|region| region.tensor(schedule, buffer));
        let place = match (lies.tier, placed) {
            (_, Some(tensor)) => Place::Placed(tensor),
            (DEVICE, None) => Place::Slab(lies.address),
            _ => Place::Tier(Below::whole(lies.address, lies.bytes.0)),
        };
        let (dtype, bytes) = (value.tensor.dtype, value.tensor.bytes().0);
        let divided = share.and_then(|share| Some((share, share.shapes.get(name)?)));
        let (shape, whole, kept) = match divided {
            None => (&value.tensor.shape, bytes, 0..bytes),
            Some((share, shape)) => {
                let elements: u64 = shape.iter().product();
                let kept = share.elements(elements);
                let size = dtype.size();
                (shape, elements * size, kept.start * size..kept.end * size)
            }
        };
        let resident = residents.entry(name.clone()).or_insert_with(|| Resident {
            phase: node.phase,
            places: Vec::new(),
            bytes,
            shape: shape.iter().map(|&x| x as usize).collect(),
            dtype,
            whole,
            kept,
        });
        resident.places.push(place);
    }
    residents
}

/// The first tensor that the evaluation expects elsewhere than the training has put it.
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
        Place::Tier(below) => known.below.get(name) != Some(&below.address),
        // Both graphs name the tensor by where it would lie without a region.
        Place::Placed(_) => false,
    };
    let mut moved = evaluation
        .iter()
        .filter(|(name, resident)| resident.places.iter().any(|place| is_elsewhere(name, place)));
    moved.next().map(|(name, _)| name.clone())
}

/// Reads and writes what lies in the tier.
pub(super) struct Reach<'a> {
    pub tier: Option<&'a TierFile>,
    pub staging: &'a Staging,
}

/// Memory through which the tier is read and written; none if there is no tier.
pub(super) struct Staging(Mutex<Option<Slab>>);

impl Staging {
    /// Memory for one chunk of a tier.
    pub fn new(has_tier: bool) -> Result<Staging, SlabError> {
        let chunk = has_tier.then(|| Slab::new(Bytes(CHUNK))).transpose()?;
        Ok(Staging(Mutex::new(chunk)))
    }
}

impl Reach<'_> {
    /// Passes on this many bytes, in order and in parts.
    pub fn stream(
        &self,
        below: Below,
        bytes: u64,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let Below { address, buffer, offset, .. } = below;
        self.chunks(buffer, |staging, from, len| {
            let Some(own) = part(from..from + len, offset..offset + bytes) else { return Ok(()) };
            let chunk = staging.write(0, len);
            self.read(address, from, chunk)?;
            sink(&chunk[own])
        })
    }

    fn checksums(&self, address: u64) -> io::Result<(&TierFile, Checksums)> {
        let failed = || io::Error::other(TierError::Failed);
        let tier = self.tier.ok_or_else(failed)?;
        Ok((tier, tier.checksums(address).ok_or_else(failed)?))
    }

    fn read(&self, address: u64, from: u64, out: &mut [u8]) -> io::Result<()> {
        let (tier, checksums) = self.checksums(address)?;
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

    /// Writes this many bytes, in parts that `source` fills, given the first byte of each. What
    /// else lies in the buffer stays as it was if it is shared, and is zero otherwise.
    pub fn fill(
        &self,
        below: Below,
        bytes: u64,
        source: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let Below { address, buffer, offset, is_shared } = below;
        let (tier, checksums) = self.checksums(address)?;
        self.chunks(buffer, |staging, from, len| {
            let chunk = staging.write(0, len);
            match is_shared {
                true => self.read(address, from, chunk)?,
                false => chunk.fill(0),
            }
            if let Some(own) = part(from..from + len, offset..offset + bytes) {
                source(from.saturating_sub(offset), &mut chunk[own])?;
            }
            tier.write(address, from, chunk, &checksums).map_err(io::Error::other)
        })
    }
}

/// The part of a chunk that is also in `own`, relative to the beginning of the chunk.
fn part(chunk: Range<u64>, own: Range<u64>) -> Option<Range<usize>> {
    let (start, end) = (chunk.start.max(own.start), chunk.end.min(own.end));
    (start < end).then(|| (start - chunk.start) as usize..(end - chunk.start) as usize)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tightfit::effort::Effort;
    use tightfit::machine::{Link, Machine, Tier};
    use tightfit::plan::Planner;
    use tightfit::profile::Profile;
    use tightfit::units::Seconds;

    use super::*;
    use crate::{Budget, FitTask, Step, fit_graph};

    #[test]
    fn what_lies_in_the_tier_is_elsewhere_than_in_the_slab() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus");
        let graph = Step::open(&corpus.join("steps/gpt-nano")).unwrap().training;
        let mut machine = Machine::unmeasured_cpu(1);
        let link = Link { latency: Seconds(1e-5), bandwidth: 1e9 };
        let tier = Tier { name: "disk".to_string(), capacity: None, block: Bytes(4096) };
        machine.hierarchy.add(tier, link, link);
        let (planner, effort) = (Planner::Auto, Effort::work(1, 100_000));
        let (machine, budget, beside) = (&machine, Budget::Smallest, Bytes::ZERO);
        let task = FitTask { machine, budget, beside, planner, effort };
        let fitted = fit_graph(&graph, &Profile::new(&graph, machine), &task).unwrap().fitted;
        let training = (&graph, fitted.schedule());
        let known = Residents::of(training.0, training.1);
        let mut others = residents(&graph, fitted.schedule(), None, None);
        assert_eq!(moved(training, &others), None);
        others.retain(|name, _| !known.addresses.contains_key(name));
        assert!(!others.is_empty());
        for (name, other) in &mut others {
            other.places = vec![Place::Slab(0)];
            let alone = BTreeMap::from([(name.clone(), other.clone())]);
            assert_eq!(moved(training, &alone).as_ref(), Some(name));
        }
    }
}
