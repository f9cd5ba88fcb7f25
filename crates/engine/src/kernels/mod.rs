//! Kernels: from a node and the addresses of its operands to a function that computes it.
//! Invariant: compiling a node settles everything that does not change from step to step (shapes,
//! strides, constants), so running it allocates nothing; and a kernel writes its outputs and its
//! workspace, nothing else.

mod arithmetic;
mod attention;
mod collective;
mod dropout;
mod elementwise;
mod embedding;
mod exchange;
mod indexing;
mod loss;
mod math;
mod matmul;
mod movement;
mod nest;
mod normalization;
mod operands;
mod optimizer;
mod packing;
mod parts;
mod pointwise;
mod reduce;
mod rows;
mod run;
mod softmax;
mod tasks;
pub mod tensor;
mod trigonometry;

use thiserror::Error;
use tightfit::operator::Operator;

pub(crate) use collective::end;
pub(crate) use matmul::take_panel;
pub(crate) use operands::{Operands, Scratch};
pub(crate) use packing::{Packed, packed};
pub use parts::assert_disjoint;
pub(crate) use run::{Fault, FaultFlag, Run};

use operands::{dimension, float_bytes, shaped, typed};

/// A compiled node.
pub(crate) type Kernel = Box<dyn Fn(&Run<'_>) + Send + Sync>;

/// Why a node cannot be compiled.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// An argument is not of the kind that the kernel takes there.
    #[error("argument {index} is {found}, but must be {wanted}")]
    Argument {
        /// Its place among the arguments, from 0.
        index: usize,
        /// What it is.
        found: String,
        /// What it must be.
        wanted: &'static str,
    },
    /// The kernel does not compute with this element type.
    #[error("element type {found} is not implemented here; it takes {wanted}")]
    DType {
        /// The tensor's element type.
        found: &'static str,
        /// The types that it computes with.
        wanted: &'static str,
    },
    /// Shapes do not match; the message says which.
    #[error("{0}")]
    Shapes(String),
    /// A variant of the operator that has no kernel; the message names it.
    #[error("{0} is not implemented")]
    Unsupported(String),
}

/// Compiles a node for `threads` worker threads.
pub(crate) fn compile(
    operator: Operator,
    operands: &Operands,
    threads: usize,
) -> Result<Kernel, KernelError> {
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
        Op::Empty => movement::empty(operands),
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
        Op::Incoming => exchange::incoming(operands),
        Op::Receive => exchange::receive(operands),
        Op::Post => exchange::post(operands),
        Op::Send => exchange::send(operands),
        Op::Sent => exchange::sent(operands),
        Op::AllGather | Op::AllToAll => collective::begin(operator, operands),
        Op::MeanPieces => collective::mean(operands),
        Op::Adamw => optimizer::adamw(operands),
        Op::Sgd => optimizer::sgd(operands),
        Op::Alias
        | Op::AsStrided
        | Op::Detach
        | Op::Expand
        | Op::Permute
        | Op::SelectInt
        | Op::SliceTensor
        | Op::SplitWithSizes
        | Op::SqueezeDim
        | Op::SqueezeDims
        | Op::TransposeInt
        | Op::Unsqueeze
        | Op::View => Err(KernelError::Unsupported("a view that copies".to_string())),
    }
}
