//! Which blocks are brought ahead of their use. Invariant: nothing is evicted for a block that is
//! used before it; under the conservative rule, an eviction or a load made ahead is one that would
//! be made at the access that needs it, so that bringing ahead changes when blocks move, and never
//! whether.
//!
//! Source: Cao, Felten, Karlin, Li, "A study of integrated prefetching and caching strategies",
//! SIGMETRICS 1995: *conservative* and *aggressive*, with limits on what is ahead.

use tightfit::units::Bytes;

use super::forecast::{Cursor, Forecast};
use super::id::BlockId;
use super::moves::Purpose;
use super::occupancy::Occupancy;
use super::ours::{farthest, queue};
use super::settings::Ahead;

/// Number of accesses looked ahead: it bounds the time of one decision.
const AHEAD: u32 = 32;

/// Nothing can be brought, and trying again is useless until the next access has number `until`.
struct NotYet {
    until: u64,
}

impl NotYet {
    /// Trying again may succeed at the next access.
    const NOW: NotYet = NotYet { until: 0 };
}

/// The accesses from the one that is about to compute to a later one.
struct Window<'a> {
    rule: Ahead,
    forecast: &'a Forecast,
    /// What the access that is about to compute uses.
    current: &'a [BlockId],
    /// The next access.
    first: Cursor,
    /// The access that blocks are brought for.
    end: Cursor,
}

/// Brings what the next accesses need and what is not on the device, one access after another, by a
/// rule with a budget of bytes that are ahead, within the limits, in slots, that `limit` returns
/// for the non-model bytes of an access. `now` is the limit of the access that is about to compute.
pub fn bring_ahead(
    occupancy: &mut Occupancy,
    forecast: &Forecast,
    current: &[BlockId],
    (rule, budget): (Ahead, Bytes),
    now: u64,
    limit: impl Fn(Bytes) -> u64,
) {
    // The least limit from now to the access under consideration.
    let mut least = now;
    let Some(first) = forecast.coming() else { return };
    if first.time() < occupancy.ahead_from {
        return;
    }
    let accesses = std::iter::successors(Some(first), |&cursor| forecast.behind(cursor));
    for end in accesses.take(AHEAD as usize) {
        let (blocks, non_model) = forecast.access(end);
        let then = limit(non_model);
        let missing: Vec<BlockId> =
            blocks.iter().copied().filter(|&block| !occupancy.is_on_device(block)).collect();
        if !missing.is_empty() {
            let window = Window { rule, forecast, current, first, end };
            let bytes = missing.iter().map(|&block| occupancy.packing.blocks[block].bytes.0);
            let bytes = bytes.fold(0, u64::saturating_add);
            if Bytes(bytes) > budget.saturating_sub(occupancy.ahead()) {
                return;
            }
            if let Err(NotYet { until }) = window.bring(occupancy, missing, [least, then]) {
                occupancy.ahead_from = until;
                return;
            }
        }
        least = least.min(then);
    }
}

