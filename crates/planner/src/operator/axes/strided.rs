//! Axes of tensors that are made, or seen, with given strides. Invariant: an axis is the outermost
//! dimension, since the strides of all others are numbers that do not depend on its extent.

use crate::operator::axes::view::{Factor, factors};
use crate::operator::axes::{Axis, Literal, Part, axis, long, rows, undivided};
use crate::operator::call::{TypedCall, Unsuited};

/// A shape and strides among the arguments.
struct Layout {
    shape: Vec<u64>,
    strides: Vec<u64>,
}

impl Layout {
    /// Those of arguments `index` and `index + 1`, if there are none that are negative.
    fn of(call: &TypedCall<'_>, index: usize) -> Result<Option<Layout>, Unsuited> {
        let (shape, strides) = (call.integers(index, "size")?, call.integers(index + 1, "stride")?);
        let whole = |numbers: Vec<i64>| -> Option<Vec<u64>> {
            numbers.into_iter().map(|number| u64::try_from(number).ok()).collect()
        };
        let both = whole(shape).zip(whole(strides));
        let found = both.map(|(shape, strides)| Layout { shape, strides });
        Ok(found.filter(|layout| layout.shape.len() == layout.strides.len()))
    }

    /// The dimension of two or more elements that has the largest stride.
    fn outermost(&self) -> Option<usize> {
        let long_ones = (0..self.shape.len()).filter(|&dim| self.shape[dim] > 1);
        long_ones.max_by_key(|&dim| self.strides[dim])
    }

    /// Whether all elements lie one after the other.
    fn is_contiguous(&self) -> bool {
        let mut next = 1u64;
        self.shape.iter().zip(&self.strides).rev().all(|(&extent, &stride)| {
            let follows = extent == 1 || stride == next;
            next = next.saturating_mul(extent);
            follows
        })
    }
}

/// What the elements of argument 0 become that are seen with the strides of argument `index`: those
/// of the outermost dimension, if all elements are seen in the order in which they lie.
fn seen(call: &TypedCall<'_>, index: usize) -> Result<Option<Factor>, Unsuited> {
    let (x, layout) = (call.tensor(0)?, Layout::of(call, index)?);
    let starts = call.optional_integer(index + 2, "storage_offset")?.unwrap_or(0);
    let Some(layout) = layout.filter(|_| u64::try_from(starts) == Ok(x.offset)) else {
        return Ok(None);
    };
    let own = Layout { shape: x.shape.clone(), strides: x.strides_or_contiguous() };
    let Some(outermost) = layout.outermost() else { return Ok(None) };
    let same_strides =
        |dim: usize| layout.shape[dim] == 1 || layout.strides[dim] == own.strides[dim];
    let is_same = layout.shape == own.shape && (0..layout.shape.len()).all(same_strides);
    let elements = layout.shape.iter().copied().fold(1, u64::saturating_mul);
    let is_view = own.is_contiguous() && layout.is_contiguous() && elements == x.elements();
    let found = if is_same || is_view { factors(&x.shape, &layout.shape) } else { Vec::new() };
    // All of that dimension, so that nothing is outside of it.
    let mut of_outermost = found.into_iter().filter(|factor| factor.to.dim == outermost);
    Ok(of_outermost.next().filter(|factor| factor.extent == layout.shape[outermost]))
}

/// `as_strided(x, size, stride, offset)`, if it sees all of `x`.
pub fn restrided(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let Some(Factor { extent, from, to }) = seen(call, 1)? else { return Ok(Vec::new()) };
    let mut arguments = vec![None; call.args.len()];
    arguments[0] = Some(from);
    let literals = vec![Literal::item(1, to.dim)];
    Ok(vec![Axis { arguments, literals, ..undivided(extent, &[], &[Part::Rows(to)]) }])
}

/// `as_strided_scatter(x, patch, size, stride, offset)`, if it writes over all of `x`.
pub fn restrided_over(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let Some(Factor { extent, from, to }) = seen(call, 2)? else { return Ok(Vec::new()) };
    let mut arguments = vec![None; call.args.len()];
    (arguments[0], arguments[1]) = (Some(from), Some(to));
    let literals = vec![Literal::item(2, to.dim)];
    Ok(vec![Axis { arguments, literals, ..undivided(extent, &[], &[Part::Rows(from)]) }])
}

/// `new_empty_strided(x, size, stride)`; of `x`, only the type matters.
pub fn made_strided(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let mut axes = ignored(call)?;
    if let Some(layout) = Layout::of(call, 1)?
        && let Some(dim) = layout.outermost()
    {
        let made = undivided(layout.shape[dim], &vec![None; call.args.len()], &[rows(dim)]);
        axes.push(Axis { literals: vec![Literal::item(1, dim)], ..made });
    }
    Ok(axes)
}

/// `new_zeros(x, size)` and others that take only the type of `x`: every dimension of the size.
pub fn made_sized(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let size = call.integers(1, "size")?;
    let made = size.iter().enumerate().map(|(dim, &extent)| {
        let extent = u64::try_from(extent).unwrap_or(0);
        let made = axis(extent, &vec![None; call.args.len()], &[rows(dim)]);
        Axis { literals: vec![Literal::item(1, dim)], ..made }
    });
    Ok(ignored(call)?.into_iter().chain(long(made)).collect())
}

/// Every dimension of argument 0, whose elements are not read.
fn ignored(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let extents = call.tensor(0)?.shape.iter().enumerate();
    Ok(long(extents.map(|(dim, &extent)| undivided(extent, &[Some(dim)], &[Part::Whole]))))
}
