//! The slots of the device and their owners. Invariant: a slot has at most one block, a block has
//! consecutive slots, and the slots that are not taken are those that are marked as free, except
//! between [`Region::hide`] and [`Region::show`].

use std::ops::Range;

use cranelift_entity::EntityRef;
use cranelift_entity::packed_option::PackedOption;

use super::id::{BlockId, SlotId};

const WORD: u32 = u64::BITS;

/// Number of free slots around which a run or a span is searched for.
const LOOKED_AT: usize = 32;

/// The slots of the region.
#[derive(Clone)]
pub struct Region {
    owners: Vec<PackedOption<BlockId>>,
    /// One bit for each slot, set if it is free.
    free: Vec<u64>,
    /// One bit for each word of `free`, set if the word has a free slot.
    words: Vec<u64>,
    taken: u32,
}

impl Region {
    /// This many slots, all free.
    pub fn new(slots: u32) -> Region {
        let mut region = Region {
            owners: vec![PackedOption::default(); slots as usize],
            free: vec![0; slots.div_ceil(WORD) as usize],
            words: vec![0; slots.div_ceil(WORD).div_ceil(WORD) as usize],
            taken: 0,
        };
        for slot in 0..slots {
            region.mark_free(slot);
        }
        region
    }

    /// Number of slots.
    pub fn slots(&self) -> u32 {
        self.owners.len() as u32
    }

    /// Number of slots that are taken.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Where a block of this many chunks may go: the highest free slot for one chunk, the lowest
    /// run of free slots for several, so that the two kinds do not fragment each other's space.
    pub fn find(&self, chunks: u32) -> Option<SlotId> {
        if chunks == 1 { self.highest_free() } else { self.lowest_run(chunks) }
    }

    /// Gives free slots to a block.
    pub fn take(&mut self, block: BlockId, first: SlotId, chunks: u32) {
        for slot in slots(first, chunks) {
            self.owners[slot as usize] = block.into();
            self.mark_taken(slot);
        }
        self.taken += chunks;
    }

    /// Takes the slots of a block back.
    pub fn give_back(&mut self, first: SlotId, chunks: u32) {
        for slot in slots(first, chunks) {
            self.owners[slot as usize] = None.into();
            self.mark_free(slot);
        }
        self.taken -= chunks;
    }

    /// The block that has a slot.
    pub fn owner(&self, slot: SlotId) -> Option<BlockId> {
        self.owners.get(slot.index()).and_then(|owner| owner.expand())
    }

    /// The run of `chunks` slots whose blocks cost the least together, by the cost of each of their
    /// slots, the lowest of equals; runs that contain a block without a cost are excluded. Runs far
    /// from free slots are considered only if there is no other.
    pub fn cheapest_run(
        &self,
        chunks: u32,
        cost: impl Fn(BlockId) -> Option<u64>,
    ) -> Option<SlotId> {
        let mut best = None;
        let mut end = 0;
        for slot in self.free_slots().take(LOOKED_AT) {
            let begin = (slot + 1).saturating_sub(chunks);
            if slot >= end {
                end = slot.saturating_add(chunks).min(self.slots());
                self.cheapest_within(begin..end, chunks, &cost, &mut best);
            }
        }
        if best.is_none() {
            self.cheapest_within(0..self.slots(), chunks, &cost, &mut best);
        }
        best.map(|(_, first)| SlotId::from_u32(first))
    }

    /// The slots from a free one to another, of which `chunks` are free and the fewest are taken,
    /// at most `most`, none by a block that stays.
    pub fn shortest_span(
        &self,
        chunks: u32,
        most: u32,
        stays: impl Fn(BlockId) -> bool,
    ) -> Option<Range<u32>> {
        let mut best: Option<(u32, Range<u32>)> = None;
        for begin in self.free_slots().take(LOOKED_AT) {
            let (mut free, mut taken) = (0, 0);
            for slot in begin..self.slots() {
                match self.owners[slot as usize].expand() {
                    Some(block) if stays(block) => break,
                    Some(_) => taken += 1,
                    None => free += 1,
                }
                if taken > most || best.as_ref().is_some_and(|(least, _)| taken >= *least) {
                    break;
                }
                if free == chunks {
                    best = Some((taken, begin..slot + 1));
                    break;
                }
            }
        }
        best.map(|(_, span)| span)
    }

    /// Excludes these slots from being found. Slots that become free later are found.
    pub fn hide(&mut self, first: SlotId, chunks: u32) {
        for slot in slots(first, chunks) {
            self.mark_taken(slot);
        }
    }

    /// Lets the free ones of these slots be found again.
    pub fn show(&mut self, first: SlotId, chunks: u32) {
        for slot in slots(first, chunks) {
            if self.owners[slot as usize].is_none() {
                self.mark_free(slot);
            }
        }
    }

