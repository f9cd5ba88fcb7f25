//! What a graph is made of: nodes and values. Plain data; the rules are in `verify`.

use crate::id::{ModuleId, NodeId, StorageId, ValueId};
use crate::operator::Operator;
use crate::tensor::{Argument, TensorType};
use crate::units::{Bytes, Flops, Seconds};

/// The part of the training step that a node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Placeholder: a trained weight.
    Parameter,
    /// Placeholder: a constant or a running statistic of the model.
    Buffer,
    /// Placeholder: optimizer state.
    State,
    /// Placeholder: a tensor of the batch.
    Input,
    /// Placeholder: the gradient that the step starts from.
    Tangent,
    /// Computes activations.
    Forward,
    /// Computes the loss.
    Loss,
    /// Computes gradients.
    Backward,
    /// Updates parameters.
    Optimizer,
}

impl Phase {
    /// Every phase with its name in tightfit-graph/1.
    pub const ALL: [(Phase, &'static str); 9] = [
        (Phase::Parameter, "parameter"),
        (Phase::Buffer, "buffer"),
        (Phase::State, "state"),
        (Phase::Input, "input"),
        (Phase::Tangent, "tangent"),
        (Phase::Forward, "forward"),
        (Phase::Loss, "loss"),
        (Phase::Backward, "backward"),
        (Phase::Optimizer, "optimizer"),
    ];

    /// The phase called `name` in tightfit-graph/1.
    pub fn from_name(name: &str) -> Option<Phase> {
        Self::ALL.iter().find(|(_, n)| *n == name).map(|(phase, _)| *phase)
    }

    /// Its name in tightfit-graph/1.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Nodes of this phase are there from the start and compute nothing.
    pub fn is_placeholder(self) -> bool {
        self <= Phase::Tangent
    }

    /// Placeholders of this phase are alive for the whole step.
    pub fn is_persistent(self) -> bool {
        self <= Phase::State
    }

    /// Runs before the first gradient.
    pub fn is_forward(self) -> bool {
        matches!(self, Phase::Forward | Phase::Loss)
    }
}

/// A tensor: its type, and the storage that it lives in.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The node that produces it.
    pub producer: NodeId,
    /// Shape, element type and place within the storage.
    pub tensor: TensorType,
    /// The bytes that it lives in.
    pub storage: StorageId,
    /// How often its storage had been written in place when it was produced.
    pub version: u32,
}

/// One operator call, or a placeholder.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Unique within the graph.
    pub name: String,
    /// ATen overload name, `placeholder`, or a `tightfit.*` operator.
    pub op: String,
    /// The entry of the operator table, where it knows `op`.
    pub operator: Option<Operator>,
    /// Part of the step.
    pub phase: Phase,
    /// Module that the node belongs to.
    pub module: ModuleId,
    /// Parameters, buffers and state: their name in the model.
    pub parameter: Option<String>,
    /// Values read, each once.
    pub inputs: Vec<ValueId>,
    /// Values produced; `None` = an output of the operator that nothing uses.
    pub outputs: Vec<Option<ValueId>>,
    /// The call, in ATen schema order.
    pub args: Vec<Argument>,
    /// The call's keyword arguments, by name.
    pub kwargs: Vec<(String, Argument)>,
    /// Floating-point operations.
    pub flops: Flops,
    /// Bytes moved in.
    pub bytes_read: Bytes,
    /// Bytes moved out.
    pub bytes_written: Bytes,
    /// Transient bytes beyond inputs and outputs, for machines without a table of their own.
    pub workspace: Bytes,
    /// Measured run time; absent: the machine's roofline.
    pub seconds: Option<Seconds>,
    /// Draws random numbers: may run again only with its seed replayed.
    pub random: bool,
    /// Which seed it draws with.
    pub seed_slot: Option<u32>,
    /// Writes into storages of its inputs.
    pub mutates: bool,
}

impl Node {
    /// Keyword argument `name`.
    pub fn kwarg(&self, name: &str) -> Option<&Argument> {
        self.kwargs.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }
}
