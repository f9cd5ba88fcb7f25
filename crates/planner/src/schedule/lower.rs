//! From a plan to a schedule. Invariant: a buffer is one chain of lives that take over each other's
//! memory; it is allocated by the first one's producer and freed right after the last one's last
//! access.

use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::analysis::{Interval, IntervalId, liveness};
use crate::effort::Effort;
use crate::goal::Goal;
use crate::graph::Graph;
use crate::id::{BufferId, DEVICE, MicroBatchId, NodeId, RankId, StorageId};
use crate::plan::Plan;
use crate::profile::Profile;
use crate::schedule::instruction::{ALIGNMENT, Buffer, Call, Instruction, Schedule};
use crate::schedule::layout::{Lifetime, Shelf, pack};
use crate::schedule::persistent::{Residents, persistent_addresses};
use crate::units::Bytes;

/// How a plan is laid out.
#[derive(Clone, Copy)]
pub struct Lowering<'a> {
    /// How large the slab may be.
    pub goal: Goal,
    /// A slab of so many bytes is small enough, whatever the goal.
    pub enough: Bytes,
    /// What stays where it is.
    pub residents: &'a Residents,
    /// How hard to look for addresses.
    pub effort: Effort<'a>,
}

impl Lowering<'static> {
    /// For a goal, with nothing in the slab yet and the default effort.
    pub fn to(goal: Goal) -> Lowering<'static> {
        let enough = Bytes::ZERO;
        Lowering { goal, enough, residents: Residents::none(), effort: Effort::default() }
    }
}

/// Lowers a plan and lays it out. Persistent placeholders come first in the slab, or stay where
/// the residents have them. The layout's search ends where the slab is within the goal; the budget
/// of the schedule is the goal's, or else its slab.
pub fn lower(graph: &Graph, profile: &Profile, plan: &Plan, task: &Lowering<'_>) -> Schedule {
    let runs = plan.runs();
    let lives = liveness(graph, profile, &runs);
    let mut lifetimes: PrimaryMap<BufferId, Lifetime> = PrimaryMap::new();
    let mut buffer_of: SecondaryMap<IntervalId, Option<BufferId>> = SecondaryMap::new();
    for (id, life) in &lives.intervals {
        let buffer = match life.in_place_of.and_then(|taken| buffer_of[taken]) {
            Some(buffer) => buffer,
            None => lifetimes.push(Lifetime {
                first: first(life),
                last: life.dies,
                bytes: graph.storages()[life.storage],
            }),
        };
        lifetimes[buffer].last = lifetimes[buffer].last.max(life.dies);
        buffer_of[id] = Some(buffer);
    }
    let at = |interval: IntervalId| buffer_of[interval].expect("every life has a buffer");

    let mut instructions = Vec::with_capacity(runs.len() * 2);
    let mut workspaces = Vec::new();
    let mut ran: SecondaryMap<NodeId, bool> = SecondaryMap::new();
    let frees = frees(graph, &lives.intervals, &at, &lifetimes, runs.len().max(1));
    if runs.is_empty() {
        // A batch that nothing reads goes nevertheless.
        instructions.extend(frees[0].iter().map(|&buffer| Instruction::Free(buffer)));
    }
    // Where each storage lay when a node last read or made it.
    let mut lies: SecondaryMap<StorageId, Option<BufferId>> = SecondaryMap::new();
    for (position, &node) in runs.iter().enumerate() {
        let read = graph.reads(node).iter().zip(&lives.reads[position]);
        let made = graph.fresh(node).iter().zip(&lives.fresh[position]);
        for (&storage, &interval) in read.chain(made) {
            lies[storage] = Some(at(interval));
        }
        let buffer = |value| {
            lies[graph.values()[value].storage]
                .expect("a node's values lie in storages that it reads or makes")
        };
        let call = &graph.nodes()[node];
        let bytes = profile.workspace[node];
        let workspace = (bytes > Bytes::ZERO).then(|| {
            let here = position as u32;
            let buffer = lifetimes.push(Lifetime { first: here, last: here, bytes });
            workspaces.push(buffer);
            buffer
        });
        let call = Call {
            node,
            micro_batch: MicroBatchId::WHOLE,
            inputs: call.inputs.iter().map(|&value| buffer(value)).collect(),
            outputs: call.outputs.iter().flatten().map(|&value| buffer(value)).collect(),
            workspace,
        };
        instructions.push(if ran[node] {
            Instruction::Recompute(call)
        } else {
            Instruction::Run(call)
        });
        ran[node] = true;
        instructions.extend(frees[position].iter().map(|&buffer| Instruction::Free(buffer)));
    }

    let placeholders: Vec<(NodeId, BufferId)> = graph
        .placeholder_storages()
        .zip(lives.intervals.keys())
        .map(|((node, _), interval)| (node, at(interval)))
        .collect();
    let (buffers, slab) = place(graph, &lifetimes, &placeholders, task);
    let budget = match task.goal {
        Goal::Within(budget) => budget,
        Goal::Smallest => slab,
    };
    Schedule {
        graph: graph.hash().to_string(),
        rank: RankId::from_u32(0),
        planner: plan.planner.name().to_string(),
        budget,
        slab,
        below: SecondaryMap::new(),
        buffers,
        placeholders,
        instructions,
    }
}

fn first(life: &Interval) -> u32 {
    life.born.unwrap_or(0)
}

/// The buffers to free after each position: those that nothing touches later and that are not kept.
fn frees(
    graph: &Graph,
    intervals: &PrimaryMap<IntervalId, Interval>,
    at: &impl Fn(IntervalId) -> BufferId,
    lifetimes: &PrimaryMap<BufferId, Lifetime>,
    positions: usize,
) -> Vec<Vec<BufferId>> {
    // A second copy of a kept storage is an exception: it dies where it is born.
    let mut kept: SecondaryMap<BufferId, bool> = SecondaryMap::new();
    let mut seen: SecondaryMap<StorageId, bool> = SecondaryMap::new();
    for (id, life) in intervals {
        if graph.is_kept(life.storage) && !seen[life.storage] {
            seen[life.storage] = true;
            kept[at(id)] = true;
        }
    }
    let mut frees = vec![Vec::new(); positions];
    for (buffer, lifetime) in lifetimes {
        if let Some(list) = frees.get_mut(lifetime.last as usize).filter(|_| !kept[buffer]) {
            list.push(buffer);
        }
    }
    frees
}

/// Most work of one layout for each buffer: a step is lowered several times, and what is found is
/// found soon.
const WORK_OF_EACH_BUFFER: u64 = 32;

/// Persistent placeholders at the bottom of the slab, all else packed above them.
fn place(
    graph: &Graph,
    lifetimes: &PrimaryMap<BufferId, Lifetime>,
    placeholders: &[(NodeId, BufferId)],
    task: &Lowering<'_>,
) -> (PrimaryMap<BufferId, Buffer>, Bytes) {
    let (fixed, floor) = persistent_addresses(graph, lifetimes, placeholders, task.residents);
    let effort = Effort {
        work: task.effort.work.min(lifetimes.len() as u64 * WORK_OF_EACH_BUFFER),
        ..task.effort
    };
    let &Lowering { goal, enough, .. } = task;
    let shelf = Shelf { fixed: &fixed, floor, alignment: ALIGNMENT, goal, enough };
    let packing = pack(lifetimes.as_values_slice(), &shelf, &effort);
    let buffers = lifetimes
        .values()
        .zip(packing.addresses)
        .map(|(lifetime, address)| Buffer { bytes: lifetime.bytes, address, tier: DEVICE })
        .collect();
    (buffers, packing.end)
}
