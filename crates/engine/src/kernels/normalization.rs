//! Layer normalization over the last dimensions. Invariant: rows are independent in the forward
//! pass and for dx; the sums for weight and bias run over the rows in blocks of fixed size, and
//! over the blocks in order.
//!
//! y = (x − mean) · rstd · weight + bias; dx = rstd (g − mean(g) − x̂ mean(g x̂)) with g = dy ·
//! weight, x̂ = (x − mean) rstd (Ba, Kiros, Hinton 2016).

use tightfit::operator::ROW_BLOCK;

use crate::kernels::rows::Rows;
use crate::kernels::tensor::{Raw, Typed};
use crate::kernels::{Kernel, KernelError, Operands, float_bytes, math, shaped, tasks};

/// A weight or bias over a row, contiguous.
fn vector(tensor: Option<Typed<f32>>, len: usize) -> Result<Option<Typed<f32>>, KernelError> {
    match tensor {
        Some(tensor) if tensor.is_contiguous() && tensor.elements() == len => Ok(Some(tensor)),
        Some(tensor) => Err(KernelError::Shapes(format!(
            "weight or bias of shape {:?} for rows of {len}",
            tensor.shape
        ))),
        None => Ok(None),
    }
}

/// Per-row statistics: one element for each row, contiguous.
fn statistic(tensor: Typed<f32>, rows: usize) -> Result<Typed<f32>, KernelError> {
    if tensor.is_contiguous() && tensor.elements() == rows {
        Ok(tensor)
    } else {
        Err(KernelError::Shapes(format!("statistics of shape {:?} for {rows} rows", tensor.shape)))
    }
}

/// (y, mean, rstd)
pub(super) fn forward(operands: &Operands) -> Result<Kernel, KernelError> {
    let inner = operands.integers(1, "normalized_shape")?.len();
    let eps = operands.number(4, "eps")? as f32;
    let (x, y) = (operands.float(0)?, operands.float_output(0)?);
    shaped(&y, "the output", &x.shape)?;
    let (from, to) = (Rows::new(&x, inner)?, Rows::contiguous(&y, inner)?);
    let (weight, bias) = (
        vector(operands.optional_float(2)?, from.len)?,
        vector(operands.optional_float(3)?, from.len)?,
    );
    let statistics = |index: usize| {
        let output = operands.optional_float_output(index)?;
        output.map(|tensor| statistic(tensor, from.count)).transpose()
    };
    let (mean_out, rstd_out) = (statistics(1)?, statistics(2)?);
    Ok(Box::new(move |run| {
        let parameter = |tensor: &Option<Typed<f32>>| {
            // SAFETY: a contiguous vector of the row's length.
            tensor.as_ref().map(|tensor| unsafe { tensor.raw(run.base).slice(0, from.len) })
        };
        let (weight, bias) = (parameter(&weight), parameter(&bias));
        tasks::for_each(from.count, from.len, |i| {
            // SAFETY: rows are disjoint.
            unsafe {
                let y = y.raw(run.base).slice_mut(to.at(i), to.len);
                let x = x.raw(run.base);
                if from.step != 1 {
                    // A strided row is gathered in its result's place, and normalized in place.
                    for (j, slot) in y.iter_mut().enumerate() {
                        *slot = x.read(from.at(i) + j * from.step);
                    }
                }
                let row = if from.step == 1 { x.slice(from.at(i), from.len) } else { &*y };
                let mean = math::sum(row) / from.len as f32;
                let rstd = 1.0 / (math::squared_distance(row, mean) / from.len as f32 + eps).sqrt();
                if from.step == 1 {
                    math::normalize(x.slice(from.at(i), from.len), mean, rstd, weight, bias, y);
                } else {
                    math::normalize_in_place(y, mean, rstd, weight, bias);
                }
                if let Some(out) = &mean_out {
                    out.raw(run.base).write(i, mean);
                }
                if let Some(out) = &rstd_out {
                    out.raw(run.base).write(i, rstd);
                }
            }
        });
    }))
}

