//! What a matrix product packs: memory that the `gemm` crate allocates beside the slab. Invariant:
//! the figure follows from the extents, the threads and the library's block sizes, which are copied
//! here; `doc/theory/reserve.md` says where they come from and where they may be exceeded.

use tightfit::units::Bytes;

/// `gemm` packs blocks of at most this many elements along k on x86-64 (`kernel_params` with 32 to
/// 48 KiB of first-level cache).
const BLOCK_K: usize = 512;
/// … and blocks of at most this many rows (8 × 64).
const BLOCK_M: usize = 512;

/// Most bytes that `gemm` allocates of its own for one m × k · k × n product: both operands' packed
/// blocks, and one block of rows for each thread.
pub(crate) fn packing_bytes(m: u64, n: u64, k: u64, threads: u64) -> Bytes {
    const TILE: u64 = 64; // no register tile is higher or wider
    let depth = k.min(BLOCK_K as u64);
    let (m, n) = (m.next_multiple_of(TILE), n.next_multiple_of(TILE));
    // gemm may swap the operands to suit the output's strides.
    let packed = |rows: u64, columns: u64| {
        depth * columns
            + depth * rows.min(2 * BLOCK_M as u64)
            + threads * depth * rows.min(BLOCK_M as u64)
    };
    Bytes(packed(m, n).max(packed(n, m)) * 4)
}
