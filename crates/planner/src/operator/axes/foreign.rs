//! Axes of operators that the engine does not execute, so that steps for planning can have other
//! sizes, too. Invariant: as for the operators of the table; what is not here has no known axes.

use crate::operator::axes::fused::{
    efficient_attention, efficient_attention_gradient, flash_attention, flash_attention_gradient,
};
use crate::operator::axes::images::{
    batch_norm, batch_norm_gradient, convolution, convolution_gradient, group_norm,
    group_norm_gradient, padded, pooled, pooled_gradient, shuffled, upsampled_gradient,
};
use crate::operator::axes::layer::{loss, loss_gradient};
use crate::operator::axes::reduction::{norm, normalised, through};
use crate::operator::axes::slices::{patched_index, selected_gradient, sliced_gradient};
use crate::operator::axes::strided::{made_sized, made_strided, restrided_over};
use crate::operator::axes::{
    Along, Axes, Axis, Linear, Literal, Part, axis, drawn, elements, long, others, remaining,
    remaining_of_variance, rows, sized, undivided, viewed,
};
use crate::operator::call::{TypedCall, Unsuited, dimension};
use crate::operator::output::broadcast;
use crate::tensor::Argument;

/// The axes of calls of `name`, as PyTorch prints an overload; `None` if nothing is known of them.
pub fn rule(name: &str) -> Option<Axes> {
    if let Some(simple) = name.strip_prefix("aten.").and_then(|name| name.split('.').next())
        && ELEMENTS.contains(&simple)
    {
        return Some(elements);
    }
    Some(match name {
        "aten.bernoulli.p" | "aten.rand_like.default" | "aten.randn_like.default" => drawn::<1>,
        "aten.ones.default" | "aten.zeros.default" => sized,
        "aten.empty_permuted.default" | "aten.rand.default" | "aten.randn.default" => {
            undivided_size
        }
        "aten.new_empty_strided.default" => made_strided,
        "aten.new_empty.default"
        | "aten.new_full.default"
        | "aten.new_ones.default"
        | "aten.new_zeros.default" => made_sized,
        "aten.as_strided_scatter.default" => restrided_over,
        "aten.convolution.default" => convolution,
        "aten.convolution_backward.default" => convolution_gradient,
        "aten._native_batch_norm_legit_functional.default"
        | "aten._native_batch_norm_legit.default"
        | "aten._native_batch_norm_legit.no_stats"
        | "aten.native_batch_norm.default" => batch_norm,
        "aten.native_batch_norm_backward.default" => batch_norm_gradient,
        "aten.native_group_norm.default" => group_norm,
        "aten.native_group_norm_backward.default" => group_norm_gradient,
        "aten._adaptive_avg_pool2d.default"
        | "aten.avg_pool2d.default"
        | "aten.upsample_nearest2d.default"
        | "aten.upsample_nearest2d.vec"
        | "aten.upsample_bilinear2d.default"
        | "aten.upsample_bilinear2d.vec" => pooled::<1>,
        "aten.max_pool2d_with_indices.default" => pooled::<2>,
        "aten._adaptive_avg_pool2d_backward.default"
        | "aten.avg_pool2d_backward.default"
        | "aten.max_pool2d_with_indices_backward.default" => pooled_gradient,
        "aten.upsample_nearest2d_backward.default"
        | "aten.upsample_bilinear2d_backward.default" => upsampled_gradient,
        "aten.constant_pad_nd.default" => padded,
        "aten.cumsum.default" => accumulated,
        "aten.topk.default" => picked,
        "aten.max.dim" | "aten.min.dim" => extremum,
        "aten.flip.default" => flipped,
        "aten._safe_softmax.default" => normalised,
        "aten.tril.default" | "aten.triu.default" => triangle,
        "aten.repeat.default" => repeated,
        "aten.index_select.default" => chosen,
        "aten._unsafe_view.default" | "aten.reshape.default" => viewed,
        "aten.t.default" => exchanged,
        "aten.slice_backward.default" => sliced_gradient,
        "aten.select_backward.default" => selected_gradient,
        "aten.split.Tensor" | "aten.unsafe_split.Tensor" => cut,
        "aten.arange.default" => counted_to::<0>,
        "aten.arange.start" => counted_to::<1>,
        "aten.sort.default" => sorted,
        "aten.amin.default" | "aten.all.dim" | "aten.prod.dim_int" | "aten.logsumexp.default" => {
            remaining
        }
        "aten.argmax.default" | "aten.argmin.default" => remaining,
        "aten.var_mean.correction" => variance_and_mean,
        "aten.std.correction" => remaining_of_variance,
        "aten.linalg_vector_norm.default" => norm,
        "aten.index.Tensor" | "aten._unsafe_index.Tensor" => indexed,
        "aten.index_put.default" | "aten._unsafe_index_put.default" => put,
        "aten.select_scatter.default" => patched_index,
        "aten.pixel_shuffle.default" | "aten.pixel_unshuffle.default" => shuffled,
        "aten.roll.default" => rolled,
        "aten.stack.default" => stacked,
        "aten.unbind.int" => unbound,
        "aten.index_add.default" => added_at,
        "aten.nll_loss2d_forward.default" => loss,
        "aten.nll_loss2d_backward.default" => loss_gradient,
        "aten.mse_loss.default"
        | "aten.smooth_l1_loss.default"
        | "aten.huber_loss.default"
        | "aten.soft_margin_loss.default" => compared::<2>,
        "aten.binary_cross_entropy.default" => compared::<3>,
        "aten.binary_cross_entropy_with_logits.default" => compared::<4>,
        "aten.scatter.src" | "aten.scatter_add.default" => scattered_source,
        "aten._scaled_dot_product_flash_attention.default" => flash_attention,
        "aten._scaled_dot_product_efficient_attention.default" => efficient_attention,
        "aten._scaled_dot_product_efficient_attention_backward.default" => {
            efficient_attention_gradient
        }
        "aten._scaled_dot_product_flash_attention_backward.default" => flash_attention_gradient,
        _ => return None,
    })
}

