//! Kernels: from a node and the addresses of its operands to a function that computes it.
//! Invariant: compiling a node settles everything that does not change from step to step (shapes,
//! strides, constants), so running it allocates nothing; and a kernel writes its outputs and its
//! workspace, nothing else.

mod attention;
mod dropout;
mod elementwise;
mod embedding;
mod indexing;
mod loss;
mod math;
mod matmul;
mod movement;
mod nest;
mod normalization;
mod optimizer;
mod pointwise;
mod reduce;
mod rows;
mod softmax;
mod tasks;
pub mod tensor;
mod trigonometry;

use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;
use tightfit::graph::{Argument, DType, Node, Operator};

use crate::kernels::tensor::Tensor;

pub(crate) use matmul::packing_bytes;

/// What a kernel found wrong with its input while it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An index or a class outside its table.
    Index,
}

/// Set by kernels on worker threads, read after the step.
#[derive(Debug, Default)]
pub(crate) struct FaultFlag(AtomicBool);

impl FaultFlag {
    pub fn raise(&self, fault: Fault) {
        match fault {
            Fault::Index => self.0.store(true, Ordering::Relaxed),
        }
    }

    /// The fault since the last call, if any.
    pub fn take(&self) -> Option<Fault> {
        self.0.swap(false, Ordering::Relaxed).then_some(Fault::Index)
    }
}

/// What changes from step to step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    /// Where kernels report what they cannot compute.
    pub fault: &'a FaultFlag,
    /// First byte of the slab.
    pub base: *mut u8,
    /// Seed of the run.
    pub seed: u64,
    /// Number of the step, from 0.
    pub step: u32,
    /// Number of the micro-batch within the step.
    pub micro_batch: u32,
    /// Learning rate of the step.
    pub learning_rate: f32,
}

// SAFETY: the pointer is only followed by kernels, whose operands the checker proved disjoint.
unsafe impl Sync for Run<'_> {}

