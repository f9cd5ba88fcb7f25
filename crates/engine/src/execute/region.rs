//! The part of the slab for tensors whose places are decided at run time, and how calls use these.
//! Invariant: a schedule that keeps all of them at the bottom of its slab is executed with the
//! region in place of that bottom: what came after it comes after the region.

use std::collections::BTreeMap;

use tightfit::graph::Graph;
use tightfit::id::{BufferId, DEVICE};
use tightfit::schedule::{ALIGNMENT, Call, Instruction, Residents, Schedule};
use tightfit::units::Bytes;

use crate::memory::tier::{BLOCK, CHUNK};
use crate::residency::{Packing, Policy, ResidencyError, Settings, TensorId};

/// Tensors leave at most one in this many bytes of all chunks unused, if chunks can be small
/// enough.
const UNUSED: u64 = 32;

/// A region of the slab, and the tensors whose chunks it holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// Where tensors lie while nothing computes with them.
    pub policy: Policy,
    /// The bytes of a chunk, a multiple of the tier's blocks.
    pub chunk: Bytes,
    /// Number of chunks that it holds.
    pub slots: u32,
    /// End of all persistent tensors in the schedules that it is for.
    end: u64,
    /// Address of each of these tensors there, and its bytes.
    tensors: Vec<(u64, Bytes)>,
}

/// The persistent tensors that a call computes with, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operands {
    /// What it only reads.
    pub reads: Vec<TensorId>,
    /// What it writes.
    pub writes: Vec<TensorId>,
}

impl Region {
    /// A region without slots for the persistent tensors of a graph, which lie where a schedule
    /// without moves puts them.
    ///
    /// # Errors
    /// No size of chunks suits these tensors.
    pub fn new(
        graph: &Graph,
        schedule: &Schedule,
        policy: Policy,
    ) -> Result<Region, ResidencyError> {
        let mut tensors: BTreeMap<u64, Bytes> = BTreeMap::new();
        for &(node, buffer) in &schedule.placeholders {
            let lies = schedule.buffers[buffer];
            if graph.nodes()[node].phase.is_persistent() && lies.bytes > Bytes::ZERO {
                tensors.insert(lies.address, lies.bytes);
            }
        }
        let tensors: Vec<(u64, Bytes)> = tensors.into_iter().collect();
        let end = Residents::of(graph, schedule).end;
        let mut region = Region { policy, chunk: BLOCK, slots: 0, end, tensors };
        region.chunk = region.best_chunk()?;
        Ok(region)
    }

    /// The largest chunk of which tensors leave little unused, or else the one of which they leave
    /// the least.
    fn best_chunk(&self) -> Result<Bytes, ResidencyError> {
        let all = self.tensor_bytes().0;
        let mut best: Option<(u64, Bytes)> = None;
        let mut chunk = Bytes(CHUNK);
        while chunk >= BLOCK {
            if let Ok(packing) = (Region { chunk, ..self.clone() }).packing() {
                let taken = u64::from(packing.chunks) * chunk.0;
                if taken - all <= taken / UNUSED {
                    return Ok(chunk);
                }
                if best.is_none_or(|(least, _)| taken < least) {
                    best = Some((taken, chunk));
                }
            }
            chunk = Bytes(chunk.0 / 2);
        }
        // The largest chunks are the fewest: their error describes best what is wrong.
        let largest = Region { chunk: Bytes(CHUNK), ..self.clone() };
        best.map_or_else(|| largest.packing().map(|packing| packing.chunk), |(_, chunk)| Ok(chunk))
    }

    /// The same region with this many slots.
    #[must_use]
    pub fn with_slots(&self, slots: u32) -> Region {
        Region { slots, ..self.clone() }
    }

    /// The bytes that it takes of the slab.
    pub fn bytes(&self) -> Bytes {
        self.of_slots(u64::from(self.slots))
    }

    /// The bytes of this many slots.
    pub fn of_slots(&self, slots: u64) -> Bytes {
        Bytes(slots.saturating_mul(self.chunk.0))
    }

    /// The bytes of all chunks: a region of this size holds all of them.
    pub fn whole(&self) -> Result<Bytes, ResidencyError> {
        Ok(self.of_slots(u64::from(self.packing()?.chunks)))
    }

    /// What persistent tensors take in the schedules that it is for.
    pub fn persistent(&self) -> Bytes {
        Bytes(self.end)
    }

    /// The bytes of all tensors, without the gaps between them.
    pub fn tensor_bytes(&self) -> Bytes {
        self.sizes().sum()
    }

