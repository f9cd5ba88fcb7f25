//! Views: other shapes, strides and offsets of the same bytes. Invariant: a view computes nothing;
//! its place follows from its input's, if that is known.

use crate::operator::call::{TypedCall, Unsuited, dimension};
use crate::operator::movement::extents;
use crate::operator::output::{Output, Place};
use crate::operator::slice::{Slice, limits};
use crate::tensor::{TensorType, contiguous_strides};

/// Shape and place of a view under construction. If a tensor's strides are not known, those of a
/// contiguous one are kept instead, and left out in the end.
struct View<'a> {
    of: &'a TensorType,
    shape: Vec<u64>,
    strides: Vec<u64>,
    offset: u64,
}

impl<'a> View<'a> {
    fn of(call: &TypedCall<'a>) -> Result<View<'a>, Unsuited> {
        let of = call.tensor(0)?;
        let (shape, strides) = (of.shape.clone(), of.strides_or_contiguous());
        Ok(View { of, shape, strides, offset: of.offset })
    }

    fn rank(&self) -> usize {
        self.shape.len()
    }

    fn output(self) -> Output {
        let known = self.of.contiguous || self.of.strides.is_some();
        let place = known.then_some(Place { strides: self.strides, offset: self.offset });
        Output { shape: self.shape, dtype: self.of.dtype, place }
    }

    fn outputs(self) -> Result<Vec<Output>, Unsuited> {
        Ok(vec![self.output()])
    }

    /// From element `start` of a dimension every `step`-th, `count` of them.
    fn narrow(&mut self, dim: usize, start: u64, count: u64, step: u64) {
        self.offset = self.offset.saturating_add(start.saturating_mul(self.strides[dim]));
        self.shape[dim] = count;
        self.strides[dim] = self.strides[dim].saturating_mul(step);
    }

    fn remove(&mut self, dim: usize) {
        self.shape.remove(dim);
        self.strides.remove(dim);
    }
}

/// `alias(x)`
pub fn alias(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    View::of(call)?.outputs()
}

/// `as_strided(x, size, stride, offset)`: the offset counts from the start of the storage.
pub fn as_strided(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let mut view = View::of(call)?;
    view.shape = extents(&call.integers(1, "size")?)?;
    view.strides = extents(&call.integers(2, "stride")?)?;
    if let Some(offset) = call.optional_integer(3, "storage_offset")? {
        view.offset = extents(&[offset])?[0];
    }
    if view.shape.len() != view.strides.len() {
        return Err(Unsuited::Shapes(format!(
            "{} strides for shape {:?}",
            view.strides.len(),
            view.shape
        )));
    }
    view.outputs()
}

/// `expand(x, size)`: extents of one repeat with stride 0; −1 leaves an extent as it is.
pub fn expand(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let mut view = View::of(call)?;
    let size = call.integers(1, "size")?;
    let wrong = || Unsuited::Shapes(format!("{:?} expanded to {size:?}", view.shape));
    let missing = size.len().checked_sub(view.rank()).ok_or_else(wrong)?;
    let (mut shape, mut strides) = (Vec::new(), Vec::new());
    for (d, &wanted) in size.iter().enumerate() {
        let own = d.checked_sub(missing).map(|d| (view.shape[d], view.strides[d]));
        let (extent, stride) = match (own, u64::try_from(wanted)) {
            (Some(own), Err(_)) if wanted == -1 => own,
            (Some((extent, stride)), Ok(wanted)) if extent == wanted => (extent, stride),
            (Some((1, _)) | None, Ok(wanted)) => (wanted, 0),
            _ => return Err(wrong()),
        };
        shape.push(extent);
        strides.push(stride);
    }
    (view.shape, view.strides) = (shape, strides);
    view.outputs()
}

/// `permute(x, dims)`
pub fn permute(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let view = View::of(call)?;
    let dims = call.integers(1, "dims")?;
    let order: Vec<usize> =
        dims.iter().map(|&dim| dimension(dim, view.rank())).collect::<Result<_, _>>()?;
    reordered(view, &order)
}

/// `transpose(x, dim, dim)`
pub fn transpose(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let view = View::of(call)?;
    let mut order: Vec<usize> = (0..view.rank()).collect();
    let (a, b) = (
        dimension(call.integer(1, "dim0")?, view.rank())?,
        dimension(call.integer(2, "dim1")?, view.rank())?,
    );
    if view.rank() > 0 {
        order.swap(a, b);
    }
    reordered(view, &order)
}

fn reordered(mut view: View<'_>, order: &[usize]) -> Result<Vec<Output>, Unsuited> {
    let mut seen = vec![false; view.rank()];
    let each_once =
        order.len() == view.rank() && order.iter().all(|&d| !std::mem::replace(&mut seen[d], true));
    if !each_once {
        return Err(Unsuited::Shapes(format!("dimensions {order:?} of {}", view.rank())));
    }
    (view.shape, view.strides) = order.iter().map(|&d| (view.shape[d], view.strides[d])).unzip();
    view.outputs()
}

/// `select(x, dim, index)`: one element of a dimension, which is removed.
pub fn select(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let mut view = View::of(call)?;
    let dim = dimension(call.integer(1, "dim")?, view.rank())?;
    let index = call.integer(2, "index")?;
    let extent = view.shape.get(dim).copied().unwrap_or(0);
    let from_start = if index < 0 { index.saturating_add_unsigned(extent) } else { index };
    let Some(start) = u64::try_from(from_start).ok().filter(|&start| start < extent) else {
        return Err(Unsuited::Shapes(format!("element {index} of {extent}")));
    };
    view.narrow(dim, start, 1, 1);
    view.remove(dim);
    view.outputs()
}

/// `slice(x, dim = 0, start = 0, end = ∞, step = 1)`: limits beyond the extent are clamped to it.
pub fn slice(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let mut view = View::of(call)?;
    let dim = dimension(call.optional_integer(1, "dim")?.unwrap_or(0), view.rank())?;
    let Some(&extent) = view.shape.get(dim) else {
        return Err(Unsuited::Shapes("a slice of a tensor without dimensions".to_string()));
    };
    let Slice { start, count, step } = limits(call, 2, extent)?;
    view.narrow(dim, start, count, step);
    view.outputs()
}

/// `split_with_sizes(x, sizes, dim = 0)`
pub fn split(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let whole = View::of(call)?;
    let sizes = extents(&call.integers(1, "split_sizes")?)?;
    let dim = dimension(call.optional_integer(2, "dim")?.unwrap_or(0), whole.rank())?;
    let total = sizes.iter().fold(0u64, |sum, &size| sum.saturating_add(size));
    if whole.shape.get(dim) != Some(&total) {
        return Err(Unsuited::Shapes(format!("{:?} split into {sizes:?}", whole.shape)));
    }
    let mut start = 0;
    let mut parts = Vec::with_capacity(sizes.len());
    for size in sizes {
        let mut part = View::of(call)?;
        part.narrow(dim, start, size, 1);
        start += size;
        parts.push(part.output());
    }
    Ok(parts)
}

/// `squeeze(x, dims)`: those of the dimensions that have extent one are removed.
pub fn squeeze(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let mut view = View::of(call)?;
    let rank = view.rank();
    let mut dims: Vec<usize> = call
        .integers(1, "dim")?
        .iter()
        .map(|&dim| dimension(dim, rank))
        .collect::<Result<_, _>>()?;
    dims.sort_unstable();
    if rank > 0 && dims.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Unsuited::Shapes(format!("a dimension of {dims:?} squeezed twice")));
    }
    for dim in dims.into_iter().rev() {
        if view.shape.get(dim) == Some(&1) {
            view.remove(dim);
        }
    }
    view.outputs()
}

