//! Axes of products, look-ups, normalisations, losses and attention. Invariant: what is contracted,
//! or summed over rows, gives terms.

use crate::operator::axes::{Along, Axis, Literal, Part, axis, long, one, others, rows, undivided};
use crate::operator::call::{TypedCall, Unsuited};
use crate::tensor::{Argument, TensorType};

/// `mm(a, b)`: rows of `a`, columns of `b`, and terms along what both have.
pub fn matrices(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (m, k, n) = product(call, 0)?;
    Ok(long([
        axis(m, &[Some(0), None], &[rows(0)]),
        axis(n, &[None, Some(1)], &[rows(1)]),
        axis(k, &[Some(1), Some(0)], &[Part::Terms]),
    ]))
}

/// `addmm(bias, a, b)`: rows of `a` and columns of `b`. Terms would add the bias several times.
pub fn biased(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let ((m, _, n), bias) = (product(call, 1)?, call.tensor(0)?);
    let along = |dim: usize, extent: u64| {
        let own = (dim + bias.shape.len()).checked_sub(2)?;
        (bias.shape[own] == extent).then_some(own)
    };
    Ok(long([
        axis(m, &[along(0, m), Some(0), None], &[rows(0)]),
        axis(n, &[along(1, n), None, Some(1)], &[rows(1)]),
    ]))
}

/// The rows, the inner extent and the columns of a product of matrices from argument `left` on.
fn product(call: &TypedCall<'_>, left: usize) -> Result<(u64, u64, u64), Unsuited> {
    match (&call.tensor(left)?.shape[..], &call.tensor(left + 1)?.shape[..]) {
        (&[m, k], &[_, n]) => Ok((m, k, n)),
        _ => Err(Unsuited::Argument { index: left, wanted: "a matrix" }),
    }
}

/// `bmm(a, b)`: batches, rows of `a`, columns of `b`, and terms along what both have.
pub fn batched(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (&[batches, m, k], &[_, _, n]) = (&call.tensor(0)?.shape[..], &call.tensor(1)?.shape[..])
    else {
        return Err(Unsuited::Argument { index: 0, wanted: "matrices" });
    };
    Ok(long([
        axis(batches, &[Some(0), Some(0)], &[rows(0)]),
        axis(m, &[Some(1), None], &[rows(1)]),
        axis(n, &[None, Some(2)], &[rows(2)]),
        axis(k, &[Some(2), Some(1)], &[Part::Terms]),
    ]))
}

/// `embedding(table, indices, …)`: indices, and columns of the table.
pub fn looked_up(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (table, indices) = (call.tensor(0)?, call.tensor(1)?);
    let columns = table.shape.last().copied().unwrap_or(0);
    let axes = indices.shape.iter().enumerate();
    let axes = axes.map(|(dim, &extent)| axis(extent, &[None, Some(dim)], &[rows(dim)]));
    Ok(long(axes.chain([axis(columns, &[Some(1), None], &[rows(indices.shape.len())])])))
}

/// `embedding_dense_backward(gradient, indices, …)`: columns, and terms along indices, unless they
/// are weighted by how often each occurs.
pub fn looked_up_gradient(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (gradient, indices) = (call.tensor(0)?, call.tensor(1)?);
    let columns = gradient.shape.last().copied().unwrap_or(0);
    let is_weighted = call.flag(4, "scale_grad_by_freq");
    let axes = indices.shape.iter().enumerate().filter(|_| !is_weighted);
    let axes = axes.map(|(dim, &extent)| axis(extent, &[Some(dim), Some(dim)], &[Part::Terms]));
    Ok(long(axes.chain([axis(columns, &[Some(indices.shape.len()), None], &[rows(1)])])))
}

/// The number of dimensions before those that are normalised, from argument `index`.
fn leading(call: &TypedCall<'_>, x: &TensorType, index: usize) -> Result<usize, Unsuited> {
    let normalised = call.integers(index, "normalized_shape")?.len();
    x.shape.len().checked_sub(normalised).ok_or(Unsuited::Argument { index, wanted: "a shape" })
}

