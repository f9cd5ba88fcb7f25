//! Making and moving tensors: constants, ranges, copies, concatenation, writing slices. Invariant:
//! only the type changes on the way, by the rules of a C cast.

use tightfit::tensor::{Argument, DType};

use crate::kernels::elementwise::{fill, map1};
use crate::kernels::tensor::{Element, Tensor};
use crate::kernels::{Kernel, KernelError, Operands, dimension, shaped, typed};

/// Memory as it is: elements that are read before they are written are not defined.
pub(super) fn empty(operands: &Operands) -> Result<Kernel, KernelError> {
    operands.output(0)?;
    Ok(Box::new(|_| {}))
}

/// A constant; argument `index` is its value.
pub(super) fn full(operands: &Operands, index: usize) -> Result<Kernel, KernelError> {
    let (out, value) = (operands.output(0)?, operands.number(index, "fill_value")?);
    match out.dtype {
        DType::F32 => fill::<f32>(out, value as f32),
        DType::I64 => fill::<i64>(out, value as i64),
        DType::Bool => fill::<u8>(out, u8::from(value != 0.0)),
        other => Err(KernelError::DType { found: other.name(), wanted: "f32, i64 and bool" }),
    }
}

/// start, start + step, …
pub(super) fn arange(operands: &Operands) -> Result<Kernel, KernelError> {
    fn range<T: Element>(
        out: &Tensor,
        value: impl Fn(usize) -> T + Send + Sync + 'static,
    ) -> Result<Kernel, KernelError> {
        let out = typed::<T>(out)?;
        Ok(Box::new(move |run| {
            for i in 0..out.elements() {
                // SAFETY: element i of a tensor of one dimension.
                unsafe { out.raw(run.base).write(i * out.strides[0], value(i)) };
            }
        }))
    }
    let (start, step, out) = (
        operands.number(0, "start")?,
        operands.optional_number(2, "step").unwrap_or(1.0),
        operands.output(0)?,
    );
    if out.shape.len() != 1 {
        return Err(KernelError::Shapes(format!("a range of shape {:?}", out.shape)));
    }
    match out.dtype {
        DType::I64 => range::<i64>(out, move |i| {
            (start as i64).wrapping_add((i as i64).wrapping_mul(step as i64))
        }),
        DType::F32 => range::<f32>(out, move |i| (start + i as f64 * step) as f32),
        other => Err(KernelError::DType { found: other.name(), wanted: "f32 and i64" }),
    }
}

/// The elements of tensor argument `index`, in the output's place and type.
pub(super) fn copy(operands: &Operands, index: usize) -> Result<Kernel, KernelError> {
    convert(operands.tensor(index)?, operands.output(0)?)
}

/// Copies and converts.
pub(super) fn convert(from: &Tensor, to: &Tensor) -> Result<Kernel, KernelError> {
    fn cast<A: Element, B: Element>(
        from: &Tensor,
        to: &Tensor,
        f: impl Fn(A) -> B + Send + Sync + 'static,
    ) -> Result<Kernel, KernelError> {
        map1::<A, B>(from, to, move |x, y| {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = f(x);
            }
        })
    }
    match (from.dtype, to.dtype) {
        (DType::F32, DType::F32) => map1::<f32, f32>(from, to, |x, y| y.copy_from_slice(x)),
        (DType::I64, DType::I64) => map1::<i64, i64>(from, to, |x, y| y.copy_from_slice(x)),
        (DType::Bool, DType::Bool) => map1::<u8, u8>(from, to, |x, y| y.copy_from_slice(x)),
        (DType::F32, DType::I64) => cast::<f32, i64>(from, to, |x| x as i64),
        (DType::I64, DType::F32) => cast::<i64, f32>(from, to, |x| x as f32),
        (DType::Bool, DType::F32) => cast::<u8, f32>(from, to, f32::from),
        (DType::Bool, DType::I64) => cast::<u8, i64>(from, to, i64::from),
        (DType::F32, DType::Bool) => cast::<f32, u8>(from, to, |x| u8::from(x != 0.0)),
        (DType::I64, DType::Bool) => cast::<i64, u8>(from, to, |x| u8::from(x != 0)),
        (from, to) => Err(KernelError::Unsupported(format!(
            "conversion from {} to {}",
            from.name(),
            to.name()
        ))),
    }
}