/// (dx, dweight, dbias), each if it is used.
pub(super) fn backward(operands: &Operands) -> Result<Kernel, KernelError> {
    let inner = operands.integers(2, "normalized_shape")?.len();
    let (dy, x) = (operands.float(0)?, operands.float(1)?);
    shaped(&dy, "the gradient", &x.shape)?;
    let (dy_rows, x_rows) = (Rows::contiguous(&dy, inner)?, Rows::contiguous(&x, inner)?);
    let (mean, rstd) = (
        statistic(operands.float(3)?, x_rows.count)?,
        statistic(operands.float(4)?, x_rows.count)?,
    );
    let weight = vector(operands.optional_float(5)?, x_rows.len)?;
    let dx = operands.optional_float_output(0)?;
    if let Some(dx) = &dx {
        shaped(dx, "the gradient of the input", &x.shape)?;
    }
    let dx_rows = dx.as_ref().map(|dx| Rows::contiguous(dx, inner)).transpose()?;
    let affine = |index: usize| vector(operands.optional_float_output(index)?, x_rows.len);
    let (dweight, dbias) = (affine(1)?, affine(2)?);
    let (len, count) = (x_rows.len, x_rows.count);
    let block = ROW_BLOCK as usize;
    let blocks = count.div_ceil(block).max(1);
    let partial = blocks > 1 && (dweight.is_some() || dbias.is_some());
    let workspace = operands.workspace(if partial { float_bytes(2, blocks, len) } else { 0 })?;
    Ok(Box::new(move |run| {
        let (dy_data, x_data) = (dy.raw(run.base), x.raw(run.base));
        let (mean, rstd) = (mean.raw(run.base), rstd.raw(run.base));
        let output =
            |tensor: &Option<Typed<f32>>| tensor.as_ref().map(|tensor| tensor.raw(run.base));
        let dx = output(&dx);
        let outputs = [output(&dweight), output(&dbias)];
        let sums = BlockSums { outputs, workspace: workspace.raw(run.base), blocks, len };
        // SAFETY: a contiguous vector of the row's length.
        let weight = weight.as_ref().map(|weight| unsafe { weight.raw(run.base).slice(0, len) });
        // One pass over the rows gives dx and, block by block, the sums for weight and bias.
        tasks::for_each(blocks, len.saturating_mul(2 * block), |part| {
            // SAFETY: a task owns its block.
            let [mut dw, mut db] = unsafe { sums.begin(part) };
            for i in part * block..((part + 1) * block).min(count) {
                // SAFETY: rows are disjoint.
                unsafe {
                    let (dy, x) =
                        (dy_data.slice(dy_rows.at(i), len), x_data.slice(x_rows.at(i), len));
                    if let Some(dw) = &mut dw {
                        math::accumulate_product(dy, x, mean.read(i), rstd.read(i), dw);
                    }
                    if let Some(db) = &mut db {
                        math::accumulate(dy, db);
                    }
                    if let (Some(dx), Some(rows)) = (dx, &dx_rows) {
                        math::normalize_gradient(
                            dy,
                            x,
                            weight,
                            mean.read(i),
                            rstd.read(i),
                            dx.slice_mut(rows.at(i), len),
                        );
                    }
                }
            }
        });
        // SAFETY: the tasks are done.
        unsafe { sums.add_up() };
    }))
}

/// The sums for weight and bias, each if it is used, by blocks of rows. A single block sums into
/// the outputs themselves, several ones into the workspace.
struct BlockSums {
    outputs: [Option<Raw<f32>>; 2],
    workspace: Raw<f32>,
    blocks: usize,
    len: usize,
}

impl BlockSums {
    /// The sums of a block, which are zero at first.
    ///
    /// # Safety
    /// Outputs and workspace lie in valid memory, and no other code accesses the block meanwhile.
    unsafe fn begin<'a>(&self, block: usize) -> [Option<&'a mut [f32]>; 2] {
        [0, 1].map(|slot| {
            let output = self.outputs[slot]?;
            let target = if self.blocks == 1 { output } else { self.partial(block, slot) };
            // SAFETY: the caller's promise.
            let sum = unsafe { target.slice_mut(0, self.len) };
            sum.fill(0.0);
            Some(sum)
        })
    }

    /// Adds up the sums of all blocks, in order.
    ///
    /// # Safety
    /// Outputs and workspace lie in valid memory, and no other code accesses them meanwhile.
    unsafe fn add_up(&self) {
        for (slot, output) in self.outputs.into_iter().enumerate().filter(|_| self.blocks > 1) {
            let Some(output) = output else { continue };
            // SAFETY: the caller's promise.
            let total = unsafe { output.slice_mut(0, self.len) };
            total.fill(0.0);
            for block in 0..self.blocks {
                // SAFETY: as above.
                math::accumulate(unsafe { self.partial(block, slot).slice(0, self.len) }, total);
            }
        }
    }

    /// Where the sum of one of several blocks lies.
    fn partial(&self, block: usize, slot: usize) -> Raw<f32> {
        self.workspace.shifted((block * 2 + slot) * self.len)
    }
}