/// `native_layer_norm(x, shape, weight, bias, …)`: every dimension, of which those that are
/// normalised are needed whole.
pub fn layer_norm(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let x = call.tensor(0)?;
    let first = leading(call, x, 1)?;
    let rest: Vec<usize> = (first..x.shape.len()).collect();
    let mut axes = others(call, &[0], &rest, 3, |dim| dim)?;
    axes.extend(long(rest.iter().map(|&dim| {
        let of = |index: usize| call.optional_tensor(index).map(|_| dim - first);
        let arguments = [Some(dim), None, of(2), of(3)];
        let literals = vec![Literal::item(1, dim - first)];
        let outputs = [rows(dim), Part::Whole, Part::Whole];
        Axis { literals, ..undivided(x.shape[dim], &arguments, &outputs) }
    })));
    Ok(axes)
}

/// Its gradients, `(gradient, x, shape, mean, deviation, weight, bias, …)`: the same dimensions.
/// Those of weight and bias are terms.
pub fn layer_norm_gradient(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let x = call.tensor(1)?;
    let first = leading(call, x, 2)?;
    let rest: Vec<usize> = (first..x.shape.len()).collect();
    let mut axes = others(call, &[0, 1, 3, 4], &rest, 3, |dim| dim)?;
    for axis in &mut axes {
        axis.outputs[1..].fill(Part::Terms);
    }
    axes.extend(long(rest.iter().map(|&dim| {
        let of = |index: usize| call.optional_tensor(index).map(|_| dim - first);
        let arguments = [Some(dim), Some(dim), None, None, None, of(5), of(6)];
        let literals = vec![Literal::item(2, dim - first)];
        let outputs = [rows(dim), rows(dim - first), rows(dim - first)];
        Axis { literals, ..undivided(x.shape[dim], &arguments, &outputs) }
    })));
    Ok(axes)
}

/// Reductions of `nll_loss`: one loss for each row, the mean, the sum.
const EACH_ROW: i64 = 0;
const MEAN: i64 = 1;

/// The dimensions of scores, whose classes are dimension 1, along those of their targets.
fn of_targets(shape: &[u64]) -> impl Iterator<Item = (usize, usize)> {
    (0..shape.len()).filter(|&dim| dim != 1).map(|dim| (dim, dim - usize::from(dim > 1)))
}

/// `nll_loss_forward(x, targets, weight, reduction, …)`, and that of images: rows, which a mean
/// needs whole.
pub fn loss(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (x, reduction) = (call.tensor(0)?, call.integer(3, "reduction")?);
    let Some(&classes) = x.shape.get(1) else { return Ok(Vec::new()) };
    let of_rows = of_targets(&x.shape).map(|(dim, of_target)| {
        let (extent, arguments) = (x.shape[dim], [Some(dim), Some(of_target), None, None, None]);
        match reduction {
            MEAN => undivided(extent, &arguments, &[Part::Whole, Part::Whole]),
            EACH_ROW => axis(extent, &arguments, &[rows(of_target), Part::Terms]),
            _ => axis(extent, &arguments, &[Part::Terms, Part::Terms]),
        }
    });
    let weight = call.optional_tensor(2).map(|_| 0);
    let arguments = [Some(1), None, weight];
    let of_classes = undivided(classes, &arguments, &[Part::Whole, Part::Whole]);
    Ok(long(of_rows.chain([of_classes])))
}

