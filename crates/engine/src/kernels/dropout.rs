//! Dropout. Invariant: an element's draw depends on run seed, seed slot, step, micro-batch and its
//! own position alone, so a recomputation draws the same mask.

use multiversion::multiversion;

use crate::kernels::elementwise::map2;
use crate::kernels::{Kernel, KernelError, Operands, shaped, tasks, typed};
use crate::philox::{key, philox_lanes};

/// Elements of a task: 64 blocks of 4 words.
const CHUNK: usize = 1024;

/// (x · mask / (1 − p), mask); the identity if `train` is false.
pub(super) fn forward(operands: &Operands) -> Result<Kernel, KernelError> {
    let (x, out, mask) = (
        operands.float(0)?,
        operands.float_output(0)?,
        operands.optional_output(1).map(typed::<u8>).transpose()?,
    );
    shaped(&out, "the output", &x.shape)?;
    if let Some(mask) = &mask {
        shaped(mask, "the mask", &x.shape)?;
    }
    let (p, train) = (operands.number(1, "p")?, operands.flag(2, "train", true));
    if !(0.0..=1.0).contains(&p) {
        return Err(KernelError::Shapes(format!("dropout probability {p}")));
    }
    let p = if train { p } else { 0.0 };
    let slot = match operands.node.seed_slot {
        Some(slot) => slot,
        None if p == 0.0 => 0,
        None => {
            return Err(KernelError::Shapes(
                "a random node without a seed slot cannot be replayed".to_string(),
            ));
        }
    };
    let mask_is_contiguous = mask.as_ref().is_none_or(|mask| mask.is_contiguous());
    if !(x.is_contiguous() && out.is_contiguous() && mask_is_contiguous) {
        return Err(KernelError::Unsupported("dropout of a strided tensor".to_string()));
    }
    // An element is kept if its word is not below p · 2³².
    let threshold = (p * 4_294_967_296.0).round().min(f64::from(u32::MAX)) as u32;
    let scale = if p < 1.0 { (1.0 / (1.0 - p)) as f32 } else { 0.0 };
    let elements = out.elements();
    Ok(Box::new(move |run| {
        let (from, to) = (x.raw(run.base), out.raw(run.base));
        let kept = mask.as_ref().map(|mask| mask.raw(run.base));
        tasks::for_each(elements.div_ceil(CHUNK), CHUNK * 4, |chunk| {
            let first = chunk * CHUNK;
            let len = CHUNK.min(elements - first);
            let mut words = [0u32; CHUNK];
            let counter = [slot, run.step, run.micro_batch.as_u32()];
            draw(key(run.seed), (first / 4) as u32, counter, &mut words);
            // SAFETY: chunks are disjoint parts of contiguous tensors, and input, output and mask
            // are three tensors.
            unsafe {
                apply(&words, from.slice(first, len), threshold, scale, to.slice_mut(first, len));
                if let Some(kept) = kept {
                    for (kept, &word) in kept.slice_mut(first, len).iter_mut().zip(&words) {
                        *kept = u8::from(word >= threshold && scale > 0.0);
                    }
                }
            }
        });
    }))
}

/// y = x · scale if the word is not below the threshold, else 0.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn apply(words: &[u32], x: &[f32], threshold: u32, scale: f32, y: &mut [f32]) {
    for ((y, &x), &word) in y.iter_mut().zip(x).zip(words) {
        *y = if word >= threshold && scale > 0.0 { x * scale } else { 0.0 };
    }
}

/// Words of the blocks from `first`, four in a row; 16 blocks are computed in parallel.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn draw(key: [u32; 2], first: u32, rest: [u32; 3], words: &mut [u32; CHUNK]) {
    for (group, words) in words.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        let lanes = philox_lanes(key, first.wrapping_add(group as u32 * 16), rest);
        for (block, words) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *words = [lanes[0][block], lanes[1][block], lanes[2][block], lanes[3][block]];
        }
    }
}

/// gradient · mask · scale
pub(super) fn backward(operands: &Operands) -> Result<Kernel, KernelError> {
    let scale = operands.number(2, "scale")? as f32;
    map2::<f32, u8, f32>(
        operands.tensor(0)?,
        operands.tensor(1)?,
        operands.output(0)?,
        move |x, mask, y| {
            for ((y, &x), &mask) in y.iter_mut().zip(x).zip(mask) {
                *y = if mask != 0 { x * scale } else { 0.0 };
            }
        },
    )
}
