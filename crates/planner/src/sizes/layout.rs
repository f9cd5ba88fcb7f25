//! Where the elements of a tensor lie at another size. Invariant: a layout is what its operator
//! makes, or follows from that of an input or from the order of the dimensions; if none of that is
//! known, there is none.

use std::cmp::Reverse;

use crate::operator::Output;
use crate::tensor::{TensorType, is_contiguous};

/// An input of the call that makes a tensor.
pub struct Input<'a> {
    /// As it was.
    pub old: &'a TensorType,
    /// At the other size.
    pub new: &'a TensorType,
    /// Whether the tensor shows elements of it, by an operator that is not of the table.
    pub is_shown: bool,
}

/// A tensor that has another shape, if it can be said where its elements lie: `made` by an operator
/// of the table.
pub fn laid_out(
    old: &TensorType,
    shape: Vec<u64>,
    made: Option<&Output>,
    inputs: &[Input<'_>],
) -> Option<TensorType> {
    let is_laid_out = old.contiguous || old.strides.is_some();
    if let Some(place) = made.and_then(|made| made.place.as_ref()).filter(|_| is_laid_out) {
        let found = strided(old, shape, place.strides.clone(), place.offset);
        let strides = found.strides.filter(|_| !found.contiguous);
        return Some(TensorType { strides, ..found });
    }
    let is_like = |other: &TensorType| (&other.shape, &other.strides) == (&old.shape, &old.strides);
    let shown = inputs.iter().find(|input| input.is_shown && !is_like(input.old));
    if let Some(shown) = shown {
        return narrowed(old, shape, shown);
    }
    dense(old, &shape).or_else(|| outermost(old, &shape)).or_else(|| {
        let alike = inputs.iter().find(|input| is_like(input.old) && input.new.shape == shape)?;
        let TensorType { contiguous, strides, .. } = alike.new.clone();
        Some(TensorType { shape, contiguous, strides, ..old.clone() })
    })
}

/// A tensor without gaps, whose dimensions lie in the same order as before; `None` if it had some.
fn dense(old: &TensorType, shape: &[u64]) -> Option<TensorType> {
    if shape == old.shape {
        return Some(old.clone());
    }
    let Some(strides) = &old.strides else {
        return Some(TensorType { shape: shape.to_vec(), ..old.clone() });
    };
    let mut order: Vec<usize> = (0..shape.len()).collect();
    order.sort_by_key(|&dim| (strides[dim], Reverse(dim)));
    let (mut before, mut after) = (1u64, 1u64);
    let mut new = strides.clone();
    for dim in order.into_iter().filter(|&dim| old.shape[dim] != 1) {
        if strides[dim] != before {
            return None;
        }
        new[dim] = after;
        before = before.checked_mul(old.shape[dim])?;
        after = after.checked_mul(shape[dim])?;
    }
    Some(strided(old, shape.to_vec(), new, old.offset))
}

/// A tensor with gaps, of whose dimensions only the outermost one has another extent.
fn outermost(old: &TensorType, shape: &[u64]) -> Option<TensorType> {
    let strides = old.strides.as_ref()?;
    let long = (0..shape.len()).filter(|&dim| old.shape[dim] > 1);
    let outermost = long.max_by_key(|&dim| strides[dim])?;
    let is_alone = strides.iter().filter(|&stride| *stride == strides[outermost]).count() == 1;
    let is_same = |dim: usize| shape[dim] == old.shape[dim] || dim == outermost;
    let keeps = is_alone && (0..shape.len()).all(is_same);
    keeps.then(|| strided(old, shape.to_vec(), strides.clone(), old.offset))
}

/// A view of a tensor: with the same strides, if it shows a part of a dimension; with its own, if
/// only the outermost dimension of what it shows has another extent.
fn narrowed(old: &TensorType, shape: Vec<u64>, shown: &Input<'_>) -> Option<TensorType> {
    let (before, after) = (shown.old.strides_or_contiguous(), shown.new.strides_or_contiguous());
    let own = old.strides_or_contiguous();
    if let Some(gone) = removed((&old.shape, &own), (&shown.old.shape, &before)) {
        let later = old.offset.checked_sub(shown.old.offset)?;
        let steps =
            later.is_multiple_of(before[gone].max(1)).then(|| later / before[gone].max(1))?;
        let mut strides = after;
        let each = strides.remove(gone);
        return Some(strided(old, shape, strides, shown.new.offset + steps * each));
    }
    if let Some(order) = reordered((&old.shape, &own), (&shown.old.shape, &before)) {
        let strides = order.into_iter().map(|dim| after[dim]).collect();
        let is_at_start = old.offset == shown.old.offset;
        return is_at_start.then(|| strided(old, shape, strides, shown.new.offset));
    }
    if own == before {
        // It begins some elements later, along the dimension of which it shows a part.
        let later = old.offset.checked_sub(shown.old.offset)?;
        let part = (0..own.len()).find(|&dim| old.shape[dim] != shown.old.shape[dim]);
        let steps = match part {
            None if later > 0 => return None,
            None => 0,
            Some(dim) if later.is_multiple_of(own[dim].max(1)) => {
                later / own[dim].max(1) * after[dim]
            }
            Some(_) => return None,
        };
        return Some(strided(old, shape, after, shown.new.offset + steps));
    }
    let long = (0..before.len()).filter(|&dim| shown.old.shape[dim] > 1);
    let outermost = long.max_by_key(|&dim| before[dim]);
    let mut extents = shown.old.shape.iter().zip(&shown.new.shape).enumerate();
    let is_outermost = extents.all(|(dim, (old, new))| old == new || Some(dim) == outermost);
    is_outermost.then(|| TensorType { shape, ..old.clone() })
}

/// Which dimensions of another tensor those of one are, of these extents and strides, if they are
/// the same in another order, and no two are alike.
fn reordered(one: (&[u64], &[u64]), of: (&[u64], &[u64])) -> Option<Vec<usize>> {
    if one == of || one.0.len() != of.0.len() {
        return None;
    }
    let place = |dim: usize| {
        let is_it = |&at: &usize| (of.0[at], of.1[at]) == (one.0[dim], one.1[dim]);
        let mut found = (0..of.0.len()).filter(is_it);
        found.next().filter(|_| found.next().is_none())
    };
    let order: Vec<usize> = (0..one.0.len()).map(place).collect::<Option<_>>()?;
    let mut seen = order.clone();
    seen.sort_unstable();
    (seen == (0..order.len()).collect::<Vec<_>>()).then_some(order)
}

/// The dimension of which one tensor, of these extents and strides, shows one place of another, if
/// there is just one such dimension.
fn removed(one: (&[u64], &[u64]), of: (&[u64], &[u64])) -> Option<usize> {
    let without = |all: &[u64], gone: usize| [&all[..gone], &all[gone + 1..]].concat();
    let is_it = |&dim: &usize| without(of.0, dim) == one.0 && without(of.1, dim) == one.1;
    let mut found = (0..of.0.len()).filter(is_it);
    found.next().filter(|_| found.next().is_none())
}

fn strided(old: &TensorType, shape: Vec<u64>, strides: Vec<u64>, offset: u64) -> TensorType {
    let contiguous = is_contiguous(&shape, &strides);
    TensorType { shape, dtype: old.dtype, contiguous, strides: Some(strides), offset }
}

/// The bytes of a storage up to the last element of a tensor in it, if that can be said.
pub fn span(tensor: &TensorType) -> Option<u64> {
    if tensor.shape.contains(&0) {
        return Some(0);
    }
    let extents = tensor.shape.iter().zip(tensor.strides_or_contiguous());
    let last = extents.map(|(&extent, stride)| (extent - 1).checked_mul(stride));
    let last = last
        .chain([Some(tensor.offset), Some(1)])
        .try_fold(0u64, |sum, term| sum.checked_add(term?))?;
    last.checked_mul(tensor.dtype.size())
}
