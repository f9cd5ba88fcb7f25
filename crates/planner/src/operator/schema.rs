//! The schemas of the operators. Invariant: parameters have the names, the order and the defaults
//! of ATen's (`torch.ops.aten.….…._schema`), those of `tightfit.*` operators as graphs record them.

use crate::operator::signature::Form::{
    Approximation, Device, Flag, Flags, Format, Integer, IntegerOrMore, Integers, Layout, Number,
    Operand, Pair, Pinned, Real, Tensor, Tensors, Type,
};
use crate::operator::signature::{
    Parameter, Signature, by_place, defaulted, given, nullable, optional,
};

const SELF: Parameter = given("self", Tensor);
const OTHER: Parameter = given("other", Tensor);
const DIM: Parameter = given("dim", Integer);
const KEEPDIM: Parameter = defaulted("keepdim", Flag);
const DTYPE: Parameter = optional("dtype", Type);
const LAYOUT: Parameter = optional("layout", Layout);
const DEVICE: Parameter = optional("device", Device);
const PIN_MEMORY: Parameter = optional("pin_memory", Pinned);
const MEMORY_FORMAT: Parameter = optional("memory_format", Format);
const NON_BLOCKING: Parameter = defaulted("non_blocking", Flag);

// element by element
pub const UNARY: Signature = by_place(&[SELF]);
pub const SUM: Signature = Signature {
    positional: &[given("self", Operand), given("other", Operand)],
    keyword: &[defaulted("alpha", Real)],
};
pub const SUM_SCALAR: Signature =
    by_place(&[SELF, given("other", Number), defaulted("alpha", Real)]);
pub const PRODUCT: Signature = by_place(&[given("self", Operand), given("other", Operand)]);
pub const WITH_SCALAR: Signature = by_place(&[SELF, given("other", Number)]);
pub const BINARY: Signature = by_place(&[SELF, OTHER]);
pub const POWER: Signature = by_place(&[SELF, given("exponent", Number)]);
pub const CLAMP: Signature = by_place(&[SELF, optional("min", Number), optional("max", Number)]);
pub const GELU: Signature =
    Signature { positional: &[SELF], keyword: &[defaulted("approximate", Approximation)] };
pub const GELU_BACKWARD: Signature = Signature {
    positional: &[given("grad_output", Tensor), SELF],
    keyword: &[defaulted("approximate", Approximation)],
};
pub const THRESHOLD_BACKWARD: Signature =
    by_place(&[given("grad_output", Tensor), SELF, given("threshold", Number)]);
pub const WHERE: Signature = by_place(&[given("condition", Tensor), SELF, OTHER]);

// creating and moving
pub const FULL: Signature = Signature {
    positional: &[given("size", Integers), given("fill_value", Number)],
    keyword: &[DTYPE, LAYOUT, DEVICE, PIN_MEMORY],
};
pub const EMPTY: Signature = Signature {
    positional: &[given("size", Integers)],
    keyword: &[DTYPE, LAYOUT, DEVICE, PIN_MEMORY, MEMORY_FORMAT],
};
pub const FULL_LIKE: Signature = Signature {
    positional: &[SELF, given("fill_value", Number)],
    keyword: &[DTYPE, LAYOUT, DEVICE, PIN_MEMORY, MEMORY_FORMAT],
};
pub const SCALAR_TENSOR: Signature =
    Signature { positional: &[given("s", Number)], keyword: &[DTYPE, LAYOUT, DEVICE, PIN_MEMORY] };
pub const ARANGE: Signature = Signature {
    positional: &[given("start", Number), given("end", Number), defaulted("step", Number)],
    keyword: &[DTYPE, LAYOUT, DEVICE, PIN_MEMORY],
};
pub const CLONE: Signature = Signature { positional: &[SELF], keyword: &[MEMORY_FORMAT] };
pub const TO_COPY: Signature = Signature {
    positional: &[SELF],
    keyword: &[DTYPE, LAYOUT, DEVICE, PIN_MEMORY, NON_BLOCKING, MEMORY_FORMAT],
};
pub const CAT: Signature = by_place(&[given("tensors", Tensors), defaulted("dim", Integer)]);
pub const COPY_INTO: Signature = by_place(&[SELF, given("src", Tensor), NON_BLOCKING]);
pub const INCOMING: Signature =
    Signature { positional: &[given("size", Integers)], keyword: &[DTYPE] };
pub const MESSAGE: Signature = by_place(&[SELF, given("message", Integer)]);
pub const ALL_GATHER: Signature = by_place(&[
    given("shard", Tensor),
    given("size", Integers),
    given("ranks", Integer),
    given("message", Integer),
]);
pub const ALL_TO_ALL: Signature =
    by_place(&[SELF, given("ranks", Integer), given("message", Integer)]);
pub const MEAN_PIECES: Signature = by_place(&[SELF, given("pieces", Tensor)]);
pub const GATHER: Signature = Signature {
    positional: &[SELF, DIM, given("index", Tensor)],
    keyword: &[defaulted("sparse_grad", Flag)],
};
pub const SCATTER: Signature =
    by_place(&[SELF, DIM, given("index", Tensor), given("value", Number)]);
pub const SLICE_SCATTER: Signature = by_place(&[
    SELF,
    given("src", Tensor),
    defaulted("dim", Integer),
    optional("start", Integer),
    optional("end", Integer),
    defaulted("step", Integer),
]);
pub const EMBEDDING: Signature = by_place(&[
    given("weight", Tensor),
    given("indices", Tensor),
    defaulted("padding_idx", Integer),
    defaulted("scale_grad_by_freq", Flag),
    defaulted("sparse", Flag),
]);
pub const EMBEDDING_BACKWARD: Signature = by_place(&[
    given("grad_output", Tensor),
    given("indices", Tensor),
    given("num_weights", Integer),
    given("padding_idx", Integer),
    given("scale_grad_by_freq", Flag),
]);

