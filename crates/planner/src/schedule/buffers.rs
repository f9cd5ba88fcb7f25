//! The buffers of a schedule under construction. Invariant: a storage that takes over another's
//! memory is in its buffer, a storage that lives across the border between two steps is in one
//! buffer at one address, and storages that move between tiers have whole blocks in both.

use std::cmp::Reverse;

use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::analysis::{Ends, IntervalId, Liveness, Motion, Sequence};
use crate::effort::Effort;
use crate::goal::Goal;
use crate::graph::Graph;
use crate::id::{BufferId, DEVICE, NodeId, StorageId, TierId};
use crate::machine::Route;
use crate::schedule::below::Below;
use crate::schedule::instruction::Buffer;
use crate::schedule::layout::{Lifetime, Packing, Shelf, pack};
use crate::schedule::lowering::Lowering;
use crate::schedule::persistent::{Fixed, homes, on_device};
use crate::tuning::layout::{WORK, WORK_OF_FEW};
use crate::units::Bytes;

/// The buffers of a schedule under construction.
pub(super) struct Buffers {
    /// When each is held; for buffers that live across the border, the part at the end of the step.
    lifetimes: PrimaryMap<BufferId, Lifetime>,
    /// Their parts at the beginning of the step.
    wrapped: Vec<(BufferId, Lifetime)>,
    /// The tier that each lies in.
    tiers: SecondaryMap<BufferId, TierId>,
    of: SecondaryMap<IntervalId, Option<BufferId>>,
}

impl Buffers {
    /// A device buffer for each chain of lives; storages that move have whole blocks.
    pub fn new(graph: &Graph, lives: &Liveness, block: u64) -> Buffers {
        let mut buffers = Buffers {
            lifetimes: PrimaryMap::new(),
            wrapped: Vec::new(),
            tiers: SecondaryMap::with_default(DEVICE),
            of: SecondaryMap::new(),
        };
        let mut is_wrapped: SecondaryMap<IntervalId, bool> = SecondaryMap::new();
        lives.wraps.iter().for_each(|&(_, first)| is_wrapped[first] = true);
        for (id, life) in lives.intervals.iter().filter(|&(id, _)| !is_wrapped[id]) {
            let bytes = graph.storages()[life.storage];
            let taken = life.in_place_of.and_then(|taken| buffers.of[taken]);
            let lifetime = Lifetime { first: life.born.unwrap_or(0), last: life.dies, bytes };
            let buffer = taken.unwrap_or_else(|| buffers.lifetimes.push(lifetime));
            let held = &mut buffers.lifetimes[buffer];
            held.last = held.last.max(life.dies);
            buffers.of[id] = Some(buffer);
        }
        for &(last, first) in &lives.wraps {
            let (buffer, life) = (buffers.of(last), &lives.intervals[first]);
            let bytes = buffers.lifetimes[buffer].bytes;
            buffers.wrapped.push((buffer, Lifetime { first: 0, last: life.dies, bytes }));
            buffers.of[first] = Some(buffer);
        }
        for &moved in &lives.moves {
            let buffer = buffers.of(moved);
            let bytes = &mut buffers.lifetimes[buffer].bytes;
            *bytes = bytes.align_up(block);
        }
        for (buffer, lifetime) in &mut buffers.wrapped {
            lifetime.bytes = buffers.lifetimes[*buffer].bytes;
        }
        buffers
    }

    pub fn of(&self, interval: IntervalId) -> BufferId {
        self.of[interval].expect("every life has a buffer")
    }

    /// The buffers of the tier below, and where placeholders lie when a step begins.
    pub fn begin(
        &mut self,
        graph: &Graph,
        sequence: &Sequence,
        lives: &Liveness,
        route: Option<Route>,
    ) -> (Vec<(NodeId, BufferId)>, Option<Below>) {
        let runs = lives.reads.len() as u32;
        let below = route.map(|route| {
            let mut home: SecondaryMap<StorageId, Option<BufferId>> = SecondaryMap::new();
            for (next, &interval) in sequence.moves().iter().zip(&lives.moves) {
                let storage = next.storage;
                // Up to the end of the read that the last prefetch is for.
                let last = match next.motion {
                    Motion::Offload | Motion::Release => next.before,
                    Motion::Prefetch => lives.intervals[interval].dies,
                };
                let buffer = *home[storage].get_or_insert_with(|| {
                    let bytes = self.lifetimes[self.of(interval)].bytes;
                    let first = if graph.is_persistent(storage) { 0 } else { next.before };
                    let buffer = self.lifetimes.push(Lifetime { first, last, bytes });
                    self.tiers[buffer] = route.tier;
                    buffer
                });
                let end = if graph.is_persistent(storage) { runs } else { last };
                self.lifetimes[buffer].last = self.lifetimes[buffer].last.max(end);
            }
            Below::new(graph, sequence, route, home)
        });
        let mut placeholders = Vec::new();
        for ((node, storage), interval) in graph.placeholder_storages().zip(&lives.placeholders) {
            let is_below = below.as_ref().is_some_and(|below| below.begins_below(storage));
            let copy = below.as_ref().and_then(|below| below.home[storage]).filter(|_| is_below);
            let is_arriving = below.as_ref().is_some_and(|below| below.is_arriving(storage));
            let here = interval.filter(|_| !is_arriving).map(|interval| self.of(interval));
            placeholders.extend(here.into_iter().chain(copy).map(|buffer| (node, buffer)));
        }
        (placeholders, below)
    }

