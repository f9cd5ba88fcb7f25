//! From a plan to a schedule. Invariant: a buffer is one chain of lives that take over each other's
//! memory; it is allocated by the first one's producer or by a prefetch, and freed right after the
//! last one's last access or when it is released.

use cranelift_entity::SecondaryMap;

use crate::analysis::{Action, Liveness, Sequence, liveness};
use crate::goal::Goal;
use crate::graph::Graph;
use crate::id::{BufferId, NodeId, RankId, StorageId, TierId, ValueId};
use crate::plan::Plan;
use crate::profile::Profile;
use crate::schedule::below::Below;
use crate::schedule::buffers::Buffers;
use crate::schedule::instruction::{ALIGNMENT, Call, Instruction, Schedule};
use crate::schedule::lowering::Lowering;
use crate::units::Bytes;

/// Lowers a plan and lays it out. Persistent placeholders come first in the slab, or stay where the
/// residents have them. The layout's search ends when the slab is within the goal; the budget of
/// the schedule is the goal's, or else its slab. No buffer uses what the plan leaves to the
/// runtime's tables at the slab's end ([`Profile::left_to_tables`]). Moves go over the fastest
/// lanes of the profile's machine.
///
/// # Panics
/// If the plan moves something and no lanes lead below the device and back, or if it reads
/// something that does not exist.
pub fn lower(graph: &Graph, profile: &Profile, plan: &Plan, task: &Lowering<'_>) -> Schedule {
    let sequence = &plan.sequence;
    let route = sequence.has_moves().then(|| {
        profile.hierarchy.main_route().expect("a plan with moves is for a machine with a tier")
    });
    let lives = liveness(graph, profile, sequence);
    let block = route.map_or(1, |route| profile.hierarchy.tiers[route.tier].block.0.max(1));
    let mut buffers = Buffers::new(graph, &lives, block);
    let (placeholders, below) = buffers.begin(graph, sequence, &lives, route);
    let instructions = instructions(graph, profile, sequence, &lives, &mut buffers, below);

    let alignment = block.max(ALIGNMENT);
    let tables = profile.left_to_tables(graph, lives.reads.len());
    let placed = buffers.place(graph, &placeholders, &task.beside(tables), alignment);
    let slab = placed.slab + tables;
    let budget = match task.goal {
        Goal::Within(budget) => budget,
        Goal::Smallest => slab,
    };
    let mut arenas: SecondaryMap<TierId, Bytes> = SecondaryMap::new();
    if let Some(route) = route {
        arenas[route.tier] = placed.below;
    }
    Schedule {
        graph: graph.hash().to_string(),
        rank: RankId::from_u32(0),
        planner: plan.planner.name().to_string(),
        budget,
        slab,
        below: arenas,
        buffers: placed.buffers,
        placeholders,
        instructions,
    }
}

/// The calls and transfers of a sequence, in order; what is no longer needed is freed right after
/// the call that touched it last.
fn instructions(
    graph: &Graph,
    profile: &Profile,
    sequence: &Sequence,
    lives: &Liveness,
    buffers: &mut Buffers,
    mut below: Option<Below>,
) -> Vec<Instruction> {
    let runs = lives.reads.len();
    let mut out = Vec::with_capacity(sequence.actions().len() * 2);
    let mut ran: SecondaryMap<NodeId, bool> = SecondaryMap::new();
    let frees = buffers.frees(lives, runs.max(1));
    if runs == 0 {
        // A batch that is not read is freed even so.
        out.extend(frees[0].iter().map(|&buffer| Instruction::Free(buffer)));
    }
    // Where each storage lay when a node last read or made it.
    let mut lies: SecondaryMap<StorageId, Option<BufferId>> = SecondaryMap::new();
    let (mut position, mut moved) = (0, 0);
    for action in sequence.actions() {
        let node = match *action {
            Action::Run(node) => node,
            Action::Move(..) => {
                if let Some(below) = &mut below {
                    below.moved(moved, buffers.of(lives.moves[moved]), &mut out);
                }
                moved += 1;
                continue;
            }
        };
        if let Some(below) = &mut below {
            graph.reads(node).iter().for_each(|&storage| below.arrive(storage, &mut out));
        }
        let read = graph.reads(node).iter().zip(&lives.reads[position]);
        let made = graph.fresh(node).iter().zip(&lives.fresh[position]);
        for (&storage, &interval) in read.chain(made) {
            lies[storage] = Some(buffers.of(interval));
        }
        let workspace = buffers.workspace(profile.workspace[node], position as u32);
        let call = call(graph, node, &lies, workspace);
        out.push(if ran[node] { Instruction::Recompute(call) } else { Instruction::Run(call) });
        ran[node] = true;
        out.extend(frees[position].iter().map(|&buffer| Instruction::Free(buffer)));
        position += 1;
    }
    if let Some(below) = &mut below {
        graph.output_storages().for_each(|storage| below.arrive(storage, &mut out));
    }
    out
}

/// The call of a node whose storages lie in these buffers.
fn call(
    graph: &Graph,
    node: NodeId,
    lies: &SecondaryMap<StorageId, Option<BufferId>>,
    workspace: Option<BufferId>,
) -> Call {
    let buffer = |value: ValueId| {
        lies[graph.values()[value].storage]
            .expect("a node's values lie in storages that it reads or makes")
    };
    let call = &graph.nodes()[node];
    Call {
        node,
        micro_batch: call.micro_batch,
        inputs: call.inputs.iter().map(|&value| buffer(value)).collect(),
        outputs: call.outputs.iter().flatten().map(|&value| buffer(value)).collect(),
        workspace,
    }
}
