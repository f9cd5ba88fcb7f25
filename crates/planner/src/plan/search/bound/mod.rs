//! The lower bound: what no schedule can avoid, one minimum cut per instant. Invariant: every
//! [`Line`] is below the time of recomputation of every legal schedule of its [`BoundOrder`], at
//! every budget; all arithmetic is in whole numbers and rounds down.
//!
//! Fix an instant: the first run of operator `t`. Every other operator runs for the first time
//! before it (it must: an ancestor), after it (a descendant), or on either side. Whatever runs
//! after `t` finds what it reads in memory while `t` runs, or some operator makes it after `t`; for
//! one that has run before, that is a recomputation. At a price for each byte held across `t`,
//! choosing what is held and what runs again is a minimum cut. Where the cuts on both sides of a
//! budget leave a gap, branch and bound over single operators closes it. `doc/theory/bound.md` has
//! the network and the proof.

mod branch;
mod cuts;
mod flow;
mod instant;

use crate::effort::Meter;
use crate::plan::search::bound::cuts::{Cuts, Decision, Line, PRICE_BITS, charge, charge_up};
pub use crate::plan::search::bound::instant::CutInstant;
use crate::plan::search::state::problem::{Picoseconds, Size};

/// Lines that hold under the same decisions, by falling bytes, and prices that improve the bound
/// but are no corner.
#[derive(Clone, Debug, Default)]
pub struct Hull {
    /// The corners.
    pub lines: Vec<Line>,
    spare: Vec<(i64, Picoseconds)>,
}

impl Hull {
    /// Of lines by falling bytes.
    pub fn new(lines: Vec<Line>) -> Hull {
        Hull { lines, spare: Vec::new() }
    }

    fn prices(&self) -> impl Iterator<Item = (i64, Picoseconds)> + '_ {
        self.lines.iter().map(|line| (line.price, line.value)).chain(self.spare.iter().copied())
    }

    /// Time of recomputation with this much room, at least.
    pub fn at(&self, room: Size) -> i128 {
        self.best(room).map_or(0, |(_, least)| least).max(0)
    }

    /// The price that says most with this much room, and what it says.
    pub fn best(&self, room: Size) -> Option<(i64, i128)> {
        let least =
            self.prices().map(|(price, value)| (price, value as i128 - charge_up(price, room)));
        least.max_by_key(|&(price, least)| (least, price))
    }

    /// Adds corners until the hull is exact at `room`.
    pub fn close_in(
        &mut self,
        cuts: &mut Cuts,
        room: Size,
        decisions: &[Decision],
        meter: &mut Meter,
    ) {
        loop {
            let under = self.lines.partition_point(|line| line.bytes > room);
            if under == 0 || under == self.lines.len() {
                return;
            }
            let (a, b) = (&self.lines[under - 1], &self.lines[under]);
            let price =
                (((b.seconds - a.seconds) as i128) << PRICE_BITS) / (a.bytes - b.bytes) as i128;
            let price = price.clamp(0, cuts.highest_price as i128) as i64;
            if self.prices().any(|(known, _)| known == price) {
                return;
            }
            let (most, least) = (a.bytes, b.bytes);
            let chord = a.seconds + charge(price, most);
            let Some(line) = cuts.cut(price, decisions, meter) else { return };
            let is_below =
                line.seconds + charge(price, line.bytes) < chord - chord / 10_000_000 - 1;
            if is_below && least < line.bytes && line.bytes < most {
                self.lines.insert(under, line);
            } else {
                self.spare.push((line.price, line.value));
                return;
            }
        }
    }
}

/// The schedules that a bound speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundOrder {
    /// Those that run every node for the first time in the order that was given.
    Given,
    /// All.
    Any,
}

impl BoundOrder {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            BoundOrder::Given => "given",
            BoundOrder::Any => "any",
        }
    }
}
