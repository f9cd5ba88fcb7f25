//! Axes of a call: dimensions of its tensors that go together, so that the call can be made for one
//! part of them after the other. Invariant: making a call for consecutive parts of an axis, and
//! joining what is [`Part::Rows`] and adding up what is [`Part::Terms`], gives the outputs of the
//! whole call; along dimensions that lie on no axis, it needs the whole tensor.
//!
//! Nothing is said of dimensions of extent one: they may be broadcast. Random numbers are drawn for
//! whole tensors, and a scan, as under a causal mask, carries something from one part to the next.

mod layer;
mod view;

pub use layer::{
    attention, attention_gradient, batched, biased, layer_norm, layer_norm_gradient, looked_up,
    looked_up_gradient, loss, loss_gradient, matrices,
};
pub use view::{
    expanded, permuted, selected, sliced, split, squeezed, transposed, unsqueezed, viewed,
};

use crate::operator::call::{TypedCall, Unsuited, dimension};
use crate::operator::output::broadcast;
use crate::tensor::TensorType;

/// A dimension that lies along an axis: `block` consecutive elements belong to each step of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Along {
    /// The dimension.
    pub dim: usize,
    /// Its elements for each step along the axis.
    pub block: u64,
}

/// What a call for a part of an axis makes of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A part of the output.
    Rows(Along),
    /// A term of the output: the sum of all of them is the output, up to rounding, since it is in
    /// another order.
    Terms,
}

/// A whole number among the arguments that is an extent along an axis: item `item` of the list that
/// is positional argument `argument`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Literal {
    /// The argument.
    pub argument: usize,
    /// The item of its list.
    pub item: usize,
    /// Its value for each step along the axis.
    pub block: u64,
}

/// An axis of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The number of steps along it: at least two.
    pub extent: u64,
    /// For each positional argument, the dimension of its tensor along the axis; for a list of
    /// tensors, that of each of them. `None` if every part of the call reads all of it.
    pub arguments: Vec<Option<Along>>,
    /// The same for tensors given by name.
    pub keywords: Vec<(&'static str, Along)>,
    /// The extents among the arguments.
    pub literals: Vec<Literal>,
    /// Each output, in the order of the schema.
    pub outputs: Vec<Part>,
}

