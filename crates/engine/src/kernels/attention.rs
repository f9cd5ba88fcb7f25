//! Attention without the matrix of all scores: softmax(q kᵀ · scale) v, a block of queries at a
//! time. Invariant: heads are independent tasks and blocks of a head run in order, so the sums'
//! order is fixed; the scores of one block live in the workspace, a slice of it for each thread.
//!
//! Source: Dao et al., "FlashAttention", 2022, of which this keeps the backward pass by
//! recomputation from the logarithm of the row sums; a block here sees all its keys at once, so no
//! running maximum is needed.

use tightfit::operator::QUERY_BLOCK;

use crate::kernels::matmul::{Matrix, product};
use crate::kernels::operands::Workspace;
use crate::kernels::parts;
use crate::kernels::tensor::{Raw, Tensor, Typed};
use crate::kernels::{Kernel, KernelError, Operands, float_bytes, math, shaped, tasks, typed};

/// Rows of queries whose scores are held at a time.
const BLOCK: usize = QUERY_BLOCK as usize;

/// The parameters that both passes need.
#[derive(Clone, Debug)]
struct Shape {
    batch: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    causal: bool,
    scale: f32,
    /// Added to the scores before the softmax, broadcast to [batch, heads, queries, keys].
    mask: Option<Typed<f32>>,
    scores: Workspace,
    threads: usize,
}

impl Shape {
    fn new(
        operands: &Operands,
        first: usize,
        threads: usize,
        buffers: usize,
    ) -> Result<Shape, KernelError> {
        operands.known_keywords(&["scale", "attn_mask", "dropout_p", "is_causal"])?;
        let (q, k, v) =
            (operands.float(first)?, operands.float(first + 1)?, operands.float(first + 2)?);
        // Forward: dropout_p, is_causal follow v; backward: out and logsumexp stand between.
        let next = if first == 0 { 3 } else { 6 };
        if operands.optional_number(next, "dropout_p").unwrap_or(0.0) != 0.0 {
            return Err(KernelError::Unsupported("attention with dropout".to_string()));
        }
        let fits = q.shape.len() == 4
            && k.shape.len() == 4
            && v.shape == k.shape
            && q.shape[..2] == k.shape[..2]
            && q.shape[3] == k.shape[3];
        if !fits {
            return Err(KernelError::Shapes(format!(
                "attention of {:?}, {:?}, {:?}",
                q.shape, k.shape, v.shape
            )));
        }
        let scale = operands
            .optional_number(usize::MAX, "scale")
            .unwrap_or(1.0 / (q.shape[3] as f64).sqrt());
        let mask = operands.node.kwarg("attn_mask").and_then(|mask| operands.tensor_of(mask));
        let mask = mask.map(|mask| {
            let whole = [q.shape[0], q.shape[1], q.shape[2], k.shape[2]];
            typed::<f32>(mask)?.broadcast(&whole).ok_or_else(|| {
                KernelError::Shapes(format!("a mask of {:?} for scores of {whole:?}", mask.shape))
            })
        });
        // A slice for each thread.
        let rows = BLOCK.saturating_mul(threads);
        Ok(Shape {
            mask: mask.transpose()?,
            batch: q.shape[0],
            heads: q.shape[1],
            queries: q.shape[2],
            keys: k.shape[2],
            causal: operands.flag(next + 1, "is_causal", false),
            scale: scale as f32,
            scores: operands.workspace(float_bytes(buffers, rows, k.shape[2]))?,
            threads,
        })
    }

    /// Calls `body` for each head with its index and its thread's slice of the workspace.
    fn for_each_head(
        &self,
        base: *mut u8,
        buffers: usize,
        body: impl Fn(usize, usize, Raw<f32>) + Sync,
    ) {
        let slice = buffers * BLOCK * self.keys;
        let scores: Raw<f32> = self.scores.raw(base);
        let weight = self.queries.saturating_mul(self.keys);
        tasks::for_each(self.batch * self.heads, weight, |head| {
            let thread = rayon::current_thread_index().unwrap_or(0);
            assert!(thread < self.threads, "it runs on more threads than it was compiled for");
            let scores = scores.shifted(thread * slice);
            parts::scratch(scores.0, slice, thread);
            body(head / self.heads, head % self.heads, scores);
        });
    }