/// A compiled node.
pub(crate) type Kernel = Box<dyn Fn(&Run<'_>) + Send + Sync>;

/// Why a node cannot be compiled.
#[derive(Debug, Error)]
#[allow(missing_docs)] // each message says what its fields are
pub enum KernelError {
    #[error("argument {index} is {found}, but must be {wanted}")]
    Argument { index: usize, found: String, wanted: &'static str },
    #[error("element type {found} is not implemented here; it takes {wanted}")]
    DType { found: &'static str, wanted: &'static str },
    #[error("{0}")]
    Shapes(String),
    #[error("{0} is not implemented")]
    Unsupported(String),
}

/// A node with its operands bound.
pub(crate) struct Operands<'a> {
    pub node: &'a Node,
    /// Tensors of [`Node::inputs`], in that order.
    pub inputs: Vec<Tensor>,
    /// Tensors of [`Node::outputs`].
    pub outputs: Vec<Option<Tensor>>,
    /// First byte and size of the workspace.
    pub workspace: Option<(usize, usize)>,
}

impl Operands<'_> {
    /// The tensor that `argument` mentions.
    fn tensor_of(&self, argument: &Argument) -> Option<&Tensor> {
        let Argument::Value(value) = argument else { return None };
        self.node.inputs.iter().position(|input| input == value).map(|index| &self.inputs[index])
    }

    /// Positional argument `index`, where it is a tensor.
    fn optional(&self, index: usize) -> Option<&Tensor> {
        self.node.args.get(index).and_then(|argument| self.tensor_of(argument))
    }

    fn argument(&self, index: usize, name: &str) -> Option<&Argument> {
        self.node.args.get(index).or_else(|| self.node.kwarg(name))
    }

    fn wrong(&self, index: usize, wanted: &'static str) -> KernelError {
        let found = self
            .node
            .args
            .get(index)
            .map_or("missing".to_string(), |argument| format!("{argument:?}"));
        KernelError::Argument { index, found, wanted }
    }

    /// Positional argument `index`, a tensor.
    pub fn tensor(&self, index: usize) -> Result<&Tensor, KernelError> {
        self.optional(index).ok_or_else(|| self.wrong(index, "a tensor"))
    }

    /// Positional argument `index`, a tensor of 32-bit floats.
    pub fn float(&self, index: usize) -> Result<&Tensor, KernelError> {
        typed(self.tensor(index)?, DType::F32)
    }

    /// Positional argument `index`, a tensor of 64-bit integers.
    pub fn integer(&self, index: usize) -> Result<&Tensor, KernelError> {
        typed(self.tensor(index)?, DType::I64)
    }

    /// Positional argument `index`, or keyword `name`, a number.
    pub fn number(&self, index: usize, name: &str) -> Result<f64, KernelError> {
        self.argument(index, name)
            .and_then(Argument::number)
            .ok_or_else(|| self.wrong(index, "a number"))
    }

    /// Positional argument `index`, or keyword `name`, a number or nothing.
    pub fn optional_number(&self, index: usize, name: &str) -> Option<f64> {
        self.argument(index, name).and_then(Argument::number)
    }

    /// Positional argument `index`, or keyword `name`, a list of whole numbers (a single one counts
    /// as a list).
    pub fn integers(&self, index: usize, name: &str) -> Result<Vec<i64>, KernelError> {
        match self.argument(index, name) {
            Some(Argument::Int(x)) => Ok(vec![*x]),
            Some(Argument::List(list)) => list
                .iter()
                .map(|argument| match argument {
                    Argument::Int(x) => Ok(*x),
                    _ => Err(self.wrong(index, "a list of whole numbers")),
                })
                .collect(),
            _ => Err(self.wrong(index, "a list of whole numbers")),
        }
    }

    /// Positional argument `index`, or keyword `name`, a truth value; `default` where it is
    /// missing.
    pub fn flag(&self, index: usize, name: &str, default: bool) -> bool {
        match self.argument(index, name) {
            Some(Argument::Bool(x)) => *x,
            Some(Argument::Int(x)) => *x != 0,
            _ => default,
        }
    }

    /// Output `index`, which must be used.
    pub fn output(&self, index: usize) -> Result<&Tensor, KernelError> {
        self.outputs
            .get(index)
            .and_then(Option::as_ref)
            .ok_or_else(|| KernelError::Shapes(format!("output {index} is missing")))
    }

    /// Output `index`, if anything uses it.
    pub fn unused(&self, index: usize) -> Option<&Tensor> {
        self.outputs.get(index).and_then(Option::as_ref)
    }

    /// Refuses keyword arguments that would change the result and that no kernel knows.
    fn known_keywords(&self, known: &[&str]) -> Result<(), KernelError> {
        const HARMLESS: [&str; 6] =
            ["device", "layout", "pin_memory", "memory_format", "dtype", "non_blocking"];
        for (key, value) in &self.node.kwargs {
            if !known.contains(&key.as_str())
                && !HARMLESS.contains(&key.as_str())
                && !matches!(value, Argument::None)
            {
                return Err(KernelError::Unsupported(format!(
                    "keyword argument `{key}` = {value:?}"
                )));
            }
        }
        Ok(())
    }
}

/// The tensor, if it has the type.
fn typed(tensor: &Tensor, dtype: DType) -> Result<&Tensor, KernelError> {
    if tensor.dtype == dtype {
        Ok(tensor)
    } else {
        Err(KernelError::DType { found: tensor.dtype.name(), wanted: dtype.name() })
    }
}

/// A dimension as ATen counts it (negative: from the end) as an index.
fn dimension(dim: i64, dims: usize) -> Result<usize, KernelError> {
    let index = if dim < 0 { dim + dims as i64 } else { dim };
    usize::try_from(index)
        .ok()
        .filter(|&index| index < dims.max(1))
        .ok_or_else(|| KernelError::Shapes(format!("dimension {dim} of {dims}")))
}

