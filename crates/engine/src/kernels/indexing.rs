//! Elements picked or set by an index along one dimension. Invariant: an index outside the
//! dimension touches no memory; it is reported through [`Run::fault`](super::Run).

use tightfit::tensor::DType;

use crate::kernels::movement::convert;
use crate::kernels::tensor::{Element, Tensor, Typed};
use crate::kernels::{Fault, Kernel, KernelError, Operands, dimension, shaped, typed};

/// Offset of element `index` of a tensor of `shape` in a tensor with the given strides; dimension
/// `skip` does not count.
fn offset(shape: &[usize], strides: &[usize], mut index: usize, skip: Option<usize>) -> usize {
    let mut offset = 0;
    for d in (0..shape.len()).rev() {
        if Some(d) != skip {
            offset += index % shape[d] * strides[d];
        }
        index /= shape[d];
    }
    offset
}

/// The dimension in argument 1, along which an index may have any extent; along all others it must
/// not be larger than `x`.
fn indexed(operands: &Operands, x: &Tensor, index: &Tensor) -> Result<usize, KernelError> {
    let dim = dimension(operands.number(1, "dim")? as i64, x.shape.len())?;
    let inside = dim < x.shape.len()
        && x.shape.len() == index.shape.len()
        && (0..x.shape.len()).all(|d| d == dim || index.shape[d] <= x.shape[d]);
    if inside {
        return Ok(dim);
    }
    Err(KernelError::Shapes(format!(
        "an index of {:?} into {:?} along dimension {dim}",
        index.shape, x.shape
    )))
}

/// out[… i …] = x[… index[… i …] …] along the dimension in argument 1.
pub(super) fn gather(operands: &Operands) -> Result<Kernel, KernelError> {
    let (x, index, out) =
        (operands.tensor(0)?.clone(), operands.integer(2)?, operands.output(0)?.clone());
    let dim = indexed(operands, &x, &index)?;
    shaped(&out, "the output", &index.shape)?;
    fn by_type<T: Element>(
        x: &Tensor,
        index: Typed<i64>,
        out: &Tensor,
        dim: usize,
    ) -> Result<Kernel, KernelError> {
        let (x, out) = (typed::<T>(x)?, typed::<T>(out)?);
        Ok(Box::new(move |run| {
            let (from, at, to) = (x.raw(run.base), index.raw(run.base), out.raw(run.base));
            for i in 0..out.elements() {
                // SAFETY: the index is checked before it is followed; other dimensions lie inside
                // by their extents.
                unsafe {
                    let picked = at.read(offset(&out.shape, &index.strides, i, None));
                    let value = match usize::try_from(picked)
                        .ok()
                        .filter(|&picked| picked < x.shape[dim])
                    {
                        Some(picked) => {
                            let others = offset(&out.shape, &x.strides, i, Some(dim));
                            from.read(others + picked * x.strides[dim])
                        }
                        None => {
                            run.fault.raise(Fault::Index);
                            T::default()
                        }
                    };
                    to.write(offset(&out.shape, &out.strides, i, None), value);
                }
            }
        }))
    }
    match x.dtype {
        DType::F32 => by_type::<f32>(&x, index, &out, dim),
        DType::I64 => by_type::<i64>(&x, index, &out, dim),
        DType::Bool => by_type::<u8>(&x, index, &out, dim),
        other => Err(KernelError::DType { found: other.name(), wanted: "f32, i64 and bool" }),
    }
}

/// A copy of x with a constant at the places that the index names along the dimension in argument
/// 1.
pub(super) fn scatter_value(operands: &Operands) -> Result<Kernel, KernelError> {
    let (x, index, out) =
        (operands.tensor(0)?.clone(), operands.integer(2)?, operands.output(0)?.clone());
    let dim = indexed(operands, &x, &index)?;
    let value = operands.number(3, "value")?;
    shaped(&out, "the output", &x.shape)?;
    fn by_type<T: Element>(
        copy: Kernel,
        index: Typed<i64>,
        out: &Tensor,
        dim: usize,
        value: T,
    ) -> Result<Kernel, KernelError> {
        let out = typed::<T>(out)?;
        Ok(Box::new(move |run| {
            copy(run);
            let (at, to) = (index.raw(run.base), out.raw(run.base));
            for i in 0..index.elements() {
                // SAFETY: the index is checked before it is followed; other dimensions lie inside
                // by their extents.
                unsafe {
                    let named = at.read(offset(&index.shape, &index.strides, i, None));
                    match usize::try_from(named).ok().filter(|&named| named < out.shape[dim]) {
                        Some(named) => {
                            let others = offset(&index.shape, &out.strides, i, Some(dim));
                            to.write(others + named * out.strides[dim], value);
                        }
                        None => run.fault.raise(Fault::Index),
                    }
                }
            }
        }))
    }
    let copy = convert(&x, &out)?;
    match out.dtype {
        DType::F32 => by_type::<f32>(copy, index, &out, dim, value as f32),
        DType::I64 => by_type::<i64>(copy, index, &out, dim, value as i64),
        DType::Bool => by_type::<u8>(copy, index, &out, dim, u8::from(value != 0.0)),
        other => Err(KernelError::DType { found: other.name(), wanted: "f32, i64 and bool" }),
    }
}