    /// Adds the mask to the first scores of a query's row.
    ///
    /// # Safety
    /// The indices lie within the mask.
    unsafe fn add_mask(&self, base: *mut u8, query: [usize; 3], scores: &mut [f32]) {
        let Some(mask) = &self.mask else { return };
        let row = row(mask, query);
        for (key, score) in scores.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *score += unsafe { mask.raw(base).read(row + key * mask.strides[3]) };
        }
    }

    /// Keys that the queries `first..first + rows` may see.
    fn visible(&self, first: usize, rows: usize) -> usize {
        if self.causal { (first + rows).min(self.keys) } else { self.keys }
    }

    /// The queries of a head in blocks, in order.
    fn blocks(&self) -> impl Iterator<Item = Block> {
        (0..self.queries).step_by(BLOCK).map(move |first| {
            let rows = BLOCK.min(self.queries - first);
            Block { first, rows, keys: self.visible(first, rows) }
        })
    }

    /// The scores of a block as a matrix, a row for each query.
    fn matrix(&self, scores: Raw<f32>, block: Block) -> Matrix {
        Matrix {
            data: scores.0,
            rows: block.rows,
            columns: block.keys,
            row_stride: self.keys,
            column_stride: 1,
        }
    }

    /// A row of a block's scores: those of the keys that the query sees, and the hidden ones.
    ///
    /// # Safety
    /// The block lies in valid memory, and no other code accesses the row meanwhile.
    unsafe fn row<'a>(
        &self,
        scores: Raw<f32>,
        block: Block,
        row: usize,
    ) -> (&'a mut [f32], &'a mut [f32]) {
        let seen = self.visible(block.first + row, 1);
        // SAFETY: the caller's promise.
        unsafe { scores.slice_mut(row * self.keys, block.keys) }.split_at_mut(seen)
    }
}

/// Queries whose scores are held at the same time, and how many keys the last of them sees.
#[derive(Clone, Copy)]
struct Block {
    first: usize,
    rows: usize,
    keys: usize,
}

impl Block {
    /// Its queries' rows of a head.
    fn queries(self, head: Matrix) -> Matrix {
        head.row_block(self.first, self.rows)
    }

    /// Its keys' rows of a head.
    fn keys(self, head: Matrix) -> Matrix {
        head.row_block(0, self.keys)
    }
}

/// Where a query's row begins in a tensor [batch, heads, queries, …].
fn row(tensor: &Tensor, [batch, head, query]: [usize; 3]) -> usize {
    batch * tensor.strides[0] + head * tensor.strides[1] + query * tensor.strides[2]
}

/// One head of a tensor [batch, heads, length, size] as a matrix.
fn head(tensor: &Typed<f32>, base: *mut u8, batch: usize, index: usize) -> Matrix {
    super::matmul::matrix(tensor, base, batch * tensor.strides[0] + index * tensor.strides[1])
}

/// (out, logsumexp) = attention(q, k, v)
pub(super) fn forward(operands: &Operands, threads: usize) -> Result<Kernel, KernelError> {
    let shape = Shape::new(operands, 0, threads, 1)?;
    let (q, k, v) = (operands.float(0)?, operands.float(1)?, operands.float(2)?);
    let (out, logsumexp) = (operands.float_output(0)?, operands.optional_float_output(1)?);
    shaped(&out, "the output", &q.shape)?;
    if let Some(logsumexp) = &logsumexp {
        shaped(logsumexp, "the logarithm of the sums", &q.shape[..3])?;
    }
    Ok(Box::new(move |run| {
        shape.for_each_head(run.base, 1, |b, h, scores| {
            let at = |tensor: &Typed<f32>| head(tensor, run.base, b, h);
            let (q, k, v, out) = (at(&q), at(&k), at(&v), at(&out));
            for block in shape.blocks() {
                let p = shape.matrix(scores, block);
                // SAFETY: the block lies in this thread's slice of the workspace, the heads'
                // matrices in their tensors; a head's output belongs to this task alone.
                unsafe {
                    product(p, false, shape.scale, block.queries(q), block.keys(k).transposed(), 1);
                    for i in 0..block.rows {
                        let query = [b, h, block.first + i];
                        let (seen, hidden) = shape.row(scores, block, i);
                        shape.add_mask(run.base, query, seen);
                        let most = math::largest(seen);
                        let total = math::exp_shifted(seen, 1.0, most);
                        math::scale(seen, 1.0 / total);
                        hidden.fill(0.0);
                        if let Some(logsumexp) = &logsumexp {
                            let at = row(logsumexp, query);
                            logsumexp.raw(run.base).write(at, most + total.ln());
                        }
                    }
                    product(block.queries(out), false, 1.0, p, block.keys(v), 1);
                }
            }
        });
    }))
}

