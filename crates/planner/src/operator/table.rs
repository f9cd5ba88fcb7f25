//! The table itself. Each row reads: name of the variant, name of the operator, fewest and most
//! arguments, outputs, legal element types, arguments that may be overwritten, cost, kind; see
//! [`OperatorRow`]. Invariant: all columns are there in all rows.

use crate::operator::cost::{Cost, MOVES, per_element};
use crate::operator::{
    Kind, OperatorRow, attention, elementwise, loss, movement, normalization, optimizer, product,
    reduction, view,
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

/// A product whose left operand is argument `LEFT`.
const fn product<const LEFT: usize>() -> Cost {
    Cost { flops: product::flops::<LEFT>, packing: product::packing::<LEFT>, ..MOVES }
}

macro_rules! operators {
    ($(
        $variant:ident $name:literal ($least:literal, $most:literal)
        $outputs:path, $legal:tt $in_place:tt $cost:expr, $kind:ident;
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
                            arguments: ($least, $most),
                            outputs: $outputs,
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
    AddTensor "aten.add.Tensor" (2, 2)
        elementwise::arithmetic, [NUMBERS, ANY] [0, 1] MOVES, Pure;
    AddScalar "aten.add.Scalar" (2, 3)
        elementwise::arithmetic, [NUMBERS] [0] MOVES, Pure;
    SubTensor "aten.sub.Tensor" (2, 2)
        elementwise::arithmetic, [NUMBERS, ANY] [0, 1] MOVES, Pure;
    SubScalar "aten.sub.Scalar" (2, 3)
        elementwise::arithmetic, [NUMBERS] [0] MOVES, Pure;
    MulTensor "aten.mul.Tensor" (2, 2)
        elementwise::arithmetic, [NUMBERS, ANY] [0, 1] MOVES, Pure;
    MulScalar "aten.mul.Scalar" (2, 2)
        elementwise::arithmetic, [NUMBERS] [0] MOVES, Pure;
    DivTensor "aten.div.Tensor" (2, 2)
        elementwise::quotient, [NUMBERS] [0, 1] MOVES, Pure;
    DivScalar "aten.div.Scalar" (2, 2)
        elementwise::quotient, [NUMBERS] [0] MOVES, Pure;
    Maximum "aten.maximum.default" (2, 2)
        elementwise::arithmetic, [NUMBERS] [0, 1] MOVES, Pure;
    Minimum "aten.minimum.default" (2, 2)
        elementwise::arithmetic, [NUMBERS] [0, 1] MOVES, Pure;
    PowTensorScalar "aten.pow.Tensor_Scalar" (2, 2)
        elementwise::arithmetic, [FLOAT] [0] per_element::<1>(), Pure;
    Reciprocal "aten.reciprocal.default" (1, 1)
        elementwise::function, [FLOAT] [0] MOVES, Pure;
    Neg "aten.neg.default" (1, 1)
        elementwise::same, [NUMBERS] [0] MOVES, Pure;
    Abs "aten.abs.default" (1, 1)
        elementwise::same, [NUMBERS] [0] MOVES, Pure;
    Relu "aten.relu.default" (1, 1)
        elementwise::same, [FLOAT] [0] MOVES, Pure;
    Clamp "aten.clamp.default" (1, 3)
        elementwise::clamp, [NUMBERS] [0] MOVES, Pure;
    Exp "aten.exp.default" (1, 1)
        elementwise::function, [FLOAT] [0] per_element::<1>(), Pure;
    Log "aten.log.default" (1, 1)
        elementwise::function, [FLOAT] [0] per_element::<1>(), Pure;
    Sqrt "aten.sqrt.default" (1, 1)
        elementwise::function, [FLOAT] [0] MOVES, Pure;
    Rsqrt "aten.rsqrt.default" (1, 1)
        elementwise::function, [FLOAT] [0] MOVES, Pure;
    Cos "aten.cos.default" (1, 1)
        elementwise::function, [FLOAT] [0] per_element::<1>(), Pure;
    Sin "aten.sin.default" (1, 1)
        elementwise::function, [FLOAT] [0] per_element::<1>(), Pure;
    Tanh "aten.tanh.default" (1, 1)
        elementwise::function, [FLOAT] [0] per_element::<1>(), Pure;
    Sigmoid "aten.sigmoid.default" (1, 1)
        elementwise::function, [FLOAT] [0] per_element::<1>(), Pure;
    Silu "aten.silu.default" (1, 1)
        elementwise::same, [FLOAT] [0] per_element::<1>(), Pure;
    Gelu "aten.gelu.default" (1, 1)
        elementwise::same, [FLOAT] [0] per_element::<1>(), Pure;
    GeluBackward "aten.gelu_backward.default" (2, 2)
        elementwise::arithmetic, [FLOAT] [0, 1] per_element::<2>(), Pure;
    // comparison and selection, element by element
    EqScalar "aten.eq.Scalar" (2, 2)
        elementwise::truth, [ANY] [] MOVES, Pure;
    NeScalar "aten.ne.Scalar" (2, 2)
        elementwise::truth, [ANY] [] MOVES, Pure;
    LtScalar "aten.lt.Scalar" (2, 2)
        elementwise::truth, [ANY] [] MOVES, Pure;
    LeScalar "aten.le.Scalar" (2, 2)
        elementwise::truth, [ANY] [] MOVES, Pure;
    GtScalar "aten.gt.Scalar" (2, 2)
        elementwise::truth, [ANY] [] MOVES, Pure;
    GeScalar "aten.ge.Scalar" (2, 2)
        elementwise::truth, [ANY] [] MOVES, Pure;
    EqTensor "aten.eq.Tensor" (2, 2)
        elementwise::truth, [ANY] [] MOVES, Pure;
    NeTensor "aten.ne.Tensor" (2, 2)
        elementwise::truth, [ANY] [] MOVES, Pure;
    LtTensor "aten.lt.Tensor" (2, 2)
        elementwise::truth, [ANY] [] MOVES, Pure;
    LeTensor "aten.le.Tensor" (2, 2)
        elementwise::truth, [ANY] [] MOVES, Pure;
    GtTensor "aten.gt.Tensor" (2, 2)
        elementwise::truth, [ANY] [] MOVES, Pure;
    GeTensor "aten.ge.Tensor" (2, 2)
        elementwise::truth, [ANY] [] MOVES, Pure;
    LogicalNot "aten.logical_not.default" (1, 1)
        elementwise::negation, [ANY] [] MOVES, Pure;
    LogicalAnd "aten.logical_and.default" (2, 2)
        elementwise::truth, [ANY] [] MOVES, Pure;
    BitwiseAnd "aten.bitwise_and.Tensor" (2, 2)
        elementwise::arithmetic, [WHOLE] [0, 1] MOVES, Pure;
    BitwiseNot "aten.bitwise_not.default" (1, 1)
        elementwise::same, [WHOLE] [0] MOVES, Pure;
    ThresholdBackward "aten.threshold_backward.default" (3, 3)
        elementwise::arithmetic, [FLOAT] [0, 1] MOVES, Pure;
    Where "aten.where.self" (3, 3)
        elementwise::choice, [TRUTH, ANY] [1, 2] MOVES, Pure;
    // making and moving
    Full "aten.full.default" (2, 2)
        movement::full, [ANY] [] MOVES, Pure;
    FullLike "aten.full_like.default" (2, 2)
        movement::converted, [ANY] [] MOVES, Pure;
    ScalarTensor "aten.scalar_tensor.default" (1, 1)
        movement::scalar, [ANY] [] MOVES, Pure;
    ArangeStartStep "aten.arange.start_step" (2, 3)
        movement::range, [ANY] [] MOVES, Pure;
    Clone "aten.clone.default" (1, 1)
        movement::converted, [ANY] [] MOVES, Pure;
    ToCopy "aten._to_copy.default" (1, 1)
        movement::converted, [ANY] [] MOVES, Pure;
    Cat "aten.cat.default" (1, 2)
        movement::concatenation, [ANY] [] MOVES, Pure;
    CopyInto "aten.copy_.default" (2, 3)
        elementwise::same, [ANY] [] MOVES, Mutating;
    Gather "aten.gather.default" (3, 4)
        movement::gathered, [ANY, ANY, INDEX] [] MOVES, Pure;
    ScatterValue "aten.scatter.value" (4, 4)
        elementwise::same, [ANY, ANY, INDEX, ANY] [] MOVES, Pure;
    SliceScatter "aten.slice_scatter.default" (2, 6)
        movement::patched, [ANY] [0] MOVES, Pure;
    // reductions
    SumDims "aten.sum.dim_IntList" (1, 3)
        reduction::over_dims, [ANY] [] SUM, Pure;
    Sum "aten.sum.default" (1, 1)
        reduction::total, [ANY] [] MOVES, Pure;
    Mean "aten.mean.default" (1, 1)
        reduction::total, [FLOAT] [] MOVES, Pure;
    MeanDims "aten.mean.dim" (2, 3)
        reduction::over_dims, [FLOAT] [] SUM, Pure;
    Amax "aten.amax.default" (1, 3)
        reduction::picked, [FLOAT] [] MOVES, Pure;
    VarCorrection "aten.var.correction" (1, 2)
        reduction::variance, [FLOAT] [] MOVES, Pure;
    AnyDim "aten.any.dim" (2, 3)
        reduction::any, [ANY] [] MOVES, Pure;
    Softmax "aten._softmax.default" (3, 3)
        reduction::softmax, [FLOAT] [] per_element::<1>(), Pure;
    SoftmaxBackward "aten._softmax_backward_data.default" (4, 4)
        reduction::softmax_gradient, [FLOAT] [] MOVES, Pure;
    LogSoftmax "aten._log_softmax.default" (3, 3)
        reduction::softmax, [FLOAT] [] per_element::<1>(), Pure;
    LogSoftmaxBackward "aten._log_softmax_backward_data.default" (4, 4)
        reduction::softmax_gradient, [FLOAT] [] per_element::<1>(), Pure;
    // layers
    Mm "aten.mm.default" (2, 2)
        product::matrices, [FLOAT] [] product::<0>(), Pure;
    Addmm "aten.addmm.default" (3, 3)
        product::biased, [FLOAT] [] product::<1>(), Pure;
    Bmm "aten.bmm.default" (2, 2)
        product::batched, [FLOAT] [] product::<0>(), Pure;
    Embedding "aten.embedding.default" (2, 5)
        movement::rows, [FLOAT, INDEX] [] MOVES, Pure;
    EmbeddingDenseBackward "aten.embedding_dense_backward.default" (5, 5)
        movement::table_gradient, [FLOAT, INDEX] [] MOVES, Pure;
    NativeLayerNorm "aten.native_layer_norm.default" (5, 5)
        normalization::layer_norm, [FLOAT] [] per_element::<1>(), Pure;
    NativeLayerNormBackward "aten.native_layer_norm_backward.default" (8, 8)
        normalization::layer_norm_gradient, [FLOAT] [] LAYER_NORM_GRADIENT, Pure;
    NativeDropout "aten.native_dropout.default" (3, 3)
        normalization::dropout, [FLOAT] [] per_element::<3>(), Random;
    NativeDropoutBackward "aten.native_dropout_backward.default" (3, 3)
        normalization::dropout_gradient, [FLOAT, TRUTH] [0] per_element::<2>(), Pure;
    NllLossForward "aten.nll_loss_forward.default" (5, 5)
        loss::negative_log_likelihood, [FLOAT, INDEX, FLOAT] [] MOVES, Pure;
    NllLossBackward "aten.nll_loss_backward.default" (7, 7)
        loss::negative_log_likelihood_gradient, [FLOAT, FLOAT, INDEX, FLOAT] [] MOVES, Pure;
    FlashAttention "aten._scaled_dot_product_flash_attention_for_cpu.default" (3, 5)
        attention::forward, [FLOAT] [] ATTENTION, Pure;
    FlashAttentionBackward
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default" (8, 8)
        attention::backward, [FLOAT] [] ATTENTION_GRADIENT, Pure;
    // optimizers
    Adamw "tightfit.adamw" (4, 4)
        optimizer::adamw, [FLOAT] [] MOVES, Mutating;
    Sgd "tightfit.sgd" (2, 3)
        optimizer::sgd, [FLOAT] [] MOVES, Mutating;
    // views
    Alias "aten.alias.default" (1, 1)
        view::alias, [ANY] [] MOVES, View;
    AsStrided "aten.as_strided.default" (3, 4)
        view::as_strided, [ANY] [] MOVES, View;
    Detach "aten.detach.default" (1, 1)
        view::alias, [ANY] [] MOVES, View;
    Expand "aten.expand.default" (2, 2)
        view::expand, [ANY] [] MOVES, View;
    Permute "aten.permute.default" (2, 2)
        view::permute, [ANY] [] MOVES, View;
    SelectInt "aten.select.int" (3, 3)
        view::select, [ANY] [] MOVES, View;
    SliceTensor "aten.slice.Tensor" (1, 5)
        view::slice, [ANY] [] MOVES, View;
    SplitWithSizes "aten.split_with_sizes.default" (2, 3)
        view::split, [ANY] [] MOVES, View;
    SqueezeDim "aten.squeeze.dim" (2, 2)
        view::squeeze, [ANY] [] MOVES, View;
    SqueezeDims "aten.squeeze.dims" (2, 2)
        view::squeeze, [ANY] [] MOVES, View;
    TransposeInt "aten.transpose.int" (3, 3)
        view::transpose, [ANY] [] MOVES, View;
    Unsqueeze "aten.unsqueeze.default" (2, 2)
        view::unsqueeze, [ANY] [] MOVES, View;
    View "aten.view.default" (2, 2)
        view::view, [ANY] [] MOVES, View;
}
