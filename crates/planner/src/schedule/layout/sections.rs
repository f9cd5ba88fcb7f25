//! Time cut into sections. Invariant: every block covers at least one section, its sections are
//! consecutive, and two blocks live at the same time if and only if they share a section.
//!
//! Only the largest sets of blocks that live together matter: a position whose set is part of a
//! neighbour's adds nothing to any bound. Source: Moffitt, "MiniMalloc", 2023 (sections).

use crate::effort::Meter;
use crate::schedule::layout::Lifetime;

/// Blocks and sections, each listed by the other.
#[derive(Debug)]
pub(super) struct Sections {
    /// For each block: its first section, and one past its last.
    pub range: Vec<(u32, u32)>,
    /// For each section: the blocks alive in it, by number.
    pub live: Vec<Vec<u32>>,
    /// For each section: the blocks that begin in it.
    pub starting: Vec<Vec<u32>>,
}

impl Sections {
    /// The bytes held in each section.
    pub fn held(&self, blocks: &[Lifetime]) -> Vec<u64> {
        self.live
            .iter()
            .map(|live| live.iter().map(|&block| blocks[block as usize].bytes.0).sum())
            .collect()
    }

    /// The blocks that live when `block` does, itself included, each once.
    pub fn together(&self, block: u32) -> impl Iterator<Item = u32> + '_ {
        let (from, to) = self.range[block as usize];
        let later = &self.starting[from as usize + 1..to as usize];
        std::iter::once(&self.live[from as usize]).chain(later).flatten().copied()
    }
}

/// Most entries in all lists of live blocks together.
const MOST_ENTRIES: usize = 1 << 24;

/// The sections of some lifetimes, or `None` if their lists would be too long to work with or time
/// is up.
pub(super) fn sections(lifetimes: &[Lifetime], meter: &mut Meter<'_>) -> Option<Sections> {
    let mut births: Vec<u32> = (0..lifetimes.len() as u32).collect();
    let mut deaths = births.clone();
    births.sort_by_key(|&i| (lifetimes[i as usize].first, i));
    deaths.sort_by_key(|&i| (lifetimes[i as usize].last, i));
    let mut range = vec![(0, 0); lifetimes.len()];
    let mut live: Vec<Vec<u32>> = Vec::new();
    let mut now: Vec<u32> = Vec::new();
    let (mut born, mut open, mut entries) = (0, false, 0);
    for dying in deaths {
        // A set is largest right before the first death that follows a birth.
        while born < births.len()
            && lifetimes[births[born] as usize].first <= lifetimes[dying as usize].last
        {
            range[births[born] as usize].0 = live.len() as u32;
            now.push(births[born]);
            (born, open) = (born + 1, true);
        }
        if open {
            let mut set = now.clone();
            set.sort_unstable();
            entries += set.len();
            if entries > MOST_ENTRIES || !meter.is_in_time() {
                return None;
            }
            live.push(set);
            open = false;
        }
        range[dying as usize].1 = live.len() as u32;
        now.retain(|&other| other != dying);
    }
    let mut starting = vec![Vec::new(); live.len()];
    for (block, &(first, _)) in (0..).zip(&range) {
        starting[first as usize].push(block);
    }
    Some(Sections { range, live, starting })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effort::Effort;
    use crate::units::Bytes;

    #[test]
    fn only_the_largest_sets_are_kept() {
        let life = |first, last| Lifetime { first, last, bytes: Bytes(64) };
        let cut = sections(
            &[life(0, 9), life(1, 3), life(2, 3), life(4, 5), life(9, 9)],
            &mut Meter::new(&Effort::default()),
        )
        .unwrap();
        assert_eq!(cut.live, [vec![0, 1, 2], vec![0, 3], vec![0, 4]]);
        assert_eq!(cut.range, [(0, 3), (0, 1), (0, 1), (1, 2), (2, 3)]);
    }
}
