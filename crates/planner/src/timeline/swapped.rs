//! What a legal schedule swaps, with the free time for each swap. Invariant: there is one row for
//! each transfer back to the device, so a storage that leaves twice has two.
//!
//! Source: Peng et al., "Capuchin", ASPLOS 2020, section 4.4: the free time of a swap is the time
//! between the two accesses around it, less its transfers; its in-trigger is the access after which
//! it begins to return.

use cranelift_entity::SecondaryMap;

use crate::graph::Graph;
use crate::id::{BufferId, DEVICE, NodeId, StorageId, TransferId};
use crate::schedule::{Instruction, Movement, Schedule};
use crate::timeline::{Timeline, TransferInTime};
use crate::units::{Bytes, Seconds};

/// An absence from the device: of a storage that leaves after one access and is back for the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Swapped {
    /// The storage that is away.
    pub storage: StorageId,
    /// The node that makes it.
    pub node: NodeId,
    /// Its size.
    pub bytes: Bytes,
    /// The last node that makes or reads it before; a node of the step before if it is away across
    /// the border between two. `None` if there is none.
    pub last_access: Option<NodeId>,
    /// The node after which it begins to return; `None` if that is at the start of the step.
    pub in_trigger: Option<NodeId>,
    /// The first node that reads it after its return; `None` if only the caller does, when the step
    /// is over.
    pub next_access: Option<NodeId>,
    /// From the end of the last access to the start of the next one.
    pub idle: Seconds,
    /// How long the transfer out occupies its lane; `None` if the tier has a copy already.
    pub out: Option<Seconds>,
    /// How long the transfer back occupies its lane.
    pub back: Seconds,
    /// How long calls wait for the two transfers.
    pub stall: Seconds,
}

impl Swapped {
    /// The idle time less the transfers; negative if calls have to wait, or if it begins to leave
    /// before its last access.
    pub fn free(&self) -> Seconds {
        Seconds(self.idle.0 - self.out.map_or(0.0, |out| out.0) - self.back.0)
    }
}

/// A return that was started, with times as numbers of calls from the start of the step.
#[derive(Clone, Copy)]
struct Return {
    storage: StorageId,
    back: TransferId,
    out: Option<TransferId>,
    last_access: Option<usize>,
    /// The number of calls that run before it starts.
    after: usize,
    next_access: Option<usize>,
}

impl Timeline {
    /// The swaps in a schedule of which this is the timeline; the longest free time first.
    pub fn swapped(&self, graph: &Graph, schedule: &Schedule) -> Vec<Swapped> {
        let Walk { returns, last_access, .. } = Walk::over(graph, schedule);
        let mut lanes: SecondaryMap<TransferId, Option<TransferInTime>> = SecondaryMap::new();
        for transfer in &self.transfers {
            lanes[transfer.id] = Some(*transfer);
        }
        let end = |at: usize| self.calls[at].start + self.calls[at].seconds;
        let node = |at: usize| self.calls[at].node;
        let row = |found: Return| {
            let maker = graph.producer(found.storage)?;
            let back = lanes[found.back]?;
            let out = found.out.and_then(|out| lanes[out]);
            let needed = found.next_access.map_or(self.seconds, |at| self.calls[at].start);
            // A storage that is not accessed before its return in this step was last accessed in
            // the step before; and one that returns after its accesses is accessed in the next
            // step.
            let last_access = found.last_access.or(last_access[found.storage]);
            let since = last_access.map_or(Seconds(0.0), end);
            let is_over = last_access >= found.next_access && found.next_access.is_some();
            let border = if is_over { self.seconds } else { Seconds(0.0) };
            Some(Swapped {
                storage: found.storage,
                node: maker,
                bytes: graph.storages()[found.storage],
                last_access: last_access.map(node),
                in_trigger: found.after.checked_sub(1).map(node),
                next_access: found.next_access.map(node),
                idle: Seconds(needed.0 + border.0 - since.0),
                out: out.map(|out| out.seconds),
                back: back.seconds,
                stall: Seconds(back.stall.0 + out.map_or(0.0, |out| out.stall.0)),
            })
        };
        let mut rows: Vec<Swapped> = returns.into_iter().filter_map(row).collect();
        rows.sort_by(|a, b| b.free().0.total_cmp(&a.free().0).then(a.storage.cmp(&b.storage)));
        rows
    }
}

