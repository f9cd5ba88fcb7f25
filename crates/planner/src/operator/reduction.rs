//! Operators that reduce dimensions, and softmax, which keeps them. Invariant: a reduced dimension
//! is removed, or of extent one if the call keeps dimensions.

use crate::operator::call::{TypedCall, Unsuited, dimension};
use crate::operator::output::Output;
use crate::tensor::{DType, TensorType};
use crate::units::Bytes;

/// Rows that a task sums when summing columns.
pub const ROW_BLOCK: u64 = 128;

/// The shape of `x` without its dimensions `dims`; all of them if the list is empty.
fn reduced(x: &TensorType, dims: &[i64], keep: bool) -> Result<Vec<u64>, Unsuited> {
    let rank = x.shape.len();
    let mut is_reduced = vec![dims.is_empty(); rank];
    for &dim in dims {
        let dim = dimension(dim, rank)?;
        if let Some(is_reduced) = is_reduced.get_mut(dim)
            && std::mem::replace(is_reduced, true)
        {
            return Err(Unsuited::Shapes(format!("dimension {dim} reduced twice")));
        }
    }
    let extents = x.shape.iter().zip(is_reduced).filter_map(|(&extent, is_reduced)| {
        match (is_reduced, keep) {
            (false, _) => Some(extent),
            (true, true) => Some(1),
            (true, false) => None,
        }
    });
    Ok(extents.collect())
}

/// The reduced shape of a call with dimensions as argument 1 and `keepdim` as argument 2.
fn shape(call: &TypedCall<'_>) -> Result<Vec<u64>, Unsuited> {
    let dims = call.optional_integers(1, "dim")?.unwrap_or_default();
    reduced(call.tensor(0)?, &dims, call.flag(2, "keepdim"))
}

/// Sums of whole numbers and truth values are 64-bit integers.
fn summed(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::I64 }
}

/// `sum(x)`, `mean(x)` over everything.
pub fn total(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let dtype = call.dtype(usize::MAX, "dtype")?.unwrap_or(summed(call.tensor(0)?.dtype));
    Ok(vec![Output::computed(&[], dtype)])
}

/// `sum(x, dims, keepdim)`, `mean(x, dims, keepdim)`
pub fn over_dims(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let dtype = call.dtype(usize::MAX, "dtype")?.unwrap_or(summed(call.tensor(0)?.dtype));
    Ok(vec![Output::computed(&shape(call)?, dtype)])
}

/// `amax(x, dims, keepdim)`: elements of x.
pub fn picked(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (x, shape) = (call.tensor(0)?, shape(call)?);
    if x.elements() == 0 && shape.iter().product::<u64>() > 0 {
        return Err(Unsuited::Shapes(format!("the largest of no elements, in {:?}", x.shape)));
    }
    Ok(vec![Output::computed(&shape, x.dtype)])
}

/// `any(x, dim, keepdim)`: truth values; for bytes a byte.
pub fn any(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let x = call.tensor(0)?;
    let dtype = match x.dtype {
        DType::U8 => DType::U8,
        _ => DType::Bool,
    };
    let shape = reduced(x, &[call.integer(1, "dim")?], call.flag(2, "keepdim"))?;
    Ok(vec![Output::computed(&shape, dtype)])
}

/// `var(x, dims, correction, keepdim)`, the last two by name.
pub fn variance(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let x = call.tensor(0)?;
    let dims = call.optional_integers(1, "dim")?.unwrap_or_default();
    let shape = reduced(x, &dims, call.flag(usize::MAX, "keepdim"))?;
    Ok(vec![Output::computed(&shape, x.dtype)])
}

/// Softmax and its logarithm: argument 0 with its dimension `dim` normalised.
pub fn softmax(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let x = call.tensor(0)?;
    dimension(call.integer(1, "dim")?, x.shape.len())?;
    if call.flag(2, "half_to_float") && x.dtype != DType::F16 {
        return Err(Unsuited::Argument { index: 2, wanted: "false but for 16-bit floats" });
    }
    Ok(vec![Output::like(x)])
}

/// The gradient of softmax: `(gradient, output, dim, type)`
pub fn softmax_gradient(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (gradient, output) = (call.tensor(0)?, call.tensor(1)?);
    if gradient.shape != output.shape {
        return Err(Unsuited::Shapes(format!(
            "a gradient of shape {:?} for {:?}",
            gradient.shape, output.shape
        )));
    }
    dimension(call.integer(2, "dim")?, output.shape.len())?;
    let dtype = call.dtype(3, "input_dtype")?.unwrap_or(gradient.dtype);
    Ok(vec![Output::computed(&gradient.shape, dtype)])
}

/// Bytes of partial sums in 32-bit floats down `columns` columns of `rows` rows, one for each block
/// of rows, in each of `buffers` buffers; a single block needs none.
pub fn partial_sums(rows: u64, columns: u64, buffers: u64) -> Bytes {
    match rows.div_ceil(ROW_BLOCK) {
        blocks if blocks > 1 => {
            Bytes((buffers * 4 * blocks).saturating_mul(columns).min(Bytes::LIMIT.0))
        }
        _ => Bytes::ZERO,
    }
}

/// Workspace of a sum over dimensions: one partial sum for each block of rows.
pub fn sum_workspace(call: &TypedCall<'_>, _threads: u32) -> Bytes {
    let (Some(x), Some(out)) = (call.optional_tensor(0), call.first_output()) else {
        return Bytes::ZERO;
    };
    let columns = out.elements();
    partial_sums(x.elements().checked_div(columns).unwrap_or(0), columns, 1)
}