/// Compiles a node for `threads` worker threads.
pub(crate) fn compile(
    operator: Operator,
    operands: &Operands,
    threads: usize,
) -> Result<Kernel, KernelError> {
    let given = operands.node.args.len();
    let (least, most) = operator.row().arguments;
    let outputs = operands.outputs.len();
    if !(least..=most).contains(&given) || !(1..=operator.row().outputs).contains(&outputs) {
        return Err(KernelError::Shapes(format!(
            "{given} arguments and {outputs} outputs do not match its schema"
        )));
    }
    use Operator as Op;
    match operator {
        Op::AddTensor
        | Op::AddScalar
        | Op::SubTensor
        | Op::SubScalar
        | Op::MulTensor
        | Op::MulScalar
        | Op::DivTensor
        | Op::DivScalar => pointwise::arithmetic(operator, operands),
        Op::Maximum | Op::Minimum => pointwise::extremum(operator, operands),
        Op::PowTensorScalar => pointwise::power(operands),
        Op::Reciprocal => elementwise::unary(operands, math::reciprocal),
        Op::Neg => pointwise::real_or_whole(operands, math::neg, i64::wrapping_neg),
        Op::Abs => pointwise::real_or_whole(operands, math::abs, i64::wrapping_abs),
        Op::Relu => elementwise::unary(operands, math::relu),
        Op::Clamp => pointwise::clamp(operands),
        Op::Exp => elementwise::unary(operands, math::exp_all),
        Op::Log => pointwise::log(operands),
        Op::Sqrt => elementwise::unary(operands, math::sqrt),
        Op::Rsqrt => elementwise::unary(operands, math::rsqrt),
        Op::Sin => elementwise::unary(operands, trigonometry::sin),
        Op::Cos => elementwise::unary(operands, trigonometry::cos),
        Op::Tanh => elementwise::unary(operands, math::tanh),
        Op::Sigmoid => elementwise::unary(operands, math::sigmoid),
        Op::Silu => elementwise::unary(operands, math::silu),
        Op::Gelu => pointwise::gelu(operands),
        Op::GeluBackward => pointwise::gelu_backward(operands),
        Op::EqScalar | Op::NeScalar | Op::LtScalar | Op::LeScalar | Op::GtScalar | Op::GeScalar => {
            pointwise::compare_scalar(operator, operands)
        }
        Op::EqTensor | Op::NeTensor | Op::LtTensor | Op::LeTensor | Op::GtTensor | Op::GeTensor => {
            pointwise::compare(operator, operands)
        }
        Op::LogicalNot => pointwise::logical_not(operands),
        Op::LogicalAnd => pointwise::logical_and(operands),
        Op::BitwiseAnd => pointwise::bitwise_and(operands),
        Op::BitwiseNot => pointwise::bitwise_not(operands),
        Op::ThresholdBackward => pointwise::threshold_backward(operands),
        Op::Where => pointwise::choose(operands),
        Op::Full => movement::full(operands, 1),
        Op::FullLike => movement::full(operands, 1),
        Op::ScalarTensor => movement::full(operands, 0),
        Op::ArangeStartStep => movement::arange(operands),
        Op::Clone | Op::ToCopy => movement::copy(operands, 0),
        Op::CopyInto => movement::copy(operands, 1),
        Op::Cat => movement::cat(operands),
        Op::Gather => indexing::gather(operands),
        Op::ScatterValue => indexing::scatter_value(operands),
        Op::SliceScatter => movement::slice_scatter(operands),
        Op::SumDims | Op::Sum | Op::Mean | Op::MeanDims | Op::Amax | Op::VarCorrection => {
            reduce::reduce(operator, operands)
        }
        Op::AnyDim => reduce::any(operands),
        Op::Softmax | Op::LogSoftmax => softmax::forward(operator, operands),
        Op::SoftmaxBackward | Op::LogSoftmaxBackward => softmax::backward(operator, operands),
        Op::Mm => matmul::mm(operands, threads),
        Op::Addmm => matmul::addmm(operands, threads),
        Op::Bmm => matmul::bmm(operands, threads),
        Op::Embedding => embedding::forward(operands),
        Op::EmbeddingDenseBackward => embedding::backward(operands),
        Op::NativeLayerNorm => normalization::forward(operands),
        Op::NativeLayerNormBackward => normalization::backward(operands),
        Op::NativeDropout => dropout::forward(operands),
        Op::NativeDropoutBackward => dropout::backward(operands),
        Op::NllLossForward => loss::forward(operands),
        Op::NllLossBackward => loss::backward(operands),
        Op::FlashAttention => attention::forward(operands, threads),
        Op::FlashAttentionBackward => attention::backward(operands, threads),
        Op::Adamw => optimizer::adamw(operands),
        Op::Sgd => optimizer::sgd(operands),
    }
}