    /// The buffers to free after each position: those that are not touched later, that do not stay,
    /// and that no move releases.
    pub fn frees(&self, lives: &Liveness, positions: usize) -> Vec<Vec<BufferId>> {
        let mut remains: SecondaryMap<BufferId, bool> = SecondaryMap::new();
        for (id, life) in &lives.intervals {
            // A second copy of a kept storage is an exception: it dies where it is born.
            remains[self.of(id)] |= life.ends != Ends::LastAccess;
        }
        let mut frees = vec![Vec::new(); positions];
        for (buffer, lifetime) in self.lifetimes.iter().filter(|&(id, _)| self.is_on_device(id)) {
            if let Some(list) = frees.get_mut(lifetime.last as usize).filter(|_| !remains[buffer]) {
                list.push(buffer);
            }
        }
        frees
    }

    fn is_on_device(&self, buffer: BufferId) -> bool {
        self.tiers[buffer] == DEVICE
    }

    /// The workspace of a call.
    pub fn workspace(&mut self, bytes: Bytes, position: u32) -> Option<BufferId> {
        let lifetime = Lifetime { first: position, last: position, bytes };
        (bytes > Bytes::ZERO).then(|| self.lifetimes.push(lifetime))
    }

    /// Addresses on the device and in the tier below: storages that stay at the bottom, all others
    /// packed above them.
    pub fn place(
        self,
        graph: &Graph,
        placeholders: &[(NodeId, BufferId)],
        task: &Lowering<'_>,
        alignment: u64,
    ) -> Placed {
        let (here, there): (Vec<BufferId>, Vec<BufferId>) =
            self.lifetimes.keys().partition(|&id| self.is_on_device(id));
        // The longer one is held, the lower it lies, so that what is free while others are away is
        // above.
        let mut wrapped: Vec<(Reverse<u32>, u32, BufferId)> = self
            .wrapped
            .iter()
            .map(|&(buffer, life)| (Reverse(life.last), self.lifetimes[buffer].first, buffer))
            .collect();
        wrapped.sort_unstable();
        let wrapped: Vec<BufferId> = wrapped.into_iter().map(|(.., buffer)| buffer).collect();
        let bytes = |id: BufferId| self.lifetimes[id].bytes.align_up(alignment);
        let stays = |node: NodeId| graph.nodes()[node].phase.is_persistent();
        let persistent = placeholders.iter().copied().filter(|&(node, _)| stays(node));
        let (above, below): (Vec<_>, Vec<_>) =
            persistent.partition(|&(_, id)| self.is_on_device(id));
        let known = on_device(graph, &above, &wrapped, task.residents, bytes);
        let mut ids = here.clone();
        let mut lifetimes: Vec<Lifetime> = here.iter().map(|&id| self.lifetimes[id]).collect();
        for &(buffer, lifetime) in &self.wrapped {
            ids.push(buffer);
            lifetimes.push(lifetime);
        }
        let packing = packed(&ids, &lifetimes, &known, alignment, task);
        let lifetimes: Vec<Lifetime> = there.iter().map(|&id| self.lifetimes[id]).collect();
        let known = homes(graph, &below, task.residents, bytes);
        let task = Lowering { goal: Goal::Within(Bytes::LIMIT), ..*task };
        let arena = packed(&there, &lifetimes, &known, alignment, &task);
        let mut addresses: SecondaryMap<BufferId, u64> = SecondaryMap::new();
        let placed = here.iter().zip(&packing.addresses).chain(there.iter().zip(&arena.addresses));
        placed.for_each(|(&id, &address)| addresses[id] = address);
        let buffer = |(id, lifetime): (BufferId, &Lifetime)| Buffer {
            bytes: lifetime.bytes,
            address: addresses[id],
            tier: self.tiers[id],
        };
        let buffers = self.lifetimes.iter().map(buffer).collect();
        Placed { buffers, slab: packing.end, below: arena.end }
    }
}

/// Buffers with addresses.
pub(super) struct Placed {
    pub buffers: PrimaryMap<BufferId, Buffer>,
    /// The end of those on the device.
    pub slab: Bytes,
    /// The end of those in the tier below.
    pub below: Bytes,
}

/// Lifetimes, packed above and around what is fixed at the bottom.
fn packed(
    ids: &[BufferId],
    lifetimes: &[Lifetime],
    known: &Fixed,
    alignment: u64,
    task: &Lowering<'_>,
) -> Packing {
    let effort = Effort {
        work: task.effort.work.min((lifetimes.len() as u64 * WORK.get()).max(WORK_OF_FEW.get())),
        ..task.effort
    };
    let fixed: Vec<Option<u64>> = ids.iter().map(|&id| known.addresses[id]).collect();
    let &Lowering { goal, enough, .. } = task;
    let shelf = Shelf { fixed: &fixed, floor: known.floor, alignment, goal, enough };
    pack(lifetimes, &shelf, &effort)
}
