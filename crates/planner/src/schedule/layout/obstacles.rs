//! Packings around blocks that have their places already, above the floor and for a part of the
//! time. Invariant: these stay where they are, and no end is higher than the best that was known.
//!
//! The exact search stacks blocks on an empty floor and has no place for holes below what is fixed.
//! So blocks are placed by best fit, in one order after another.

use crate::effort::Meter;
use crate::schedule::layout::best_fit::{Placement, best_fit};
use crate::schedule::layout::local_search::{RANKINGS, rank, repair};
use crate::schedule::layout::sections::Sections;
use crate::schedule::layout::{Lifetime, MOST_FAILED_ROUNDS};

/// Orders that are tried, if the effort lasts.
const ORDERS: usize = 2048;
/// How much the measures of a ranking are stretched at most, after one order of each.
const NOISE: f64 = 0.5;

/// The lowest packing that is found before one ends at `stop`; blocks that stick out above `target`
/// are placed earlier.
pub(super) fn around(
    blocks: &[Lifetime],
    fixed: &[Option<u64>],
    floor: u64,
    (target, stop): (u64, u64),
    cut: &Sections,
    mut best: Placement,
    meter: &mut Meter<'_>,
) -> Placement {
    let mut random = (meter.effort().seed ^ 0x9E37_79B9_7F4A_7C15).max(1);
    let mut order: Vec<u32> =
        (0..blocks.len() as u32).filter(|&i| fixed[i as usize].is_none()).collect();
    for turn in 0..ORDERS {
        if best.end <= stop {
            break;
        }
        let noise = if turn < RANKINGS.len() { 0.0 } else { NOISE };
        let rank = rank(blocks, cut, RANKINGS[turn % RANKINGS.len()], noise, &mut random);
        order.sort_unstable_by_key(|&block| rank[block as usize]);
        let Some(first) = best_fit(blocks, fixed, floor, &order, meter) else { break };
        let (order, rounds) = (order.clone(), MOST_FAILED_ROUNDS);
        let end = (target, stop);
        let placement = repair(blocks, fixed, floor, end, order, first, rounds, meter);
        if placement.end < best.end {
            best = placement;
        }
    }
    best
}