    /// Which tensor lies in which chunk.
    pub fn packing(&self) -> Result<Packing, ResidencyError> {
        Packing::new(self.chunk, ALIGNMENT, self.tensors.iter().map(|&(_, bytes)| bytes))
    }

    /// How tensors are placed in it.
    pub fn settings(&self) -> Settings {
        Settings {
            alignment: ALIGNMENT,
            policy: self.policy,
            prefetch: self.bytes(),
            ..Settings::region(self.chunk, self.slots)
        }
    }

    /// The bytes of each tensor, in the order of registration.
    pub fn sizes(&self) -> impl Iterator<Item = Bytes> + '_ {
        self.tensors.iter().map(|&(_, bytes)| bytes)
    }

    /// The slab that a schedule needs with the region in place of its bottom.
    pub fn slab(&self, schedule: &Schedule) -> Bytes {
        self.bytes() + schedule.slab.saturating_sub(self.persistent())
    }

    /// The tensor at an address of the schedules that it is for.
    pub(super) fn tensor_at(&self, address: u64) -> Option<TensorId> {
        let index = self.tensors.binary_search_by_key(&address, |&(address, _)| address).ok()?;
        Some(TensorId::from_u32(u32::try_from(index).ok()?))
    }

    /// The tensor that a buffer is.
    pub(super) fn tensor(&self, schedule: &Schedule, buffer: BufferId) -> Option<TensorId> {
        let lies = schedule.buffers[buffer];
        let is_there = lies.tier == DEVICE && lies.bytes > Bytes::ZERO && lies.address < self.end;
        is_there.then(|| self.tensor_at(lies.address)).flatten()
    }

    /// Address, after the region, of a buffer that is none of the tensors; none if it lies among
    /// them.
    pub(super) fn behind(&self, schedule: &Schedule, buffer: BufferId) -> Option<u64> {
        let lies = schedule.buffers[buffer];
        if lies.bytes == Bytes::ZERO {
            return Some(0);
        }
        lies.address.checked_sub(self.end).map(|above| above + self.bytes().0)
    }

    /// The tensors that a call of a schedule computes with.
    pub(super) fn operands(&self, graph: &Graph, schedule: &Schedule, call: &Call) -> Operands {
        let node = &graph.nodes()[call.node];
        let mutated = graph.mutated(call.node);
        let mut operands = Operands::default();
        let written = call.outputs.iter().copied();
        let inputs = node.inputs.iter().zip(&call.inputs);
        let (changed, read): (Vec<_>, Vec<_>) =
            inputs.partition(|&(&value, _)| mutated.contains(&graph.values()[value].storage));
        let changed = changed.into_iter().map(|(_, &buffer)| buffer);
        for tensor in written.chain(changed).filter_map(|buffer| self.tensor(schedule, buffer)) {
            if !operands.writes.contains(&tensor) {
                operands.writes.push(tensor);
            }
        }
        for (_, &buffer) in read {
            if let Some(tensor) = self.tensor(schedule, buffer)
                && !operands.writes.contains(&tensor)
                && !operands.reads.contains(&tensor)
            {
                operands.reads.push(tensor);
            }
        }
        operands
    }

    /// The operands of those calls of a schedule that compute with any of the tensors.
    pub fn accesses(&self, graph: &Graph, schedule: &Schedule) -> Vec<Operands> {
        let calls = schedule.instructions.iter().filter_map(|instruction| match instruction {
            Instruction::Run(call) | Instruction::Recompute(call) => Some(call),
            Instruction::Free(_) | Instruction::Start(_) | Instruction::Wait(_) => None,
        });
        let operands = calls.map(|call| self.operands(graph, schedule, call));
        operands.filter(|operands| !operands.is_empty()).collect()
    }

    /// The most slots that the tensors of one call of a schedule take.
    ///
    /// # Errors
    /// If the tensors cannot be packed.
    pub fn most_at_once(&self, graph: &Graph, schedule: &Schedule) -> Result<u32, ResidencyError> {
        let packing = self.packing()?;
        let slots = |Operands { reads, writes }: Operands| {
            let tensors = reads.iter().chain(&writes);
            let mut blocks: Vec<_> = tensors.filter_map(|&tensor| packing.block(tensor)).collect();
            blocks.sort_unstable();
            blocks.dedup();
            blocks.iter().map(|&block| packing.blocks[block].chunks).sum()
        };
        Ok(self.accesses(graph, schedule).into_iter().map(slots).max().unwrap_or(0))
    }
}

impl Operands {
    /// Whether a call computes with none of the tensors.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }
}
