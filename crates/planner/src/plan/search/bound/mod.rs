//! The lower bound: what no schedule can avoid, one minimum cut per instant. Invariant: every
//! [`Line`] is below the time of recomputation of every legal schedule of its [`BoundOrder`], at
//! every budget; all arithmetic is in whole numbers and rounds down.
//!
//! Fix an instant: the first run of operator `t`. Every other operator runs for the first time
//! before it (it must: an ancestor), after it (a descendant), or on either side. Whatever runs
//! after `t` finds what it reads in memory while `t` runs, or some operator makes it after `t`; for
//! one that has run before, that is a recomputation. At a price for each byte held across `t`,
//! choosing what is held and what runs again is a minimum cut. If the cuts on both sides of a
//! budget leave a gap, branch and bound over single operators closes it. `doc/theory/bound.md` has
//! the network and the proof.

mod branch;
mod cuts;
mod flow;
mod instant;
mod known;
mod last;
mod moving;

use crate::effort::Meter;
use crate::plan::quantity::{ByteCount, Picoseconds, Price, WidePicoseconds};
use crate::plan::search::bound::cuts::{Cuts, Decision, Line};
pub use crate::plan::search::bound::instant::CutInstant;
pub use crate::plan::search::bound::known::Bounds;
pub use crate::plan::search::bound::moving::{MovingInstant, Rates};

/// Recomputation takes at least `value − price · room`.
#[derive(Clone, Copy, Debug)]
pub struct Tangent {
    /// The price of a byte held.
    pub price: Price,
    /// The time if there is no room.
    pub value: Picoseconds,
}

/// Lines that hold under the same decisions, by falling bytes, and prices that improve the bound
/// but are no corner.
#[derive(Clone, Debug, Default)]
pub struct Hull {
    /// The corners.
    pub lines: Vec<Line>,
    spare: Vec<Tangent>,
}

impl Hull {
    /// A hull of lines, which come by falling bytes.
    pub fn new(lines: Vec<Line>) -> Hull {
        Hull { lines, spare: Vec::new() }
    }

    fn tangents(&self) -> impl Iterator<Item = Tangent> + '_ {
        self.lines.iter().map(Line::tangent).chain(self.spare.iter().copied())
    }

    /// A lower bound on the time of recomputation with this much room.
    pub fn at(&self, room: ByteCount) -> WidePicoseconds {
        self.best(room).map_or(WidePicoseconds::ZERO, |(_, least)| least).max(WidePicoseconds::ZERO)
    }

    /// The price that gives the highest bound with this much room, and that bound.
    pub fn best(&self, room: ByteCount) -> Option<(Price, WidePicoseconds)> {
        let least = self
            .tangents()
            .map(|Tangent { price, value }| (price, value.wide() - price.charge_up(room)));
        least.max_by_key(|&(price, least)| (least, price))
    }

    /// With less room than this, recomputation would take longer than `most`.
    pub fn least_room(&self, most: Picoseconds) -> ByteCount {
        let priced = self.tangents().filter(|tangent| tangent.price > Price::FREE);
        let room = priced.map(|Tangent { price, value }| {
            // With less room, value − price · room > most.
            price.bytes_beyond(value.wide() - most.wide() - Picoseconds(1).wide())
        });
        room.max().unwrap_or_default()
    }

    /// Adds corners until the hull is exact at `room`.
    pub fn close_in(
        &mut self,
        cuts: &mut Cuts,
        room: ByteCount,
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
                Price::per_byte(b.seconds - a.seconds, a.bytes - b.bytes, cuts.highest_price);
            if self.tangents().any(|known| known.price == price) {
                return;
            }
            let (most, least) = (a.bytes, b.bytes);
            let chord = a.seconds + price.charge_down(most);
            let Some(line) = cuts.cut(price, decisions, meter) else { return };
            let is_below = line.seconds + price.charge_down(line.bytes)
                < chord - chord / 10_000_000 - Picoseconds(1);
            if is_below && least < line.bytes && line.bytes < most {
                self.lines.insert(under, line);
            } else {
                self.spare.push(line.tangent());
                return;
            }
        }
    }
}

/// The orders of first runs that a bound covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundOrder {
    /// The bound covers schedules that run every node for the first time in the given order.
    Given,
    /// The bound covers schedules in every order.
    Any,
}

impl BoundOrder {
    /// The name under which it is printed.
    pub fn name(self) -> &'static str {
        match self {
            BoundOrder::Given => "given",
            BoundOrder::Any => "any",
        }
    }
}
