//! What a machine is told to do. Invariant: plain data; it says which buffer every operand lies in,
//! so that neither checker nor interpreter has to guess.

use cranelift_entity::PrimaryMap;

use crate::id::{BufferId, NodeId};
use crate::units::Bytes;

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its size.
    pub bytes: Bytes,
    /// Its first byte, from the start of the slab.
    pub address: u64,
}

/// One execution of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The node.
    pub node: NodeId,
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
    /// Gives a buffer back.
    Free(BufferId),
}

/// Instructions for one step, ready to be checked and executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Hash of the graph that it executes.
    pub graph: String,
    /// Name of the planner.
    pub planner: String,
    /// The budget that it was made for.
    pub budget: Bytes,
    /// Size of the slab.
    pub slab: Bytes,
    /// All buffers.
    pub buffers: PrimaryMap<BufferId, Buffer>,
    /// The buffer of each placeholder, filled before the first instruction.
    pub placeholders: Vec<(NodeId, BufferId)>,
    /// The instructions.
    pub instructions: Vec<Instruction>,
}

impl Instruction {
    /// The call, unless it is a `Free`.
    pub fn call(&self) -> Option<&Call> {
        match self {
            Instruction::Run(call) | Instruction::Recompute(call) => Some(call),
            Instruction::Free(_) => None,
        }
    }
}

impl Schedule {
    /// How many nodes are recomputed, counting repetitions.
    pub fn recomputed(&self) -> usize {
        self.instructions
            .iter()
            .filter(|instruction| matches!(instruction, Instruction::Recompute(_)))
            .count()
    }
}
