//! Loop nests over several tensors of one shape, walked in blocks. Invariant: every element is
//! visited once, blocks do not depend on the number of threads, and a block's inputs are read
//! before its outputs are written, so an output may lie exactly where an input lies.
//!
//! The elements of an output have places of their own (`execute::admission` refuses a graph in
//! which they do not), so each place of an output is written once too. Elements of an input may
//! share a place: they are only read.

use rayon::prelude::*;

use crate::kernels::parts::Parts;
use crate::kernels::tensor::{Element, Raw, Tensor};

/// Elements of a block: inputs and output of one block stay in the first-level cache.
pub(super) const BLOCK: usize = 1024;
/// Elements below which worker threads cost more than they save.
pub(super) const SERIAL: usize = 32 * 1024;

/// Extents and strides of `N` tensors, dimensions merged where all tensors allow it, innermost
/// last.
#[derive(Clone, Debug)]
pub(super) struct Nest<const N: usize> {
    extents: Vec<usize>,
    strides: Vec<[usize; N]>,
}

impl<const N: usize> Nest<N> {
    /// The nest over tensors of the same shape; the first tensor's largest strides go outermost.
    pub fn new(tensors: [&Tensor; N]) -> Nest<N> {
        let shape = &tensors[0].shape;
        debug_assert!(tensors.iter().all(|tensor| tensor.shape == *shape));
        let mut dims: Vec<(usize, [usize; N])> = (0..shape.len())
            .map(|d| (shape[d], tensors.map(|tensor| tensor.strides[d])))
            .filter(|(extent, _)| *extent != 1)
            .collect();
        // Stable: dimensions of equal strides keep their order.
        dims.sort_by_key(|&(_, strides)| std::cmp::Reverse(strides[0]));
        let mut merged: Vec<(usize, [usize; N])> = Vec::new();
        for (extent, strides) in dims {
            match merged.last_mut() {
                Some((outer, steps)) if (0..N).all(|i| steps[i] == strides[i] * extent) => {
                    *outer *= extent;
                    *steps = strides;
                }
                _ => merged.push((extent, strides)),
            }
        }
        if merged.is_empty() {
            merged.push((1, [1; N]));
        }
        Nest {
            extents: merged.iter().map(|d| d.0).collect(),
            strides: merged.iter().map(|d| d.1).collect(),
        }
    }

    /// Total number of elements.
    pub fn elements(&self) -> usize {
        self.extents.iter().product()
    }

    /// Step of each tensor along a block.
    pub fn inner(&self) -> [usize; N] {
        *self.strides.last().expect("a nest has a dimension")
    }

    /// Calls `body` for every block with each tensor's first element and the block's length;
    /// `scratch` is created once per task.
    pub fn walk<S>(
        &self,
        scratch: impl Fn() -> S + Sync,
        body: impl Fn(&mut S, [usize; N], usize) + Sync,
    ) {
        let elements = self.elements();
        if elements == 0 {
            return;
        }
        let inner = *self.extents.last().expect("a nest has a dimension");
        let per_row = inner.div_ceil(BLOCK);
        let blocks = elements / inner * per_row;
        // Blocks of a task: about as many as make up SERIAL / 2 elements.
        let group = (SERIAL / 2).div_ceil(inner.min(BLOCK)).min(blocks);
        let parts = Parts::default();
        let task = |first: usize| {
            let mut state = scratch();
            for block in first..(first + group).min(blocks) {
                let (row, start) = (block / per_row, block % per_row * BLOCK);
                let offsets = self.offsets(row, start);
                parts.run(block, || body(&mut state, offsets, BLOCK.min(inner - start)));
            }
        };
        if elements < SERIAL {
            (0..blocks).step_by(group).for_each(task);
        } else {
            (0..blocks.div_ceil(group)).into_par_iter().for_each(|i| task(i * group));
        }
    }

    /// Each tensor's offset at element `start` of `row`, counting rows over all outer dimensions.
    fn offsets(&self, mut row: usize, start: usize) -> [usize; N] {
        let last = self.extents.len() - 1;
        let mut offsets = self.strides[last].map(|stride| stride * start);
        for d in (0..last).rev() {
            let index = row % self.extents[d];
            row /= self.extents[d];
            for (offset, stride) in offsets.iter_mut().zip(self.strides[d]) {
                *offset += index * stride;
            }
        }
        offsets
    }
}

/// A block of an input: in place, or staged if it is strided or lies where the output does.
///
/// # Safety
/// The `len` elements from `offset` with step `stride` must lie within the tensor.
pub(super) unsafe fn load<T: Element>(
    from: Raw<T>,
    offset: usize,
    stride: usize,
    len: usize,
    staged: bool,
    buffer: &mut [T; BLOCK],
) -> &[T] {
    // SAFETY: the caller's promise covers every element read here.
    unsafe {
        match stride {
            1 if !staged => return from.slice(offset, len),
            1 => from.copy_to(offset, &mut buffer[..len]),
            0 => buffer[..len].fill(from.read(offset)),
            _ => {
                for (i, slot) in buffer[..len].iter_mut().enumerate() {
                    *slot = from.read(offset + i * stride);
                }
            }
        }
    }
    &buffer[..len]
}

/// Computes a block of an output in place, or in a buffer that is then scattered.
///
/// # Safety
/// The `len` elements from `offset` with step `stride` must lie within the tensor and belong to
/// this block alone.
pub(super) unsafe fn store<T: Element>(
    to: Raw<T>,
    offset: usize,
    stride: usize,
    len: usize,
    buffer: &mut [T; BLOCK],
    compute: impl FnOnce(&mut [T]),
) {
    // SAFETY: the caller's promise covers every element written here.
    unsafe {
        if stride == 1 {
            compute(to.slice_mut(offset, len));
        } else {
            compute(&mut buffer[..len]);
            for (i, &element) in buffer[..len].iter().enumerate() {
                to.write(offset + i * stride, element);
            }
        }
    }
}
