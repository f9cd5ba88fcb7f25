//! Normalization and dropout. Invariant: statistics have the shape of the input with its
//! normalised dimensions of extent one.

use crate::operator::call::{TypedCall, Unsuited};
use crate::operator::movement::extents;
use crate::operator::output::Output;
use crate::operator::reduction::partial_sums;
use crate::tensor::{Argument, DType, TensorType};
use crate::units::Bytes;

/// The normalised shape, argument `index`: the last dimensions of `x`.
fn normalised(call: &TypedCall<'_>, x: &TensorType, index: usize) -> Result<Vec<u64>, Unsuited> {
    let shape = extents(&call.integers(index, "normalized_shape")?)?;
    if shape.is_empty() || !x.shape.ends_with(&shape) {
        return Err(Unsuited::Shapes(format!("{shape:?} normalised of {:?}", x.shape)));
    }
    Ok(shape)
}

/// Weight and bias, arguments from `first` on, of the normalised shape if they are given.
fn affine_parameters(call: &TypedCall<'_>, first: usize, shape: &[u64]) -> Result<(), Unsuited> {
    for index in [first, first + 1] {
        if let Some(parameter) = call.optional_tensor(index).filter(|p| p.shape != shape) {
            return Err(Unsuited::Shapes(format!(
                "a weight or bias of shape {:?} for {shape:?}",
                parameter.shape
            )));
        }
    }
    Ok(())
}

/// `native_layer_norm(x, shape, weight, bias, eps)`: output, mean, reciprocal deviation.
pub fn layer_norm(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let x = call.tensor(0)?;
    let shape = normalised(call, x, 1)?;
    affine_parameters(call, 2, &shape)?;
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
    affine_parameters(call, 5, &shape)?;
    let masks = match call.args.get(7) {
        Some(Argument::List(masks)) => masks.as_slice(),
        _ => &[],
    };
    for (output, mask) in call.outputs.iter().zip(masks) {
        if output.is_some() && *mask == Argument::Bool(false) {
            return Err(Unsuited::Argument { index: 7, wanted: "true for each output in use" });
        }
    }
    for (output, parameter) in [(1, 5), (2, 6)] {
        let used = call.outputs.get(output).is_some_and(Option::is_some);
        if used && call.optional_tensor(parameter).is_none() {
            let wanted = "a tensor, since its gradient is used";
            return Err(Unsuited::Argument { index: parameter, wanted });
        }
    }
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
    let scale = call.args.get(2).and_then(Argument::number);
    if scale.is_none_or(|scale| !scale.is_finite()) {
        return Err(Unsuited::Argument { index: 2, wanted: "a finite number" });
    }
    if gradient.shape != mask.shape {
        return Err(Unsuited::Shapes(format!(
            "a gradient of shape {:?} under a mask of {:?}",
            gradient.shape, mask.shape
        )));
    }
    Ok(vec![Output::like(gradient)])
}
