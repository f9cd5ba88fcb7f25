//! The parts of a graph: nodes and values. Plain data; the rules are in `verify`.

use crate::id::{MicroBatchId, ModuleId, NodeId, StorageId, ValueId};
use crate::operator::Operator;
use crate::tensor::{Argument, TensorType};
use crate::units::{Bytes, Flops, Seconds};

/// The part of the training step that a node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// A placeholder that holds a trained weight.
    Parameter,
    /// A placeholder that holds a constant or a running statistic of the model.
    Buffer,
    /// A placeholder that holds optimizer state.
    State,
    /// A placeholder that holds a tensor of the batch.
    Input,
    /// A placeholder that holds the gradient that the step starts from.
    Tangent,
    /// A call that computes activations.
    Forward,
    /// A call that computes the loss.
    Loss,
    /// A call that computes gradients.
    Backward,
    /// A call that updates parameters.
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

    /// Nodes of this phase exist from the start and compute nothing.
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
    /// The number of times its storage had been written in place when it was produced.
    pub version: u32,
}

/// One operator call, or a placeholder.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The name, which no other node of the graph has.
    pub name: String,
    /// The ATen overload name, `placeholder`, or the name of a `tightfit.*` operator.
    pub op: String,
    /// The entry of the operator table, if it has one for `op`.
    pub operator: Option<Operator>,
    /// The part of the step that the node belongs to.
    pub phase: Phase,
    /// The module that the node belongs to.
    pub module: ModuleId,
    /// The part of the batch that the node belongs to.
    pub micro_batch: MicroBatchId,
    /// The name in the model, for parameters, buffers and state.
    pub parameter: Option<String>,
    /// The values that the node reads, each once.
    pub inputs: Vec<ValueId>,
    /// The values that the node produces; `None` is an output of the operator that nothing uses.
    pub outputs: Vec<Option<ValueId>>,
    /// The positional arguments of the call, in ATen schema order.
    pub args: Vec<Argument>,
    /// The keyword arguments of the call, sorted by name.
    pub kwargs: Vec<(String, Argument)>,
    /// The floating-point operations of the call.
    pub flops: Flops,
    /// The bytes that the call reads from memory.
    pub bytes_read: Bytes,
    /// The bytes that the call writes to memory.
    pub bytes_written: Bytes,
    /// The transient bytes that the call takes beyond inputs and outputs, for machines without a
    /// table of their own.
    pub workspace: Bytes,
    /// The measured run time; if it is absent, the machine's roofline says how long the call takes.
    pub seconds: Option<Seconds>,
    /// Whether the call draws random numbers; then it runs again only with its seed replayed.
    pub random: bool,
    /// The seed that the call draws with.
    pub seed_slot: Option<u32>,
    /// Whether the call must keep its order: it draws from the device's running generator, and not
    /// with a seed of its own, or sends to other ranks or receives from them. First runs of such
    /// calls keep the graph's order, and an executor that runs one again restores the generator for
    /// it.
    pub stream: bool,
    /// Whether the call writes into storages of its inputs.
    pub mutates: bool,
    /// The forward node whose derivative the call computes, all of it or a part, if that is known.
    pub differentiates: Option<NodeId>,
    /// The node that the call computes a second time.
    pub recomputes: Option<NodeId>,
    /// Inputs whose memory the first output may take over if they die with the call, the preferred
    /// one first, for runtimes that the graph names.
    pub overwrites: Vec<ValueId>,
}

impl Node {
    /// Keyword argument `name`.
    pub fn kwarg(&self, name: &str) -> Option<&Argument> {
        self.kwargs.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }
}