/// `nll_loss_backward(gradient, x, targets, weight, reduction, ignored, total weight)`, and that of
/// images: rows.
pub fn loss_gradient(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (x, reduction) = (call.tensor(1)?, call.integer(4, "reduction")?);
    let Some(&classes) = x.shape.get(1) else { return Ok(Vec::new()) };
    let of_rows = of_targets(&x.shape).map(|(dim, of_target)| {
        let gradient = (reduction == EACH_ROW).then_some(of_target);
        let arguments = [gradient, Some(dim), Some(of_target), None, None, None, None];
        axis(x.shape[dim], &arguments, &[rows(dim)])
    });
    let weight = call.optional_tensor(3).map(|_| 0);
    let of_classes = undivided(classes, &[None, Some(1), None, weight], &[rows(1)]);
    Ok(long(of_rows.chain([of_classes])))
}

/// The dimension of a mask, if there is one, along dimension `dim` of the scores of all batches and
/// heads, unless it is the same everywhere.
fn of_mask(call: &TypedCall<'_>, dim: usize, extent: u64) -> Option<Along> {
    let Some(Argument::Value(mask)) = call.argument(usize::MAX, "attn_mask") else { return None };
    let mask = call.types.type_of(*mask);
    let own = (dim + mask.shape.len()).checked_sub(4)?;
    (mask.shape[own] == extent).then_some(one(own))
}

/// Attention of `(query, key, value, dropout, causal)`: batches, heads and queries; keys, and under
/// a causal mask queries, are needed whole.
pub fn attention(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (query, key) = (&call.tensor(0)?.shape, &call.tensor(1)?.shape);
    let value = &call.tensor(2)?.shape;
    let mut axes: Vec<Axis> = (0..query.len().min(3))
        .map(|dim| {
            let keys = (dim < 2).then_some(dim);
            let arguments = [Some(dim), keys, keys];
            masked(call, dim, axis(query[dim], &arguments, &[rows(dim), rows(dim)]))
        })
        .collect();
    axes[2].divides = !call.flag(4, "is_causal");
    let arguments = [None, Some(2), Some(2)];
    axes.push(masked(call, 3, undivided(key[2], &arguments, &[Part::Whole, Part::Whole])));
    // The sizes of a head.
    axes.push(undivided(query[3], &[Some(3), Some(3)], &[Part::Whole, Part::Whole]));
    axes.push(undivided(value[3], &[None, None, Some(3)], &[rows(3), Part::Whole]));
    Ok(long(axes))
}

/// Its gradients, of `(gradient, query, key, value, output, logarithms, dropout, causal)`: the
/// same; along queries, those of keys and values are terms.
pub fn attention_gradient(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (query, key) = (&call.tensor(1)?.shape, &call.tensor(2)?.shape);
    let value = &call.tensor(3)?.shape;
    let mut axes: Vec<Axis> = (0..query.len().min(3))
        .map(|dim| {
            let keys = (dim < 2).then_some(dim);
            let arguments = [Some(dim), Some(dim), keys, keys, Some(dim), Some(dim)];
            let of_keys = keys.map_or(Part::Terms, rows);
            masked(call, dim, axis(query[dim], &arguments, &[rows(dim), of_keys, of_keys]))
        })
        .collect();
    axes[2].divides = !call.flag(7, "is_causal");
    let arguments = [None, None, Some(2), Some(2)];
    let outputs = [Part::Whole, rows(2), rows(2)];
    axes.push(masked(call, 3, undivided(key[2], &arguments, &outputs)));
    let (of_query, of_value) = ([None, Some(3), Some(3)], [Some(3), None, None, Some(3), Some(3)]);
    axes.push(undivided(query[3], &of_query, &[rows(3), rows(3), Part::Whole]));
    axes.push(undivided(value[3], &of_value, &[Part::Whole, Part::Whole, rows(3)]));
    Ok(long(axes))
}

/// The axis with its dimension of the mask, which is dimension `dim` of the scores of all batches
/// and heads.
fn masked(call: &TypedCall<'_>, dim: usize, mut axis: Axis) -> Axis {
    axis.keywords.extend(of_mask(call, dim, axis.extent).map(|along| ("attn_mask", along)));
    axis
}
