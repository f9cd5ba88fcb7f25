//! Orders in which blocks are placed, and their repair. Invariant: every order is a permutation of
//! the same blocks, and a repaired order is taken only if it ends lower.
//!
//! Source of the repair: Joslin and Clements, "Squeaky Wheel Optimization", 1999.

use std::cmp::Reverse;

use crate::effort::Meter;
use crate::schedule::layout::Lifetime;
use crate::schedule::layout::best_fit::{BestFit, Placement};
use crate::schedule::layout::sections::Sections;

/// The order of greedy by size: the largest first, then the earliest.
pub(super) fn by_size(blocks: &[Lifetime], free: &[u32]) -> Vec<u32> {
    let mut order = free.to_vec();
    order.sort_by_key(|&i| (Reverse(blocks[i as usize].bytes), blocks[i as usize].first, i));
    order
}

/// Further orders: blocks that live where the most bytes are held come first, for they have the
/// least freedom to move. Among equals the largest, or the longest-lived.
pub(super) fn by_pressure(
    blocks: &[Lifetime],
    free: &[u32],
    held: impl Fn(u32) -> u64,
) -> [Vec<u32>; 2] {
    let pressure: Vec<u64> = (0..blocks.len() as u32).map(held).collect();
    [false, true].map(|longest| {
        let mut order = free.to_vec();
        order.sort_by_key(|&i| {
            let block = blocks[i as usize];
            let then = if longest { u64::from(block.last - block.first) } else { block.bytes.0 };
            (Reverse(pressure[i as usize]), Reverse(then), block.first, i)
        });
        order
    })
}

/// Places the blocks repeatedly until they end at `stop` or lower; those that stick out above
/// `target` are moved to the front of the order. Ends after `most_failed` rounds without a lower
/// end.
pub(super) fn repair(
    best_fit: &mut BestFit<'_>,
    (target, stop): (u64, u64),
    mut order: Vec<u32>,
    mut best: Placement,
    most_failed: u32,
    meter: &mut Meter<'_>,
) -> Placement {
    let blocks = best_fit.blocks;
    let mut last = best.clone();
    let mut failed = 0;
    while best.end > stop && failed < most_failed {
        let sticks_out =
            |&block: &u32| last.addresses[block as usize] + blocks[block as usize].bytes.0 > target;
        let (mut front, back): (Vec<u32>, Vec<u32>) =
            order.iter().partition(|block| sticks_out(block));
        front.extend(back);
        if front == order {
            break;
        }
        order = front;
        let Some(placement) = best_fit.place(&order, meter) else { break };
        last = placement;
        failed += 1;
        if last.end < best.end {
            best = last.clone();
            failed = 0;
        }
    }
    best
}

/// The criteria of a ranking, in order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ranking {
    /// Length of life, then area.
    Length,
    /// Most bytes held during its life, then area.
    PressureArea,
    /// Most bytes held during its life, then length of life.
    PressureLength,
    /// Size, then area.
    Size,
}

/// All rankings.
pub(super) const RANKINGS: [Ranking; 4] =
    [Ranking::Length, Ranking::Size, Ranking::PressureArea, Ranking::PressureLength];

/// The position of each block in an order for the exact search. `noise` stretches each measure by
/// at most that fraction.
pub(super) fn rank(
    blocks: &[Lifetime],
    cut: &Sections,
    ranking: Ranking,
    noise: f64,
    random: &mut u64,
) -> Vec<u32> {
    let held = cut.held(blocks);
    let mut order: Vec<([f64; 2], u32)> = Vec::with_capacity(blocks.len());
    for (i, (block, &(from, to))) in (0..).zip(blocks.iter().zip(&cut.range)) {
        let stretch = 1.0 + noise * unit_interval(random);
        let length = f64::from(block.last - block.first) + 1.0;
        let area = length * block.bytes.0 as f64;
        let pressure = held[from as usize..to as usize].iter().copied().max().unwrap_or(0) as f64;
        let key = match ranking {
            Ranking::Length => [length * stretch, area],
            Ranking::PressureArea => [pressure, area * stretch],
            Ranking::PressureLength => [pressure, length * stretch],
            Ranking::Size => [block.bytes.0 as f64 * stretch, area],
        };
        order.push((key, i));
    }
    order
        .sort_by(|(a, i), (b, j)| b[0].total_cmp(&a[0]).then(b[1].total_cmp(&a[1])).then(i.cmp(j)));
    let mut rank = vec![0; blocks.len()];
    for (position, (_, block)) in (0..).zip(order) {
        rank[block as usize] = position;
    }
    rank
}

/// A number in [0, 1), by xorshift: Marsaglia, "Xorshift RNGs", 2003. The state must not be zero.
fn unit_interval(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as f64 / (1u64 << 53) as f64
}