/// Tensors one after another along a dimension: each is copied into its slice of the output.
pub(super) fn cat(operands: &Operands) -> Result<Kernel, KernelError> {
    let Some(Argument::List(list)) = operands.node.args.first() else {
        return Err(operands.wrong(0, "a list of tensors"));
    };
    let out = operands.output(0)?;
    let dim = dimension(operands.optional_number(1, "dim").unwrap_or(0.0) as i64, out.shape.len())?;
    if out.shape.is_empty() {
        return Err(KernelError::Shapes("a scalar is no concatenation".to_string()));
    }
    let mut start = 0;
    let mut parts = Vec::new();
    for argument in list {
        let part =
            operands.tensor_of(argument).ok_or_else(|| operands.wrong(0, "a list of tensors"))?;
        if part.shape == [0] {
            continue; // ATen skips an empty vector
        }
        // The part's own extent along the dimension, limited to what is left; all other extents are
        // the output's.
        let mut shape = out.shape.clone();
        shape[dim] = part.shape.get(dim).map_or(0, |&extent| extent.min(out.shape[dim] - start));
        shaped(part, "a part of the concatenation", &shape)?;
        let slice = Tensor {
            address: out.address + start * out.strides[dim] * out.dtype.size() as usize,
            shape,
            ..out.clone()
        };
        start += slice.shape[dim];
        parts.push(convert(part, &slice)?);
    }
    if start != out.shape[dim] {
        return Err(KernelError::Shapes(format!(
            "the parts have {start} of {} along dimension {dim}",
            out.shape[dim]
        )));
    }
    Ok(Box::new(move |run| parts.iter().for_each(|part| part(run))))
}

/// A copy of argument 0 whose slice `start..end` with a step along a dimension is argument 1.
pub(super) fn slice_scatter(operands: &Operands) -> Result<Kernel, KernelError> {
    let (x, part, out) = (operands.tensor(0)?, operands.tensor(1)?, operands.output(0)?);
    let dim = dimension(operands.optional_number(2, "dim").unwrap_or(0.0) as i64, out.shape.len())?;
    let extent = *out
        .shape
        .get(dim)
        .ok_or_else(|| KernelError::Shapes("a slice of a single number".to_string()))?;
    // As ATen reads a bound: from the end if it is negative, and no further than the tensor.
    let bound = |index, name, default: usize| match operands.argument(index, name) {
        Some(Argument::Int(at)) if *at < 0 => {
            Ok(extent.saturating_sub(usize::try_from(at.unsigned_abs()).unwrap_or(usize::MAX)))
        }
        Some(Argument::Int(at)) => Ok(usize::try_from(*at).map_or(extent, |at| at.min(extent))),
        None | Some(Argument::None) => Ok(default),
        Some(_) => Err(operands.wrong(index, "a whole number")),
    };
    let start = bound(3, "start", 0)?;
    let end = bound(4, "end", extent)?.max(start);
    let step = operands.optional_number(5, "step").unwrap_or(1.0) as usize;
    if step == 0 {
        return Err(operands.wrong(5, "a positive whole number"));
    }
    let mut slice = Tensor {
        address: out.address + start * out.strides[dim] * out.dtype.size() as usize,
        ..out.clone()
    };
    slice.shape[dim] = (end - start).div_ceil(step);
    slice.strides[dim] = slice.strides[dim].saturating_mul(step);
    if part.shape != slice.shape || x.shape != out.shape {
        return Err(KernelError::Shapes(format!(
            "{:?} into the slice {:?} of {:?}",
            part.shape, slice.shape, x.shape
        )));
    }
    let (rest, insert) = (convert(x, out)?, convert(part, &slice)?);
    if (x.address, &x.strides) == (out.address, &out.strides) {
        return Ok(insert); // in place: the rest is there already
    }
    Ok(Box::new(move |run| {
        rest(run);
        insert(run);
    }))
}
