//! Axes of attention as GPUs have it. Invariant: batches and heads can be divided; what is padded,
//! as the logarithms of some kernels are, is on an axis only where the padding is empty.

use crate::operator::axes::{Axis, Literal, Part, axis, long, rows, undivided};
use crate::operator::call::{TypedCall, Unsuited};
use crate::tensor::TensorType;

/// Attention of `(query, key, value, …)`: batches, heads, queries and keys.
pub fn flash_attention(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    attention(call, 3)
}

/// The same of `(query, key, value, bias, …)`, with logarithms that are padded.
pub fn efficient_attention(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    attention(call, 4)
}

/// Attention whose first arguments are this many tensors.
fn attention(call: &TypedCall<'_>, tensors: usize) -> Result<Vec<Axis>, Unsuited> {
    let (query, key) = (&call.tensor(0)?.shape, &call.tensor(1)?.shape);
    let bias = (tensors > 3).then_some(3);
    let count = call.outputs.len().max(2);
    let outputs = |output: Part, logarithm: Part| {
        let mut outputs = vec![Part::Whole; count];
        (outputs[0], outputs[1]) = (output, logarithm);
        outputs
    };
    let logarithms = |extent: u64| {
        let made = call.outputs.get(1).copied().flatten();
        let is_padded = made.is_some_and(|made| !reaches(call.types.type_of(made), 2, extent));
        if is_padded { Part::Whole } else { rows(2) }
    };
    let of_bias = |dim, extent| dimension_of(call, bias?, dim, extent);
    let mut axes: Vec<Axis> = Vec::new();
    for (dim, &extent) in query.iter().take(2).enumerate() {
        let along = [Some(dim), Some(dim), Some(dim), of_bias(dim, extent)];
        axes.push(axis(extent, &along[..tensors], &outputs(rows(dim), rows(dim))));
    }
    let (queries, keys) = (length(query), length(key));
    let along = [Some(2), None, None, of_bias(2, queries)];
    axes.push(undivided(queries, &along[..tensors], &outputs(rows(2), logarithms(queries))));
    let along = [None, Some(2), Some(2), of_bias(3, keys)];
    axes.push(undivided(keys, &along[..tensors], &outputs(Part::Whole, Part::Whole)));
    Ok(long(axes))
}

/// Where the gradients of a kernel have their arguments: query, key and value are 1 to 3.
struct Gradient {
    /// What has a dimension of queries; the last one holds logarithms.
    of_queries: [usize; 4],
    /// What is added to the products, if anything is.
    bias: Option<usize>,
    /// How many queries and keys there are, if that is given.
    counts: Option<(usize, usize)>,
}

/// Its gradients, of `(gradient, query, key, value, output, logarithms, _, _, queries, keys, …)`.
pub fn flash_attention_gradient(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    gradient(call, &Gradient { of_queries: [0, 1, 4, 5], bias: None, counts: Some((8, 9)) })
}

/// The same of `(gradient, query, key, value, bias, output, logarithms, …)`.
pub fn efficient_attention_gradient(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    gradient(call, &Gradient { of_queries: [0, 1, 5, 6], bias: Some(4), counts: None })
}

fn gradient(call: &TypedCall<'_>, places: &Gradient) -> Result<Vec<Axis>, Unsuited> {
    let &Gradient { of_queries, bias, counts } = places;
    let (query, key) = (&call.tensor(1)?.shape, &call.tensor(2)?.shape);
    let count = call.outputs.len().max(3 + usize::from(bias.is_some()));
    let last = of_queries[3];
    let of_bias = |dim, extent| dimension_of(call, bias?, dim, extent);
    let arguments = |queries: Option<usize>, keys: Option<usize>, of_bias: Option<usize>| {
        let mut along = vec![None; last + 1];
        of_queries.iter().for_each(|&argument| along[argument] = queries);
        (along[2], along[3]) = (keys, keys);
        bias.into_iter().for_each(|bias| along[bias] = of_bias);
        along
    };
    let outputs = |queries: Part, keys: Part, of_bias: Part| {
        let mut outputs = vec![Part::Whole; count];
        (outputs[0], outputs[1], outputs[2]) = (queries, keys, keys);
        outputs.iter_mut().skip(3).for_each(|output| *output = of_bias);
        outputs
    };
    let part = |dim: Option<usize>| dim.map_or(Part::Whole, rows);
    let mut axes = Vec::new();
    for (dim, &extent) in query.iter().take(2).enumerate() {
        let of_bias = of_bias(dim, extent);
        let made = outputs(rows(dim), rows(dim), part(of_bias));
        axes.push(axis(extent, &arguments(Some(dim), Some(dim), of_bias), &made));
    }
    let (queries, keys) = (length(query), length(key));
    let of_bias_queries = of_bias(2, queries);
    let mut along = arguments(Some(2), None, of_bias_queries);
    along[last] = dimension_of(call, last, 2, queries);
    let made = outputs(rows(2), Part::Whole, part(of_bias_queries));
    let literals = |argument: Option<usize>| argument.map(Literal::whole).into_iter().collect();
    let count = literals(counts.map(|(queries, _)| queries));
    axes.push(Axis { literals: count, ..undivided(queries, &along, &made) });
    let of_bias_keys = of_bias(3, keys);
    let made = outputs(Part::Whole, rows(2), part(of_bias_keys));
    let count = literals(counts.map(|(_, keys)| keys));
    let along = arguments(None, Some(2), of_bias_keys);
    axes.push(Axis { literals: count, ..undivided(keys, &along, &made) });
    Ok(long(axes))
}

/// The number of queries or keys.
fn length(shape: &[u64]) -> u64 {
    shape.get(2).copied().unwrap_or(0)
}

/// A dimension of a tensor among the arguments, if its extent is this one: it may be padded, or
/// broadcast.
fn dimension_of(call: &TypedCall<'_>, argument: usize, dim: usize, extent: u64) -> Option<usize> {
    call.optional_tensor(argument).filter(|tensor| reaches(tensor, dim, extent)).map(|_| dim)
}

fn reaches(tensor: &TensorType, dim: usize, extent: u64) -> bool {
    tensor.shape.get(dim) == Some(&extent)
}