// reductions
pub const SUM_DIMS: Signature =
    Signature { positional: &[SELF, nullable("dim", IntegerOrMore), KEEPDIM], keyword: &[DTYPE] };
pub const TOTAL: Signature = Signature { positional: &[SELF], keyword: &[DTYPE] };
pub const AMAX: Signature = by_place(&[SELF, defaulted("dim", IntegerOrMore), KEEPDIM]);
pub const VARIANCE: Signature = Signature {
    positional: &[SELF, optional("dim", IntegerOrMore)],
    keyword: &[optional("correction", Number), KEEPDIM],
};
pub const ANY: Signature = by_place(&[SELF, DIM, KEEPDIM]);
pub const SOFTMAX: Signature = by_place(&[SELF, DIM, given("half_to_float", Flag)]);
pub const SOFTMAX_BACKWARD: Signature = by_place(&[
    given("grad_output", Tensor),
    given("output", Tensor),
    DIM,
    given("input_dtype", Type),
]);

// layers
pub const MATRICES: Signature = by_place(&[SELF, given("mat2", Tensor)]);
pub const ADDMM: Signature = Signature {
    positional: &[SELF, given("mat1", Tensor), given("mat2", Tensor)],
    keyword: &[defaulted("beta", Number), defaulted("alpha", Number)],
};
pub const LAYER_NORM: Signature = by_place(&[
    given("input", Tensor),
    given("normalized_shape", Integers),
    nullable("weight", Tensor),
    nullable("bias", Tensor),
    given("eps", Real),
]);
pub const LAYER_NORM_BACKWARD: Signature = by_place(&[
    given("grad_out", Tensor),
    given("input", Tensor),
    given("normalized_shape", Integers),
    given("mean", Tensor),
    given("rstd", Tensor),
    nullable("weight", Tensor),
    nullable("bias", Tensor),
    given("output_mask", Flags),
]);
pub const DROPOUT: Signature =
    by_place(&[given("input", Tensor), given("p", Real), nullable("train", Flag)]);
pub const DROPOUT_BACKWARD: Signature =
    by_place(&[given("grad_output", Tensor), given("mask", Tensor), given("scale", Real)]);
pub const NLL_LOSS: Signature = by_place(&[
    SELF,
    given("target", Tensor),
    nullable("weight", Tensor),
    given("reduction", Integer),
    given("ignore_index", Integer),
]);
pub const NLL_LOSS_BACKWARD: Signature = by_place(&[
    given("grad_output", Tensor),
    SELF,
    given("target", Tensor),
    nullable("weight", Tensor),
    given("reduction", Integer),
    given("ignore_index", Integer),
    given("total_weight", Tensor),
]);
pub const ATTENTION: Signature = Signature {
    positional: &[
        given("query", Tensor),
        given("key", Tensor),
        given("value", Tensor),
        defaulted("dropout_p", Real),
        defaulted("is_causal", Flag),
    ],
    keyword: &[optional("attn_mask", Tensor), optional("scale", Real)],
};
pub const ATTENTION_BACKWARD: Signature = Signature {
    positional: &[
        given("grad_out", Tensor),
        given("query", Tensor),
        given("key", Tensor),
        given("value", Tensor),
        given("out", Tensor),
        given("logsumexp", Tensor),
        given("dropout_p", Real),
        given("is_causal", Flag),
    ],
    keyword: &[optional("attn_mask", Tensor), optional("scale", Real)],
};

// optimizers
pub const ADAMW: Signature = Signature {
    positional: &[
        given("param", Tensor),
        given("grad", Tensor),
        given("exp_avg", Tensor),
        given("exp_avg_sq", Tensor),
    ],
    keyword: &[given("betas", Pair), given("eps", Real), given("weight_decay", Real)],
};
pub const SGD: Signature = Signature {
    positional: &[
        given("param", Tensor),
        given("grad", Tensor),
        defaulted("momentum_buffer", Tensor),
    ],
    keyword: &[defaulted("momentum", Real), defaulted("weight_decay", Real)],
};

// views
pub const AS_STRIDED: Signature = by_place(&[
    SELF,
    given("size", Integers),
    given("stride", Integers),
    optional("storage_offset", Integer),
]);
pub const EXPAND: Signature = Signature {
    positional: &[SELF, given("size", Integers)],
    keyword: &[defaulted("implicit", Flag)],
};
pub const PERMUTE: Signature = by_place(&[SELF, given("dims", Integers)]);
pub const SELECT: Signature = by_place(&[SELF, DIM, given("index", Integer)]);
pub const SLICE: Signature = by_place(&[
    SELF,
    defaulted("dim", Integer),
    optional("start", Integer),
    optional("end", Integer),
    defaulted("step", Integer),
]);
pub const SPLIT: Signature =
    by_place(&[SELF, given("split_sizes", Integers), defaulted("dim", Integer)]);
pub const SQUEEZE_DIM: Signature = by_place(&[SELF, DIM]);
pub const SQUEEZE_DIMS: Signature = by_place(&[SELF, given("dim", Integers)]);
pub const TRANSPOSE: Signature = by_place(&[SELF, given("dim0", Integer), given("dim1", Integer)]);
pub const VIEW: Signature = by_place(&[SELF, given("size", Integers)]);
