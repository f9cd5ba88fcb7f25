//! Which blocks our rules evict. Invariant: an access evicts no more than it needs: without any one
//! of the chosen blocks there would be too little space.
//!
//! For blocks of one size, and accesses of which each ends before the next, this is Belady's rule
//! on the order as it repeats without end: in the long run no policy brings fewer chunks to the
//! device per iteration. Every block that comes has to leave; so if every access writes, the chunks
//! copied to the host are the fewest as well, and if none does there are none. In between, no claim
//! is made about them: writing the fewest is NP-hard (Farach and Liberatore, "On local register
//! allocation", SODA 1998). Nor is any claim made about several sizes, for which moving the fewest
//! bytes is NP-hard too (Chrobak, Woeginger, Makino, Xu, "Caching is hard – even in the fault
//! model", ESA 2010).
//!
//! Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems
//! Journal 5(2), 1966.

use super::id::BlockId;
use super::occupancy::Occupancy;

/// Number of blocks that are considered as the last one to be evicted.
const FINISHERS: usize = 16;

/// Blocks that free `needed` slots for an access, withdrawn from the queue: the farthest next use
/// first, or with several sizes those of the least regret. `time` is when the access is, if next
/// uses are known.
///
/// # Errors
/// The number of slots that all blocks together would free; all are still queued.
pub fn farthest(
    occupancy: &mut Occupancy,
    needed: u64,
    time: Option<u64>,
) -> Result<Vec<BlockId>, u64> {
    let several = occupancy.packing.has_several_sizes();
    let most = if several && needed > 0 { FINISHERS } else { 0 };
    let mut chosen: Vec<BlockId> = Vec::new();
    let mut freed = 0;
    while freed < needed || chosen.len() < most {
        let Some((block, _)) = occupancy.farthest.pop() else { break };
        freed += u64::from(occupancy.chunks(block));
        chosen.push(block);
    }
    if freed < needed {
        queue(occupancy, &chosen);
        return Err(freed);
    }
    if several {
        let stay = cover(occupancy, &mut chosen, needed, time);
        queue(occupancy, &stay);
    }
    Ok(chosen)
}

/// Leaves in `chosen` what frees enough slots with little regret, and returns the others.
///
/// The regret of evicting a block is its slots divided by the accesses until its next use: the
/// share of the link between the tiers that bringing it back takes per access. Covering the need at
/// the least regret is a knapsack problem. Its greedy solution takes the farthest first, and its
/// last block may be far larger than what is still needed; so every prefix of that order is tried
/// with every single block that frees the rest (Gens and Levner, "Computational complexity of
/// approximation algorithms for combinatorial problems", MFCS 1979).
fn cover(
    occupancy: &Occupancy,
    chosen: &mut Vec<BlockId>,
    needed: u64,
    time: Option<u64>,
) -> Vec<BlockId> {
    let slots = |block: BlockId| u64::from(occupancy.chunks(block));
    let regret = |block: BlockId| {
        let until = time.map_or(0, |time| occupancy.standing(block).key.saturating_sub(time));
        slots(block) as f64 / until.max(1) as f64
    };
    let mut best: Option<(f64, usize, usize)> = None;
    let (mut spent, mut freed) = (0.0, 0);
    for (begin, &block) in chosen.iter().enumerate() {
        let finishers = chosen.iter().enumerate().skip(begin).take(FINISHERS);
        for (index, &last) in finishers.filter(|&(_, &last)| freed + slots(last) >= needed) {
            let total = spent + regret(last);
            // If next uses are not known, only the greedy solution counts.
            let is_better = best.is_none_or(|(least, ..)| time.is_some() && total < least);
            if is_better && (time.is_some() || index == begin) {
                best = Some((total, begin, index));
            }
        }
        spent += regret(block);
        freed += slots(block);
        if freed >= needed {
            break;
        }
    }
    let Some((_, begin, last)) = best else { return Vec::new() };
    let mut stay = chosen.split_off(begin);
    chosen.push(stay.remove(last - begin));
    // A block chosen late may have made an earlier one redundant; what is used soonest stays.
    let mut freed: u64 = chosen.iter().map(|&block| slots(block)).sum();
    for index in (0..chosen.len()).rev() {
        if freed - slots(chosen[index]) >= needed {
            let redundant = chosen.remove(index);
            freed -= slots(redundant);
            stay.push(redundant);
        }
    }
    stay
}

/// Lets blocks be evicted again.
pub fn queue(occupancy: &mut Occupancy, blocks: &[BlockId]) {
    for &block in blocks {
        let key = occupancy.standing(block).key;
        occupancy.queue(block, key);
    }
}