impl Window<'_> {
    /// Brings what the last access misses, if it is certain that this would be done then, too.
    /// `before` is the least limit up to that access, `then` its own.
    fn bring(
        &self,
        occupancy: &mut Occupancy,
        mut missing: Vec<BlockId>,
        [before, then]: [u64; 2],
    ) -> Result<(), NotYet> {
        let slots = |occupancy: &Occupancy, blocks: &[BlockId]| -> u64 {
            blocks.iter().map(|&block| u64::from(occupancy.chunks(block))).sum()
        };
        let taken = u64::from(occupancy.region.taken());
        let with = taken + slots(occupancy, &missing);
        if taken > before {
            return Err(NotYet::NOW);
        }
        let made = occupancy.moves.len();
        if with > before.min(then) {
            // If there will be space only then, nothing may be evicted for it earlier.
            let needed = with.saturating_sub(then);
            if needed == 0 {
                return Err(NotYet::NOW);
            }
            let chosen = self.evictions(occupancy, needed)?;
            if with - slots(occupancy, &chosen) > before {
                queue(occupancy, &chosen);
                return Err(NotYet::NOW);
            }
            for block in chosen {
                occupancy.evict(block, Purpose::Prefetch);
            }
        }
        missing.sort_by_key(|&block| std::cmp::Reverse(occupancy.chunks(block)));
        for block in missing {
            if !occupancy.bring(block, Purpose::Prefetch) {
                occupancy.undo(made);
                return Err(NotYet::NOW);
            }
            occupancy.queue(block, self.end.time());
        }
        Ok(())
    }

    /// What is evicted for the last access, withdrawn from the queue, if the rule allows that.
    fn evictions(&self, occupancy: &mut Occupancy, needed: u64) -> Result<Vec<BlockId>, NotYet> {
        let is_conservative = match self.rule {
            Ahead::Conservative => true,
            Ahead::Aggressive => false,
        };
        if is_conservative && occupancy.packing.has_several_sizes() {
            return self.evictions_then(occupancy, needed);
        }
        // With one size the farthest are evicted: those are the same then as now if nothing that is
        // used until then is used again later than they are.
        let chosen = farthest(occupancy, needed, Some(self.end.time())).map_err(|_| NotYet::NOW)?;
        let key = |&block: &BlockId| occupancy.standing(block).key;
        let soonest = chosen.iter().map(key).min().unwrap_or(0);
        let later = |block: BlockId| self.forecast.next_use(self.end, block) > soonest;
        let waits = match soonest <= self.end.time() {
            true => Some(NotYet::NOW),
            false if is_conservative => self.behind_use_of(later),
            false => None,
        };
        if let Some(waits) = waits {
            queue(occupancy, &chosen);
            return Err(waits);
        }
        Ok(chosen)
    }

    /// What the last access would evict, found by trying: what is used until then is queued as it
    /// will be queued then. Not yet, if some of that would be evicted.
    fn evictions_then(
        &self,
        occupancy: &mut Occupancy,
        needed: u64,
    ) -> Result<Vec<BlockId>, NotYet> {
        let (wanted, _) = self.forecast.access(self.end);
        let before = self.used().map(|(_, block)| block);
        let mut used: Vec<BlockId> = before.chain(wanted.iter().copied()).collect();
        used.sort_unstable();
        used.dedup();
        used.retain(|&block| occupancy.is_on_device(block));
        let keys: Vec<u64> = used.iter().map(|&block| occupancy.standing(block).key).collect();
        for &block in &used {
            occupancy.farthest.withdraw(block);
            if !wanted.contains(&block) {
                let key = self.forecast.next_use(self.end, block);
                occupancy.standing_mut(block).key = key;
                occupancy.farthest.push(block, key);
            }
        }
        let chosen = farthest(occupancy, needed, Some(self.end.time()));
        for (&block, &key) in used.iter().zip(&keys) {
            occupancy.farthest.withdraw(block);
            occupancy.queue(block, key);
        }
        let (early, sure): (Vec<BlockId>, Vec<BlockId>) = chosen
            .map_err(|_| NotYet::NOW)?
            .into_iter()
            .partition(|block| used.binary_search(block).is_ok());
        if early.is_empty() {
            return Ok(sure);
        }
        queue(occupancy, &sure);
        Err(self.behind_use_of(|block| early.contains(&block)).unwrap_or(NotYet::NOW))
    }

    /// What is used before the last access, with the time of that use.
    fn used(&self) -> impl Iterator<Item = (u64, BlockId)> {
        let behind = |&cursor: &Cursor| self.forecast.behind(cursor);
        let accesses = std::iter::successors(Some(self.first), behind);
        let before = accesses.take_while(|&cursor| cursor != self.end);
        let of = |cursor: Cursor| {
            self.forecast.access(cursor).0.iter().map(move |&block| (cursor.time(), block))
        };
        let now = self.first.time().saturating_sub(1);
        self.current.iter().map(move |&block| (now, block)).chain(before.flat_map(of))
    }

    /// The wait until the first of some blocks used before the last access was used and is queued
    /// as it will be then; none if no such block is used.
    fn behind_use_of(&self, is_one: impl Fn(BlockId) -> bool) -> Option<NotYet> {
        // Two accesses later, the one that uses it no longer computes.
        let first = self.used().find(|&(_, block)| is_one(block));
        first.map(|(time, _)| NotYet { until: time + 2 })
    }
}