/// Packets whose every overload works element by element.
const ELEMENTS: [&str; 74] = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "binary_cross_entropy_backward",
    "bitwise_or",
    "bitwise_xor",
    "ceil",
    "clamp",
    "clamp_max",
    "clamp_min",
    "copy",
    "cosh",
    "div",
    "elu",
    "elu_backward",
    "empty_like",
    "erf",
    "erfc",
    "erfinv",
    "exp2",
    "expm1",
    "fill",
    "floor",
    "floor_divide",
    "fmod",
    "hardsigmoid",
    "hardsigmoid_backward",
    "hardswish",
    "hardswish_backward",
    "hardtanh",
    "hardtanh_backward",
    "huber_loss_backward",
    "isinf",
    "isnan",
    "leaky_relu",
    "leaky_relu_backward",
    "lift_fresh_copy",
    "log10",
    "log1p",
    "log2",
    "log_sigmoid_backward",
    "logical_or",
    "logical_xor",
    "masked_fill",
    "mish",
    "mish_backward",
    "mse_loss_backward",
    "ones_like",
    "pow",
    "relu6",
    "remainder",
    "round",
    "rsub",
    "sgn",
    "sigmoid_backward",
    "sign",
    "silu_backward",
    "sinh",
    "softplus",
    "smooth_l1_loss_backward",
    "soft_margin_loss_backward",
    "softplus_backward",
    "square",
    "tan",
    "tanh_backward",
    "trunc",
    "where",
    "xlogy",
    "zero",
    "zeros_like",
];

/// A tensor of this size, made at once.
fn undivided_size(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let mut axes = sized(call)?;
    axes.iter_mut().for_each(|axis| axis.divides = false);
    Ok(axes)
}

/// `cumsum(x, dim)`: all dimensions, that one whole.
fn accumulated(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let dim = dimension(call.integer(1, "dim")?, call.tensor(0)?.shape.len())?;
    through(call, &[0], dim, 1)
}

