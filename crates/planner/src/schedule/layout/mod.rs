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
use sections::{Sections, sections};

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
    let floor = Bytes(floor).align_up(alignment).0;
    let mut addresses: Vec<u64> = fixed.iter().map(|address| address.unwrap_or(floor)).collect();
    // Whatever lies below the floor is out of the way, however long it lives.
    let (mut above, mut part) = (Vec::new(), Part::default());
    for (i, &life) in lifetimes.iter().enumerate() {
        let bytes = life.bytes.align_up(alignment).0;
        let reaches = (addresses[i] + bytes).saturating_sub(floor);
        let bytes = bytes.min(reaches);
        if bytes > 0 {
            above.push(i);
            part.blocks.push(Lifetime { bytes: Bytes(bytes), ..life });
            part.placed.push(fixed[i].map(|_| reaches - bytes));
        }
    }
    let height = |end: Bytes| end.0.saturating_sub(floor);
    let capacity = match goal {
        Goal::Within(capacity) => Some(height(capacity)),
        Goal::Smallest => None,
    };
    let (placement, bound) =
        part.pack(capacity, height(enough), alignment, &mut Meter::new(effort));
    for (&i, address) in above.iter().zip(&placement.addresses) {
        addresses[i] = fixed[i].unwrap_or(floor + address);
    }
    Packing { addresses, end: Bytes(floor + placement.end), bound: Bytes(floor + bound) }
}

/// What lies above the floor, which is address 0 here; sizes are aligned.
#[derive(Default)]
struct Part {
    blocks: Vec<Lifetime>,
    /// The addresses of those that are placed already.
    placed: Vec<Option<u64>>,
}

impl Part {
    /// A packing that ends within the capacity, or else low; without a capacity, as low as
    /// possible. An end at `enough` ends the search, too. Also the bound.
    fn pack(
        &self,
        capacity: Option<u64>,
        enough: u64,
        alignment: u64,
        meter: &mut Meter<'_>,
    ) -> (Placement, u64) {
        let Part { blocks, placed } = self;
        let bound = self.bound();
        let target = capacity.map_or(bound, |capacity| bound.max(capacity));
        let stop = target.max(enough);

        // Largest first nearly always suffices.
        let free: Vec<u32> =
            (0..blocks.len() as u32).filter(|&i| placed[i as usize].is_none()).collect();
        let mut order = local_search::by_size(blocks, &free);
        let mut unlimited = Meter::new(&UNLIMITED);
        let mut best_fit = BestFit::new(blocks, placed);
        let mut best =
            best_fit.place(&order, &mut unlimited).expect("nothing ends a pass without limits");
        if best.end <= stop || meter.is_over() {
            return (best, bound);
        }
        let most_failed = MOST_FAILED_ROUNDS.get();
        let Some(cut) = sections(blocks, meter) else {
            let aims = (target, stop);
            let best = local_search::repair(&mut best_fit, aims, order, best, most_failed, meter);
            return (best, bound);
        };
        let held = cut.held(blocks);
        let pressure = |block: u32| {
            let (from, to) = cut.range[block as usize];
            held[from as usize..to as usize].iter().copied().max().unwrap_or(0)
        };
        for other in local_search::by_pressure(blocks, &free, pressure) {
            if best.end <= stop {
                return (best, bound);
            }
            let Some(placement) = best_fit.place(&other, meter) else {
                return (best, bound);
            };
            if placement.end < best.end {
                (best, order) = (placement, other);
            }
        }
        let aims = (target, stop);
        let best = local_search::repair(&mut best_fit, aims, order, best, most_failed, meter);
        if best.end <= stop {
            return (best, bound);
        }
        let goal = (capacity, stop);
        self.exact(&cut, alignment, goal, (best, bound), meter)
    }

    /// No packing ends lower: it takes at least the bytes held at once.
    fn bound(&self) -> u64 {
        let mut changes: Vec<(u32, bool, u64)> = Vec::with_capacity(self.blocks.len() * 2);
        let mut bound = 0;
        for (block, placed) in self.blocks.iter().zip(&self.placed) {
            bound = bound.max(placed.map_or(0, |address| address + block.bytes.0));
            changes.push((block.first, false, block.bytes.0));
            changes.push((block.last, true, block.bytes.0));
        }
        // Births come before deaths: a position still holds what it frees.
        changes.sort_unstable();
        let mut now = 0;
        for (_, death, bytes) in changes {
            now = if death { now - bytes } else { now + bytes };
            bound = bound.max(now);
        }
        bound
    }

    /// Searches for a packing within the capacity and, if there is none, for the lowest, until one
    /// ends at `stop` or lower. Returns the best packing and the bound, each as far as they were
    /// improved.
    fn exact(
        &self,
        cut: &Sections,
        alignment: u64,
        (capacity, stop): (Option<u64>, u64),
        (mut best, mut bound): (Placement, u64),
        meter: &mut Meter<'_>,
    ) -> (Placement, u64) {
        let Part { blocks, placed } = self;
        // Holes below placed blocks are not used, so with any of these nothing is excluded.
        let is_clear = placed.iter().all(Option::is_none);
        let target = capacity.map_or(bound, |capacity| bound.max(capacity));
        // Searching for a capacity gets all effort; going lower beyond that gets some.
        let mut passes = if capacity.is_some_and(|it| it >= bound) { u64::MAX } else { 1 };
        // Ends from `low` on are neither excluded nor abandoned.
        let (mut goal, mut low) = (target / alignment * alignment, bound);
        loop {
            match restarts(blocks, placed, cut, goal, passes, meter) {
                Outcome::Found(addresses) => {
                    let ends = addresses.iter().zip(blocks).map(|(at, block)| at + block.bytes.0);
                    best.end = ends.max().unwrap_or(0).max(bound);
                    best.addresses = addresses;
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
