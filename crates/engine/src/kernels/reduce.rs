//! Reductions over dimensions: sum, mean, largest, variance, any. Invariant: an output element is
//! computed by one task, over the reduced elements in a fixed order, in blocks, so that its error
//! grows with the number of blocks only.

use tightfit::operator::{Operator, ROW_BLOCK};
use tightfit::tensor::{Argument, DType};

use crate::kernels::tensor::{Element, Raw, Tensor, Typed};
use crate::kernels::{Kernel, KernelError, Operands, dimension, float_bytes, math, tasks, typed};

/// Kept and reduced dimensions of the input: extent, step in the input, step in the output.
struct Split {
    kept: Vec<(usize, usize, usize)>,
    reduced: Vec<(usize, usize)>,
}

/// The input's dimensions, split; an empty `dims` means all.
fn split(x: &Tensor, out: &Tensor, dims: &[i64]) -> Result<Split, KernelError> {
    let rank = x.shape.len();
    let mut is_reduced = vec![dims.is_empty(); rank];
    for &dim in dims {
        let dim = dimension(dim, rank)?;
        if rank > 0 {
            is_reduced[dim] = true;
        }
    }
    // The output has each kept extent, and for the reduced ones either 1 or no dimension.
    let keepdim = out.shape.len() == rank;
    let (mut kept, mut reduced, mut next) = (Vec::new(), Vec::new(), 0);
    let mut expected = Vec::new();
    for (d, ((&extent, &step), is_reduced)) in
        x.shape.iter().zip(&x.strides).zip(is_reduced).enumerate()
    {
        if is_reduced {
            reduced.push((extent, step));
            expected.extend(keepdim.then_some(1));
            continue;
        }
        let place = if keepdim { d } else { next };
        expected.push(extent);
        kept.push((extent, step, out.strides.get(place).copied().unwrap_or(0)));
        next += 1;
    }
    if out.shape != expected {
        return Err(KernelError::Shapes(format!(
            "{:?} reduced to {:?}, but it must be {expected:?}",
            x.shape, out.shape
        )));
    }
    reduced.retain(|&(extent, _)| extent != 1);
    kept.retain(|&(extent, ..)| extent != 1);
    merge(&mut reduced);
    Ok(Split { kept, reduced })
}

/// Joins adjacent reduced dimensions.
fn merge(dims: &mut Vec<(usize, usize)>) {
    let mut merged: Vec<(usize, usize)> = Vec::new();
    for &(extent, step) in dims.iter() {
        match merged.last_mut() {
            Some((outer, outer_step)) if *outer_step == step * extent => {
                *outer *= extent;
                *outer_step = step;
            }
            _ => merged.push((extent, step)),
        }
    }
    *dims = merged;
}

impl Split {
    fn reduced_count(&self) -> usize {
        self.reduced.iter().map(|r| r.0).product()
    }

    /// Offsets in input and output of kept element `index` over all but the last `skip` kept
    /// dimensions.
    fn kept_at(&self, mut index: usize, skip: usize) -> (usize, usize) {
        let (mut from, mut to) = (0, 0);
        for &(extent, step, out_step) in self.kept[..self.kept.len() - skip].iter().rev() {
            from += index % extent * step;
            to += index % extent * out_step;
            index /= extent;
        }
        (from, to)
    }

    /// Offset of reduced element `index`, last dimension fastest, over all but the last `skip`
    /// reduced dimensions.
    fn reduced_at(&self, mut index: usize, skip: usize) -> usize {
        let mut offset = 0;
        for &(extent, step) in self.reduced[..self.reduced.len() - skip].iter().rev() {
            offset += index % extent * step;
            index /= extent;
        }
        offset
    }
}

