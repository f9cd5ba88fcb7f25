//! Rows of a table by index, and gradients summed into these rows. Invariant: an index outside the
//! table touches no memory; it is reported through [`Run::fault`]. Gradients for the same row are
//! added in the order in which its index occurs.

use crate::kernels::rows::Rows;
use crate::kernels::tensor::Tensor;
use crate::kernels::{Fault, Kernel, KernelError, Operands, shaped, tasks};

/// Columns that one task of the backward pass computes.
const COLUMNS: usize = 64;

/// Each index as a row of its own.
fn indices(tensor: &Tensor) -> Result<Rows, KernelError> {
    Rows::new(tensor, 0)
}

/// out[i] = table[indices[i]]
pub(super) fn forward(operands: &Operands) -> Result<Kernel, KernelError> {
    let (table, index, out) = (operands.float(0)?, operands.integer(1)?, operands.float_output(0)?);
    let &[_, width] = table.shape.as_slice() else {
        return Err(KernelError::Shapes(format!(
            "embedding of {:?} in a table of {:?}",
            index.shape, table.shape
        )));
    };
    shaped(&out, "the output", &[&index.shape, [width].as_slice()].concat())?;
    let (from, places, to) =
        (Rows::contiguous(&table, 1)?, indices(&index)?, Rows::contiguous(&out, 1)?);
    Ok(Box::new(move |run| {
        let (table, index, out) = (table.raw(run.base), index.raw(run.base), out.raw(run.base));
        tasks::for_each(to.count, to.len, |i| {
            // SAFETY: rows of the output are disjoint; the index is checked before it is used.
            unsafe {
                let row = index.read(places.at(i));
                let target = out.slice_mut(to.at(i), to.len);
                match usize::try_from(row).ok().filter(|&row| row < from.count) {
                    Some(row) => target.copy_from_slice(table.slice(from.at(row), from.len)),
                    None => {
                        target.fill(0.0);
                        run.fault.raise(Fault::Index);
                    }
                }
            }
        });
    }))
}

/// out[indices[i]] += gradient[i] if the index is not `padding_idx`; all other rows are zero. With
/// `scale_grad_by_freq`, each gradient is divided by the number of times its index occurs.
pub(super) fn backward(operands: &Operands) -> Result<Kernel, KernelError> {
    let (gradient, index, out) =
        (operands.float(0)?, operands.integer(1)?, operands.float_output(0)?);
    let padding = operands.number(3, "padding_idx")? as i64;
    let by_frequency = operands.flag(4, "scale_grad_by_freq", false);
    let (from, places, to) =
        (Rows::new(&gradient, 1)?, indices(&index)?, Rows::contiguous(&out, 1)?);
    if out.shape.len() != 2 || from.len != to.len || from.count != places.count {
        return Err(KernelError::Shapes(format!(
            "embedding gradient of {:?} into {:?}",
            gradient.shape, out.shape
        )));
    }
    Ok(Box::new(move |run| {
        let (gradient, index, out) =
            (gradient.raw(run.base), index.raw(run.base), out.raw(run.base));
        let weight = COLUMNS.saturating_mul(from.count + to.count);
        tasks::for_each(to.len.div_ceil(COLUMNS), weight, |part| {
            let first = part * COLUMNS;
            let len = COLUMNS.min(to.len - first);
            // SAFETY: a task owns its columns of the output; the index is checked before its use.
            unsafe {
                for row in 0..to.count {
                    out.slice_mut(to.at(row) + first, len).fill(0.0);
                }
                for i in 0..places.count {
                    let row = index.read(places.at(i));
                    if row == padding {
                        continue;
                    }
                    let Some(row) = usize::try_from(row).ok().filter(|&row| row < to.count) else {
                        run.fault.raise(Fault::Index);
                        continue;
                    };
                    let share = if by_frequency {
                        1.0 / (0..places.count)
                            .filter(|&j| index.read(places.at(j)) == row as i64)
                            .count() as f32
                    } else {
                        1.0
                    };
                    let source = gradient.shifted(from.at(i) + first * from.step);
                    for (j, sum) in out.slice_mut(to.at(row) + first, len).iter_mut().enumerate() {
                        *sum += source.read(j * from.step) * share;
                    }
                }
            }
        });
    }))
}