/// `unsqueeze(x, dim)`: one more dimension, of extent one.
pub fn unsqueeze(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let mut view = View::of(call)?;
    let dim = dimension(call.integer(1, "dim")?, view.rank() + 1)?;
    let stride = match (view.shape.get(dim), view.strides.get(dim)) {
        (Some(extent), Some(stride)) => extent.saturating_mul(*stride),
        _ => 1,
    };
    view.shape.insert(dim, 1);
    view.strides.insert(dim, stride);
    view.outputs()
}

/// `view(x, size)`: other extents with the same number of elements; one of them may be −1.
pub fn view(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let mut view = View::of(call)?;
    let size = call.integers(1, "size")?;
    let wrong = || Unsuited::Shapes(format!("{:?} seen as {size:?}", view.shape));
    let elements = view.of.elements();
    let given = size.iter().filter(|&&extent| extent != -1);
    let given = given.map(|&extent| u64::try_from(extent).ok());
    let given = given.collect::<Option<Vec<u64>>>().ok_or_else(wrong)?;
    let product = given.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent));
    let product = product.ok_or_else(wrong)?;
    let inferred = match size.len() - given.len() {
        0 if product == elements => 0,
        1 => elements.checked_div(product).filter(|x| x * product == elements).ok_or_else(wrong)?,
        _ => return Err(wrong()),
    };
    let shape: Vec<u64> =
        size.iter().map(|&extent| u64::try_from(extent).unwrap_or(inferred)).collect();
    let known = view.of.contiguous || view.of.strides.is_some();
    let strides = view_strides(&view.shape, &view.strides, &shape);
    view.strides = match strides {
        Some(strides) => strides,
        None if known => {
            return Err(Unsuited::Shapes(format!(
                "{:?} with strides {:?} seen as {shape:?}",
                view.shape, view.strides
            )));
        }
        None => contiguous_strides(&shape),
    };
    view.shape = shape;
    view.outputs()
}

