//! What can run at the same time as a collective. Invariant: a collective has ended before anything
//! touches what it brings or changes what it takes, and before it is called again; so executing it
//! at the same time as other calls computes what the schedule says, call by call.
//!
//! A schedule is a sequence, in which a collective is a call like any other. That it needs no
//! processor while it runs is exploited afterwards: by comparing addresses, as out-of-order
//! processors do.

use std::ops::Range;

use crate::graph::Graph;
use crate::id::{BufferId, DEVICE, NodeId};
use crate::schedule::{Call, Instruction, Schedule};

/// A collective of a schedule, by the positions of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Where it begins.
    pub call: usize,
    /// The instruction before which it must have ended; the number of instructions if there is
    /// none.
    pub before: usize,
}

/// Bytes of the slab.
type Span = Range<u64>;

/// A collective in flight.
struct UnderWay {
    call: usize,
    node: NodeId,
    takes: Vec<Span>,
    brings: Vec<Span>,
}

/// When each collective of a schedule has to have ended, in the order of the endings.
pub fn endings(graph: &Graph, schedule: &Schedule) -> Vec<Ending> {
    let span = |buffer: &BufferId| {
        let place = &schedule.buffers[*buffer];
        (place.tier == DEVICE).then(|| place.address..place.address + place.bytes.0)
    };
    let mut under_way: Vec<UnderWay> = Vec::new();
    let mut endings = Vec::new();
    for (index, instruction) in schedule.instructions.iter().enumerate() {
        let (reads, writes): (Vec<Span>, Vec<Span>) = match instruction {
            Instruction::Run(call) | Instruction::Recompute(call) => {
                let Call { inputs, outputs, workspace, .. } = call;
                let written = outputs.iter().chain(workspace);
                (inputs.iter().filter_map(span).collect(), written.filter_map(span).collect())
            }
            Instruction::Start(transfer) => {
                (Vec::new(), transfer.movement.buffers().iter().filter_map(span).collect())
            }
            Instruction::Free(_) | Instruction::Wait(_) => continue,
        };
        let call = instruction.call();
        under_way.retain(|one| {
            let meets = |some: &[Span], others: &[Span]| {
                some.iter().any(|a| others.iter().any(|b| a.start < b.end && b.start < a.end))
            };
            // Its messages could not be told apart.
            let is_same = call.is_some_and(|call| call.node == one.node);
            let goes_on = !is_same
                && !meets(&one.brings, &reads)
                && !meets(&one.brings, &writes)
                && !meets(&one.takes, &writes);
            if !goes_on {
                endings.push(Ending { call: one.call, before: index });
            }
            goes_on
        });
        let Some(node) = call.map(|call| call.node) else { continue };
        if graph.nodes()[node].operator.is_some_and(|operator| operator.is_collective()) {
            under_way.push(UnderWay { call: index, node, takes: reads, brings: writes });
        }
    }
    let before = schedule.instructions.len();
    endings.extend(under_way.into_iter().map(|one| Ending { call: one.call, before }));
    endings
}
