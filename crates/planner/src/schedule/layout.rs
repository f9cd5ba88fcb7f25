//! Lifetimes become addresses. Invariant: two buffers that are alive at the same time never overlap, every address is
//! aligned, and the result depends on nothing but the lifetimes.
//!
//! Best fit by falling size: each buffer goes into the smallest gap that holds it among the buffers already placed
//! that live at the same time. Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
//! 2020 (greedy by size).

use crate::units::Bytes;

/// Addresses are multiples of this: a cache line, and the widest vector register.
pub const ALIGNMENT: u64 = 64;

/// When a buffer is held, in positions, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// First position.
    pub first: u32,
    /// Last position.
    pub last: u32,
    /// Size.
    pub bytes: Bytes,
}

/// An address for each lifetime, and the first byte that none of them uses. `fixed` lifetimes have their address
/// already, and no other is placed below `floor`.
pub fn best_fit(lifetimes: &[Lifetime], fixed: &[Option<u64>], floor: u64) -> (Vec<u64>, Bytes) {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&i| (fixed[i].is_none(), std::cmp::Reverse(lifetimes[i].bytes), lifetimes[i].first, i));
    let mut addresses = vec![0u64; lifetimes.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(lifetimes.len()); // by address
    let mut end = floor;
    for i in order {
        let bytes = lifetimes[i].bytes.align_up(ALIGNMENT).0;
        let address = fixed[i].unwrap_or_else(|| smallest_gap(lifetimes, &addresses, &placed, i, bytes, floor));
        addresses[i] = address;
        let slot = placed.partition_point(|&j| addresses[j] <= address);
        placed.insert(slot, i);
        end = end.max(address + bytes);
    }
    (addresses, Bytes(end))
}

/// The start of the smallest sufficient gap between the placed buffers that live while `i` does, or behind them all.
fn smallest_gap(lifetimes: &[Lifetime], addresses: &[u64], placed: &[usize], i: usize, bytes: u64, floor: u64) -> u64 {
    let (mut free_from, mut best) = (floor, None::<(u64, u64)>);
    for &j in placed {
        let overlaps = lifetimes[j].first <= lifetimes[i].last && lifetimes[i].first <= lifetimes[j].last;
        if !overlaps || lifetimes[j].bytes == Bytes::ZERO {
            continue;
        }
        let gap = addresses[j].saturating_sub(free_from);
        if gap >= bytes && best.is_none_or(|(smallest, _)| gap < smallest) {
            best = Some((gap, free_from));
        }
        free_from = free_from.max(addresses[j] + lifetimes[j].bytes.align_up(ALIGNMENT).0);
    }
    best.map_or(free_from, |(_, address)| address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(first: u32, last: u32, bytes: u64) -> Lifetime {
        Lifetime { first, last, bytes: Bytes(bytes) }
    }

    #[test]
    fn buffers_that_never_meet_share_an_address() {
        let (addresses, end) = best_fit(&[life(0, 1, 64), life(2, 3, 64)], &[None, None], 0);
        assert_eq!((addresses, end), (vec![0, 0], Bytes(64)));
    }

    #[test]
    fn the_smallest_gap_that_holds_it_is_taken() {
        // 256 bytes die at 1 and leave a hole of 256; 128 die at 1 and leave one of 128; the newcomer needs 100.
        let lives = [life(0, 1, 256), life(0, 9, 192), life(0, 1, 128), life(0, 9, 112), life(2, 9, 100)];
        let (addresses, end) = best_fit(&lives, &[None; 5], 0);
        assert_eq!(addresses[4], addresses[2]);
        assert_eq!(end, Bytes(704));
    }

    #[test]
    fn fixed_addresses_and_the_floor_are_kept() {
        let (addresses, end) = best_fit(&[life(0, 9, 64), life(0, 9, 64)], &[Some(128), None], 256);
        assert_eq!((addresses, end), (vec![128, 256], Bytes(320)));
    }
}