/// The axes of a call.
pub type Axes = fn(&TypedCall<'_>) -> Result<Vec<Axis>, Unsuited>;

/// The axis of `extent` steps along these dimensions of the arguments and of the outputs.
fn axis(extent: u64, arguments: &[Option<usize>], outputs: &[Part]) -> Axis {
    let along = |dim: &Option<usize>| dim.map(one);
    let arguments = arguments.iter().map(along).collect();
    let (keywords, literals) = (Vec::new(), Vec::new());
    Axis { extent, arguments, keywords, literals, outputs: outputs.to_vec() }
}

/// A dimension along an axis of as many steps.
fn one(dim: usize) -> Along {
    Along { dim, block: 1 }
}

fn rows(dim: usize) -> Part {
    Part::Rows(one(dim))
}

/// Those with two steps or more.
fn long(axes: impl IntoIterator<Item = Axis>) -> Vec<Axis> {
    axes.into_iter().filter(|axis| axis.extent > 1).collect()
}

/// None: the call needs whole tensors.
pub fn whole(_: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    Ok(Vec::new())
}

/// Every dimension of what all tensors among the positional arguments broadcast to.
pub fn elements(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let tensors: Vec<Option<&TensorType>> =
        (0..call.args.len()).map(|index| call.optional_tensor(index)).collect();
    let shape = broadcast(tensors.iter().flatten().map(|tensor| tensor.shape.as_slice()))?;
    let along = |tensor: &TensorType, dim: usize| {
        let own = (dim + tensor.shape.len()).checked_sub(shape.len())?;
        (tensor.shape[own] == shape[dim]).then_some(own)
    };
    Ok(long(shape.iter().enumerate().map(|(dim, &extent)| {
        let arguments: Vec<Option<usize>> =
            tensors.iter().map(|tensor| tensor.and_then(|tensor| along(tensor, dim))).collect();
        axis(extent, &arguments, &[rows(dim)])
    })))
}

/// An optimizer's update: every dimension, of each tensor and of each output.
pub fn updated(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let shape = &call.tensor(0)?.shape;
    // The parameter and its states; the gradient is not written.
    let outputs = call.args.len() - 1;
    Ok(long(shape.iter().enumerate().map(|(dim, &extent)| {
        axis(extent, &vec![Some(dim); call.args.len()], &vec![rows(dim); outputs])
    })))
}

/// `full(size, value)`: every dimension.
pub fn sized(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let size = call.integers(0, "size")?;
    Ok(long(size.iter().enumerate().map(|(dim, &extent)| {
        let literals = vec![Literal { argument: 0, item: dim, block: 1 }];
        let extent = u64::try_from(extent).unwrap_or(0);
        Axis { literals, ..axis(extent, &[None, None], &[rows(dim)]) }
    })))
}

/// Every dimension of argument 0 but `dims`, where all tensors of the arguments at these positions
/// have the same extent; `kept` is its dimension in each of `outputs` outputs.
fn others(
    call: &TypedCall<'_>,
    positions: &[usize],
    dims: &[usize],
    outputs: usize,
    kept: impl Fn(usize) -> usize,
) -> Result<Vec<Axis>, Unsuited> {
    let first = call.tensors(positions[0]);
    let wrong = Unsuited::Argument { index: positions[0], wanted: "a tensor" };
    let shape = &first.first().ok_or(wrong)?.shape;
    let free = (0..shape.len()).filter(|dim| !dims.contains(dim));
    let agree = |dim: &usize| {
        let mut tensors = positions.iter().flat_map(|&index| call.tensors(index));
        tensors.all(|tensor| tensor.shape.get(*dim) == Some(&shape[*dim]))
    };
    Ok(long(free.filter(agree).map(|dim| {
        let arguments: Vec<Option<usize>> =
            (0..call.args.len()).map(|index| positions.contains(&index).then_some(dim)).collect();
        axis(shape[dim], &arguments, &vec![rows(kept(dim)); outputs])
    })))
}

/// `cat(tensors, dim)`: all but that dimension.
pub fn side_by_side(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let tensors = call.tensors(0);
    // Vectors without elements take part in no concatenation.
    if tensors.iter().any(|tensor| tensor.shape == [0]) {
        return Ok(Vec::new());
    }
    let rank = tensors.first().map_or(0, |tensor| tensor.shape.len());
    let dim = dimension(call.optional_integer(1, "dim")?.unwrap_or(0), rank)?;
    others(call, &[0], &[dim], 1, |dim| dim)
}

/// `gather(x, dim, index)`: that dimension of the index, and all others of both.
pub fn gathered(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let index = call.tensor(2)?;
    let dim = dimension(call.integer(1, "dim")?, index.shape.len())?;
    let mut axes = others(call, &[0, 2], &[dim], 1, |dim| dim)?;
    if let Some(&extent) = index.shape.get(dim) {
        axes.extend(long([axis(extent, &[None, None, Some(dim)], &[rows(dim)])]));
    }
    Ok(axes)
}

/// `scatter(x, dim, index, value)`: all but that dimension.
pub fn scattered(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let dim = dimension(call.integer(1, "dim")?, call.tensor(0)?.shape.len())?;
    others(call, &[0, 2], &[dim], 1, |dim| dim)
}

/// `slice_scatter(x, patch, dim, …)`: all but that dimension.
pub fn patched(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let dim = call.optional_integer(2, "dim")?.unwrap_or(0);
    let dim = dimension(dim, call.tensor(0)?.shape.len())?;
    others(call, &[0, 1], &[dim], 1, |dim| dim)
}

/// The dimensions that a reduction removes, from argument 1: all of them if it is empty.
fn reduced(call: &TypedCall<'_>, rank: usize) -> Result<Vec<usize>, Unsuited> {
    let dims = call.optional_integers(1, "dim")?.unwrap_or_default();
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

/// `mean(x, dims, keepdim)`, `amax`, `any`: the dimensions that remain.
pub fn remaining(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let dims = reduced(call, call.tensor(0)?.shape.len())?;
    kept(call, call.flag(2, "keepdim"), &dims)
}

/// `var(x, dims, correction, keepdim)`, the last two by name: the dimensions that remain.
pub fn remaining_of_variance(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let dims = reduced(call, call.tensor(0)?.shape.len())?;
    kept(call, call.flag(usize::MAX, "keepdim"), &dims)
}

/// `sum(x, dims, keepdim)`: the dimensions that remain, and terms along the others.
pub fn summed(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let shape = &call.tensor(0)?.shape;
    let dims = reduced(call, shape.len())?;
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

/// Softmax and its logarithm, `(x, dim, …)`: all but that dimension.
pub fn normalised(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let dim = dimension(call.integer(1, "dim")?, call.tensor(0)?.shape.len())?;
    others(call, &[0], &[dim], 1, |dim| dim)
}

/// Their gradients, `(gradient, output, dim, type)`: all but that dimension.
pub fn normalised_gradient(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let dim = dimension(call.integer(2, "dim")?, call.tensor(0)?.shape.len())?;
    others(call, &[0, 1], &[dim], 1, |dim| dim)
}
