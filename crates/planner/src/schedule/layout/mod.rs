//! Turns lifetimes into addresses. Invariant: two buffers that are alive at the same time never
//! overlap, every address is aligned, and with a limit of work alone the result depends only on the
//! arguments.

mod best_fit;
mod branch_and_bound;
mod local_search;

mod restarts;
mod sections;
mod tight;

use best_fit::{BestFit, Placement};
use branch_and_bound::Outcome;
use restarts::restarts;
use sections::sections;

use crate::effort::{Effort, Meter};
use crate::goal::Goal;
use crate::tuning::layout::MOST_FAILED_ROUNDS;
use crate::units::Bytes;

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

/// Where buffers lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// An address for each lifetime.
    pub addresses: Vec<u64>,
    /// The first byte that none of them uses, a multiple of the alignment.
    pub end: Bytes,
    /// No packing ends before this: the most bytes held at once, or more if a search has excluded
    /// that.
    pub bound: Bytes,
}

impl Packing {
    /// Whether no packing ends lower.
    pub fn is_optimal(&self) -> bool {
        self.end <= self.bound
    }
}

/// Where lifetimes are packed.
#[derive(Clone, Copy, Debug)]
pub struct Shelf<'a> {
    /// The addresses of lifetimes that are placed already.
    pub fixed: &'a [Option<u64>],
    /// No other lifetime is placed below this.
    pub floor: u64,
    /// Addresses are multiples of this, a power of two.
    pub alignment: u64,
    /// Where all of them should end.
    pub goal: Goal,
    /// An end this low is enough, too; the search is the same until it is reached.
    pub enough: Bytes,
}

/// An address for each lifetime.
///
/// The search ends as soon as all addresses lie within the goal, when nothing better is possible,
/// or when the effort is used up. Some packing is always returned; a caller with a capacity checks
/// its end.
pub fn pack(lifetimes: &[Lifetime], within: &Shelf<'_>, effort: &Effort<'_>) -> Packing {
    let &Shelf { fixed, floor, alignment, goal, enough } = within;
    let blocks: Vec<Lifetime> = lifetimes
        .iter()
        .map(|&life| Lifetime { bytes: life.bytes.align_up(alignment), ..life })
        .collect();
    let floor = Bytes(floor).align_up(alignment).0;
    let mut meter = Meter::new(effort);
    let bound = lower_bound(&blocks, fixed, floor);
    // Below every end if only the lowest will do.
    let capacity = match goal {
        Goal::Within(capacity) => capacity.0,
        Goal::Smallest => 0,
    };
    let target = bound.max(capacity);
    let stop = target.max(enough.0);
    let packing = |placement: Placement, bound| Packing {
        addresses: placement.addresses,
        end: Bytes(placement.end),
        bound: Bytes(bound),
    };

    // Largest first nearly always suffices.
    let free: Vec<u32> =
        (0..blocks.len() as u32).filter(|&i| fixed[i as usize].is_none()).collect();
    let mut order = local_search::by_size(&blocks, &free);
    let mut unlimited = Meter::new(&UNLIMITED);
    let mut best_fit = BestFit::new(&blocks, fixed, floor);
    let mut best =
        best_fit.place(&order, &mut unlimited).expect("nothing ends a pass without limits");
    if best.end <= stop {
        return packing(best, bound);
    }
    let Some(cut) = sections(&blocks, &mut meter) else {
        return packing(
            local_search::repair(
                &mut best_fit,
                (target, stop),
                order,
                best,
                MOST_FAILED_ROUNDS.get(),
                &mut meter,
            ),
            bound,
        );
    };
    let held = cut.held(&blocks);
    let pressure = |block: u32| {
        let (from, to) = cut.range[block as usize];
        held[from as usize..to as usize].iter().copied().max().unwrap_or(0)
    };
    for other in local_search::by_pressure(&blocks, &free, pressure) {
        if best.end <= stop {
            return packing(best, bound);
        }
        let Some(placement) = best_fit.place(&other, &mut meter) else {
            return packing(best, bound);
        };
        if placement.end < best.end {
            (best, order) = (placement, other);
        }
    }
    let best = local_search::repair(
        &mut best_fit,
        (target, stop),
        order,
        best,
        MOST_FAILED_ROUNDS.get(),
        &mut meter,
    );
    if best.end <= stop {
        return packing(best, bound);
    }
    let goal = (capacity, stop);
    let (best, bound) = exact(&blocks, fixed, floor, alignment, goal, best, bound, &mut meter);
    packing(best, bound)
}