/// Strides of `new` extents over elements that lie as `shape` and `strides` say; `None` if there
/// are none. Adjacent dimensions without gaps form a block; each block is cut into new extents
/// separately (ATen's `computeStride`).
fn view_strides(shape: &[u64], strides: &[u64], new: &[u64]) -> Option<Vec<u64>> {
    if shape.contains(&0) {
        return Some(contiguous_strides(new));
    }
    let mut result = vec![1; new.len()];
    let mut left = new.len();
    let mut dim = shape.len();
    while dim > 0 {
        // The block that ends with this dimension, from its last one on.
        let step = strides[dim - 1];
        let mut elements = shape[dim - 1];
        while dim > 1 && (shape[dim - 2] == 1 || strides[dim - 2] == elements * step) {
            elements *= shape[dim - 2];
            dim -= 1;
        }
        dim -= 1;
        let mut cut = 1;
        while left > 0 && (cut < elements || new[left - 1] == 1) {
            result[left - 1] = cut * step;
            cut *= new[left - 1];
            left -= 1;
        }
        if cut != elements {
            return None;
        }
    }
    new[..left].iter().all(|&extent| extent == 1).then_some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_cut_on_their_own() {
        assert_eq!(view_strides(&[4, 6], &[6, 1], &[2, 2, 6]), Some(vec![12, 6, 1]));
        assert_eq!(view_strides(&[4, 6], &[1, 4], &[2, 2, 6]), Some(vec![2, 1, 4]));
        assert_eq!(view_strides(&[4, 6], &[1, 4], &[24]), None);
        assert_eq!(view_strides(&[], &[], &[1, 1]), Some(vec![1, 1]));
        assert_eq!(view_strides(&[1, 6], &[99, 1], &[3, 2]), Some(vec![2, 1]));
        assert_eq!(view_strides(&[0, 6], &[6, 1], &[6, 0]), Some(vec![1, 1]));
    }
}