/// `topk(x, k, dim)`: all other dimensions; that one is looked through.
fn picked(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let shape = &call.tensor(0)?.shape;
    let dim = dimension(call.optional_integer(2, "dim")?.unwrap_or(-1), shape.len())?;
    let mut axes = others(call, &[0], &[dim], 2, |dim| dim)?;
    let extent = shape.get(dim).copied().unwrap_or(0);
    axes.extend(long([undivided(extent, &[Some(dim)], &[Part::Whole, Part::Whole])]));
    Ok(axes)
}

/// `max(x, dim, keepdim)` with its indices: all dimensions, that one whole.
fn extremum(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let shape = &call.tensor(0)?.shape;
    let gone = dimension(call.integer(1, "dim")?, shape.len())?;
    let keeps = call.flag(2, "keepdim");
    let mut axes = others(call, &[0], &[gone], 2, |dim| dim - usize::from(!keeps && dim > gone))?;
    let extent = shape.get(gone).copied().unwrap_or(0);
    axes.extend(long([undivided(extent, &[Some(gone)], &[Part::Whole, Part::Whole])]));
    Ok(axes)
}

/// `flip(x, dims)`: all dimensions, these whole.
fn flipped(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let rank = call.tensor(0)?.shape.len();
    let dims = call.integers(1, "dims")?;
    let dims = dims.iter().map(|&dim| dimension(dim, rank)).collect::<Result<Vec<_>, _>>()?;
    undivided_along(call, &dims)
}

/// `roll(x, shifts, dims)`: all dimensions, these whole.
fn rolled(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let rank = call.tensor(0)?.shape.len();
    let dims = call.optional_integers(2, "dims")?.unwrap_or_default();
    // All elements in a row, whatever their dimensions are.
    if dims.is_empty() {
        return Ok(Vec::new());
    }
    let dims = dims.iter().map(|&dim| dimension(dim, rank)).collect::<Result<Vec<_>, _>>()?;
    undivided_along(call, &dims)
}

/// `unbind(x, dim)`: all but that dimension.
fn unbound(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let rank = call.tensor(0)?.shape.len();
    let gone = dimension(call.optional_integer(1, "dim")?.unwrap_or(0), rank)?;
    others(call, &[0], &[gone], call.outputs.len(), |dim| dim - usize::from(dim > gone))
}

/// `stack(tensors, dim)`: all dimensions, with a new one among them.
fn stacked(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let Some(first) = call.tensors(0).first().copied() else { return Ok(Vec::new()) };
    let rank = first.shape.len();
    let new = dimension(call.optional_integer(1, "dim")?.unwrap_or(0), rank + 1)?;
    others(call, &[0], &[], 1, |dim| dim + usize::from(dim >= new))
}

/// `tril(x, diagonal)`, `triu(x, diagonal)`: all dimensions, rows and columns whole.
fn triangle(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let rank = call.tensor(0)?.shape.len();
    undivided_along(call, &[rank.saturating_sub(2), rank.saturating_sub(1)])
}

/// All dimensions of `x`, as they are in the output, of which these must stay whole.
fn undivided_along(call: &TypedCall<'_>, dims: &[usize]) -> Result<Vec<Axis>, Unsuited> {
    let mut axes = others(call, &[0], &[], 1, |dim| dim)?;
    for axis in &mut axes {
        axis.divides = dims.iter().all(|&dim| axis.outputs[0] != rows(dim));
    }
    Ok(axes)
}

/// `repeat(x, repeats)`: every dimension of `x`, and how often it is repeated.
fn repeated(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let shape = &call.tensor(0)?.shape;
    let repeats = call.integers(1, "repeats")?;
    let Some(new) = repeats.len().checked_sub(shape.len()) else { return Ok(Vec::new()) };
    let both = repeats.iter().enumerate().flat_map(|(dim, &times)| {
        let (own, times) = (dim.checked_sub(new), times.max(0).unsigned_abs());
        let extent = own.map_or(1, |own| shape[own]);
        let output = |extent: Linear| [Part::Rows(Along { dim, extent })];
        let of_x = Linear { outer: times.max(1), ..Linear::ONE };
        let of_times = Linear { block: extent.max(1), ..Linear::ONE };
        let literals = vec![Literal::item(1, dim)];
        [
            undivided(extent, &[own, None], &output(of_x)),
            Axis { literals, ..undivided(times, &[None, None], &output(of_times)) },
        ]
    });
    Ok(long(both))
}

