//! Axes of a call: dimensions of its tensors that go together: if one of them has another extent,
//! all have. Invariant: making a call for consecutive parts of an axis that can be divided, and
//! joining what is [`Part::Rows`] and adding up what is [`Part::Terms`], gives the outputs of the
//! whole call; along all other axes, and along dimensions that lie on none, it needs the whole
//! tensor.
//!
//! Nothing is said of dimensions of extent one: they may be broadcast. Random numbers are drawn for
//! whole tensors, and a scan, as under a causal mask, carries something from one part to the next.

mod foreign;
mod fused;
mod images;
mod layer;
mod linear;
mod reduction;
mod slices;
mod strided;
mod view;

pub(super) use foreign::rule as foreign_rule;
pub use reduction::{
    averaged, normalised, normalised_gradient, remaining, remaining_of_variance, summed, totalled,
};

pub use linear::Linear;

pub use layer::{
    attention, attention_gradient, batched, biased, layer_norm, layer_norm_gradient, looked_up,
    looked_up_gradient, loss, loss_gradient, matrices,
};
pub use slices::{patched, sliced};
pub use strided::restrided;
pub use view::{expanded, permuted, selected, split, squeezed, transposed, unsqueezed, viewed};

use crate::operator::call::{TypedCall, Unsuited, dimension};
use crate::operator::output::broadcast;
use crate::tensor::{Argument, TensorType};

/// A dimension that lies along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Along {
    /// The dimension.
    pub dim: usize,
    /// How its extent follows from the steps along the axis.
    pub extent: Linear,
}

/// What a call for a part of an axis makes of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A part of the output.
    Rows(Along),
    /// A term of the output: the sum of all of them is the output, up to rounding, since it is in
    /// another order.
    Terms,
    /// Nothing that helps: the output has no dimension along the axis, and is no sum over it.
    Whole,
}

/// A whole number among the arguments that is an extent along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Literal {
    /// The positional argument.
    pub argument: usize,
    /// If that is a list, the item.
    pub item: Option<usize>,
    /// How it follows from the steps along the axis.
    pub extent: Linear,
}

impl Literal {
    /// Argument `argument` is as many as there are steps.
    fn whole(argument: usize) -> Literal {
        Literal { argument, item: None, extent: Linear::ONE }
    }

    /// Item `item` of argument `argument` is.
    fn item(argument: usize, item: usize) -> Literal {
        Literal { argument, item: Some(item), extent: Linear::ONE }
    }
}

/// An axis of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The number of steps along it: at least two.
    pub extent: u64,
    /// Whether the call can be made for one part of the axis after the other. If not, its
    /// dimensions still go together, as those of a softmax and of what it normalises do.
    pub divides: bool,
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
    let (keywords, literals, outputs) = (Vec::new(), Vec::new(), outputs.to_vec());
    Axis { extent, divides: true, arguments, keywords, literals, outputs }
}

/// The same for a call that needs all of it at once.
fn undivided(extent: u64, arguments: &[Option<usize>], outputs: &[Part]) -> Axis {
    Axis { divides: false, ..axis(extent, arguments, outputs) }
}

/// A dimension along an axis of as many steps.
fn one(dim: usize) -> Along {
    Along { dim, extent: Linear::ONE }
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

/// The same for a call that draws random numbers for whole tensors, with `N` outputs.
pub fn drawn<const N: usize>(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let mut axes = elements(call)?;
    for axis in &mut axes {
        axis.divides = false;
        axis.outputs = vec![axis.outputs[0]; N];
    }
    Ok(axes)
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
        let literals = vec![Literal::item(0, dim)];
        let extent = u64::try_from(extent).unwrap_or(0);
        Axis { literals, ..axis(extent, &[None, None], &[rows(dim)]) }
    })))
}

/// `arange(start, end, step)`: all of it, if it counts from zero in steps of one.
pub fn counted(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let is = |index: usize, name: &str, number: f64| {
        call.argument(index, name).is_none_or(|given| given.number() == Some(number))
    };
    let Some(Argument::Int(end)) = call.argument(1, "end") else { return Ok(Vec::new()) };
    let extent = u64::try_from(*end).unwrap_or(0);
    let literals = vec![Literal::whole(1)];
    let found = Axis { literals, ..undivided(extent, &[None, None], &[rows(0)]) };
    Ok(long([found].into_iter().filter(|_| is(0, "start", 0.0) && is(2, "step", 1.0))))
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

/// `cat(tensors, dim)`: all but that dimension, along which extents add up.
pub fn side_by_side(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    // Vectors without elements take part in no concatenation.
    let mut tensors = call.tensors(0);
    let count = tensors.len();
    tensors.retain(|tensor| tensor.shape != [0]);
    let Some(first) = tensors.first() else { return Ok(Vec::new()) };
    let dim = call.optional_integer(1, "dim")?.unwrap_or(0);
    let joined = dimension(dim, first.shape.len())?;
    let agrees = |&dim: &usize| {
        let mut extents = tensors.iter().map(|tensor| tensor.shape.get(dim));
        dim != joined && extents.all(|extent| extent == Some(&first.shape[dim]))
    };
    Ok(long((0..first.shape.len()).filter(agrees).map(|dim| Axis {
        divides: tensors.len() == count,
        ..axis(first.shape[dim], &[Some(dim), None], &[rows(dim)])
    })))
}

/// `gather(x, dim, index)`: that dimension of the index, and all others of both; that of `x` is
/// looked up in.
pub fn gathered(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (x, index) = (call.tensor(0)?, call.tensor(2)?);
    let dim = dimension(call.integer(1, "dim")?, index.shape.len())?;
    let mut axes = others(call, &[0, 2], &[dim], 1, |dim| dim)?;
    if let (Some(&rows_of_x), Some(&extent)) = (x.shape.get(dim), index.shape.get(dim)) {
        axes.extend(long([
            axis(extent, &[None, None, Some(dim)], &[rows(dim)]),
            undivided(rows_of_x, &[Some(dim)], &[Part::Whole]),
        ]));
    }
    Ok(axes)
}

/// `scatter(x, dim, index, value)`: all but that dimension, along which any element of `x` may be
/// written.
pub fn scattered(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (x, index) = (call.tensor(0)?, call.tensor(2)?);
    let dim = dimension(call.integer(1, "dim")?, x.shape.len())?;
    let mut axes = others(call, &[0, 2], &[dim], 1, |dim| dim)?;
    if let (Some(&extent), Some(&written)) = (x.shape.get(dim), index.shape.get(dim)) {
        axes.extend(long([
            undivided(extent, &[Some(dim)], &[rows(dim)]),
            undivided(written, &[None, None, Some(dim)], &[Part::Whole]),
        ]));
    }
    Ok(axes)
}
