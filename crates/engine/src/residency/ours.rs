//! Which blocks our rules evict. Invariant: an access evicts no more than it needs: without any one
//! of the blocks that are chosen there would be too little room.
//!
//! For blocks of one size, and accesses of which each is over before the next, this is Belady's
//! rule on the order as it repeats without end: in the long run no policy brings fewer chunks to
//! the device per iteration. Every block that comes has to leave; so where every access writes, the
//! chunks copied to the host are the fewest as well, and where none does there are none. In
//! between, nothing is claimed of them: to write the fewest is NP-hard (Farach and Liberatore, "On
//! local register allocation", SODA 1998). Nor is anything claimed of several sizes, where the
//! fewest bytes are NP-hard too (Chrobak, Woeginger, Makino, Xu, "Caching is hard – even in the
//! fault model", ESA 2010).
//!
//! Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems
//! Journal 5(2), 1966.

use super::id::BlockId;
use super::occupancy::Occupancy;

/// How many blocks are looked at that could make the last of the room.
const FINISHERS: usize = 16;

/// Blocks that make room for `needed` slots at an access, withdrawn from the queue: the farthest
/// next use first, or of several sizes those of the least regret. `time` is when the access is, if
/// next uses are known.
///
/// # Errors
/// The number of slots that all blocks together have; all are still queued.
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

/// Leaves in `chosen` what makes enough room with little regret, and gives the others.
///
/// The regret of evicting a block is its slots by the accesses until its next use: so much of the
/// way between the tiers is spent per access on bringing it back. To cover the need at the least
/// regret is a knapsack problem. The farthest first is the order of its greedy solution, whose last
/// block may be far larger than what is still needed; so every beginning of that order is tried
/// with every single block that makes the rest of the room (Gens and Levner, "Computational
/// complexity of approximation algorithms for combinatorial problems", MFCS 1979).
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
            // Where next uses are not known, only the greedy solution counts.
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
    // What was chosen late may have made something earlier redundant; what is used soonest stays.
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