/// `index_select(x, dim, index)`: that dimension of the index, and all others; that of `x` is
/// looked up in.
fn chosen(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (x, index) = (call.tensor(0)?, call.tensor(2)?);
    let dim = dimension(call.integer(1, "dim")?, x.shape.len())?;
    let mut axes = others(call, &[0], &[dim], 1, |dim| dim)?;
    if let (Some(&extent), Some(&found)) = (x.shape.get(dim), index.shape.first()) {
        axes.extend(long([
            axis(found, &[None, None, Some(0)], &[rows(dim)]),
            undivided(extent, &[Some(dim)], &[Part::Whole]),
        ]));
    }
    Ok(axes)
}

/// `t(x)`: both dimensions.
fn exchanged(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let last = call.tensor(0)?.shape.len().saturating_sub(1);
    others(call, &[0], &[], 1, |dim| last - dim)
}

/// `split(x, size, dim)`: all but that dimension.
fn cut(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let rank = call.tensor(0)?.shape.len();
    let dim = dimension(call.optional_integer(2, "dim")?.unwrap_or(0), rank)?;
    others(call, &[0], &[dim], call.outputs.len(), |dim| dim)
}

/// `arange` whose end is argument `END`: all of it, if it counts from zero.
fn counted_to<const END: usize>(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let starts = |index: usize| call.args.get(index).and_then(Argument::number);
    let Some(Argument::Int(end)) = call.args.get(END) else { return Ok(Vec::new()) };
    if END == 1 && starts(0) != Some(0.0) {
        return Ok(Vec::new());
    }
    let made = undivided(u64::try_from(*end).unwrap_or(0), &[None], &[rows(0)]);
    Ok(long([Axis { literals: vec![Literal::whole(END)], ..made }]))
}

/// `sort(x, dim)`: all dimensions, that one whole.
fn sorted(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let rank = call.tensor(0)?.shape.len();
    let dim = dimension(call.optional_integer(1, "dim")?.unwrap_or(-1), rank)?;
    through(call, &[0], dim, 2)
}

/// `var_mean(x, dims, …)`: as the variance alone.
fn variance_and_mean(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let mut axes = remaining_of_variance(call)?;
    axes.iter_mut().for_each(|axis| axis.outputs.push(axis.outputs[0]));
    Ok(axes)
}

/// How a tensor is indexed by tensors: `index(x, indices)`, one index for each dimension of `x`, or
/// none.
struct Indexing {
    /// The dimensions that are indexed.
    dims: Vec<usize>,
    /// What the indices broadcast to.
    shape: Vec<u64>,
    /// Where the dimensions of the indices begin in the result.
    place: usize,
    /// Whether all indices have that number of dimensions.
    is_even: bool,
}

impl Indexing {
    fn of(call: &TypedCall<'_>) -> Option<Indexing> {
        let Some(Argument::List(indices)) = call.args.get(1) else { return None };
        let given = indices.iter().enumerate();
        let dims: Vec<usize> = given
            .filter(|(_, index)| matches!(index, Argument::Value(_)))
            .map(|(dim, _)| dim)
            .collect();
        let tensors = call.tensors(1);
        tensors.first()?;
        let shape = broadcast(tensors.iter().map(|tensor| tensor.shape.as_slice())).ok()?;
        let is_even = tensors.iter().all(|tensor| tensor.shape.len() == shape.len());
        // Indices that do not follow one another put their dimensions first.
        let together = dims.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        let place = if together { dims[0] } else { 0 };
        Some(Indexing { dims, shape, place, is_even })
    }

    /// Where a dimension of `x` that is not indexed is in the result.
    fn place_of(&self, dim: usize) -> usize {
        let before = dim - self.dims.iter().filter(|&&indexed| indexed < dim).count();
        before + if before >= self.place { self.shape.len() } else { 0 }
    }
}

