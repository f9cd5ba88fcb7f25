//! The table itself. Each row reads: name of the variant, name of the operator, schema, outputs,
//! axes, legal element types, arguments that may be overwritten, cost, kind; see [`OperatorRow`].
//! Invariant: all rows have all columns.

use crate::operator::cost::{Cost, MOVES, per_element};
use crate::operator::{
    Kind, OperatorRow, attention, axes, elementwise, loss, movement, normalization, optimizer,
    product, reduction, schema, view,
};
use crate::tensor::DType;

/// Element types that the engine computes in.
const ANY: &[DType] = &[DType::F32, DType::I64, DType::Bool];
const NUMBERS: &[DType] = &[DType::F32, DType::I64];
const WHOLE: &[DType] = &[DType::I64, DType::Bool];
const FLOAT: &[DType] = &[DType::F32];
const INDEX: &[DType] = &[DType::I64];
const TRUTH: &[DType] = &[DType::Bool];

const SUM: Cost = Cost { workspace: reduction::sum_workspace, ..MOVES };
const ATTENTION: Cost = Cost {
    flops: attention::flops::<0, 2>,
    elementary: attention::elementary::<0>,
    workspace: attention::workspace::<1, 1>,
    packing: attention::packing::<0>,
};
const ATTENTION_GRADIENT: Cost = Cost {
    flops: attention::flops::<1, 5>,
    elementary: attention::elementary::<1>,
    workspace: attention::workspace::<2, 2>,
    packing: attention::packing::<1>,
};
const LAYER_NORM_GRADIENT: Cost =
    Cost { workspace: normalization::gradient_workspace, ..per_element::<3>() };

/// The cost of a product whose left operand is argument `LEFT`.
const fn product<const LEFT: usize>() -> Cost {
    Cost { flops: product::flops::<LEFT>, packing: product::packing::<LEFT>, ..MOVES }
}

