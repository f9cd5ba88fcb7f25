//! Layer normalization over the last dimensions. Invariant: rows are independent in the forward pass and for dx; the
//! sums for weight and bias run over the rows in blocks of fixed size, in order.
//!
//! y = (x − mean) · rstd · weight + bias; dx = rstd (g − mean(g) − x̂ mean(g x̂)) with g = dy · weight, x̂ = (x − mean) rstd
//! (Ba, Kiros, Hinton 2016).

use super::rows::Rows;
use super::{Kernel, KernelError, Operands, math, tasks};
use crate::tensor::Tensor;

/// Columns of a task of the weight gradient.
const COLUMNS: usize = 64;
/// Rows that are added before they join the total.
const ROW_BLOCK: usize = 64;

/// A weight or bias over a row, contiguous.
fn vector(tensor: Option<&Tensor>, len: usize) -> Result<Option<Tensor>, KernelError> {
    match tensor {
        Some(tensor) if tensor.is_contiguous() && tensor.elements() == len => Ok(Some(tensor.clone())),
        Some(tensor) => Err(KernelError::Shapes(format!("weight or bias of shape {:?} for rows of {len}", tensor.shape))),
        None => Ok(None),
    }
}

/// Per-row statistics: one element for each row, contiguous.
fn statistic(tensor: &Tensor, rows: usize) -> Result<Tensor, KernelError> {
    if tensor.is_contiguous() && tensor.elements() == rows {
        Ok(tensor.clone())
    } else {
        Err(KernelError::Shapes(format!("statistics of shape {:?}", tensor.shape)))
    }
}

/// (y, mean, rstd)
pub(super) fn forward(operands: &Operands) -> Result<Kernel, KernelError> {
    let inner = operands.integers(1, "normalized_shape")?.len();
    let eps = operands.number(4, "eps")? as f32;
    let (x, y) = (operands.float(0)?.clone(), operands.output(0)?.clone());
    let (from, to) = (Rows::new(&x, inner)?, Rows::new(&y, inner)?);
    let (weight, bias) = (vector(operands.optional(2), from.len)?, vector(operands.optional(3), from.len)?);
    let statistics = |index: usize| operands.unused(index).map(|tensor| statistic(tensor, from.count)).transpose();
    let (mean_out, rstd_out) = (statistics(1)?, statistics(2)?);
    Ok(Box::new(move |run| {
        let parameter = |tensor: &Option<Tensor>| {
            // SAFETY: a contiguous vector of the row's length.
            tensor.as_ref().map(|tensor| unsafe { tensor.raw::<f32>(run.base).slice(0, from.len) })
        };
        let (weight, bias) = (parameter(&weight), parameter(&bias));
        tasks::for_each(from.count, from.len, |i| {
            // SAFETY: rows are disjoint.
            unsafe {
                let x = x.raw::<f32>(run.base).slice(from.at(i), from.len);
                let y = y.raw::<f32>(run.base).slice_mut(to.at(i), to.len);
                let mean = math::sum(x) / from.len as f32;
                let rstd = 1.0 / (math::squared_distance(x, mean) / from.len as f32 + eps).sqrt();
                math::normalize(x, mean, rstd, weight, bias, y);
                if let Some(out) = &mean_out {
                    *out.raw::<f32>(run.base).at(i) = mean;
                }
                if let Some(out) = &rstd_out {
                    *out.raw::<f32>(run.base).at(i) = rstd;
                }
            }
        });
    }))
}

/// (dx, dweight, dbias), each where it is asked for.
pub(super) fn backward(operands: &Operands) -> Result<Kernel, KernelError> {
    let inner = operands.integers(2, "normalized_shape")?.len();
    let (dy, x) = (operands.float(0)?.clone(), operands.float(1)?.clone());
    let (dy_rows, x_rows) = (Rows::new(&dy, inner)?, Rows::new(&x, inner)?);
    let (mean, rstd) = (statistic(operands.float(3)?, x_rows.count)?, statistic(operands.float(4)?, x_rows.count)?);
    let weight = vector(operands.optional(5), x_rows.len)?;
    let dx = operands.unused(0).cloned();
    let dx_rows = dx.as_ref().map(|dx| Rows::new(dx, inner)).transpose()?;
    let (dweight, dbias) = (vector(operands.unused(1), x_rows.len)?, vector(operands.unused(2), x_rows.len)?);
    let len = x_rows.len;
    Ok(Box::new(move |run| {
        let (dy_data, x_data) = (dy.raw::<f32>(run.base), x.raw::<f32>(run.base));
        let (mean, rstd) = (mean.raw::<f32>(run.base), rstd.raw::<f32>(run.base));
        if dweight.is_some() || dbias.is_some() {
            tasks::for_each(len.div_ceil(COLUMNS), COLUMNS * x_rows.count, |part| {
                let first = part * COLUMNS;
                let columns = COLUMNS.min(len - first);
                let (mut dw, mut db) = ([0.0f32; COLUMNS], [0.0f32; COLUMNS]);
                for block in (0..x_rows.count).step_by(ROW_BLOCK) {
                    let (mut dw_block, mut db_block) = ([0.0f32; COLUMNS], [0.0f32; COLUMNS]);
                    for i in block..(block + ROW_BLOCK).min(x_rows.count) {
                        // SAFETY: the task's columns of row i.
                        unsafe {
                            let dy = dy_data.slice(dy_rows.at(i) + first, columns);
                            let x = x_data.slice(x_rows.at(i) + first, columns);
                            math::accumulate_affine(dy, x, *mean.at(i), *rstd.at(i), &mut dw_block, &mut db_block);
                        }
                    }
                    for c in 0..COLUMNS {
                        dw[c] += dw_block[c];
                        db[c] += db_block[c];
                    }
                }
                for (out, sums) in [(&dweight, dw), (&dbias, db)] {
                    if let Some(out) = out {
                        // SAFETY: a task owns its columns.
                        unsafe { out.raw::<f32>(run.base).slice_mut(first, columns).copy_from_slice(&sums[..columns]) };
                    }
                }
            });
        }
        let (Some(dx), Some(dx_rows)) = (&dx, &dx_rows) else { return };
        let out = dx.raw::<f32>(run.base);
        // SAFETY: a contiguous vector of the row's length.
        let weight = weight.as_ref().map(|weight| unsafe { weight.raw::<f32>(run.base).slice(0, len) });
        tasks::for_each(x_rows.count, len * 2, |i| {
            // SAFETY: rows are disjoint.
            unsafe {
                let (dy, x) = (dy_data.slice(dy_rows.at(i), len), x_data.slice(x_rows.at(i), len));
                math::normalize_gradient(dy, x, weight, *mean.at(i), *rstd.at(i), out.slice_mut(dx_rows.at(i), len));
            }
        });
    }))
}