/// `index(x, indices)`: dimensions of the indices, and those of `x` that are not indexed; the
/// others are looked up in.
fn indexed(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let Some(indexing) = Indexing::of(call) else { return Ok(Vec::new()) };
    let shape = &call.tensor(0)?.shape;
    let of_indices = indexing
        .shape
        .iter()
        .enumerate()
        .map(|(dim, &extent)| axis(extent, &[None, Some(dim)], &[rows(indexing.place + dim)]));
    let of_x = shape.iter().enumerate().map(|(dim, &extent)| match indexing.dims.contains(&dim) {
        true => undivided(extent, &[Some(dim)], &[Part::Whole]),
        false => axis(extent, &[Some(dim)], &[rows(indexing.place_of(dim))]),
    });
    Ok(long(of_indices.chain(of_x)))
}

/// `index_put(x, indices, values, …)`: all dimensions of `x`, those that are indexed whole; along
/// those of the indices, `x` is whole.
fn put(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let Some(indexing) = Indexing::of(call) else { return Ok(Vec::new()) };
    let (shape, values) = (&call.tensor(0)?.shape, call.tensor(2)?);
    let rank = shape.len() - indexing.dims.len() + indexing.shape.len();
    let of_values = |dim: usize, extent: u64| -> Option<usize> {
        let own = (dim + values.shape.len()).checked_sub(rank)?;
        (values.shape[own] == extent).then_some(own)
    };
    let even = indexing.shape.iter().enumerate().filter(|_| indexing.is_even);
    let of_indices = even.map(|(dim, &extent)| {
        let values = of_values(indexing.place + dim, extent);
        undivided(extent, &[None, Some(dim), values], &[Part::Whole])
    });
    let of_x = shape.iter().enumerate().map(|(dim, &extent)| match indexing.dims.contains(&dim) {
        true => undivided(extent, &[Some(dim)], &[rows(dim)]),
        false => {
            let values = of_values(indexing.place_of(dim), extent);
            axis(extent, &[Some(dim), None, values], &[rows(dim)])
        }
    });
    Ok(long(of_indices.chain(of_x)))
}

/// A loss of `(x, target, …, reduction)`: each element, or all of them at once. `REDUCTION` is the
/// argument that says so.
fn compared<const REDUCTION: usize>(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let mut axes = elements(call)?;
    let reduction = call.optional_integer(REDUCTION, "reduction")?.unwrap_or(MEAN);
    if reduction != EACH {
        for axis in &mut axes {
            (axis.divides, axis.outputs) = (false, vec![Part::Whole]);
        }
    }
    Ok(axes)
}

/// The numbers of reductions: each element's loss, or their mean.
const EACH: i64 = 0;
const MEAN: i64 = 1;

/// `index_add(x, dim, index, source)`: all other dimensions; that one whole.
fn added_at(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (x, index) = (call.tensor(0)?, call.tensor(2)?);
    let dim = dimension(call.integer(1, "dim")?, x.shape.len())?;
    let mut axes = others(call, &[0, 3], &[dim], 1, |dim| dim)?;
    if let (Some(&extent), Some(&added)) = (x.shape.get(dim), index.shape.first()) {
        axes.extend(long([
            undivided(extent, &[Some(dim)], &[rows(dim)]),
            undivided(added, &[None, None, Some(0), Some(dim)], &[Part::Whole]),
        ]));
    }
    Ok(axes)
}

/// `scatter(x, dim, index, source)`: all other dimensions; that one whole.
fn scattered_source(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (x, index) = (call.tensor(0)?, call.tensor(2)?);
    let dim = dimension(call.integer(1, "dim")?, x.shape.len())?;
    let mut axes = others(call, &[0, 2, 3], &[dim], 1, |dim| dim)?;
    if let (Some(&extent), Some(&written)) = (x.shape.get(dim), index.shape.get(dim)) {
        axes.extend(long([
            undivided(extent, &[Some(dim)], &[rows(dim)]),
            undivided(written, &[None, None, Some(dim), Some(dim)], &[Part::Whole]),
        ]));
    }
    Ok(axes)
}