/// Compiles a reduction.
pub(super) fn reduce(operator: Operator, operands: &Operands) -> Result<Kernel, KernelError> {
    operands.known_keywords(&["correction", "keepdim", "dim"])?;
    let (x, out) = (operands.tensor(0)?.clone(), operands.output(0)?.clone());
    let dims = match operands.argument(1, "dim") {
        None | Some(Argument::None | Argument::Bool(_)) => Vec::new(),
        Some(_) => operands.integers(1, "dim")?,
    };
    let split = split(&x, &out, &dims)?;
    match (x.dtype, out.dtype, operator) {
        (DType::F32, DType::F32, Operator::SumDims | Operator::Sum) => {
            sums(operands, typed(&x)?, typed(&out)?, split, 1.0)
        }
        (DType::F32, DType::F32, Operator::Mean | Operator::MeanDims) => {
            let count = split.reduced_count() as f32;
            sums(operands, typed(&x)?, typed(&out)?, split, count)
        }
        (DType::F32, DType::F32, Operator::Amax) => {
            Ok(each(typed(&x)?, typed(&out)?, split, |values, _| {
                values.fold(f32::NEG_INFINITY, |a, b| if b > a || b.is_nan() { b } else { a })
            }))
        }
        (DType::F32, DType::F32, Operator::VarCorrection) => {
            let correction = operands.optional_number(usize::MAX, "correction").unwrap_or(1.0);
            Ok(variance(typed(&x)?, typed(&out)?, split, correction))
        }
        (DType::I64, DType::I64, Operator::SumDims | Operator::Sum) => {
            Ok(integer_sums::<i64>(typed(&x)?, typed(&out)?, split))
        }
        (DType::Bool, DType::I64, Operator::SumDims | Operator::Sum) => {
            Ok(integer_sums::<u8>(typed(&x)?, typed(&out)?, split))
        }
        (from, to, _) => Err(KernelError::Unsupported(format!(
            "{} of {} into {}",
            operator.name(),
            from.name(),
            to.name()
        ))),
    }
}

/// Sums divided by `divisor`: along rows if reduced elements are adjacent, down columns if kept
/// ones are.
fn sums(
    operands: &Operands,
    x: Typed<f32>,
    out: Typed<f32>,
    split: Split,
    divisor: f32,
) -> Result<Kernel, KernelError> {
    if split.reduced.last().is_some_and(|&(_, step)| step == 1) {
        return Ok(Box::new(move |run| {
            let (from, to) = (x.raw(run.base), out.raw(run.base));
            let len = split.reduced.last().map_or(1, |r| r.0);
            let rows = split.reduced_count().checked_div(len).unwrap_or(0);
            tasks::for_each(out.elements(), rows * len, |i| {
                let (a, b) = split.kept_at(i, 0);
                // SAFETY: rows lie in the input; output element i belongs to this task.
                let total: f32 = (0..rows)
                    .map(|row| math::sum(unsafe { from.slice(a + split.reduced_at(row, 1), len) }))
                    .sum();
                // SAFETY: as above.
                unsafe { to.write(b, total / divisor) };
            });
        }));
    }
    if split.kept.last().is_some_and(|&(_, step, out_step)| step == 1 && out_step == 1) {
        return down_columns(operands, x, out, split, divisor);
    }
    Ok(each(x, out, split, move |values, _| {
        (values.map(f64::from).sum::<f64>() / f64::from(divisor)) as f32
    }))
}

/// Blocks of rows are summed in parallel, each into its own row of the workspace, and then added in
/// order; a single block is summed into the output itself.
fn down_columns(
    operands: &Operands,
    x: Typed<f32>,
    out: Typed<f32>,
    split: Split,
    divisor: f32,
) -> Result<Kernel, KernelError> {
    let width = split.kept.last().map_or(1, |k| k.0);
    let outer = out.elements().checked_div(width).unwrap_or(0);
    let count = split.reduced_count();
    let block = ROW_BLOCK as usize;
    let blocks = count.div_ceil(block).max(1);
    let needed = if blocks > 1 { float_bytes(1, blocks, out.elements()) } else { 0 };
    let workspace = operands.workspace(needed)?;
    Ok(Box::new(move |run| {
        let (from, to) = (x.raw(run.base), out.raw(run.base));
        let partial: Option<Raw<f32>> = (blocks > 1).then(|| workspace.raw(run.base));
        tasks::for_each(outer * blocks, block * width, |task| {
            let (row, part) = (task / blocks, task % blocks);
            let (a, b) = split.kept_at(row, 1);
            // SAFETY: a task owns its row of the workspace, or, if it is the only one, of the
            // output.
            let sums = unsafe {
                partial.map_or_else(
                    || to.slice_mut(b, width),
                    |partial| partial.slice_mut((part * outer + row) * width, width),
                )
            };
            sums.fill(0.0);
            for index in part * block..((part + 1) * block).min(count) {
                // SAFETY: a row of the input.
                math::accumulate(
                    unsafe { from.slice(a + split.reduced_at(index, 0), width) },
                    sums,
                );
            }
        });
        for row in 0..outer {
            // SAFETY: the tasks are done.
            let total = unsafe { to.slice_mut(split.kept_at(row, 1).1, width) };
            if let Some(partial) = partial {
                total.fill(0.0);
                for part in 0..blocks {
                    // SAFETY: as above.
                    math::accumulate(
                        unsafe { partial.slice((part * outer + row) * width, width) },
                        total,
                    );
                }
            }
            if divisor != 1.0 {
                total.iter_mut().for_each(|x| *x /= divisor);
            }
        }
    }))
}