/// No packing ends lower: above the floor it takes at least the bytes held at once.
fn lower_bound(blocks: &[Lifetime], fixed: &[Option<u64>], floor: u64) -> u64 {
    let mut changes: Vec<(u32, bool, u64)> = Vec::with_capacity(blocks.len() * 2);
    let mut bound = floor;
    for (block, fixed) in blocks.iter().zip(fixed) {
        let above = fixed.map_or(block.bytes.0, |address| {
            let behind = address + block.bytes.0;
            bound = bound.max(behind);
            behind.saturating_sub(address.max(floor))
        });
        changes.push((block.first, false, above));
        changes.push((block.last, true, above));
    }
    // Births come before deaths: a position still holds what it frees.
    changes.sort_unstable();
    let mut now = floor;
    for (_, death, bytes) in changes {
        now = if death { now - bytes } else { now + bytes };
        bound = bound.max(now);
    }
    bound
}

/// Searches for a packing within the capacity and, if there is none, for the lowest, until one ends
/// at `stop` or lower. Returns the best packing and the bound, each as far as they were improved.
#[allow(clippy::too_many_arguments)] // the arguments of a packing, and its known results
fn exact(
    blocks: &[Lifetime],
    fixed: &[Option<u64>],
    floor: u64,
    alignment: u64,
    (capacity, stop): (u64, u64),
    mut best: Placement,
    mut bound: u64,
    meter: &mut Meter<'_>,
) -> (Placement, u64) {
    let is_above = |i: usize| {
        let bytes = blocks[i].bytes.0;
        bytes > 0 && fixed[i].is_none_or(|address| address + bytes > floor)
    };
    let above: Vec<usize> = (0..blocks.len()).filter(|&i| is_above(i)).collect();
    let chosen: Vec<Lifetime> = above.iter().map(|&i| blocks[i]).collect();
    let placed: Vec<Option<u64>> =
        above.iter().map(|&i| fixed[i].map(|address| address.saturating_sub(floor))).collect();
    // Holes below placed blocks are not used, so with any of these nothing is excluded.
    let is_clear = placed.iter().all(Option::is_none);
    let Some(cut) = sections(&chosen, meter) else { return (best, bound) };
    let smallest = capacity < bound;
    let target = bound.max(capacity);
    // Searching for a capacity gets all effort; going lower beyond that gets some.
    let mut passes = if smallest { 1 } else { u64::MAX };
    // Ends from `low` on are neither excluded nor abandoned.
    let (mut goal, mut low) = (target / alignment * alignment, bound);
    loop {
        let height = goal.saturating_sub(floor);
        match restarts(&chosen, &placed, &cut, height, passes, meter) {
            Outcome::Found(addresses) => {
                best.end = floor;
                for (&i, address) in above.iter().zip(addresses) {
                    best.addresses[i] = fixed[i].unwrap_or(floor + address);
                    best.end = best.end.max(best.addresses[i] + blocks[i].bytes.0);
                }
                best.end = best.end.max(bound);
            }
            Outcome::Impossible if is_clear => {
                (bound, low) = (goal + alignment, goal + alignment);
            }
            Outcome::Impossible | Outcome::Spent => low = goal + alignment,
        }
        if best.end <= stop || meter.has_refused() || low >= best.end {
            return (best, bound);
        }
        passes = 1;
        goal = (low + (best.end - alignment).saturating_sub(low) / 2) / alignment * alignment;
    }
}

/// No limit: for a greedy pass that must be made.
const UNLIMITED: Effort<'static> = Effort::work(0, u64::MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::instruction::ALIGNMENT;

    fn life(first: u32, last: u32, bytes: u64) -> Lifetime {
        Lifetime { first, last, bytes: Bytes(bytes) }
    }

    fn packed(lifetimes: &[Lifetime], fixed: &[Option<u64>], floor: u64) -> Packing {
        let shelf =
            Shelf { fixed, floor, alignment: ALIGNMENT, goal: Goal::Smallest, enough: Bytes::ZERO };
        pack(lifetimes, &shelf, &Effort::default())
    }

    #[test]
    fn buffers_that_never_meet_share_an_address() {
        let packing = packed(&[life(0, 1, 64), life(2, 3, 64)], &[None, None], 0);
        assert_eq!((packing.addresses, packing.end), (vec![0, 0], Bytes(64)));
    }

    #[test]
    fn the_smallest_gap_that_holds_it_is_taken() {
        // 256 bytes die at 1 and leave a hole of 256; 128 die at 1 and leave one of 128; the new
        // block needs 100.
        let lives =
            [life(0, 1, 256), life(0, 9, 192), life(0, 1, 128), life(0, 9, 112), life(2, 9, 100)];
        let packing = packed(&lives, &[None; 5], 0);
        assert_eq!(packing.addresses[4], packing.addresses[2]);
        assert_eq!(packing.end, Bytes(704));
    }

    #[test]
    fn fixed_addresses_and_the_floor_are_kept() {
        let packing = packed(&[life(0, 9, 64), life(0, 9, 64)], &[Some(128), None], 256);
        assert_eq!((packing.addresses, packing.end), (vec![128, 256], Bytes(320)));
    }
}
