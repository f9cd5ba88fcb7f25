//! Instructions for a machine. Invariant: plain data; it says which buffer every operand lies in,
//! so that neither checker nor interpreter has to guess.

use std::collections::BTreeSet;

use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::id::{BufferId, DEVICE, MicroBatchId, NodeId, RankId, TierId, TransferId};
use crate::schedule::transfer::Transfer;
use crate::units::Bytes;

/// Addresses are multiples of this: whole cache lines, and whole vectors of any element type.
pub const ALIGNMENT: u64 = 64;

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its size.
    pub bytes: Bytes,
    /// Its first byte, from the start of its tier's arena.
    pub address: u64,
    /// The memory that it lies in; calls compute on the device's.
    pub tier: TierId,
}

/// One execution of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The node that is called.
    pub node: NodeId,
    /// The part of the batch that it computes; a step of one micro-batch has number 0.
    pub micro_batch: MicroBatchId,
    /// The buffer of each input value, in the order of the node's inputs.
    pub inputs: Vec<BufferId>,
    /// The buffer of each output value that exists, in the order of the node's outputs. An output
    /// buffer that is not held yet is allocated; one that is an input's buffer is written in place.
    pub outputs: Vec<BufferId>,
    /// Scratch memory for the time of the call.
    pub workspace: Option<BufferId>,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Executes a node for the first time.
    Run(Call),
    /// Executes a node again.
    Recompute(Call),
    /// Gives a buffer back; what it held is lost.
    Free(BufferId),
    /// Begins a transfer as soon as its lane is free, and goes on.
    Start(Transfer),
    /// Goes on when a transfer has arrived.
    Wait(TransferId),
}

/// Instructions for one step, ready to be checked and executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Hash of the graph that it executes.
    pub graph: String,
    /// The process that executes it; 0 if there is only one.
    pub rank: RankId,
    /// The name of the planner.
    pub planner: String,
    /// The budget that it was made for.
    pub budget: Bytes,
    /// Size of the slab, the device's arena.
    pub slab: Bytes,
    /// Size of the arena in each tier below the device; nothing for the device itself.
    pub below: SecondaryMap<TierId, Bytes>,
    /// All buffers, with their sizes and addresses.
    pub buffers: PrimaryMap<BufferId, Buffer>,
    /// The buffers of each placeholder, filled before the first instruction.
    pub placeholders: Vec<(NodeId, BufferId)>,
    /// The instructions, in the order in which they are executed.
    pub instructions: Vec<Instruction>,
}

impl Instruction {
    /// Its name in tightfit-plan/1.
    pub fn verb(&self) -> &'static str {
        match self {
            Instruction::Run(_) => "run",
            Instruction::Recompute(_) => "recompute",
            Instruction::Free(_) => "free",
            Instruction::Start(_) => "start",
            Instruction::Wait(_) => "wait",
        }
    }

    /// The call, if it is one.
    pub fn call(&self) -> Option<&Call> {
        match self {
            Instruction::Run(call) | Instruction::Recompute(call) => Some(call),
            Instruction::Free(_) | Instruction::Start(_) | Instruction::Wait(_) => None,
        }
    }
}

impl Schedule {
    /// The number of nodes that are recomputed, counting repetitions.
    pub fn recomputed(&self) -> usize {
        let is_recomputation = |instruction: &&Instruction| match instruction {
            Instruction::Recompute(_) => true,
            Instruction::Run(_)
            | Instruction::Free(_)
            | Instruction::Start(_)
            | Instruction::Wait(_) => false,
        };
        self.instructions.iter().filter(is_recomputation).count()
    }

    /// The nodes that it runs, in order, repetitions included.
    pub fn runs(&self) -> Vec<NodeId> {
        self.instructions.iter().filter_map(Instruction::call).map(|call| call.node).collect()
    }

    /// The transfers in flight when a step begins: those waited for before they are started, in the
    /// order of their starts.
    pub fn crossing(&self) -> Vec<&Transfer> {
        let mut waited: BTreeSet<TransferId> = BTreeSet::new();
        let mut started: BTreeSet<TransferId> = BTreeSet::new();
        let mut crossing = Vec::new();
        for instruction in &self.instructions {
            match instruction {
                Instruction::Wait(id) => {
                    waited.insert(*id);
                }
                Instruction::Start(transfer) => {
                    if started.insert(transfer.id) && waited.contains(&transfer.id) {
                        crossing.push(transfer);
                    }
                }
                Instruction::Run(_) | Instruction::Recompute(_) | Instruction::Free(_) => {}
            }
        }
        crossing
    }

    /// Bytes that leave the device in a step, and those that return.
    pub fn moved(&self) -> [Bytes; 2] {
        let mut moved = [Bytes::ZERO; 2];
        for instruction in &self.instructions {
            if let Instruction::Start(transfer) = instruction {
                let [from, _] = transfer.movement.buffers().map(|buffer| self.buffers[buffer]);
                let sum = &mut moved[usize::from(from.tier != DEVICE)];
                *sum = Bytes(sum.0.saturating_add(from.bytes.0));
            }
        }
        moved
    }

    /// Size of a tier's arena.
    pub fn arena(&self, tier: TierId) -> Bytes {
        if tier == DEVICE { self.slab } else { self.below[tier] }
    }
}
