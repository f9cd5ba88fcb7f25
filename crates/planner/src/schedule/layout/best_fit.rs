//! Best fit in a given order. Invariant: a block is put where it overlaps none of those placed before it, and only
//! blocks that live at the same time are looked at.
//!
//! Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020 (greedy by size).

use super::Lifetime;

/// Most parts that time is cut into to find the blocks that live at the same time.
const MOST_PARTS: u32 = 1024;

/// Addresses, and the first byte that none of the blocks uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    pub addresses: Vec<u64>,
    pub end: u64,
}

/// Each block of `order` goes into the smallest gap that holds it among the blocks already placed that live while it
/// does; where no gap is large enough, behind them all. `fixed` blocks are there before, and nothing else is put below
/// `floor`.
pub(super) fn best_fit(lifetimes: &[Lifetime], fixed: &[Option<u64>], floor: u64, order: &[u32]) -> Placement {
    let mut addresses: Vec<u64> = fixed.iter().map(|address| address.unwrap_or(floor)).collect();
    let mut end = floor;
    let mut occupied = Occupied::new(lifetimes);
    for (i, lifetime) in lifetimes.iter().enumerate().filter(|&(i, _)| fixed[i].is_some()) {
        let behind = addresses[i] + lifetime.bytes.0;
        end = end.max(behind);
        if behind > floor {
            occupied.insert(i as u32, lifetime);
        }
    }
    let mut near: Vec<(u64, u64)> = Vec::new();
    for &block in order {
        let i = block as usize;
        let bytes = lifetimes[i].bytes.0;
        if fixed[i].is_some() || bytes == 0 {
            continue;
        }
        near.clear();
        occupied.each(lifetimes, &lifetimes[i], |other| near.push((addresses[other], addresses[other] + lifetimes[other].bytes.0)));
        near.sort_unstable();
        addresses[i] = smallest_gap(&near, bytes, floor);
        end = end.max(addresses[i] + bytes);
        occupied.insert(block, &lifetimes[i]);
    }
    Placement { addresses, end }
}

/// The start of the smallest sufficient gap between `taken` ranges, by address, or the end of them all.
fn smallest_gap(taken: &[(u64, u64)], bytes: u64, floor: u64) -> u64 {
    let (mut free_from, mut best) = (floor, None::<(u64, u64)>);
    for &(address, behind) in taken {
        let gap = address.saturating_sub(free_from);
        if gap >= bytes && best.is_none_or(|(smallest, _)| gap < smallest) {
            best = Some((gap, free_from));
        }
        free_from = free_from.max(behind);
    }
    best.map_or(free_from, |(_, address)| address)
}

/// Placed blocks by time: a block is listed in each part that it lives in, and as starting in its first.
struct Occupied {
    /// A position's part is the position shifted by this.
    shift: u32,
    alive: Vec<Vec<u32>>,
    starting: Vec<Vec<u32>>,
}

impl Occupied {
    fn new(lifetimes: &[Lifetime]) -> Occupied {
        let last = lifetimes.iter().map(|lifetime| lifetime.last).max().unwrap_or(0);
        let parts = (lifetimes.len() as u32 / 4).clamp(1, MOST_PARTS);
        let shift = (0..32).find(|&shift| last >> shift < parts).unwrap_or(31);
        let parts = (last >> shift) as usize + 1;
        Occupied { shift, alive: vec![Vec::new(); parts], starting: vec![Vec::new(); parts] }
    }

    fn insert(&mut self, block: u32, lifetime: &Lifetime) {
        let (first, last) = ((lifetime.first >> self.shift) as usize, (lifetime.last >> self.shift) as usize);
        self.starting[first].push(block);
        for part in &mut self.alive[first..=last] {
            part.push(block);
        }
    }

    /// Calls `visit` once with each block that lives while `lifetime` does.
    fn each(&self, lifetimes: &[Lifetime], lifetime: &Lifetime, mut visit: impl FnMut(usize)) {
        let (first, last) = ((lifetime.first >> self.shift) as usize, (lifetime.last >> self.shift) as usize);
        let later = self.starting[first + 1..last.max(first) + 1].iter();
        for &other in std::iter::once(&self.alive[first]).chain(later).flatten() {
            let other = other as usize;
            if lifetimes[other].meets(lifetime) {
                visit(other);
            }
        }
    }
}
