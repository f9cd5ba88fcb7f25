//! When the instructions of a legal schedule run, and which bytes are held when. Invariant: calls
//! follow one another on the device; a lane moves one thing after another, each as soon as it was
//! started and the lane is free; a wait delays the device until its transfer has arrived. Steps
//! follow one another, and what crosses the border between two of them takes the time of both: the
//! step that is timed here is one of a run that has reached a steady state.
//!
//! The checker decides what is legal; here are sums over schedules that passed.

mod recomputed;
mod swapped;

pub use recomputed::{Again, Recomputed, again};
pub use swapped::Swapped;

use cranelift_entity::SecondaryMap;

use crate::graph::Graph;
use crate::id::{BufferId, LaneId, NodeId, StorageId, TierId, TransferId};
use crate::machine::steady;
use crate::profile::Profile;
use crate::schedule::{Call, Instruction, Movement, Schedule};
use crate::units::{Bytes, Seconds};

/// One call of a schedule, in time: predicted if it is in a [`Timeline`], otherwise measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallInTime {
    /// The node that runs.
    pub node: NodeId,
    /// Whether the call is a recomputation.
    pub recomputed: bool,
    /// When it starts, from the start of the step.
    pub start: Seconds,
    /// How long the call takes.
    pub seconds: Seconds,
    /// Bytes held on the device while it runs, workspace included.
    pub held: Bytes,
}

/// One transfer of a schedule, in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferInTime {
    /// The transfer.
    pub id: TransferId,
    /// The lane that it occupies.
    pub lane: LaneId,
    /// When the lane begins it; one that crosses the border may end after the step.
    pub start: Seconds,
    /// How long it occupies the lane.
    pub seconds: Seconds,
    /// How long calls waited for it.
    pub stall: Seconds,
}

impl Timeline {
    /// How long calls wait for transfers, over the whole step.
    pub fn stall(&self) -> Seconds {
        self.transfers.iter().map(|transfer| transfer.stall).sum()
    }
}

/// A storage, or a call's workspace, from the first to the last call over which it is held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residency {
    /// The buffer in which it lies.
    pub buffer: BufferId,
    /// The tier in which the buffer lies.
    pub tier: TierId,
    /// The storage that is held; `None` for a workspace.
    pub storage: Option<StorageId>,
    /// The node that made the storage, or that uses the workspace.
    pub node: NodeId,
    /// Whether a recomputation made it.
    pub recomputed: bool,
    /// The size of the buffer.
    pub bytes: Bytes,
    /// The first call that uses or makes it, as an index of calls.
    pub first: u32,
    /// The call before which it is freed or overwritten; `None` if it stays when the step is over.
    pub end: Option<u32>,
}

/// The result of executing a legal schedule abstractly.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// The calls, in the order of the schedule.
    pub calls: Vec<CallInTime>,
    /// The transfers, in the order of their starts.
    pub transfers: Vec<TransferInTime>,
    /// Residencies, in the order in which they begin.
    pub residencies: Vec<Residency>,
    /// Most bytes held on the device at any instruction.
    pub peak: Bytes,
    /// The first call that holds them, as an index of calls.
    pub at: usize,
    /// Bytes held on the device when the step is over.
    pub held_at_end: Bytes,
    /// Highest byte of the slab that any buffer uses.
    pub high_water: Bytes,
    /// Seconds of the whole step, waiting included.
    pub seconds: Seconds,
}

/// Bytes held on the device, as the checker counted them.
pub(crate) struct HeldBytes {
    /// Before the first instruction.
    pub at_start: Bytes,
    /// During each instruction.
    pub during: Vec<Bytes>,
    /// After the last one.
    pub at_end: Bytes,
}

/// Computes the timeline of a legal schedule.
pub(crate) fn timeline(
    graph: &Graph,
    profile: &Profile,
    schedule: &Schedule,
    held: &HeldBytes,
) -> Timeline {
    let Lap { clock, starts } = settled(profile, schedule);
    let mut calls = Vec::with_capacity(starts.len());
    let (mut at, mut peak) = (0, held.at_start);
    for (instruction, &held) in schedule.instructions.iter().zip(&held.during) {
        if held > peak {
            (at, peak) = (calls.len(), held);
        }
        let mut call = |call: &Call, recomputed| {
            let (node, start) = (call.node, starts[calls.len()]);
            let seconds = profile.seconds[node];
            calls.push(CallInTime { node, recomputed, start, seconds, held });
        };
        match instruction {
            Instruction::Run(run) => call(run, false),
            Instruction::Recompute(run) => call(run, true),
            Instruction::Free(_) | Instruction::Start(_) | Instruction::Wait(_) => {}
        }
    }
    let used = |buffer: BufferId| {
        let place = schedule.buffers[buffer];
        (place.tier == crate::id::DEVICE).then_some(Bytes(place.address) + place.bytes)
    };
    let residencies = residencies(graph, schedule);
    let high_water = residencies.iter().filter_map(|held| used(held.buffer)).max();
    Timeline {
        at: at.min(calls.len().saturating_sub(1)),
        calls,
        transfers: clock.transfers,
        residencies,
        peak,
        held_at_end: held.at_end,
        high_water: high_water.unwrap_or(Bytes::ZERO),
        seconds: clock.now,
    }
}

/// One step in the steady state: the first step begins with the transfers across the border just
/// starting, each later one with what the step before has left in flight.
fn settled(profile: &Profile, schedule: &Schedule) -> Lap {
    steady(|before| {
        let lap = lap(profile, schedule, before);
        (lap.clock.in_flight(), lap)
    })
}

