//! The tightest moments by themselves. Invariant: the blocks that live in one of them keep their
//! whole lifetimes, so if they have no packing by themselves there is none for all, and blocks that
//! have a place stay there.
//!
//! Few moments of a step come near its peak. What lives then is packed exactly, and nearly all
//! other blocks have room to spare: best fit places them around it.

use crate::effort::Meter;
use crate::schedule::layout::best_fit::{BestFit, Placement};
use crate::schedule::layout::sections::Sections;
use crate::schedule::layout::{Lifetime, local_search};
use crate::tuning::layout::MOST_FAILED_ROUNDS;

/// The blocks that live in the tightest sections, and their lives.
pub(super) struct Core {
    pub members: Vec<u32>,
    pub lives: Vec<Lifetime>,
    /// The addresses of those that are placed already.
    pub placed: Vec<Option<u64>>,
}

/// The blocks of all sections that hold at least `least` bytes, and all blocks that are placed
/// already.
pub(super) fn core(
    blocks: &[Lifetime],
    placed: &[Option<u64>],
    cut: &Sections,
    least: u64,
) -> Core {
    let held = cut.held(blocks);
    let mut before = Vec::with_capacity(held.len() + 1);
    let mut count = 0;
    for bytes in held {
        before.push(count);
        count += u32::from(bytes >= least);
    }
    before.push(count);
    let is_member = |&i: &u32| {
        let (from, to) = cut.range[i as usize];
        before[from as usize] < before[to as usize] || placed[i as usize].is_some()
    };
    let members: Vec<u32> = (0..blocks.len() as u32).filter(is_member).collect();
    let lives = members.iter().map(|&i| blocks[i as usize]).collect();
    let placed = members.iter().map(|&i| placed[i as usize]).collect();
    Core { members, lives, placed }
}

/// Places all other blocks around a packing of the core, in the given order, if they fit below
/// `capacity`.
pub(super) fn complete(
    blocks: &[Lifetime],
    core: &Core,
    addresses: &[u64],
    capacity: u64,
    order: &[u32],
    meter: &mut Meter<'_>,
) -> Option<Placement> {
    let mut fixed = vec![None; blocks.len()];
    for (&member, &address) in core.members.iter().zip(addresses) {
        fixed[member as usize] = Some(address);
    }
    let order: Vec<u32> = order.iter().copied().filter(|&i| fixed[i as usize].is_none()).collect();
    let mut best_fit = BestFit::new(blocks, &fixed);
    let placement = best_fit.place(&order, meter)?;
    let placement = local_search::repair(
        &mut best_fit,
        (capacity, capacity),
        order,
        placement,
        MOST_FAILED_ROUNDS.get(),
        meter,
    );
    (placement.end <= capacity).then_some(placement)
}
