//! Axes of attention as GPUs have it. Invariant: batches and heads can be divided; what is padded,
//! as logarithms are by some kernels, is on no axis.

use crate::operator::axes::{Axis, Literal, Part, axis, long, rows, undivided};
use crate::operator::call::{TypedCall, Unsuited};

/// Attention of `(query, key, value, …)`: batches and heads of results and logarithms.
pub fn fused_attention(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let shape = &call.tensor(0)?.shape;
    Ok(long(shape.iter().take(2).enumerate().map(|(dim, &extent)| {
        let mut outputs = vec![Part::Whole; call.outputs.len().max(2)];
        outputs[..2].fill(rows(dim));
        axis(extent, &[Some(dim); 3], &outputs)
    })))
}

/// The same where logarithms are not padded: queries and keys, too.
pub fn flash_attention(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (query, key) = (&call.tensor(0)?.shape, &call.tensor(1)?.shape);
    let mut axes = fused_attention(call)?;
    let whole = vec![Part::Whole; call.outputs.len().max(2)];
    let mut of_queries = whole.clone();
    of_queries[..2].fill(rows(2));
    let extent = |shape: &[u64]| shape.get(2).copied().unwrap_or(0);
    axes.extend(long([
        undivided(extent(query), &[Some(2)], &of_queries),
        undivided(extent(key), &[None, Some(2), Some(2)], &whole),
    ]));
    Ok(axes)
}

/// Its gradients, of `(gradient, query, key, value, output, logarithms, _, _, queries, keys, …)`:
/// the same; how many queries and keys there are is among the arguments.
pub fn flash_attention_gradient(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (query, key) = (&call.tensor(1)?.shape, &call.tensor(2)?.shape);
    let count = call.outputs.len().max(3);
    let mut axes: Vec<Axis> = long(
        query
            .iter()
            .take(2)
            .enumerate()
            .map(|(dim, &extent)| axis(extent, &[Some(dim); 6], &vec![rows(dim); count])),
    );
    let outputs = |of_queries: Part, of_keys: Part| {
        let mut outputs = vec![Part::Whole; count];
        (outputs[0], outputs[1], outputs[2]) = (of_queries, of_keys, of_keys);
        outputs
    };
    let extent = |shape: &[u64]| shape.get(2).copied().unwrap_or(0);
    let queries = [Some(2), Some(2), None, None, Some(2), Some(2)];
    let (of_queries, of_keys) = (outputs(rows(2), Part::Whole), outputs(Part::Whole, rows(2)));
    let queries = undivided(extent(query), &queries, &of_queries);
    let keys = undivided(extent(key), &[None, None, Some(2), Some(2)], &of_keys);
    axes.extend(long([
        Axis { literals: vec![Literal::whole(8)], ..queries },
        Axis { literals: vec![Literal::whole(9)], ..keys },
    ]));
    Ok(axes)
}
