//! The operator table: one row for each operator that the engine executes. Invariant: verifier,
//! profile, planner and engine read this table and no other; the engine matches on [`Operator`], so
//! a row without a kernel does not compile.
//!
//! A graph may call operators that are not here: it can be planned, but not executed.

use crate::graph::Graph;
use crate::graph::id::{NodeId, ValueId};
use crate::graph::node::{Argument, Value};
use crate::units::{Bytes, Flops};

/// Rows of queries that the attention kernels hold scores for at a time; see
/// [`Operator::workspace`].
const ATTENTION_BLOCK: u64 = 64;
/// Rows that a task sums down columns; see [`Operator::workspace`].
const ROW_BLOCK: u64 = 128;

/// What the table says of an operator.
#[derive(Clone, Copy, Debug)]
pub struct OperatorRow {
    /// ATen overload name or `tightfit.*`.
    pub name: &'static str,
    /// Fewest and most positional arguments of the schema.
    pub arguments: (usize, usize),
    /// Outputs, used or not.
    pub outputs: usize,
    /// Positional arguments that the first output may overwrite element by element.
    pub in_place: &'static [usize],
    /// Arithmetic on each element of the first output, in exponential-like functions: as long as
    /// that many of them take.
    pub elementary: u64,
}

macro_rules! operators {
    ($($variant:ident $name:literal $least:literal..=$most:literal -> $outputs:literal $([$($in_place:literal),*])? $(elementary $elementary:literal)?;)*) => {
        /// An operator that the engine executes, named after its ATen overload.
        #[allow(missing_docs)] // the table's second column is the documentation
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Operator { $($variant),* }

        impl Operator {
            /// Every operator.
            pub const ALL: &'static [Operator] = &[$(Operator::$variant),*];

            /// Its row.
            pub fn row(self) -> &'static OperatorRow {
                match self {
                    $(Operator::$variant => &OperatorRow {
                        name: $name,
                        arguments: ($least, $most),
                        outputs: $outputs,
                        in_place: &[$($($in_place),*)?],
                        elementary: 0 $(+ $elementary)?,
                    }),*
                }
            }

            /// The operator called `name`.
            pub fn from_name(name: &str) -> Option<Operator> {
                match name {
                    $($name => Some(Operator::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

operators! {
    // arithmetic, element by element
    AddTensor "aten.add.Tensor" 2..=2 -> 1 [0, 1];
    AddScalar "aten.add.Scalar" 2..=3 -> 1 [0];
    SubTensor "aten.sub.Tensor" 2..=2 -> 1 [0, 1];
    SubScalar "aten.sub.Scalar" 2..=3 -> 1 [0];
    MulTensor "aten.mul.Tensor" 2..=2 -> 1 [0, 1];
    MulScalar "aten.mul.Scalar" 2..=2 -> 1 [0];
    DivTensor "aten.div.Tensor" 2..=2 -> 1 [0, 1];
    DivScalar "aten.div.Scalar" 2..=2 -> 1 [0];
    Maximum "aten.maximum.default" 2..=2 -> 1 [0, 1];
    Minimum "aten.minimum.default" 2..=2 -> 1 [0, 1];
    PowTensorScalar "aten.pow.Tensor_Scalar" 2..=2 -> 1 [0] elementary 1;
    Reciprocal "aten.reciprocal.default" 1..=1 -> 1 [0];
    Neg "aten.neg.default" 1..=1 -> 1 [0];
    Abs "aten.abs.default" 1..=1 -> 1 [0];
    Relu "aten.relu.default" 1..=1 -> 1 [0];
    Clamp "aten.clamp.default" 1..=3 -> 1 [0];
    Exp "aten.exp.default" 1..=1 -> 1 [0] elementary 1;
    Log "aten.log.default" 1..=1 -> 1 [0] elementary 1;
    Sqrt "aten.sqrt.default" 1..=1 -> 1 [0];
    Rsqrt "aten.rsqrt.default" 1..=1 -> 1 [0];
    Sin "aten.sin.default" 1..=1 -> 1 [0] elementary 1;
    Cos "aten.cos.default" 1..=1 -> 1 [0] elementary 1;
    Tanh "aten.tanh.default" 1..=1 -> 1 [0] elementary 1;
    Sigmoid "aten.sigmoid.default" 1..=1 -> 1 [0] elementary 1;
    Silu "aten.silu.default" 1..=1 -> 1 [0] elementary 1;
    Gelu "aten.gelu.default" 1..=1 -> 1 [0] elementary 1;
    GeluBackward "aten.gelu_backward.default" 2..=2 -> 1 [0, 1] elementary 2;
    // comparison and selection, element by element
    EqScalar "aten.eq.Scalar" 2..=2 -> 1;
    NeScalar "aten.ne.Scalar" 2..=2 -> 1;
    LtScalar "aten.lt.Scalar" 2..=2 -> 1;
    LeScalar "aten.le.Scalar" 2..=2 -> 1;
    GtScalar "aten.gt.Scalar" 2..=2 -> 1;
    GeScalar "aten.ge.Scalar" 2..=2 -> 1;
    EqTensor "aten.eq.Tensor" 2..=2 -> 1;
    NeTensor "aten.ne.Tensor" 2..=2 -> 1;
    LtTensor "aten.lt.Tensor" 2..=2 -> 1;
    LeTensor "aten.le.Tensor" 2..=2 -> 1;
    GtTensor "aten.gt.Tensor" 2..=2 -> 1;
    GeTensor "aten.ge.Tensor" 2..=2 -> 1;
    LogicalNot "aten.logical_not.default" 1..=1 -> 1;
    LogicalAnd "aten.logical_and.default" 2..=2 -> 1;
    BitwiseAnd "aten.bitwise_and.Tensor" 2..=2 -> 1 [0, 1];
    BitwiseNot "aten.bitwise_not.default" 1..=1 -> 1 [0];
    ThresholdBackward "aten.threshold_backward.default" 3..=3 -> 1 [0, 1];
    Where "aten.where.self" 3..=3 -> 1 [1, 2];
    // making and moving
    Full "aten.full.default" 2..=2 -> 1;
    FullLike "aten.full_like.default" 2..=2 -> 1;
    ScalarTensor "aten.scalar_tensor.default" 1..=1 -> 1;
    ArangeStartStep "aten.arange.start_step" 2..=3 -> 1;
    Clone "aten.clone.default" 1..=1 -> 1;
    ToCopy "aten._to_copy.default" 1..=1 -> 1;
    Cat "aten.cat.default" 1..=2 -> 1;
    CopyInto "aten.copy_.default" 2..=3 -> 1;
    Gather "aten.gather.default" 3..=4 -> 1;
    ScatterValue "aten.scatter.value" 4..=4 -> 1;
    SliceScatter "aten.slice_scatter.default" 2..=6 -> 1 [0];
    // reductions
    SumDims "aten.sum.dim_IntList" 1..=3 -> 1;
    Sum "aten.sum.default" 1..=1 -> 1;
    Mean "aten.mean.default" 1..=1 -> 1;
    MeanDims "aten.mean.dim" 2..=3 -> 1;
    Amax "aten.amax.default" 1..=3 -> 1;
    AnyDim "aten.any.dim" 2..=3 -> 1;
    VarCorrection "aten.var.correction" 1..=2 -> 1;
    Softmax "aten._softmax.default" 3..=3 -> 1 elementary 1;
    SoftmaxBackward "aten._softmax_backward_data.default" 4..=4 -> 1;
    LogSoftmax "aten._log_softmax.default" 3..=3 -> 1 elementary 1;
    LogSoftmaxBackward "aten._log_softmax_backward_data.default" 4..=4 -> 1 elementary 1;
    // layers
    Mm "aten.mm.default" 2..=2 -> 1;
    Addmm "aten.addmm.default" 3..=3 -> 1;
    Bmm "aten.bmm.default" 2..=2 -> 1;
    Embedding "aten.embedding.default" 2..=5 -> 1;
    EmbeddingDenseBackward "aten.embedding_dense_backward.default" 5..=5 -> 1;
    NativeLayerNorm "aten.native_layer_norm.default" 5..=5 -> 3 elementary 1;
    NativeLayerNormBackward "aten.native_layer_norm_backward.default" 8..=8 -> 3 elementary 3;
    NativeDropout "aten.native_dropout.default" 3..=3 -> 2 elementary 3;
    NativeDropoutBackward "aten.native_dropout_backward.default" 3..=3 -> 1 [0] elementary 2;
    NllLossForward "aten.nll_loss_forward.default" 5..=5 -> 2;
    NllLossBackward "aten.nll_loss_backward.default" 7..=7 -> 1;
    FlashAttention "aten._scaled_dot_product_flash_attention_for_cpu.default" 3..=5 -> 2;
    FlashAttentionBackward "aten._scaled_dot_product_flash_attention_for_cpu_backward.default" 8..=8 -> 3;
    // optimizers
    Adamw "tightfit.adamw" 4..=4 -> 3;
    Sgd "tightfit.sgd" 2..=3 -> 2;
}

impl Operator {
    /// ATen overload name or `tightfit.*`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Inputs of `node` that its first output may overwrite: same shape, type and strides, and no
    /// other input sees the same storage differently.
    pub fn in_place(self, graph: &Graph, node: NodeId) -> Vec<ValueId> {
        let call = &graph.nodes()[node];
        let Some(&Some(output)) = call.outputs.first() else { return Vec::new() };
        let values = graph.values();
        let may = |input: &ValueId| {
            let (from, to) = (&values[*input], &values[output]);
            let alone = call.inputs.iter().all(|other| {
                values[*other].storage != from.storage || values[*other].same_layout(from)
            });
            alone && from.same_layout(to)
        };
        let tensors = self.row().in_place.iter().filter_map(|&index| match call.args.get(index) {
            Some(Argument::Value(value)) => Some(*value),
            _ => None,
        });
        tensors.filter(may).collect()
    }

    /// Transient bytes of the engine's kernel on `threads` threads.
    ///
    /// Attention holds the scores of a block of queries per thread, twice that in its backward
    /// pass. Sums down columns hold a partial sum for each block of rows: one in a reduction, two
    /// (weight and bias) in the gradient of layer normalization. All other kernels work within
    /// their inputs and outputs; what the matrix product packs is the engine's reserve.
    pub fn workspace(self, graph: &Graph, node: NodeId, threads: u32) -> Bytes {
        let scores = |keys: usize, buffers: u64| {
            let keys = self
                .operand(graph, node, keys)
                .and_then(|keys| keys.shape.get(2).copied())
                .unwrap_or(0);
            Bytes(
                (buffers * ATTENTION_BLOCK * 4 * u64::from(threads))
                    .saturating_mul(keys)
                    .min(Bytes::LIMIT.0),
            )
        };
        let partial_sums = |rows: u64, columns: u64, buffers: u64| match rows.div_ceil(ROW_BLOCK) {
            blocks if blocks > 1 => {
                Bytes((buffers * 4 * blocks).saturating_mul(columns).min(Bytes::LIMIT.0))
            }
            _ => Bytes::ZERO,
        };
        match self {
            Operator::FlashAttention => scores(1, 1),
            Operator::FlashAttentionBackward => scores(2, 2),
            Operator::SumDims | Operator::MeanDims => {
                let (Some(x), Some(&Some(out))) =
                    (self.operand(graph, node, 0), graph.nodes()[node].outputs.first())
                else {
                    return Bytes::ZERO;
                };
                let columns = graph.values()[out].elements();
                partial_sums(x.elements().checked_div(columns).unwrap_or(0), columns, 1)
            }
            Operator::NativeLayerNormBackward => {
                let (Some(x), Some(mean)) =
                    (self.operand(graph, node, 1), self.operand(graph, node, 3))
                else {
                    return Bytes::ZERO;
                };
                partial_sums(
                    mean.elements(),
                    x.elements().checked_div(mean.elements()).unwrap_or(0),
                    2,
                )
            }
            _ => Bytes::ZERO,
        }
    }

    /// How many exponential-like functions a call's arithmetic takes as long as.
    pub fn elementary(self, graph: &Graph, node: NodeId) -> u64 {
        match self {
            Operator::FlashAttention | Operator::FlashAttentionBackward => {
                let backward = usize::from(self == Operator::FlashAttentionBackward);
                match (self.operand(graph, node, backward), self.operand(graph, node, backward + 1))
                {
                    (Some(queries), Some(keys)) => {
                        rows(queries).saturating_mul(keys.shape.get(2).copied().unwrap_or(0))
                    }
                    _ => 0,
                }
            }
            _ => {
                let output = graph.nodes()[node].outputs.iter().flatten().next();
                output.map_or(0, |&value| {
                    graph.values()[value].elements().saturating_mul(self.row().elementary)
                })
            }
        }
    }

    /// Floating-point operations of a call: two for each multiply-add of a matrix product, as
    /// `torch.utils.flop_counter` counts; zero for everything else.
    pub fn flops(self, graph: &Graph, node: NodeId) -> Flops {
        let product = |left: usize| {
            let (a, b) = (self.operand(graph, node, left)?, self.operand(graph, node, left + 1)?);
            Some(b.shape.last()?.saturating_mul(2).saturating_mul(a.elements()))
        };
        let attention = |first: usize, products: u64| {
            let (queries, keys) =
                (self.operand(graph, node, first)?, self.operand(graph, node, first + 1)?);
            Some(keys.shape.get(2)?.saturating_mul(2 * products).saturating_mul(queries.elements()))
        };
        let flops = match self {
            Operator::Mm | Operator::Bmm => product(0),
            Operator::Addmm => product(1),
            Operator::FlashAttention => attention(0, 2),
            Operator::FlashAttentionBackward => attention(1, 5),
            _ => None,
        };
        Flops(flops.unwrap_or(0))
    }

    fn operand(self, graph: &Graph, node: NodeId, index: usize) -> Option<&Value> {
        match graph.nodes()[node].args.get(index) {
            Some(Argument::Value(value)) => Some(&graph.values()[*value]),
            _ => None,
        }
    }

    /// Rows of queries whose scores the attention kernels hold at a time.
    pub fn attention_block() -> usize {
        ATTENTION_BLOCK as usize
    }

    /// Rows that one task sums down columns.
    pub fn row_block() -> usize {
        ROW_BLOCK as usize
    }
}

/// Product of all extents but the last.
fn rows(value: &Value) -> u64 {
    value.shape.split_last().map_or(1, |(_, leading)| leading.iter().product())
}