/// Any reduction, one output element at a time.
fn each(
    x: Typed<f32>,
    out: Typed<f32>,
    split: Split,
    f: impl Fn(&mut dyn Iterator<Item = f32>, usize) -> f32 + Send + Sync + 'static,
) -> Kernel {
    Box::new(move |run| {
        let (from, to) = (x.raw(run.base), out.raw(run.base));
        let count = split.reduced_count();
        tasks::for_each(out.elements(), count, |i| {
            let (a, b) = split.kept_at(i, 0);
            // SAFETY: the reduced elements lie in the input; output element i belongs to this task.
            unsafe {
                let mut elements = (0..count).map(|j| from.read(a + split.reduced_at(j, 0)));
                to.write(b, f(&mut elements, count));
            };
        });
    })
}

/// Σ (x − mean)² / max(n − correction, 0), in two passes in double precision.
fn variance(x: Typed<f32>, out: Typed<f32>, split: Split, correction: f64) -> Kernel {
    Box::new(move |run| {
        let (from, to) = (x.raw(run.base), out.raw(run.base));
        let count = split.reduced_count();
        tasks::for_each(out.elements(), count * 2, |i| {
            let (a, b) = split.kept_at(i, 0);
            // SAFETY: the reduced elements lie in the input; output element i belongs to this task.
            unsafe {
                let value = |j: usize| f64::from(from.read(a + split.reduced_at(j, 0)));
                let mean = (0..count).map(value).sum::<f64>() / count as f64;
                let squares: f64 = (0..count).map(|j| (value(j) - mean).powi(2)).sum();
                to.write(b, (squares / (count as f64 - correction).max(0.0)) as f32);
            }
        });
    })
}

fn integer_sums<T: Element + Into<i64>>(x: Typed<T>, out: Typed<i64>, split: Split) -> Kernel {
    Box::new(move |run| {
        let (from, to) = (x.raw(run.base), out.raw(run.base));
        let count = split.reduced_count();
        for i in 0..out.elements() {
            let (a, b) = split.kept_at(i, 0);
            // SAFETY: the reduced elements lie in the input.
            let value = |j: usize| unsafe { (from.read(a + split.reduced_at(j, 0))).into() };
            // SAFETY: output element i.
            unsafe { to.write(b, (0..count).map(value).fold(0, i64::wrapping_add)) };
        }
    })
}

/// Whether any element along one dimension differs from zero; NaN does.
pub(super) fn any(operands: &Operands) -> Result<Kernel, KernelError> {
    fn by_type<T: Element>(x: Typed<T>, out: Typed<u8>, split: Split) -> Kernel {
        Box::new(move |run| {
            let (from, to) = (x.raw(run.base), out.raw(run.base));
            let count = split.reduced_count();
            tasks::for_each(out.elements(), count, |i| {
                let (a, b) = split.kept_at(i, 0);
                // SAFETY: the reduced elements lie in the input; output element i belongs to this
                // task.
                unsafe {
                    let differs = |j: usize| from.read(a + split.reduced_at(j, 0)) != T::default();
                    to.write(b, u8::from((0..count).any(differs)));
                }
            });
        })
    }
    operands.known_keywords(&["dim", "keepdim"])?;
    let (x, out) = (operands.tensor(0)?, typed::<u8>(operands.output(0)?)?);
    let split = split(x, &out, &operands.integers(1, "dim")?)?;
    match x.dtype {
        DType::F32 => Ok(by_type::<f32>(typed(x)?, out, split)),
        DType::I64 => Ok(by_type::<i64>(typed(x)?, out, split)),
        DType::Bool => Ok(by_type::<u8>(typed(x)?, out, split)),
        other => Err(KernelError::DType { found: other.name(), wanted: "f32, i64 and bool" }),
    }
}
