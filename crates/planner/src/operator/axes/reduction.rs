//! Axes of reductions, and of what is normalised by one. Invariant: only sums give terms.

use crate::operator::axes::{Axis, Part, axis, long, others, rows, undivided};
use crate::operator::call::{TypedCall, Unsuited, dimension};

/// The dimensions that a reduction removes: all of them if it names none.
fn reduced(call: &TypedCall<'_>, index: usize) -> Result<Vec<usize>, Unsuited> {
    let rank = call.tensor(0)?.shape.len();
    let dims = call.optional_integers(index, "dim")?.unwrap_or_default();
    match dims.is_empty() {
        true => Ok((0..rank).collect()),
        false => dims.iter().map(|&dim| dimension(dim, rank)).collect(),
    }
}

/// A reduction of argument 0 over `dims`: the other dimensions.
fn kept(call: &TypedCall<'_>, keeps: bool, dims: &[usize]) -> Result<Vec<Axis>, Unsuited> {
    let below =
        |dim: usize| if keeps { 0 } else { dims.iter().filter(|&&other| other < dim).count() };
    others(call, &[0], dims, 1, |dim| dim - below(dim))
}

/// A reduction of argument 0 over `dims` that is no sum: the other dimensions, and these whole.
fn without(call: &TypedCall<'_>, keeps: bool, dims: &[usize]) -> Result<Vec<Axis>, Unsuited> {
    let shape = &call.tensor(0)?.shape;
    let mut axes = kept(call, keeps, dims)?;
    let extents = dims.iter().filter_map(|&dim| Some((dim, *shape.get(dim)?)));
    axes.extend(long(extents.map(|(dim, extent)| undivided(extent, &[Some(dim)], &[Part::Whole]))));
    Ok(axes)
}

/// `mean(x, dims, keepdim)`, `amax`, `any`: the dimensions that remain; those that go are needed
/// whole.
pub fn remaining(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let dims = reduced(call, 1)?;
    without(call, call.flag(2, "keepdim"), &dims)
}

/// `linalg_vector_norm(x, order, dims, keepdim)`: the same.
pub fn norm(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let dims = reduced(call, 2)?;
    without(call, call.flag(3, "keepdim"), &dims)
}

/// `mean(x)`: every dimension whole.
pub fn averaged(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let dims: Vec<usize> = (0..call.tensor(0)?.shape.len()).collect();
    without(call, false, &dims)
}

/// `var(x, dims, correction, keepdim)`, the last two by name: the same.
pub fn remaining_of_variance(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let dims = reduced(call, 1)?;
    without(call, call.flag(usize::MAX, "keepdim"), &dims)
}

/// `sum(x, dims, keepdim)`: the dimensions that remain, and terms along the others.
pub fn summed(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let shape = &call.tensor(0)?.shape;
    let dims = reduced(call, 1)?;
    let mut axes = kept(call, call.flag(2, "keepdim"), &dims)?;
    axes.extend(terms(shape, &dims, call.args.len()));
    Ok(axes)
}

/// `sum(x)`: terms along each dimension.
pub fn totalled(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let shape = &call.tensor(0)?.shape;
    Ok(terms(shape, &(0..shape.len()).collect::<Vec<_>>(), call.args.len()))
}

fn terms(shape: &[u64], dims: &[usize], arguments: usize) -> Vec<Axis> {
    long(dims.iter().filter(|&&dim| dim < shape.len()).map(|&dim| {
        let arguments: Vec<Option<usize>> =
            (0..arguments).map(|index| (index == 0).then_some(dim)).collect();
        axis(shape[dim], &arguments, &[Part::Terms])
    }))
}

/// Softmax and its logarithm, `(x, dim, …)`: that dimension is needed whole.
pub fn normalised(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let dim = dimension(call.integer(1, "dim")?, call.tensor(0)?.shape.len())?;
    through(call, &[0], dim, 1)
}

/// Their gradients, `(gradient, output, dim, type)`: the same.
pub fn normalised_gradient(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let dim = dimension(call.integer(2, "dim")?, call.tensor(0)?.shape.len())?;
    through(call, &[0, 1], dim, 1)
}

/// Every dimension of the tensors at these positions and of as many outputs, of which `dim` is
/// needed whole.
pub(super) fn through(
    call: &TypedCall<'_>,
    positions: &[usize],
    dim: usize,
    outputs: usize,
) -> Result<Vec<Axis>, Unsuited> {
    let mut axes = others(call, positions, &[], outputs, |dim| dim)?;
    for axis in &mut axes {
        axis.divides = axis.outputs[0] != rows(dim);
    }
    Ok(axes)
}
