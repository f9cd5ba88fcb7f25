//! The judge: executes a schedule abstractly. Invariant: it shares no code with any planner, with
//! lowering or with layout; it knows the graph, the instructions, and what a call costs.
//!
//! The state maps each buffer to what lies in it: nothing, scratch, one storage at one version, or
//! what a transfer is bringing. An instruction is legal if every operand's buffer holds the storage
//! and the version that the graph says the operand has, if what it allocates does not overlap
//! anything held, if nothing in flight is touched, and if the bytes held stay within the budget and
//! the capacities. At the end every node must have run, outputs must be on the device, and what is
//! kept must lie at its last version where the step found it, since the next step begins there
//! (`check/border.rs`).
//!
//! Whether a schedule is legal is decided here; [`timeline`](crate::timeline) determines when its
//! instructions run.

mod border;
mod calls;
mod in_flight;
mod lanes;
mod state;
mod violation;

pub use lanes::lanes;
pub use violation::Violation;

use crate::check::state::AbstractMachine;
use crate::graph::Graph;
use crate::id::{BufferId, DEVICE, LaneId, NodeId, TierId};
use crate::machine::{Reuse, Runtime};
use crate::profile::Profile;
use crate::schedule::{Instruction, Movement, Schedule};
use crate::timeline::{HeldBytes, Timeline, timeline};
use crate::units::Bytes;

/// A schedule that passed the checker, and what it does. Only the checker makes one, so it need not
/// be checked again.
#[derive(Clone, Debug)]
pub struct Checked {
    schedule: Schedule,
    timeline: Timeline,
    conditions: Conditions,
}

/// The runtime that a check assumed. Under another one, calls may need larger workspaces, or read
/// what they have overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// The runtime whose kernels run.
    pub runtime: Runtime,
    /// Which dying inputs a call's first output may take over.
    pub reuse: Reuse,
    /// The number of threads that the kernels run on.
    pub threads: u32,
}

impl Conditions {
    fn of(profile: &Profile) -> Conditions {
        let Profile { runtime, reuse, threads, .. } = *profile;
        Conditions { runtime, reuse, threads }
    }
}

impl Checked {
    /// Checks a schedule under the budget that it was made for.
    pub fn new(graph: &Graph, profile: &Profile, schedule: Schedule) -> Result<Checked, Violation> {
        let timeline = check(graph, profile, &schedule, schedule.budget)?;
        Ok(Checked { schedule, timeline, conditions: Conditions::of(profile) })
    }

    /// The schedule that passed.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// What the schedule does: its abstract execution.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The conditions under which it passed.
    pub fn conditions(&self) -> Conditions {
        self.conditions
    }

    /// The same schedule under another budget, if its slab fits into that.
    pub fn within(&self, budget: Bytes) -> Option<Checked> {
        let fits = self.schedule.slab <= budget && self.timeline.peak <= budget;
        fits.then(|| Checked {
            schedule: Schedule { budget, ..self.schedule.clone() },
            timeline: self.timeline.clone(),
            conditions: self.conditions,
        })
    }
}

/// Executes `schedule` abstractly under `budget`, and returns what it does or why it must not run.
/// [`Checked::new`] keeps both together.
pub fn check(
    graph: &Graph,
    profile: &Profile,
    schedule: &Schedule,
    budget: Bytes,
) -> Result<Timeline, Violation> {
    let timeline = held(graph, profile, schedule, budget)?;
    // Last, so that an instruction is named if bytes are the reason, and the slab only if addresses
    // are.
    if schedule.slab > budget {
        return Err(Violation::SlabOverBudget { slab: schedule.slab.0, budget: budget.0 });
    }
    Ok(timeline)
}