/// The instructions of a step, one after another.
struct Walk {
    calls: usize,
    holds: SecondaryMap<BufferId, Option<StorageId>>,
    /// By storage: the last call so far, the last transfer out, and a return that no read has
    /// waited for yet.
    last_access: SecondaryMap<StorageId, Option<usize>>,
    out: SecondaryMap<StorageId, Option<TransferId>>,
    open: SecondaryMap<StorageId, Option<usize>>,
    returns: Vec<Return>,
}

impl Walk {
    fn over(graph: &Graph, schedule: &Schedule) -> Walk {
        let mut walk = Walk {
            calls: 0,
            holds: SecondaryMap::with_capacity(schedule.buffers.len()),
            last_access: SecondaryMap::new(),
            out: SecondaryMap::new(),
            open: SecondaryMap::new(),
            returns: Vec::new(),
        };
        for &(node, buffer) in &schedule.placeholders {
            walk.holds[buffer] = graph.fresh(node).first().copied();
        }
        for transfer in schedule.crossing() {
            let Movement::Copy { from, to } = transfer.movement;
            walk.holds[to] = walk.holds[from];
            if let Some(storage) = walk.holds[from].filter(|_| schedule.buffers[to].tier != DEVICE)
            {
                walk.out[storage] = Some(transfer.id);
            }
        }
        let mut first_access: SecondaryMap<StorageId, Option<usize>> = SecondaryMap::new();
        for instruction in &schedule.instructions {
            match instruction {
                Instruction::Run(call) | Instruction::Recompute(call) => {
                    for storage in call.inputs.iter().filter_map(|&buffer| walk.holds[buffer]) {
                        first_access[storage].get_or_insert(walk.calls);
                        walk.last_access[storage] = Some(walk.calls);
                        if let Some(open) = walk.open[storage].take() {
                            walk.returns[open].next_access = Some(walk.calls);
                        }
                    }
                    // Results may lie in place of something that was read.
                    let outputs = graph.nodes()[call.node].outputs.iter().flatten();
                    for (&value, &buffer) in outputs.zip(&call.outputs) {
                        let storage = graph.values()[value].storage;
                        walk.holds[buffer] = Some(storage);
                        walk.last_access[storage] = Some(walk.calls);
                    }
                    walk.calls += 1;
                }
                Instruction::Start(transfer) => {
                    let Movement::Copy { from, to } = transfer.movement;
                    let Some(storage) = walk.holds[from] else { continue };
                    walk.holds[to] = Some(storage);
                    if schedule.buffers[to].tier == DEVICE {
                        walk.open[storage] = Some(walk.returns.len());
                        walk.returns.push(Return {
                            storage,
                            back: transfer.id,
                            out: walk.out[storage].take(),
                            last_access: walk.last_access[storage],
                            after: walk.calls,
                            next_access: None,
                        });
                    } else {
                        walk.out[storage] = Some(transfer.id);
                    }
                }
                Instruction::Free(_) | Instruction::Wait(_) => {}
            }
        }
        // A storage that returns when this step no longer reads it is for the next one, unless it
        // is for the caller.
        let open = walk.open.keys().filter_map(|storage| walk.open[storage]);
        for index in open.collect::<Vec<_>>() {
            let found = &mut walk.returns[index];
            if graph.is_persistent(found.storage) {
                found.next_access = first_access[found.storage];
            }
        }
        // A storage that leaves in one step may return in the next one.
        for found in &mut walk.returns {
            if found.last_access.is_none() {
                found.out = found.out.or(walk.out[found.storage]);
            }
        }
        walk
    }
}
