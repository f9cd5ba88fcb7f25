//! Copies in the tier below the device. Invariant: a copy is held from its offload until nothing
//! more will be prefetched from it, so what is held there is never stale; and if it is kept from
//! step to step, a step ends with the copies with which it began.

use cranelift_entity::{EntityRef, SecondaryMap};

use crate::analysis::{Motion, Move, Sequence, crossing};
use crate::graph::Graph;
use crate::id::{BufferId, StorageId, TransferId};
use crate::machine::Route;
use crate::schedule::instruction::Instruction;
use crate::schedule::transfer::{Movement, Transfer};

/// Transfers of a sequence while it is turned into instructions.
pub(super) struct Below {
    moves: Vec<Move>,
    route: Route,
    /// The transfer number of each move that has one, and whether a prefetch is the last one of a
    /// copy.
    facts: Vec<Fact>,
    /// The buffer of each storage that moves, in the tier.
    pub home: SecondaryMap<StorageId, Option<BufferId>>,
    /// Transfer in flight from the device.
    leaving: SecondaryMap<StorageId, Option<TransferId>>,
    /// Transfer in flight to the device, and whether the copy is no longer needed once it has
    /// arrived.
    arriving: SecondaryMap<StorageId, Option<(TransferId, bool)>>,
}

#[derive(Clone, Copy)]
struct Fact {
    transfer: TransferId,
    /// Nothing is prefetched from this copy later.
    is_last: bool,
}

impl Below {
    /// The transfers of a sequence's moves over a route, with a buffer in the tier for each
    /// storage.
    pub fn new(
        graph: &Graph,
        sequence: &Sequence,
        route: Route,
        home: SecondaryMap<StorageId, Option<BufferId>>,
    ) -> Below {
        let moves = sequence.moves();
        let transfers = |next: &Move| next.motion != Motion::Release;
        let mut number = 0;
        let mut facts: Vec<Fact> = Vec::with_capacity(moves.len());
        for next in &moves {
            facts.push(Fact { transfer: TransferId::new(number), is_last: true });
            number += usize::from(transfers(next));
        }
        // From the end: what happens next to each storage; for persistent ones, also in the next
        // step.
        let mut later: SecondaryMap<StorageId, Option<Motion>> = SecondaryMap::new();
        for next in moves.iter().rev().filter(|next| transfers(next)) {
            if graph.is_persistent(next.storage) {
                later[next.storage] = Some(next.motion);
            }
        }
        for (next, fact) in moves.iter().zip(&mut facts).rev().filter(|(next, _)| transfers(next)) {
            fact.is_last = later[next.storage] != Some(Motion::Prefetch);
            later[next.storage] = Some(next.motion);
        }
        let mut below = Below {
            moves,
            route,
            facts,
            home,
            leaving: SecondaryMap::new(),
            arriving: SecondaryMap::new(),
        };
        for index in crossing(graph, sequence) {
            let (next, fact) = (below.moves[index], below.facts[index]);
            match next.motion {
                Motion::Prefetch => {
                    below.arriving[next.storage] = Some((fact.transfer, fact.is_last));
                }
                Motion::Offload | Motion::Release => {
                    below.leaving[next.storage] = Some(fact.transfer);
                }
            }
        }
        below
    }

    /// Whether a storage's copy is in the tier when a step begins: its next move is a prefetch, or
    /// one is in flight.
    pub fn begins_below(&self, storage: StorageId) -> bool {
        let is_copied = |next: &&Move| next.storage == storage && next.motion != Motion::Release;
        let first = self.moves.iter().find(is_copied);
        let is_wanted = first.is_some_and(|first| first.motion == Motion::Prefetch);
        (is_wanted && self.leaving[storage].is_none()) || self.arriving[storage].is_some()
    }

    /// Whether it is on its way to the device when a step begins.
    pub fn is_arriving(&self, storage: StorageId) -> bool {
        self.arriving[storage].is_some()
    }

    /// The instructions of a move; `device` is the buffer that it concerns there.
    pub fn moved(&mut self, index: usize, device: BufferId, out: &mut Vec<Instruction>) {
        let (Move { storage, motion, .. }, fact) = (self.moves[index], self.facts[index]);
        let home = self.home[storage].expect("what moves has a buffer in the tier");
        let start = |lane, from, to| {
            let movement = Movement::Copy { from, to };
            Instruction::Start(Transfer { id: fact.transfer, lane, movement })
        };
        match motion {
            Motion::Offload => {
                out.push(start(self.route.out, device, home));
                self.leaving[storage] = Some(fact.transfer);
            }
            Motion::Release => {
                out.extend(self.leaving[storage].take().map(Instruction::Wait));
                out.push(Instruction::Free(device));
            }
            Motion::Prefetch => {
                out.push(start(self.route.back, home, device));
                self.arriving[storage] = Some((fact.transfer, fact.is_last));
            }
        }
    }

    /// Waits for what must have arrived before a storage is read.
    pub fn arrive(&mut self, storage: StorageId, out: &mut Vec<Instruction>) {
        let Some((transfer, is_last)) = self.arriving[storage].take() else { return };
        out.push(Instruction::Wait(transfer));
        if is_last {
            let home = self.home[storage].expect("what moves has a buffer in the tier");
            out.push(Instruction::Free(home));
        }
    }
}
