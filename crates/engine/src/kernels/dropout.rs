//! Dropout. Invariant: an element's draw depends on run seed, seed slot, step, micro-batch and its own position alone,
//! so a recomputation draws the same mask.

use multiversion::multiversion;
use tightfit::graph::DType;

use super::elementwise::map2;
use super::{Kernel, KernelError, Operands, tasks, typed};
use crate::philox::{key, philox};

/// Elements of a task: 64 blocks of 4 words.
const CHUNK: usize = 1024;

/// (x · mask / (1 − p), mask); the identity where `train` is false.
pub(super) fn forward(operands: &Operands) -> Result<Kernel, KernelError> {
    let (x, out, mask) = (operands.float(0)?.clone(), operands.output(0)?.clone(), operands.unused(1).cloned());
    let (p, train) = (operands.number(1, "p")?, operands.flag(2, "train", true));
    if !(0.0..=1.0).contains(&p) {
        return Err(KernelError::Shapes(format!("dropout probability {p}")));
    }
    let p = if train { p } else { 0.0 };
    let slot = match operands.node.seed_slot {
        Some(slot) => slot,
        None if p == 0.0 => 0,
        None => return Err(KernelError::Shapes("a random node without a seed slot cannot be replayed".to_string())),
    };
    if [Some(&x), Some(&out), mask.as_ref()].into_iter().flatten().any(|tensor| !tensor.is_contiguous()) {
        return Err(KernelError::Unsupported("dropout of a strided tensor".to_string()));
    }
    // Kept where the word is not below p · 2³².
    let threshold = (p * 4_294_967_296.0).round().min(f64::from(u32::MAX)) as u32;
    let scale = if p < 1.0 { (1.0 / (1.0 - p)) as f32 } else { 0.0 };
    let elements = out.elements();
    Ok(Box::new(move |run| {
        let (from, to) = (x.raw::<f32>(run.base), out.raw::<f32>(run.base));
        let kept = mask.as_ref().map(|mask| mask.raw::<u8>(run.base));
        tasks::for_each(elements.div_ceil(CHUNK), CHUNK * 4, |chunk| {
            let first = chunk * CHUNK;
            let len = CHUNK.min(elements - first);
            let mut words = [0u32; CHUNK];
            draw(key(run.seed), (first / 4) as u32, [slot, run.step, run.micro_batch], &mut words);
            // SAFETY: chunks are disjoint parts of contiguous tensors; each element is read before it is written.
            unsafe {
                for (i, &word) in words[..len].iter().enumerate() {
                    let keep = word >= threshold && scale > 0.0;
                    *to.at(first + i) = if keep { *from.at(first + i) * scale } else { 0.0 };
                    if let Some(kept) = kept {
                        *kept.at(first + i) = u8::from(keep);
                    }
                }
            }
        });
    }))
}

/// Words of the blocks from `first`, four in a row; 16 blocks are computed side by side.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn draw(key: [u32; 2], first: u32, rest: [u32; 3], words: &mut [u32; CHUNK]) {
    for (group, words) in words.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        let mut lanes = [[0u32; 4]; 16];
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = philox(key, [first.wrapping_add((group * 16 + i) as u32), rest[0], rest[1], rest[2]]);
        }
        for (words, lane) in words.as_chunks_mut::<4>().0.iter_mut().zip(lanes) {
            *words = lane;
        }
    }
}

/// gradient · mask · scale
pub(super) fn backward(operands: &Operands) -> Result<Kernel, KernelError> {
    let scale = operands.number(2, "scale")? as f32;
    map2::<f32, u8, f32>(operands.float(0)?, typed(operands.tensor(1)?, DType::Bool)?, operands.output(0)?, move |x, mask, y| {
        for ((y, &x), &mask) in y.iter_mut().zip(x).zip(mask) {
            *y = if mask != 0 { x * scale } else { 0.0 };
        }
    })
}
