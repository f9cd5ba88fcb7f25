//! Matrix products by the `gemm-f32` crate. Invariant: an element's sum runs over k in blocks of
//! [`BLOCK`], each of which is added to the running total in order. So no bit changes with the
//! number of threads, if some rows are computed after the others, or if another product, of whole
//! blocks, has begun the total. Strides are passed on as they are, nothing is copied here.

use gemm_common::Parallelism;
use gemm_f32::gemm::f32::get_gemm_fn;

use crate::kernels::elementwise::map1;
use crate::kernels::tensor::{Element, Tensor, Typed};
use crate::kernels::{Kernel, KernelError, Operands};

/// Multiply-adds below which worker threads cost more than they save.
const SERIAL: usize = 48 * 48 * 256;

/// Steps over k that are summed before they are added to the running total, as those who divide
/// rows expect. The library itself sums as many at once, and up to 512.
pub(super) const BLOCK: usize = tightfit::split::BLOCK as usize;

/// A matrix inside the slab.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    pub data: *mut f32,
    pub rows: usize,
    pub columns: usize,
    pub row_stride: usize,
    pub column_stride: usize,
}

impl Matrix {
    /// The transposed matrix, in place.
    pub fn transposed(self) -> Matrix {
        Matrix {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// Rows `first..first + rows`.
    pub fn row_block(self, first: usize, rows: usize) -> Matrix {
        Matrix { data: self.data.wrapping_add(first * self.row_stride), rows, ..self }
    }

    /// Columns `first..first + columns`.
    fn column_block(self, first: usize, columns: usize) -> Matrix {
        Matrix { data: self.data.wrapping_add(first * self.column_stride), columns, ..self }
    }
}

/// out = [out +] scale · left · right
///
/// # Safety
/// The matrices lie in valid memory, their shapes match, and no other code accesses `out`
/// meanwhile.
pub(super) unsafe fn product(
    out: Matrix,
    add: bool,
    scale: f32,
    left: Matrix,
    right: Matrix,
    threads: usize,
) {
    debug_assert!(
        left.columns == right.rows && out.rows == left.rows && out.columns == right.columns
    );
    let depth = left.columns;
    for first in (0..depth.max(1)).step_by(BLOCK) {
        let steps = BLOCK.min(depth - first);
        let (left, right) = (left.column_block(first, steps), right.row_block(first, steps));
        // SAFETY: the caller's promise.
        unsafe { block(out, add || first > 0, scale, left, right, threads) };
    }
}

/// The same, in whatever order the library sums.
///
/// # Safety
/// As above.
unsafe fn block(out: Matrix, add: bool, scale: f32, left: Matrix, right: Matrix, threads: usize) {
    let work = out.rows.saturating_mul(out.columns).saturating_mul(left.columns);
    let parallelism =
        if threads > 1 && work >= SERIAL { Parallelism::Rayon(threads) } else { Parallelism::None };
    // The library's kernels write columns: an `out` of rows is the transpose of the transposed
    // product.
    let by_rows = out.column_stride < out.row_stride;
    let [out, left, right] = if by_rows {
        [out.transposed(), right.transposed(), left.transposed()]
    } else {
        [out, left, right]
    };
    let columns_and_rows =
        |matrix: Matrix| (matrix.column_stride as isize, matrix.row_stride as isize);
    let ((dst_cs, dst_rs), (lhs_cs, lhs_rs), (rhs_cs, rhs_rs)) =
        (columns_and_rows(out), columns_and_rows(left), columns_and_rows(right));
    // SAFETY: the caller's promise; the function computes dst = alpha·dst + beta·lhs·rhs.
    unsafe {
        get_gemm_fn()(
            out.rows,
            out.columns,
            left.columns,
            out.data,
            dst_cs,
            dst_rs,
            add,
            left.data,
            lhs_cs,
            lhs_rs,
            right.data,
            rhs_cs,
            rhs_rs,
            1.0,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// Makes this thread allocate what it keeps from one product to the next before anything is packed:
/// the panel that products pack rows into, so that only the part of it that is written takes
/// memory; and small pieces, some of which an allocator holds back for each thread. If these were
/// taken while a product has its operands packed, they would lie after them for good, and the next
/// product, which does not fit in between, would take more memory.
pub(crate) fn take_panel() {
    /// The largest piece that a product takes besides packed operands, except very shallow ones.
    const LARGEST: usize = 256;
    /// More pieces of one size than the allocators in use hold back.
    const HELD_BACK: usize = 8;
    for size in (16..=LARGEST).step_by(16) {
        let pieces: [Vec<u8>; HELD_BACK] = std::array::from_fn(|_| Vec::with_capacity(size));
        std::hint::black_box(&pieces);
    }
    // Sixteen adjacent rows are a multiple of every register's lanes, so that nothing but a panel
    // is allocated for them.
    const ROWS: usize = 16;
    const COLUMNS: usize = 20;
    const DEPTH: usize = 3;
    let mut operands = [0.0f32; ROWS * DEPTH + DEPTH * COLUMNS + ROWS * COLUMNS];
    let (left, rest) = operands.split_at_mut(ROWS * DEPTH);
    let (right, out) = rest.split_at_mut(DEPTH * COLUMNS);
    let matrix = |data: &mut [f32], rows, columns| Matrix {
        data: data.as_mut_ptr(),
        rows,
        columns,
        row_stride: 1,
        column_stride: rows,
    };
    let (left, right) = (matrix(left, ROWS, DEPTH), matrix(right, DEPTH, COLUMNS));
    // SAFETY: three matrices of matching shapes in memory of their own.
    unsafe { product(matrix(out, ROWS, COLUMNS), false, 1.0, left, right, 1) }
}

/// The last two dimensions as a matrix, `offset` elements into the tensor.
pub(super) fn matrix(tensor: &Typed<f32>, base: *mut u8, offset: usize) -> Matrix {
    let dims = tensor.shape.len();
    Matrix {
        data: tensor.raw(base).0.wrapping_add(offset),
        rows: tensor.shape[dims - 2],
        columns: tensor.shape[dims - 1],
        row_stride: tensor.strides[dims - 2],
        column_stride: tensor.strides[dims - 1],
    }
}

/// Batches × (m × k) · (k × n) with matching shapes.
fn shapes(left: &Tensor, right: &Tensor, out: &Tensor, dims: usize) -> Result<(), KernelError> {
    let fits = [left, right, out]
        .iter()
        .all(|tensor| tensor.shape.len() == dims && tensor.dtype == f32::DTYPE)
        && left.shape[dims - 1] == right.shape[dims - 2]
        && out.shape[dims - 2] == left.shape[dims - 2]
        && out.shape[dims - 1] == right.shape[dims - 1]
        && left.shape[..dims - 2] == right.shape[..dims - 2]
        && left.shape[..dims - 2] == out.shape[..dims - 2];
    if fits {
        return Ok(());
    }
    Err(KernelError::Shapes(format!(
        "{:?} times {:?} does not give {:?}",
        left.shape, right.shape, out.shape
    )))
}

/// A product of two matrices.
pub(super) fn mm(operands: &Operands, threads: usize) -> Result<Kernel, KernelError> {
    let (left, right, out) = (operands.float(0)?, operands.float(1)?, operands.float_output(0)?);
    shapes(&left, &right, &out, 2)?;
    // SAFETY: shapes match, operands lie in the slab, and the checker proved the output disjoint
    // from the inputs.
    Ok(Box::new(move |run| unsafe {
        product(
            matrix(&out, run.base, 0),
            false,
            1.0,
            matrix(&left, run.base, 0),
            matrix(&right, run.base, 0),
            threads,
        )
    }))
}

/// beta · bias + alpha · left · right: the bias is written first, the product added to it.
pub(super) fn addmm(operands: &Operands, threads: usize) -> Result<Kernel, KernelError> {
    operands.known_keywords(&["beta", "alpha"])?;
    let beta = operands.optional_number(3, "beta").unwrap_or(1.0) as f32;
    let alpha = operands.optional_number(4, "alpha").unwrap_or(1.0) as f32;
    let (bias, left, right, out) =
        (operands.float(0)?, operands.float(1)?, operands.float(2)?, operands.float_output(0)?);
    shapes(&left, &right, &out, 2)?;
    let prepare = map1::<f32, f32>(&bias, &out, move |x, y| {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = beta * x;
        }
    })?;
    Ok(Box::new(move |run| {
        prepare(run);
        // SAFETY: as in `mm`.
        unsafe {
            product(
                matrix(&out, run.base, 0),
                true,
                alpha,
                matrix(&left, run.base, 0),
                matrix(&right, run.base, 0),
                threads,
            )
        }
    }))
}

/// A product for each batch.
pub(super) fn bmm(operands: &Operands, threads: usize) -> Result<Kernel, KernelError> {
    let (left, right, out) = (operands.float(0)?, operands.float(1)?, operands.float_output(0)?);
    shapes(&left, &right, &out, 3)?;
    let batches = if out.elements() > 0 { out.shape[0] } else { 0 };
    Ok(Box::new(move |run| {
        for batch in 0..batches {
            let at = |tensor: &Typed<f32>| matrix(tensor, run.base, batch * tensor.strides[0]);
            // SAFETY: as in `mm`; each batch is a part of its own.
            unsafe { product(at(&out), false, 1.0, at(&left), at(&right), threads) }
        }
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tightfit_testing::config;

    use super::*;

    /// Elements up to which the library sums in another order.
    const FEW: usize = 256;

    fn matrix_of(data: &mut [f32], rows: usize, columns: usize, by_rows: bool) -> Matrix {
        let (row_stride, column_stride) = if by_rows { (columns, 1) } else { (1, rows) };
        Matrix { data: data.as_mut_ptr(), rows, columns, row_stride, column_stride }
    }

    fn drawn(random: &mut fastrand::Rng, elements: usize) -> Vec<f32> {
        (0..elements).map(|_| random.f32() - 0.5).collect()
    }

    proptest! {
        #![proptest_config(config(200))]

        #[test]
        fn rows_one_after_the_other_and_totals_that_go_on_have_the_same_bits(
            (m, n, k) in (17usize..80, 17usize..80, 1usize..900),
            cut in 16usize..64,
            blocks in 0usize..4,
            orders: [bool; 3],
            seed: u64,
            threads in 1usize..3,
        ) {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut a, mut b) = (drawn(&mut random, m * k), drawn(&mut random, k * n));
            let mut outs = [vec![0.0; m * n], vec![0.0; m * n], vec![0.0; m * n]];
            let left = matrix_of(&mut a, m, k, orders[0]);
            let right = matrix_of(&mut b, k, n, orders[1]);
            let [whole, rows, totals] =
                outs.each_mut().map(|out| matrix_of(out, m, n, orders[2]));
            let cut = if m - cut.min(m) < 16 { m } else { cut };
            let begun = (blocks * BLOCK).min(k);
            // SAFETY: matrices of matching shapes in memory of their own.
            unsafe {
                product(whole, false, 1.0, left, right, threads);
                for (first, count) in [(0, cut), (cut, m - cut)] {
                    let part = left.row_block(first, count);
                    product(rows.row_block(first, count), false, 1.0, part, right, 1);
                }
                for (first, steps) in [(0, begun), (begun, k - begun)] {
                    let (left, right) =
                        (left.column_block(first, steps), right.row_block(first, steps));
                    product(totals, first > 0, 1.0, left, right, threads);
                }
            }
            let [whole, rows, totals] =
                outs.map(|out| out.into_iter().map(f32::to_bits).collect::<Vec<_>>());
            prop_assert!(m * n > FEW && whole == rows);
            prop_assert!(whole == totals);
        }
    }
}
