//! Normalization and dropout. Invariant: statistics have the shape of the input with its
//! normalised dimensions of extent one.

use crate::operator::call::{TypedCall, Unsuited};
use crate::operator::movement::extents;
use crate::operator::output::Output;
use crate::operator::reduction::partial_sums;
use crate::tensor::{DType, TensorType};
use crate::units::Bytes;

/// The normalised shape, argument `index`: the last dimensions of `x`.
fn normalised(call: &TypedCall<'_>, x: &TensorType, index: usize) -> Result<Vec<u64>, Unsuited> {
    let shape = extents(&call.integers(index, "normalized_shape")?)?;
    if shape.is_empty() || !x.shape.ends_with(&shape) {
        return Err(Unsuited::Shapes(format!("{shape:?} normalised of {:?}", x.shape)));
    }
    Ok(shape)
}

/// `native_layer_norm(x, shape, weight, bias, eps)`: output, mean, reciprocal deviation.
pub fn layer_norm(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let x = call.tensor(0)?;
    let shape = normalised(call, x, 1)?;
    let mut statistics = x.shape.clone();
    let kept = statistics.len() - shape.len();
    statistics[kept..].fill(1);
    let statistics = Output::computed(&statistics, x.dtype);
    Ok(vec![Output::like(x), statistics.clone(), statistics])
}

/// Its gradients: of the input, of the weight and of the bias.
pub fn layer_norm_gradient(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let x = call.tensor(1)?;
    let shape = normalised(call, x, 2)?;
    let affine = Output::computed(&shape, x.dtype);
    Ok(vec![Output::like(x), affine.clone(), affine])
}

/// Workspace of the gradients: partial sums of weight and bias for each block of rows.
pub fn gradient_workspace(call: &TypedCall<'_>, _threads: u32) -> Bytes {
    let (Some(x), Some(mean)) = (call.optional_tensor(1), call.optional_tensor(3)) else {
        return Bytes::ZERO;
    };
    let rows = mean.elements();
    partial_sums(rows, x.elements().checked_div(rows).unwrap_or(0), 2)
}

/// `native_dropout(x, p, train)`: output and mask.
pub fn dropout(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let x = call.tensor(0)?;
    Ok(vec![Output::like(x), Output::computed(&x.shape, DType::Bool)])
}

/// `native_dropout_backward(gradient, mask, scale)`
pub fn dropout_gradient(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (gradient, mask) = (call.tensor(0)?, call.tensor(1)?);
    if gradient.shape != mask.shape {
        return Err(Unsuited::Shapes(format!(
            "a gradient of shape {:?} under a mask of {:?}",
            gradient.shape, mask.shape
        )));
    }
    Ok(vec![Output::like(gradient)])
}