    fn cheapest_within(
        &self,
        range: Range<u32>,
        chunks: u32,
        cost: impl Fn(BlockId) -> Option<u64>,
        best: &mut Option<(u64, u32)>,
    ) {
        let of = |slot: u32| self.owners[slot as usize].expand().map_or(Some(0), &cost);
        let (mut sum, mut clear) = (0u64, 0);
        for slot in range {
            let Some(own) = of(slot) else {
                (sum, clear) = (0, 0);
                continue;
            };
            sum = sum.saturating_add(own);
            clear += 1;
            if clear > chunks {
                sum = sum.saturating_sub(of(slot - chunks).unwrap_or(0));
                clear = chunks;
            }
            if clear == chunks && best.is_none_or(|(least, _)| sum < least) {
                *best = Some((sum, slot + 1 - chunks));
            }
        }
    }

    /// The free slots, in ascending order.
    fn free_slots(&self) -> impl Iterator<Item = u32> {
        let words = self.words.iter().zip(0u32..);
        let words = words.flat_map(|(&bits, index)| ones(bits).map(move |bit| index * WORD + bit));
        words.flat_map(|word| ones(self.free[word as usize]).map(move |bit| word * WORD + bit))
    }

    fn mark_free(&mut self, slot: u32) {
        let word = slot / WORD;
        self.free[word as usize] |= 1 << (slot % WORD);
        self.words[(word / WORD) as usize] |= 1 << (word % WORD);
    }

    fn mark_taken(&mut self, slot: u32) {
        let word = slot / WORD;
        self.free[word as usize] &= !(1 << (slot % WORD));
        if self.free[word as usize] == 0 {
            self.words[(word / WORD) as usize] &= !(1 << (word % WORD));
        }
    }

    fn highest_free(&self) -> Option<SlotId> {
        let highest = |bits: u64| WORD - 1 - bits.leading_zeros();
        let index = self.words.iter().rposition(|&bits| bits != 0)?;
        let word = index as u32 * WORD + highest(self.words[index]);
        Some(SlotId::from_u32(word * WORD + highest(self.free[word as usize])))
    }

    fn lowest_run(&self, chunks: u32) -> Option<SlotId> {
        let (mut run, mut expected) = (0, 0);
        for slot in self.free_slots() {
            run = if slot == expected { run + 1 } else { 1 };
            expected = slot + 1;
            if run == chunks {
                return Some(SlotId::from_u32(expected - chunks));
            }
        }
        None
    }
}

/// The bits that are set, in ascending order.
fn ones(bits: u64) -> impl Iterator<Item = u32> {
    let rest = std::iter::successors(Some(bits), |&bits| Some(bits & (bits - 1)));
    rest.take(bits.count_ones() as usize).map(u64::trailing_zeros)
}

/// Consecutive slots.
fn slots(first: SlotId, chunks: u32) -> Range<u32> {
    first.as_u32()..first.as_u32() + chunks
}

#[cfg(test)]
mod tests {
    use cranelift_entity::EntityRef;

    use super::*;

    fn slot(index: usize) -> SlotId {
        SlotId::new(index)
    }

    #[test]
    fn single_chunks_lie_high_and_runs_low() {
        let mut region = Region::new(130);
        assert_eq!(region.find(1), Some(slot(129)));
        region.take(BlockId::new(0), slot(129), 1);
        assert_eq!(region.find(1), Some(slot(128)));
        region.take(BlockId::new(1), slot(0), 60);
        assert_eq!(region.find(10), Some(slot(60)));
        region.take(BlockId::new(2), slot(60), 69);
        assert_eq!((region.find(1), region.find(2), region.taken()), (None, None, 130));
        region.give_back(slot(0), 60);
        assert_eq!((region.find(1), region.find(60)), (Some(slot(59)), Some(slot(0))));
        assert_eq!(region.find(61), None);
    }

    #[test]
    fn the_cheapest_run_avoids_what_stays() {
        let mut region = Region::new(8);
        region.take(BlockId::new(0), slot(2), 1);
        region.take(BlockId::new(1), slot(5), 2);
        let all = |_| Some(1);
        let but_first = |block: BlockId| (block.index() > 0).then_some(1);
        assert_eq!(region.cheapest_run(3, all), Some(slot(0)));
        assert_eq!(region.cheapest_run(3, but_first), Some(slot(3)));
        assert_eq!(region.cheapest_run(6, but_first), None);
        region.take(BlockId::new(2), slot(0), 2);
        region.take(BlockId::new(3), slot(3), 2);
        region.take(BlockId::new(4), slot(7), 1);
        let by_index = |block: BlockId| Some(10 - block.index() as u64);
        assert_eq!(region.cheapest_run(2, by_index), Some(slot(3)), "nothing is free");
        assert_eq!(Region::new(0).find(1), None);
    }

    #[test]
    fn the_shortest_span_moves_the_least() {
        let mut region = Region::new(10);
        region.take(BlockId::new(0), slot(1), 4);
        region.take(BlockId::new(1), slot(6), 1);
        region.take(BlockId::new(2), slot(9), 1);
        assert_eq!(region.shortest_span(3, 9, |_| false), Some(5..9));
        assert_eq!(region.shortest_span(4, 9, |_| false), Some(0..9));
        assert_eq!(region.shortest_span(4, 4, |_| false), None);
        assert_eq!(region.shortest_span(3, 9, |block| block.index() == 1), None);
    }
}