/// A step in time.
struct Lap {
    clock: Clock,
    /// When each call starts.
    starts: Vec<Seconds>,
}

/// A step that begins with transfers in flight that arrive at these times, in the order of their
/// starts.
fn lap(profile: &Profile, schedule: &Schedule, before: &[f64]) -> Lap {
    let mut clock = Clock::default();
    for (transfer, &arrives) in schedule.crossing().iter().zip(before) {
        let lane = &mut clock.free[transfer.lane];
        *lane = lane.max(Seconds(arrives));
        clock.arrives[transfer.id] = Some(Seconds(arrives));
    }
    let mut starts = Vec::with_capacity(schedule.instructions.len());
    for instruction in &schedule.instructions {
        match instruction {
            Instruction::Run(call) | Instruction::Recompute(call) => {
                starts.push(clock.now);
                clock.now = clock.now + profile.seconds[call.node];
            }
            Instruction::Free(_) => {}
            Instruction::Start(transfer) => {
                let bytes = match transfer.movement {
                    Movement::Copy { from, .. } => schedule.buffers[from].bytes,
                };
                let link = profile.hierarchy.lanes[transfer.lane].link;
                clock.start(transfer.id, transfer.lane, link.seconds(bytes));
            }
            Instruction::Wait(transfer) => clock.wait(*transfer),
        }
    }
    for transfer in &mut clock.transfers {
        transfer.stall = clock.stalls[transfer.id];
    }
    Lap { clock, starts }
}

/// Time on the device and on each lane.
#[derive(Default)]
struct Clock {
    now: Seconds,
    /// When each lane is free again.
    free: SecondaryMap<LaneId, Seconds>,
    /// When a transfer in flight arrives.
    arrives: SecondaryMap<TransferId, Option<Seconds>>,
    /// How long calls waited for each transfer.
    stalls: SecondaryMap<TransferId, Seconds>,
    /// The transfers started so far, in the order of their starts.
    transfers: Vec<TransferInTime>,
}

impl Clock {
    fn start(&mut self, id: TransferId, lane: LaneId, seconds: Seconds) {
        let start = self.now.max(self.free[lane]);
        self.free[lane] = start + seconds;
        self.arrives[id] = Some(start + seconds);
        let stall = Seconds(0.0);
        self.transfers.push(TransferInTime { id, lane, start, seconds, stall });
    }

    fn wait(&mut self, id: TransferId) {
        let Some(arrives) = self.arrives[id].take() else { return };
        if arrives > self.now {
            self.stalls[id] = Seconds(arrives.0 - self.now.0);
            self.now = arrives;
        }
    }

    /// When the transfers in flight arrive, in the order of their starts, in seconds from now.
    fn in_flight(&self) -> Vec<f64> {
        let arrives =
            |transfer: &TransferInTime| Some((self.arrives[transfer.id]?.0 - self.now.0).max(0.0));
        self.transfers.iter().filter_map(arrives).collect()
    }
}

/// Which buffer holds what over which calls.
fn residencies(graph: &Graph, schedule: &Schedule) -> Vec<Residency> {
    let mut found: Vec<Residency> = Vec::with_capacity(schedule.buffers.len());
    // The residency of each buffer in use.
    let mut open: SecondaryMap<BufferId, Option<usize>> =
        SecondaryMap::with_capacity(schedule.buffers.len());
    let enter = |buffer: BufferId, storage, node, recomputed, first| {
        let place = schedule.buffers[buffer];
        let (tier, bytes) = (place.tier, place.bytes);
        Residency { buffer, tier, storage, node, recomputed, bytes, first, end: None }
    };
    for &(node, buffer) in &schedule.placeholders {
        open[buffer] = Some(found.len());
        found.push(enter(buffer, graph.fresh(node).first().copied(), node, false, 0));
    }
    for movement in schedule.crossing().iter().map(|transfer| transfer.movement) {
        match movement {
            Movement::Copy { from, to } => {
                let Some(source) = open[from].map(|open| found[open]) else { continue };
                open[to] = Some(found.len());
                found.push(enter(to, source.storage, source.node, false, 0));
            }
        }
    }
    let mut now = 0;
    for instruction in &schedule.instructions {
        let (call, recomputed) = match instruction {
            Instruction::Run(call) => (call, false),
            Instruction::Recompute(call) => (call, true),
            Instruction::Free(buffer) => {
                if let Some(ended) = open[*buffer].take() {
                    found[ended].end = Some(now);
                }
                continue;
            }
            Instruction::Start(transfer) => {
                match transfer.movement {
                    Movement::Copy { from, to } => {
                        let Some(source) = open[from].map(|open| found[open]) else { continue };
                        open[to] = Some(found.len());
                        found.push(enter(to, source.storage, source.node, source.recomputed, now));
                    }
                }
                continue;
            }
            Instruction::Wait(_) => continue,
        };
        let outputs = graph.nodes()[call.node].outputs.iter().flatten();
        for (&value, &buffer) in outputs.zip(&call.outputs) {
            let storage = Some(graph.values()[value].storage);
            // A view, or a new version of the storage that is there already.
            if open[buffer].is_some_and(|open| found[open].storage == storage) {
                continue;
            }
            if let Some(ended) = open[buffer].replace(found.len()) {
                found[ended].end = Some(now);
            }
            let maker = storage.and_then(|storage| graph.producer(storage)).unwrap_or(call.node);
            found.push(enter(buffer, storage, maker, recomputed, now));
        }
        if let Some(buffer) = call.workspace {
            let end = Some(now + 1);
            found.push(Residency { end, ..enter(buffer, None, call.node, recomputed, now) });
        }
        now += 1;
    }
    found
}