macro_rules! operators {
    ($(
        $variant:ident $name:literal $schema:path:
        $outputs:path, $axes:path, $legal:tt $in_place:tt $cost:expr, $kind:ident;
    )*) => {
        /// An operator that the engine executes or a view, named after its ATen overload.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Operator {$(
            #[doc = concat!("`", $name, "`")]
            $variant,
        )*}

        impl Operator {
            /// Every operator.
            pub const ALL: &'static [Operator] = &[$(Operator::$variant),*];

            /// Its row.
            pub fn row(self) -> &'static OperatorRow {
                match self {$(
                    Operator::$variant => {
                        const ROW: OperatorRow = OperatorRow {
                            name: $name,
                            signature: $schema,
                            outputs: $outputs,
                            axes: $axes,
                            legal: &$legal,
                            in_place: &$in_place,
                            cost: $cost,
                            kind: Kind::$kind,
                        };
                        &ROW
                    }
                )*}
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
    AddTensor "aten.add.Tensor" schema::SUM:
        elementwise::sum, axes::elements, [NUMBERS, ANY] [0, 1] MOVES, Pure;
    AddScalar "aten.add.Scalar" schema::SUM_SCALAR:
        elementwise::sum, axes::elements, [NUMBERS] [0] MOVES, Pure;
    SubTensor "aten.sub.Tensor" schema::SUM:
        elementwise::difference, axes::elements, [NUMBERS, ANY] [0, 1] MOVES, Pure;
    SubScalar "aten.sub.Scalar" schema::SUM_SCALAR:
        elementwise::difference, axes::elements, [NUMBERS] [0] MOVES, Pure;
    MulTensor "aten.mul.Tensor" schema::PRODUCT:
        elementwise::arithmetic, axes::elements, [NUMBERS, ANY] [0, 1] MOVES, Pure;
    MulScalar "aten.mul.Scalar" schema::WITH_SCALAR:
        elementwise::arithmetic, axes::elements, [NUMBERS] [0] MOVES, Pure;
    DivTensor "aten.div.Tensor" schema::PRODUCT:
        elementwise::quotient, axes::elements, [NUMBERS] [0, 1] MOVES, Pure;
    DivScalar "aten.div.Scalar" schema::WITH_SCALAR:
        elementwise::quotient, axes::elements, [NUMBERS] [0] MOVES, Pure;
    Maximum "aten.maximum.default" schema::BINARY:
        elementwise::arithmetic, axes::elements, [NUMBERS] [0, 1] MOVES, Pure;
    Minimum "aten.minimum.default" schema::BINARY:
        elementwise::arithmetic, axes::elements, [NUMBERS] [0, 1] MOVES, Pure;
    PowTensorScalar "aten.pow.Tensor_Scalar" schema::POWER:
        elementwise::arithmetic, axes::elements, [FLOAT] [0] per_element::<1>(), Pure;
    Reciprocal "aten.reciprocal.default" schema::UNARY:
        elementwise::function, axes::elements, [FLOAT] [0] MOVES, Pure;
    Neg "aten.neg.default" schema::UNARY:
        elementwise::same, axes::elements, [NUMBERS] [0] MOVES, Pure;
    Abs "aten.abs.default" schema::UNARY:
        elementwise::same, axes::elements, [NUMBERS] [0] MOVES, Pure;
    Relu "aten.relu.default" schema::UNARY:
        elementwise::same, axes::elements, [FLOAT] [0] MOVES, Pure;
    Clamp "aten.clamp.default" schema::CLAMP:
        elementwise::clamp, axes::elements, [NUMBERS] [0] MOVES, Pure;
    Exp "aten.exp.default" schema::UNARY:
        elementwise::function, axes::elements, [FLOAT] [0] per_element::<1>(), Pure;
    Log "aten.log.default" schema::UNARY:
        elementwise::function, axes::elements, [FLOAT] [0] per_element::<1>(), Pure;
    Sqrt "aten.sqrt.default" schema::UNARY:
        elementwise::function, axes::elements, [FLOAT] [0] MOVES, Pure;
    Rsqrt "aten.rsqrt.default" schema::UNARY:
        elementwise::function, axes::elements, [FLOAT] [0] MOVES, Pure;
    Cos "aten.cos.default" schema::UNARY:
        elementwise::function, axes::elements, [FLOAT] [0] per_element::<1>(), Pure;
    Sin "aten.sin.default" schema::UNARY:
        elementwise::function, axes::elements, [FLOAT] [0] per_element::<1>(), Pure;
    Tanh "aten.tanh.default" schema::UNARY:
        elementwise::function, axes::elements, [FLOAT] [0] per_element::<1>(), Pure;
    Sigmoid "aten.sigmoid.default" schema::UNARY:
        elementwise::function, axes::elements, [FLOAT] [0] per_element::<1>(), Pure;
    Silu "aten.silu.default" schema::UNARY:
        elementwise::same, axes::elements, [FLOAT] [0] per_element::<1>(), Pure;
    Gelu "aten.gelu.default" schema::GELU:
        elementwise::same, axes::elements, [FLOAT] [0] per_element::<1>(), Pure;
    GeluBackward "aten.gelu_backward.default" schema::GELU_BACKWARD:
        elementwise::gradient, axes::elements, [FLOAT] [0, 1] per_element::<2>(), Pure;
    // comparison and selection, element by element
    EqScalar "aten.eq.Scalar" schema::WITH_SCALAR:
        elementwise::truth, axes::elements, [ANY] [] MOVES, Pure;
    NeScalar "aten.ne.Scalar" schema::WITH_SCALAR:
        elementwise::truth, axes::elements, [ANY] [] MOVES, Pure;
    LtScalar "aten.lt.Scalar" schema::WITH_SCALAR:
        elementwise::truth, axes::elements, [ANY] [] MOVES, Pure;
    LeScalar "aten.le.Scalar" schema::WITH_SCALAR:
        elementwise::truth, axes::elements, [ANY] [] MOVES, Pure;
    GtScalar "aten.gt.Scalar" schema::WITH_SCALAR:
        elementwise::truth, axes::elements, [ANY] [] MOVES, Pure;
    GeScalar "aten.ge.Scalar" schema::WITH_SCALAR:
        elementwise::truth, axes::elements, [ANY] [] MOVES, Pure;
    EqTensor "aten.eq.Tensor" schema::PRODUCT:
        elementwise::truth, axes::elements, [ANY] [] MOVES, Pure;
    NeTensor "aten.ne.Tensor" schema::PRODUCT:
        elementwise::truth, axes::elements, [ANY] [] MOVES, Pure;
    LtTensor "aten.lt.Tensor" schema::PRODUCT:
        elementwise::truth, axes::elements, [ANY] [] MOVES, Pure;
    LeTensor "aten.le.Tensor" schema::PRODUCT:
        elementwise::truth, axes::elements, [ANY] [] MOVES, Pure;
    GtTensor "aten.gt.Tensor" schema::PRODUCT:
        elementwise::truth, axes::elements, [ANY] [] MOVES, Pure;
    GeTensor "aten.ge.Tensor" schema::PRODUCT:
        elementwise::truth, axes::elements, [ANY] [] MOVES, Pure;
    LogicalNot "aten.logical_not.default" schema::UNARY:
        elementwise::negation, axes::elements, [ANY] [] MOVES, Pure;
    LogicalAnd "aten.logical_and.default" schema::BINARY:
        elementwise::truth, axes::elements, [ANY] [] MOVES, Pure;
    BitwiseAnd "aten.bitwise_and.Tensor" schema::BINARY:
        elementwise::arithmetic, axes::elements, [WHOLE] [0, 1] MOVES, Pure;
    BitwiseNot "aten.bitwise_not.default" schema::UNARY:
        elementwise::same, axes::elements, [WHOLE] [0] MOVES, Pure;
    ThresholdBackward "aten.threshold_backward.default" schema::THRESHOLD_BACKWARD:
        elementwise::arithmetic, axes::elements, [FLOAT] [0, 1] MOVES, Pure;
    Where "aten.where.self" schema::WHERE:
        elementwise::choice, axes::elements, [TRUTH, ANY] [1, 2] MOVES, Pure;
    // creating and moving
    Empty "aten.empty.memory_format" schema::EMPTY:
        movement::room, axes::sized, [ANY] [] MOVES, Pure;
    Full "aten.full.default" schema::FULL:
        movement::full, axes::sized, [ANY] [] MOVES, Pure;
    FullLike "aten.full_like.default" schema::FULL_LIKE:
        movement::converted, axes::elements, [ANY] [] MOVES, Pure;
    ScalarTensor "aten.scalar_tensor.default" schema::SCALAR_TENSOR:
        movement::scalar, axes::whole, [ANY] [] MOVES, Pure;
    ArangeStartStep "aten.arange.start_step" schema::ARANGE:
        movement::range, axes::counted, [ANY] [] MOVES, Pure;
    Clone "aten.clone.default" schema::CLONE:
        movement::converted, axes::elements, [ANY] [] MOVES, Pure;
    ToCopy "aten._to_copy.default" schema::TO_COPY:
        movement::converted, axes::elements, [ANY] [] MOVES, Pure;
    Cat "aten.cat.default" schema::CAT:
        movement::concatenation, axes::side_by_side, [ANY] [] MOVES, Pure;
    CopyInto "aten.copy_.default" schema::COPY_INTO:
        elementwise::overwritten, axes::elements, [ANY] [] MOVES, Mutating;
    Gather "aten.gather.default" schema::GATHER:
        movement::gathered, axes::gathered, [ANY, ANY, INDEX] [] MOVES, Pure;
    ScatterValue "aten.scatter.value" schema::SCATTER:
        elementwise::same, axes::scattered, [ANY, ANY, INDEX, ANY] [] MOVES, Pure;
    SliceScatter "aten.slice_scatter.default" schema::SLICE_SCATTER:
        movement::patched, axes::patched, [ANY] [0] MOVES, Pure;
    // reductions
    SumDims "aten.sum.dim_IntList" schema::SUM_DIMS:
        reduction::over_dims, axes::summed, [ANY] [] SUM, Pure;
    Sum "aten.sum.default" schema::TOTAL:
        reduction::total, axes::totalled, [ANY] [] MOVES, Pure;
    Mean "aten.mean.default" schema::TOTAL:
        reduction::total, axes::averaged, [FLOAT] [] MOVES, Pure;
    MeanDims "aten.mean.dim" schema::SUM_DIMS:
        reduction::over_dims, axes::remaining, [FLOAT] [] SUM, Pure;
    Amax "aten.amax.default" schema::AMAX:
        reduction::picked, axes::remaining, [FLOAT] [] MOVES, Pure;
    VarCorrection "aten.var.correction" schema::VARIANCE:
        reduction::variance, axes::remaining_of_variance, [FLOAT] [] MOVES, Pure;
    AnyDim "aten.any.dim" schema::ANY:
        reduction::any, axes::remaining, [ANY] [] MOVES, Pure;
    Softmax "aten._softmax.default" schema::SOFTMAX:
        reduction::softmax, axes::normalised, [FLOAT] [] per_element::<1>(), Pure;
    SoftmaxBackward "aten._softmax_backward_data.default" schema::SOFTMAX_BACKWARD:
        reduction::softmax_gradient, axes::normalised_gradient, [FLOAT] [] MOVES, Pure;
    LogSoftmax "aten._log_softmax.default" schema::SOFTMAX:
        reduction::softmax, axes::normalised, [FLOAT] [] per_element::<1>(), Pure;
    LogSoftmaxBackward "aten._log_softmax_backward_data.default" schema::SOFTMAX_BACKWARD:
        reduction::softmax_gradient, axes::normalised_gradient, [FLOAT] [] per_element::<1>(), Pure;
    // layers
    Mm "aten.mm.default" schema::MATRICES:
        product::matrices, axes::matrices, [FLOAT] [] product::<0>(), Pure;
    Addmm "aten.addmm.default" schema::ADDMM:
        product::biased, axes::biased, [FLOAT] [0] product::<1>(), Pure;
    Bmm "aten.bmm.default" schema::MATRICES:
        product::batched, axes::batched, [FLOAT] [] product::<0>(), Pure;
    Embedding "aten.embedding.default" schema::EMBEDDING:
        movement::rows, axes::looked_up, [FLOAT, INDEX] [] MOVES, Pure;
    EmbeddingDenseBackward "aten.embedding_dense_backward.default" schema::EMBEDDING_BACKWARD:
        movement::table_gradient, axes::looked_up_gradient, [FLOAT, INDEX] [] MOVES, Pure;
    NativeLayerNorm "aten.native_layer_norm.default" schema::LAYER_NORM:
        normalization::layer_norm, axes::layer_norm, [FLOAT] [] per_element::<1>(), Pure;
    NativeLayerNormBackward "aten.native_layer_norm_backward.default" schema::LAYER_NORM_BACKWARD:
        normalization::layer_norm_gradient, axes::layer_norm_gradient,
        [FLOAT] [] LAYER_NORM_GRADIENT, Pure;
    NativeDropout "aten.native_dropout.default" schema::DROPOUT:
        normalization::dropout, axes::drawn::<2>, [FLOAT] [] per_element::<3>(), Random;
    NativeDropoutBackward "aten.native_dropout_backward.default" schema::DROPOUT_BACKWARD:
        normalization::dropout_gradient, axes::elements,
        [FLOAT, TRUTH] [0] per_element::<2>(), Pure;
    NllLossForward "aten.nll_loss_forward.default" schema::NLL_LOSS:
        loss::negative_log_likelihood, axes::loss, [FLOAT, INDEX, FLOAT] [] MOVES, Pure;
    NllLossBackward "aten.nll_loss_backward.default" schema::NLL_LOSS_BACKWARD:
        loss::negative_log_likelihood_gradient, axes::loss_gradient,
        [FLOAT, FLOAT, INDEX, FLOAT] [] MOVES, Pure;
    FlashAttention "aten._scaled_dot_product_flash_attention_for_cpu.default" schema::ATTENTION:
        attention::forward, axes::attention, [FLOAT] [] ATTENTION, Pure;
    FlashAttentionBackward
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
        schema::ATTENTION_BACKWARD:
        attention::backward, axes::attention_gradient, [FLOAT] [] ATTENTION_GRADIENT, Pure;
    // messages between ranks
    Incoming "tightfit.incoming" schema::INCOMING:
        movement::incoming, axes::whole, [ANY] [] MOVES, Pure;
    Post "tightfit.post" schema::MESSAGE:
        movement::exchanged, axes::whole, [ANY] [] MOVES, Mutating;
    Receive "tightfit.receive" schema::MESSAGE:
        movement::exchanged, axes::whole, [ANY] [] MOVES, Mutating;
    Send "tightfit.send" schema::MESSAGE:
        movement::exchanged, axes::whole, [ANY] [] MOVES, Mutating;
    Sent "tightfit.sent" schema::MESSAGE:
        movement::nothing, axes::whole, [ANY] [] MOVES, Pure;
    // collectives
    AllGather "tightfit.all_gather" schema::ALL_GATHER:
        movement::whole, axes::whole, [FLOAT] [] MOVES, Pure;
    AllToAll "tightfit.all_to_all" schema::ALL_TO_ALL:
        movement::pieces, axes::whole, [FLOAT] [] MOVES, Pure;
    MeanPieces "tightfit.mean_pieces" schema::MEAN_PIECES:
        movement::mean_of_pieces, axes::whole, [FLOAT] [] per_element::<1>(), Pure;
    // optimizers
    Adamw "tightfit.adamw" schema::ADAMW:
        optimizer::adamw, axes::updated, [FLOAT] [] MOVES, Update;
    Sgd "tightfit.sgd" schema::SGD:
        optimizer::sgd, axes::updated, [FLOAT] [] MOVES, Update;
    // views
    Alias "aten.alias.default" schema::UNARY:
        view::alias, axes::elements, [ANY] [] MOVES, View;
    AsStrided "aten.as_strided.default" schema::AS_STRIDED:
        view::as_strided, axes::restrided, [ANY] [] MOVES, View;
    Detach "aten.detach.default" schema::UNARY:
        view::alias, axes::elements, [ANY] [] MOVES, View;
    Expand "aten.expand.default" schema::EXPAND:
        view::expand, axes::expanded, [ANY] [] MOVES, View;
    Permute "aten.permute.default" schema::PERMUTE:
        view::permute, axes::permuted, [ANY] [] MOVES, View;
    SelectInt "aten.select.int" schema::SELECT:
        view::select, axes::selected, [ANY] [] MOVES, View;
    SliceTensor "aten.slice.Tensor" schema::SLICE:
        view::slice, axes::sliced, [ANY] [] MOVES, View;
    SplitWithSizes "aten.split_with_sizes.default" schema::SPLIT:
        view::split, axes::split, [ANY] [] MOVES, View;
    SqueezeDim "aten.squeeze.dim" schema::SQUEEZE_DIM:
        view::squeeze, axes::squeezed, [ANY] [] MOVES, View;
    SqueezeDims "aten.squeeze.dims" schema::SQUEEZE_DIMS:
        view::squeeze, axes::squeezed, [ANY] [] MOVES, View;
    TransposeInt "aten.transpose.int" schema::TRANSPOSE:
        view::transpose, axes::transposed, [ANY] [] MOVES, View;
    Unsqueeze "aten.unsqueeze.default" schema::SQUEEZE_DIM:
        view::unsqueeze, axes::unsqueezed, [ANY] [] MOVES, View;
    View "aten.view.default" schema::VIEW:
        view::view, axes::viewed, [ANY] [] MOVES, View;
}
