//! What a graph is made of: nodes, values and the arguments of a call. Plain data; the rules are in
//! `verify`.

use crate::graph::id::{ModuleId, NodeId, StorageId, ValueId};
use crate::graph::operator::Operator;
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

/// Element types of tightfit-graph/1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// IEEE 16-bit float.
    F16,
    /// bfloat16.
    Bf16,
    /// 64-bit signed integer.
    I64,
    /// 32-bit signed integer.
    I32,
    /// 16-bit signed integer.
    I16,
    /// 8-bit signed integer.
    I8,
    /// 8-bit unsigned integer.
    U8,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Every type with its name in tightfit-graph/1 and its size in bytes.
    pub const ALL: [(DType, &'static str, u64); 10] = [
        (DType::F64, "f64", 8),
        (DType::F32, "f32", 4),
        (DType::F16, "f16", 2),
        (DType::Bf16, "bf16", 2),
        (DType::I64, "i64", 8),
        (DType::I32, "i32", 4),
        (DType::I16, "i16", 2),
        (DType::I8, "i8", 1),
        (DType::U8, "u8", 1),
        (DType::Bool, "bool", 1),
    ];

    /// The type called `name` in tightfit-graph/1.
    pub fn from_name(name: &str) -> Option<DType> {
        Self::ALL.iter().find(|(_, n, _)| *n == name).map(|(dtype, _, _)| *dtype)
    }

    /// Its name in tightfit-graph/1.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Bytes of one element.
    pub fn size(self) -> u64 {
        Self::ALL[self as usize].2
    }

    /// A floating-point type.
    pub fn is_float(self) -> bool {
        self <= DType::Bf16
    }
}

/// One argument of a call, in ATen schema order. Constants are kept as PyTorch prints them.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// A tensor.
    Value(ValueId),
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// A string: an enumeration such as `torch.float32`, or `inf`, `-inf`, `nan`.
    Text(String),
    /// A list of arguments.
    List(Vec<Argument>),
}

impl Argument {
    /// The values it mentions, in order.
    pub fn values(&self) -> Vec<ValueId> {
        match self {
            Argument::Value(value) => vec![*value],
            Argument::List(list) => list.iter().flat_map(Argument::values).collect(),
            _ => Vec::new(),
        }
    }

    /// As a number: integers, floats, truth values and the texts `inf`, `-inf`, `nan`.
    pub fn number(&self) -> Option<f64> {
        match self {
            Argument::Int(x) => Some(*x as f64),
            Argument::Float(x) => Some(*x),
            Argument::Bool(x) => Some(f64::from(u8::from(*x))),
            Argument::Text(text) => match text.as_str() {
                "inf" => Some(f64::INFINITY),
                "-inf" => Some(f64::NEG_INFINITY),
                "nan" => Some(f64::NAN),
                _ => None,
            },
            _ => None,
        }
    }
}

/// A tensor: shape, element type, and where it lies in its storage.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The node that produces it.
    pub producer: NodeId,
    /// Extent of each dimension, in elements.
    pub shape: Vec<u64>,
    /// Element type.
    pub dtype: DType,
    /// The bytes that it lives in.
    pub storage: StorageId,
    /// How often its storage had been written in place when it was produced.
    pub version: u32,
    /// Row-major without gaps.
    pub contiguous: bool,
    /// Step of each dimension, in elements; absent in planning-only graphs and for contiguous
    /// values.
    pub strides: Option<Vec<u64>>,
    /// First element within the storage, in elements.
    pub offset: u64,
}

impl Value {
    /// Number of elements. Bounded: the verifier fits every value into its storage or refuses it.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes of all elements, as if contiguous.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.elements() * self.dtype.size())
    }

    /// Strides in elements: the recorded ones, or row-major ones.
    pub fn strides_or_contiguous(&self) -> Vec<u64> {
        self.strides.clone().unwrap_or_else(|| contiguous_strides(&self.shape))
    }

    /// Same shape, type and place within the storage: one may take the other's memory element by
    /// element.
    pub fn same_layout(&self, other: &Value) -> bool {
        self.shape == other.shape
            && self.dtype == other.dtype
            && self.offset == other.offset
            && self.contiguous == other.contiguous
            && self.strides_or_contiguous() == other.strides_or_contiguous()
    }
}

/// Row-major strides of a shape, in elements.
pub fn contiguous_strides(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for d in (0..shape.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * shape[d + 1].max(1);
    }
    strides
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
