//! Axes of operators of images. Invariant: of rows and columns nothing is said but where they are
//! only normalised or padded.

use crate::operator::axes::{
    Along, Axis, Linear, Literal, Part, axis, long, others, rows, undivided,
};
use crate::operator::call::{TypedCall, Unsuited};

/// The extent of the first dimension of argument `index`.
fn batch(call: &TypedCall<'_>, index: usize) -> Result<u64, Unsuited> {
    Ok(call.tensor(index)?.shape.first().copied().unwrap_or(0))
}

/// `convolution(x, weight, bias, …)`: samples.
pub fn convolution(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    Ok(long([axis(batch(call, 0)?, &[Some(0)], &[rows(0)])]))
}

/// Its gradients, of `(gradient, x, weight, …)`: samples; those of weight and bias are terms.
pub fn convolution_gradient(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let outputs = [rows(0), Part::Terms, Part::Terms];
    Ok(long([axis(batch(call, 0)?, &[Some(0), Some(0)], &outputs)]))
}

/// What is normalised over all samples: every dimension whole but that of channels, which are
/// normalised each by itself. `of_channels` has the dimension of each argument along them.
fn over_samples(
    call: &TypedCall<'_>,
    tensors: &[usize],
    of_channels: &[Option<usize>],
) -> Result<Vec<Axis>, Unsuited> {
    let shape = &call.tensor(tensors[0])?.shape;
    let count = call.outputs.len().max(1);
    let given = |index: &usize| call.optional_tensor(*index).is_some();
    Ok(long(shape.iter().enumerate().map(|(dim, &extent)| {
        if dim == 1 {
            let along = of_channels.iter().enumerate();
            let along = along.map(|(index, dim)| dim.filter(|_| given(&index)));
            let mut outputs = vec![rows(0); count];
            outputs[0] = rows(1);
            return axis(extent, &along.collect::<Vec<_>>(), &outputs);
        }
        let along = (0..=tensors.iter().copied().max().unwrap_or(0))
            .map(|index| tensors.contains(&index).then_some(dim));
        let mut outputs = vec![Part::Whole; count];
        outputs[0] = rows(dim);
        undivided(extent, &along.collect::<Vec<_>>(), &outputs)
    })))
}

/// `batch_norm(x, weight, bias, mean, variance, …)`.
pub fn batch_norm(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    over_samples(call, &[0], &[Some(1), Some(0), Some(0), Some(0), Some(0)])
}

/// Its gradients, of `(gradient, x, weight, mean, variance, …)`.
pub fn batch_norm_gradient(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let of_channels = [Some(1), Some(1), Some(0), Some(0), Some(0), Some(0), Some(0)];
    over_samples(call, &[0, 1], &of_channels)
}

/// `native_group_norm(x, weight, bias, samples, …)`: samples.
pub fn group_norm(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let literals = vec![Literal::whole(3)];
    let found = axis(batch(call, 0)?, &[Some(0)], &[rows(0), rows(0), rows(0)]);
    Ok(long([Axis { literals, ..found }]))
}

/// Its gradients, of `(gradient, x, mean, deviation, weight, samples, …)`: samples; those of weight
/// and bias are terms.
pub fn group_norm_gradient(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let literals = vec![Literal::whole(5)];
    let outputs = [rows(0), Part::Terms, Part::Terms];
    let found = axis(batch(call, 0)?, &[Some(0); 4], &outputs);
    Ok(long([Axis { literals, ..found }]))
}

/// Pooling and interpolation of the last two dimensions, with `N` outputs: all others.
pub fn pooled<const N: usize>(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let leading = call.tensor(0)?.shape.len().saturating_sub(2);
    others(call, &[0], &[leading, leading + 1], N, |dim| dim)
}

/// Their gradients: the same, of every tensor.
pub fn pooled_gradient(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let leading = call.tensor(0)?.shape.len().saturating_sub(2);
    let tensors: Vec<usize> =
        (0..call.args.len()).filter(|&index| call.optional_tensor(index).is_some()).collect();
    others(call, &tensors, &[leading, leading + 1], 1, |dim| dim)
}

/// `upsample_…_backward(gradient, size, size of the input, …)`: the same, with the last size.
pub fn upsampled_gradient(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let mut axes = pooled::<1>(call)?;
    for axis in &mut axes {
        if let Part::Rows(along) = axis.outputs[0] {
            axis.literals.push(Literal::item(2, along.dim));
        }
    }
    Ok(axes)
}

/// `pixel_shuffle(x, factor)`, `pixel_unshuffle`: all but channels, rows and columns.
pub fn shuffled(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let rank = call.tensor(0)?.shape.len();
    others(call, &[0], &(rank.saturating_sub(3)..rank).collect::<Vec<_>>(), 1, |dim| dim)
}

/// `constant_pad_nd(x, pads)`, two for each dimension from the last one on: every dimension; those
/// that are padded cannot be divided.
pub fn padded(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let rank = call.tensor(0)?.shape.len();
    let mut axes = others(call, &[0], &[], 1, |dim| dim)?;
    for (back, pads) in call.integers(1, "pad")?.chunks(2).enumerate() {
        let Some(dim) = rank.checked_sub(back + 1) else { continue };
        let padded = axes.iter_mut().filter(|axis| axis.outputs == [rows(dim)]);
        for axis in padded.filter(|_| pads.iter().any(|&pad| pad != 0)) {
            let extent = Linear::beyond(pads.iter().sum());
            (axis.divides, axis.outputs) = (false, vec![Part::Rows(Along { dim, extent })]);
        }
    }
    Ok(axes)
}
