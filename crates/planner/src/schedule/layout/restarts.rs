//! Exact searches that take turns. Invariant: the turns depend only on the blocks, the capacity and
//! the seed, and each is tried again with a higher limit as long as effort is left.
//!
//! How long a search takes for one packing varies by orders of magnitude between rules and
//! rankings, and so do the moments that are hard to pack: many short searches find what a long one
//! misses.

use crate::effort::Meter;
use crate::schedule::layout::Lifetime;
use crate::schedule::layout::branch_and_bound::{
    BranchingRule, ExactSearch, Outcome, SectionChoice,
};
use crate::schedule::layout::local_search::{self, RANKINGS};
use crate::schedule::layout::sections::{Sections, sections};
use crate::schedule::layout::tight::{self, Core};
use crate::tuning::layout::{LEAST_NODES, NODES, NOISE, TIGHT};

/// Rules for choosing the next section, the most successful first.
const CHOICES: [SectionChoice; 4] = [
    SectionChoice::LeastSlack,
    SectionChoice::FullThenFew,
    SectionChoice::Few,
    SectionChoice::First,
];
/// Turns of one pass: each rule in any valley or only in the lowest, each share, each ranking.
const TURNS: u64 = 8 * 4 * 4;

/// Searches repeatedly, for at most `passes` times all turns. Placed blocks stay where they are,
/// and the space below them stays empty.
pub(super) fn restarts(
    blocks: &[Lifetime],
    placed: &[Option<u64>],
    cut: &Sections,
    capacity: u64,
    passes: u64,
    meter: &mut Meter<'_>,
) -> Outcome {
    let mut random = (meter.effort().seed ^ 0x9E37_79B9_7F4A_7C15).max(1);
    let all: Vec<u32> = (0..blocks.len() as u32).collect();
    let order = local_search::by_size(blocks, &all);
    let mut cores: Vec<(Core, Sections)> = Vec::new();
    let mut round = 0;
    while round < passes.saturating_mul(TURNS) {
        let (pass, turn) = (round / TURNS, (round % TURNS) as usize);
        round += 1;
        let (rule, share, ranking) = (turn / 16, turn / 4 % 4, RANKINGS[turn % 4]);
        let rule = BranchingRule { any_valley: rule / 4 == 1, choice: CHOICES[rule % 4] };
        if cores.len() == share {
            let core =
                tight::core(blocks, placed, cut, (capacity as f64 * TIGHT.get()[share]) as u64);
            let Some(part) = sections(&core.lives, meter) else { return Outcome::Spent };
            cores.push((core, part));
        }
        if share > 0 && cores[share - 1].0.members.len() == cores[share].0.members.len() {
            continue;
        }
        let (core, part) = &cores[share];
        let noise = if pass == 0 { 0.0 } else { NOISE.get() };
        let rank = local_search::rank(&core.lives, part, ranking, noise, &mut random);
        let nodes = (core.lives.len() as u64 * NODES.get()).max(LEAST_NODES.get()) * luby(pass + 1);
        let Some(mut search) = ExactSearch::new(&core.lives, part, rank, rule, capacity) else {
            return Outcome::Impossible;
        };
        if !search.fix(&core.placed) {
            return Outcome::Impossible;
        }
        match search.run(nodes, meter) {
            Outcome::Found(addresses) => {
                if let Some(placement) =
                    tight::complete(blocks, core, &addresses, capacity, &order, meter)
                {
                    return Outcome::Found(placement.addresses);
                }
                // The core is not the hard part: on to a larger one.
                round = round.next_multiple_of(4);
            }
            Outcome::Impossible => return Outcome::Impossible,
            Outcome::Spent => {}
        }
        if meter.has_refused() {
            break;
        }
    }
    Outcome::Spent
}

/// 1, 1, 2, 1, 1, 2, 4, …: no sequence of limits is better by more than a logarithm if nothing is
/// known of the running times. Source: Luby, Sinclair and Zuckerman, "Optimal Speedup of Las Vegas
/// Algorithms", 1993.
fn luby(mut i: u64) -> u64 {
    loop {
        let bits = 64 - i.leading_zeros();
        if i == (1 << bits) - 1 {
            return 1 << (bits - 1);
        }
        i -= (1 << (bits - 1)) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_grow_as_luby_s_sequence() {
        assert_eq!(
            (1..=15).map(luby).collect::<Vec<_>>(),
            [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]
        );
    }
}