/// (dq, dk, dv) from the gradient of the output: P is recomputed from q, k and logsumexp.
pub(super) fn backward(operands: &Operands, threads: usize) -> Result<Kernel, KernelError> {
    let shape = Shape::new(operands, 1, threads, 2)?;
    let read = |index: usize| operands.float(index);
    let (gradient, q, k, v, out, logsumexp) =
        (read(0)?, read(1)?, read(2)?, read(3)?, read(4)?, read(5)?);
    let written = |index: usize| operands.float_output(index);
    let (dq, dk, dv) = (written(0)?, written(1)?, written(2)?);
    shaped(&gradient, "the incoming gradient", &q.shape)?;
    shaped(&out, "the output of the forward pass", &q.shape)?;
    shaped(&logsumexp, "the logarithm of the sums", &q.shape[..3])?;
    for (gradient, of) in [(&dq, &q), (&dk, &k), (&dv, &v)] {
        shaped(gradient, "a gradient", &of.shape)?;
    }
    Ok(Box::new(move |run| {
        shape.for_each_head(run.base, 2, |b, h, scores| {
            let at = |tensor: &Typed<f32>| head(tensor, run.base, b, h);
            let (q, k, v, dq, dk, dv) = (at(&q), at(&k), at(&v), at(&dq), at(&dk), at(&dv));
            let (gradient, out) = (at(&gradient), at(&out));
            let gradients = scores.shifted(BLOCK * shape.keys);
            // SAFETY: as in `forward`; this head's dq, dk and dv belong to this task alone.
            unsafe {
                clear(dk);
                clear(dv);
                for block in shape.blocks() {
                    let [p, dp] = [scores, gradients].map(|of| shape.matrix(of, block));
                    let [block_q, block_gradient] = [q, gradient].map(|of| block.queries(of));
                    let [seen_k, seen_v] = [k, v].map(|of| block.keys(of));
                    product(p, false, shape.scale, block_q, seen_k.transposed(), 1);
                    product(dp, false, 1.0, block_gradient, seen_v.transposed(), 1);
                    for i in 0..block.rows {
                        let query = [b, h, block.first + i];
                        let shift = logsumexp.raw(run.base).read(row(&logsumexp, query));
                        let (p, hidden_p) = shape.row(scores, block, i);
                        let (dp, hidden_dp) = shape.row(gradients, block, i);
                        shape.add_mask(run.base, query, p);
                        let total = row_dot(gradient, out, block.first + i);
                        math::softmax_gradient(p, dp, shift, total, shape.scale);
                        hidden_p.fill(0.0);
                        hidden_dp.fill(0.0);
                    }
                    product(block.keys(dv), true, 1.0, p.transposed(), block_gradient, 1);
                    product(block.queries(dq), false, 1.0, dp, seen_k, 1);
                    product(block.keys(dk), true, 1.0, dp.transposed(), block_q, 1);
                }
            }
        });
    }))
}

/// Σ over a row of a ∘ b.
///
/// # Safety
/// Both matrices lie in valid memory.
unsafe fn row_dot(a: Matrix, b: Matrix, row: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        if a.column_stride == 1 && b.column_stride == 1 {
            return math::dot(
                Raw(a.data).slice(row * a.row_stride, a.columns),
                Raw(b.data).slice(row * b.row_stride, b.columns),
            );
        }
        (0..a.columns)
            .map(|c| {
                *a.data.add(row * a.row_stride + c * a.column_stride)
                    * *b.data.add(row * b.row_stride + c * b.column_stride)
            })
            .sum()
    }
}

/// Sets a matrix to zero.
///
/// # Safety
/// It lies in valid memory that no other code accesses.
unsafe fn clear(matrix: Matrix) {
    for row in 0..matrix.rows {
        // SAFETY: the caller's promise.
        unsafe {
            if matrix.column_stride == 1 {
                Raw(matrix.data).slice_mut(row * matrix.row_stride, matrix.columns).fill(0.0);
            } else {
                for column in 0..matrix.columns {
                    *matrix.data.add(row * matrix.row_stride + column * matrix.column_stride) = 0.0;
                }
            }
        }
    }
}
