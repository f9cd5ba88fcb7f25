//! Attention: softmax(Q Kᵀ · scale + mask) V, block by block. Invariant: queries, keys and values
//! have four dimensions (batch, heads, positions, size).

use crate::operator::call::{TypedCall, Unsuited};
use crate::operator::output::Output;
use crate::operator::{Product, Workers};
use crate::tensor::{Argument, DType, TensorType};
use crate::units::{Bytes, Flops};

/// Rows of queries whose scores the attention kernels hold at a time.
pub const QUERY_BLOCK: u64 = 64;

/// Queries, keys and values from argument `first` on, with extents that agree.
fn operands<'a>(call: &TypedCall<'a>, first: usize) -> Result<[&'a TensorType; 3], Unsuited> {
    let (q, k, v) = (call.tensor(first)?, call.tensor(first + 1)?, call.tensor(first + 2)?);
    let agree = match (&q.shape[..], &k.shape[..], &v.shape[..]) {
        ([b, h, _, e], [kb, kh, keys, ke], [vb, vh, values, _]) => {
            b == kb && kb == vb && h == kh && kh == vh && e == ke && keys == values
        }
        _ => false,
    };
    let scale = call.argument(usize::MAX, "scale").and_then(Argument::number);
    if scale.is_some_and(|scale| !scale.is_finite()) {
        return Err(Unsuited::Keyword { name: "scale".to_string(), wanted: "a finite number" });
    }
    if agree {
        suits_mask(call, q, k, first == 0)?;
        let mut tensors = (0..call.args.len()).filter_map(|index| call.optional_tensor(index));
        return match tensors.find(|tensor| !has_rows(tensor)) {
            Some(strided) => Err(Unsuited::Shapes(format!(
                "elements of the last dimension of {:?} lie apart, with strides {:?}",
                strided.shape,
                strided.strides_or_contiguous()
            ))),
            None => Ok([q, k, v]),
        };
    }
    Err(Unsuited::Shapes(format!(
        "queries {:?}, keys {:?} and values {:?}",
        q.shape, k.shape, v.shape
    )))
}

/// Elements of the last of four dimensions must be adjacent: PyTorch's kernel reads others as if
/// they were. The sums have three dimensions, in any order.
fn has_rows(tensor: &TensorType) -> bool {
    if tensor.shape.len() == 3 {
        return true;
    }
    let step = tensor.strides_or_contiguous().last().copied().unwrap_or(1);
    step == 1 || tensor.elements() == 0 || tensor.shape.last() == Some(&1)
}

/// A mask has two dimensions or four: the last two are those of queries and keys or of extent one,
/// but PyTorch's gradient requires the last one in full.
fn suits_mask(
    call: &TypedCall<'_>,
    q: &TensorType,
    k: &TensorType,
    is_forward: bool,
) -> Result<(), Unsuited> {
    let Some(Argument::Value(mask)) = call.argument(usize::MAX, "attn_mask") else {
        return Ok(());
    };
    let mask = call.types.type_of(*mask);
    let scores = match &mask.shape[..] {
        &[rows, keys] | &[_, _, rows, keys] => Some((rows, keys)),
        _ => None,
    };
    let suits = scores.is_some_and(|(rows, keys)| {
        (rows == q.shape[2] || rows == 1) && (keys == k.shape[2] || is_forward && keys == 1)
    });
    if suits {
        return Ok(());
    }
    Err(Unsuited::Shapes(format!(
        "a mask of {:?} for queries {:?} and keys {:?}",
        mask.shape, q.shape, k.shape
    )))
}

/// Output and the logarithm of each row's sum of exponentials, which has 32 bits at least.
pub fn forward(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let [q, _, v] = operands(call, 0)?;
    let (rows, size) = (&q.shape[..3], v.shape[3]);
    let output = [rows, &[size]].concat();
    let summed = if q.dtype.size() < 4 { DType::F32 } else { q.dtype };
    Ok(vec![Output::computed(&output, q.dtype), Output::computed(rows, summed)])
}

/// Gradients of queries, keys and values.
pub fn backward(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    Ok(operands(call, 1)?.map(Output::like).to_vec())
}

/// Positions of the keys, argument `index`.
fn positions(call: &TypedCall<'_>, index: usize) -> u64 {
    call.optional_tensor(index).and_then(|keys| keys.shape.get(2).copied()).unwrap_or(0)
}

/// Operations of `PRODUCTS` products of all queries (argument `QUERIES`) with all keys.
pub fn flops<const QUERIES: usize, const PRODUCTS: u64>(call: &TypedCall<'_>) -> Flops {
    let queries = call.optional_tensor(QUERIES).map_or(0, TensorType::elements);
    let keys = positions(call, QUERIES + 1);
    Flops(keys.saturating_mul(2 * PRODUCTS).saturating_mul(queries))
}

/// One exponential for each query and key.
pub fn elementary<const QUERIES: usize>(call: &TypedCall<'_>) -> u64 {
    let rows = call.optional_tensor(QUERIES).map_or(0, |queries| {
        queries.shape.split_last().map_or(1, |(_, leading)| leading.iter().product())
    });
    rows.saturating_mul(positions(call, QUERIES + 1))
}

/// Bytes of the scores of a block of queries in 32-bit floats, `BUFFERS` times for each thread;
/// `KEYS` is the argument that holds the keys.
pub fn workspace<const KEYS: usize, const BUFFERS: u64>(
    call: &TypedCall<'_>,
    threads: u32,
) -> Bytes {
    let row = BUFFERS * QUERY_BLOCK * 4 * u64::from(threads);
    Bytes(row.saturating_mul(positions(call, KEYS)).min(Bytes::LIMIT.0))
}

/// The products of one block of queries: scores, and the products that use scores. Each thread
/// multiplies separately.
pub fn packing<const QUERIES: usize>(call: &TypedCall<'_>) -> Vec<Product> {
    let (Some(queries), Some(keys)) =
        (call.optional_tensor(QUERIES), call.optional_tensor(QUERIES + 1))
    else {
        return Vec::new();
    };
    let (Some(&size), Some(&keys)) = (queries.shape.last(), keys.shape.get(2)) else {
        return Vec::new();
    };
    let product = |m, n, k| Product { m, n, k, workers: Workers::Alone };
    vec![
        product(QUERY_BLOCK, keys, size),
        product(QUERY_BLOCK, size, keys),
        product(keys, size, QUERY_BLOCK),
    ]
}
