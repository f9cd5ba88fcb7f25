//! What a matrix product packs: memory that the `gemm` crate allocates in addition to the slab.
//! Invariant: block sizes are those that the library itself computes for this processor, its tiles
//! are those of its own kernels, and every figure is at least what the library allocates.

use gemm_common::cache::{CACHE_INFO, KernelParams, kernel_params};
use gemm_common::gemm::CACHELINE_ALIGN;
use gemm_f32::microkernel;
use tightfit::units::Bytes;

use crate::kernels::matmul::BLOCK;

/// Large allocations take whole pages, and a header.
const PAGE: usize = 4096;
/// Bytes of an element.
const ELEMENT: usize = size_of::<f32>();
/// Up to this many rows and columns the library does not compute block sizes…
const SMALL: usize = 64;
/// … but uses this depth.
const SMALL_DEPTH: usize = 512;

/// A register tile: rows and columns of the result that the innermost loop holds.
#[derive(Clone, Copy)]
struct Tile {
    rows: usize,
    columns: usize,
}

/// The tile of the kernel that the library chooses on this processor.
fn tile() -> Tile {
    #[cfg(target_arch = "x86_64")]
    {
        use microkernel::{avx512f, fma};
        if std::arch::is_x86_feature_detected!("avx512f") {
            return Tile { rows: 16 * avx512f::f32::MR_DIV_N, columns: avx512f::f32::NR };
        }
        if std::arch::is_x86_feature_detected!("fma") {
            return Tile { rows: 8 * fma::f32::MR_DIV_N, columns: fma::f32::NR };
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        use microkernel::neon;
        if std::arch::is_aarch64_feature_detected!("neon") {
            return Tile { rows: 4 * neon::f32::MR_DIV_N, columns: neon::f32::NR };
        }
    }
    use microkernel::scalar;
    Tile { rows: scalar::f32::MR_DIV_N, columns: scalar::f32::NR }
}

/// What a product takes in addition to its operands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packed {
    /// Bytes allocated until the library returns.
    pub at_once: Bytes,
    /// Bytes written in each thread's panel: memory as large as the second-level cache, which a
    /// thread allocates at its first product and keeps.
    pub panel: Bytes,
}

/// Most that one m × k · k × n product on this many threads takes.
pub(crate) fn packed(m: u64, n: u64, k: u64, threads: u64) -> Packed {
    let extent = |extent: u64| usize::try_from(extent).unwrap_or(usize::MAX);
    let (m, n, k) = (extent(m), extent(n), extent(k));
    if m == 0 || n == 0 || k == 0 {
        return Packed::default();
    }
    // The library exchanges the operands if that suits the result's strides; the last block of the
    // depth may have fewer steps.
    let tile = tile();
    let depths = [k.min(BLOCK), k % BLOCK].into_iter().filter(|&depth| depth > 0);
    let all =
        depths.flat_map(|k| [[m, n, k], [n, m, k]]).map(|extents| one(tile, extents, threads));
    all.reduce(|a, b| Packed { at_once: a.at_once.max(b.at_once), panel: a.panel.max(b.panel) })
        .unwrap_or_default()
}

/// What one product takes with its operands in the given order.
fn one(tile: Tile, [m, n, k]: [usize; 3], threads: u64) -> Packed {
    let KernelParams { kc, mc, nc } = blocks(tile, [m, n, k], threads);
    let rows = m.checked_next_multiple_of(tile.rows).unwrap_or(usize::MAX);
    // One slice of the depth of the right operand, as wide as a block, if it serves enough rows.
    let right = if m > 2 * tile.rows { kc.saturating_mul(nc) } else { 0 };
    // The same of the left operand, if that has at most two blocks of rows; if it has more, it is
    // packed into the threads' panels.
    let left = if m <= 2 * mc { kc.saturating_mul(rows) } else { 0 };
    // Flags of packed tiles of rows: a byte for each, for each thread.
    let marks = (mc / tile.rows).saturating_mul(threads as usize);
    let elements = right.saturating_add(left).saturating_mul(ELEMENT);
    let at_once = elements.saturating_add(marks).saturating_add(2 * CACHELINE_ALIGN + PAGE);
    let panel = kc.saturating_mul(mc.min(rows)).saturating_mul(ELEMENT);
    let panel = panel.min(CACHE_INFO[1].cache_bytes) + CACHELINE_ALIGN + 2 * PAGE;
    let bounded = |bytes: usize| Bytes((bytes as u64).min(Bytes::LIMIT.0));
    Packed { at_once: bounded(at_once), panel: bounded(panel) }
}

/// The library's block sizes.
fn blocks(tile: Tile, [m, n, k]: [usize; 3], threads: u64) -> KernelParams {
    let all_columns = n.checked_next_multiple_of(tile.columns).unwrap_or(usize::MAX);
    if m <= SMALL && n <= SMALL {
        let kc = k.min(SMALL_DEPTH);
        let mc = CACHE_INFO[1].cache_bytes / ELEMENT / kc / tile.rows * tile.rows;
        return KernelParams { kc, mc, nc: all_columns };
    }
    let blocks = kernel_params(m, n, k, tile.rows, tile.columns, ELEMENT);
    match (blocks.nc, threads) {
        // Without a third-level cache.
        (0, 1) => KernelParams { nc: 128 * tile.columns, ..blocks },
        (0, _) => KernelParams { nc: all_columns, ..blocks },
        _ => blocks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_of_nothing_packs_nothing() {
        for [m, n, k] in [[0, 5, 5], [5, 0, 5], [5, 5, 0]] {
            assert_eq!(packed(m, n, k, 2), Packed::default());
        }
    }

    #[test]
    fn what_is_packed_is_bounded_whatever_the_extents() {
        for extents in [[u64::MAX; 3], [1 << 40, 3, 1 << 40], [1, 1 << 50, 700]] {
            let [m, n, k] = extents;
            for threads in [1, 256] {
                let Packed { at_once, panel } = packed(m, n, k, threads);
                assert!(at_once <= Bytes::LIMIT && panel <= Bytes::LIMIT, "{extents:?}");
            }
        }
    }
}
