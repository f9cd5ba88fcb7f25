//! The tightest moments on their own. Invariant: the blocks that live in one of them keep which of them meet there, so
//! what has no packing on its own has none among all.
//!
//! Only few moments of a step come near its peak. What lives then is packed exactly, and nearly all else has room to
//! spare: best fit places it around.

use super::Lifetime;
use super::best_fit::{Placement, best_fit};
use super::local_search;
use super::sections::Sections;
use super::Spending;

/// The blocks that live in the tightest sections, and their lives counted in these sections.
pub(super) struct Core {
    pub members: Vec<u32>,
    pub lives: Vec<Lifetime>,
}

/// The blocks of all sections that hold at least `least` bytes.
pub(super) fn core(blocks: &[Lifetime], cut: &Sections, held: &[u64], least: u64) -> Core {
    let mut before = Vec::with_capacity(held.len() + 1);
    let mut count = 0;
    for &bytes in held {
        before.push(count);
        count += u32::from(bytes >= least);
    }
    before.push(count);
    let (mut members, mut lives) = (Vec::new(), Vec::new());
    for (i, &(from, to)) in (0..).zip(&cut.range) {
        let (first, behind) = (before[from as usize], before[to as usize]);
        if first < behind {
            members.push(i);
            lives.push(blocks[i as usize]);
        }
    }
    Core { members, lives }
}

/// Places all other blocks around a packing of the core, if they fit below `capacity`.
pub(super) fn complete(blocks: &[Lifetime], core: &Core, addresses: &[u64], capacity: u64, orders: &[Vec<u32>], spending: &mut Spending<'_>) -> Option<Placement> {
    let mut fixed = vec![None; blocks.len()];
    for (&member, &address) in core.members.iter().zip(addresses) {
        fixed[member as usize] = Some(address);
    }
    for order in orders {
        let order: Vec<u32> = order.iter().copied().filter(|&i| fixed[i as usize].is_none()).collect();
        if !spending.spend(order.len() as u64) {
            return None;
        }
        let placement = best_fit(blocks, &fixed, 0, &order);
        let placement = local_search::repair(blocks, &fixed, 0, capacity, order, placement, spending);
        if placement.end <= capacity {
            return Some(placement);
        }
    }
    None
}