/// The same for runtimes that place tensors themselves: the bytes held stay within the budget, and
/// the size of the slab does not matter.
pub fn held(
    graph: &Graph,
    profile: &Profile,
    schedule: &Schedule,
    budget: Bytes,
) -> Result<Timeline, Violation> {
    if schedule.graph != graph.hash() {
        return Err(Violation::OtherGraph);
    }
    mentions_only_what_exists(graph, profile, schedule)?;
    let mut machine = AbstractMachine::new(graph, profile, schedule);
    machine.begin()?;
    let at_start = machine.held[DEVICE];
    let mut during = Vec::with_capacity(schedule.instructions.len());
    for (index, instruction) in schedule.instructions.iter().enumerate() {
        machine.index = index;
        let (user, bytes) = match instruction {
            Instruction::Run(call) => (Some(call.node), machine.call(call, false)?),
            Instruction::Recompute(call) => (Some(call.node), machine.call(call, true)?),
            Instruction::Free(buffer) => (None, machine.free(*buffer)?),
            Instruction::Start(transfer) => (None, machine.start(transfer)?),
            Instruction::Wait(transfer) => (None, machine.wait(*transfer)?),
        };
        if bytes > budget {
            let node = user.map_or(instruction.verb(), |node| &graph.nodes()[node].name);
            return Err(Violation::OverBudget {
                index,
                node: node.to_string(),
                held: bytes.0,
                over: bytes.0 - budget.0,
                budget: budget.0,
            });
        }
        during.push(bytes);
    }
    machine.finish()?;
    let held = HeldBytes { at_start, during, at_end: machine.held[DEVICE] };
    let timeline = timeline(graph, profile, schedule, &held);
    lanes(profile, schedule, &timeline)?;
    Ok(timeline)
}

/// A schedule is plain data, so its ids may be anything.
fn mentions_only_what_exists(
    graph: &Graph,
    profile: &Profile,
    schedule: &Schedule,
) -> Result<(), Violation> {
    let tiers = profile.hierarchy.tiers.len();
    let tier = |tier: TierId| match profile.hierarchy.tiers.is_valid(tier) {
        true => Ok(()),
        false => Err(Violation::UnknownTier { tier, count: tiers }),
    };
    let buffer = |buffer: BufferId| match schedule.buffers.get(buffer) {
        Some(place) if place.bytes > Bytes::LIMIT || place.address > Bytes::LIMIT.0 => {
            let end = place.address.saturating_add(place.bytes.0);
            Err(Violation::OutsideSlab { buffer, end, slab: schedule.arena(place.tier).0 })
        }
        Some(place) => tier(place.tier),
        None => Err(Violation::UnknownBuffer { buffer, count: schedule.buffers.len() }),
    };
    let node = |node: NodeId| match graph.nodes().is_valid(node) {
        true => Ok(()),
        false => Err(Violation::UnknownNode { node: node.as_u32(), count: graph.nodes().len() }),
    };
    for (tier, place) in &profile.hierarchy.tiers {
        let arena = schedule.below[tier];
        if let Some(capacity) = place.capacity.filter(|&most| arena > most && tier != DEVICE) {
            let (arena, capacity) = (arena.0, capacity.0);
            return Err(Violation::OverCapacity { tier, arena, capacity });
        }
    }
    for &(placeholder, place) in &schedule.placeholders {
        node(placeholder)?;
        buffer(place)?;
        let placeholder = &graph.nodes()[placeholder];
        if !placeholder.phase.is_placeholder() {
            return Err(Violation::NotPlaceholder { node: placeholder.name.clone() });
        }
    }
    for instruction in &schedule.instructions {
        match instruction {
            Instruction::Free(freed) => buffer(*freed)?,
            Instruction::Run(call) | Instruction::Recompute(call) => {
                node(call.node)?;
                let called = &graph.nodes()[call.node];
                if call.micro_batch != called.micro_batch {
                    return Err(Violation::OtherMicroBatch {
                        node: called.name.clone(),
                        micro_batch: call.micro_batch,
                        expected: called.micro_batch,
                    });
                }
                let operands = call.inputs.iter().chain(&call.outputs).chain(&call.workspace);
                operands.copied().try_for_each(buffer)?;
            }
            Instruction::Start(transfer) => {
                let (lane, lanes) = (transfer.lane, &profile.hierarchy.lanes);
                if !lanes.is_valid(lane) {
                    let (transfer, count) = (transfer.id, lanes.len());
                    return Err(Violation::UnknownLane { transfer, lane, count });
                }
                transfer.movement.buffers().into_iter().try_for_each(buffer)?;
            }
            Instruction::Wait(_) => {}
        }
    }
    Ok(())
}

/// The tiers that a lane joins must be those in which the buffers of a movement lie.
fn ends(profile: &Profile, lane: LaneId, movement: Movement) -> [(BufferId, TierId); 2] {
    let lane = &profile.hierarchy.lanes[lane];
    match movement {
        Movement::Copy { from, to } => [(from, lane.from), (to, lane.to)],
    }
}
