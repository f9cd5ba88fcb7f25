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

use cranelift_entity::{EntityRef, SecondaryMap};

use crate::effort::Meter;
use crate::plan::search::bound::cuts::{
    Choice, Cuts, Decision, Line, Link, PRICE_BITS, Toll, charge, charge_up,
};
use crate::plan::search::bound::flow::Vertex;
use crate::plan::search::state::problem::{OpId, Picoseconds, Problem, Size, TensorId};

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
            let price = price.clamp(0, cuts.dearest as i128) as i64;
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

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Side {
    Before,
    #[default]
    Either,
    After,
}

/// One instant with its network and what is known of it.
pub struct Instant {
    /// The operator whose first run it is.
    pub at: OpId,
    /// What holds without decisions.
    pub hull: Hull,
    /// What every schedule holds while it runs.
    pub(super) needed: Size,
    /// Found by branch and bound: no plan within this many bytes takes less.
    pub(super) proven: Vec<(Size, Picoseconds)>,
    /// Recomputing everything once.
    pub(super) most: Picoseconds,
    pub(super) cuts: Cuts,
}

impl Instant {
    /// The instant of an operator in the schedules of an order; `None` where the effort was spent
    /// before its first cuts were known.
    pub fn new(
        problem: &Problem,
        order: BoundOrder,
        at: OpId,
        meter: &mut Meter,
    ) -> Option<Instant> {
        let side = match order {
            BoundOrder::Given => positions(problem, at),
            BoundOrder::Any => sides(problem, at),
        };
        let (ops, tensors) = (problem.len(), problem.tensors.len());
        // An operator's vertex is on the sink's side where it runs after the instant; a tensor's
        // where it is there after the instant; an operator's second vertex where it does not run
        // before the instant.
        let runs = |op: OpId| op.as_u32();
        let there = |tensor: TensorId| ops as Vertex + tensor.as_u32();
        let not_before = |op: OpId| (ops + tensors) as Vertex + op.as_u32();
        let source = (2 * ops + tensors) as Vertex;
        let sink = source + 1;
        let (mut links, mut choices) = (Vec::new(), Vec::new());
        let mut link = |from: Vertex, to: Vertex, toll: Toll| links.push(Link { from, to, toll });
        let mut kept_before = 0;
        for (id, op) in &problem.ops {
            let before = match side[id] {
                Side::After => continue,
                Side::Before => {
                    kept_before += op.kept;
                    source
                }
                Side::Either => {
                    link(runs(id), not_before(id), Toll::Endless);
                    for &earlier in
                        op.after.iter().filter(|&&earlier| side[earlier] == Side::Either)
                    {
                        link(not_before(id), not_before(earlier), Toll::Endless);
                    }
                    if op.kept > 0 {
                        link(not_before(id), sink, Toll::Held(op.kept));
                    }
                    not_before(id)
                }
            };
            link(before, runs(id), if op.once { Toll::Endless } else { Toll::Time(op.cost) });
            choices.push(Choice { op: id, vertex: runs(id) });
            for &tensor in &op.outputs {
                let is_input = problem.ops[at].inputs.contains(&tensor);
                let bytes = if is_input { 0 } else { problem.tensors[tensor].bytes };
                link(runs(id), there(tensor), Toll::Held(bytes));
                if problem.tensors[tensor]
                    .readers
                    .iter()
                    .any(|&reader| reader != at && side[reader] == Side::After)
                {
                    link(there(tensor), sink, Toll::Endless);
                }
            }
            // None of them comes from the instant or its descendants: whoever reads those is a
            // descendant too.
            op.inputs.iter().for_each(|&tensor| link(there(tensor), runs(id), Toll::Endless));
        }
        let needed = problem.resting + kept_before + problem.working_set(at);
        let mut cuts = Cuts::new(source, links, choices);
        let all_held = cuts.cut(0, &[], meter)?;
        let none_held = cuts.cut(cuts.dearest, &[], meter)?;
        let hull = Hull::new(vec![all_held, none_held]);
        Some(Instant { at, hull, needed, proven: Vec::new(), most: problem.total, cuts })
    }

    /// Time of recomputation that no plan within the budget beats; `None` where no schedule fits.
    pub fn bound(&self, budget: Size) -> Option<Picoseconds> {
        if budget < self.needed {
            return None;
        }
        let proven = self
            .proven
            .iter()
            .filter(|(bytes, _)| budget <= *bytes)
            .map(|(_, least)| *least as i128);
        let least = self.hull.at(budget - self.needed).max(proven.max().unwrap_or(0));
        // A cut asks for each operator once at most: beyond that, nothing fits.
        (least <= self.most as i128).then_some(least as Picoseconds)
    }

    /// No budget below this many bytes suffices.
    pub fn least_budget(&self) -> Size {
        let room = self.hull.prices().filter(|(price, _)| *price > 0).map(|(price, value)| {
            // value − price · room > most for every room up to this.
            let excess = value as i128 - self.most as i128 - 1;
            (excess << PRICE_BITS).div_euclid(price as i128) + 1
        });
        self.needed + room.max().unwrap_or(0).max(0) as Size
    }

    /// Adds lines until the hull is exact at this budget, or the effort is spent.
    pub fn solve(&mut self, budget: Size, meter: &mut Meter) {
        self.hull.close_in(&mut self.cuts, budget - self.needed, &[], meter);
    }

    /// The corners around a budget: the first holds more than fits, the second fits. The same one
    /// twice at the ends.
    pub fn bracket(&self, budget: Size) -> [&Line; 2] {
        let lines = &self.hull.lines;
        let under =
            lines.partition_point(|line| line.bytes > budget - self.needed).min(lines.len() - 1);
        [&lines[under.saturating_sub(1)], &lines[under]]
    }
}

/// Where each operator runs for the first time if the order of first runs is that of the problem.
fn positions(problem: &Problem, at: OpId) -> SecondaryMap<OpId, Side> {
    let mut side: SecondaryMap<OpId, Side> = SecondaryMap::with_capacity(problem.len());
    problem.ops.keys().for_each(|id| side[id] = if id < at { Side::Before } else { Side::After });
    side
}

/// Where each operator runs for the first time, seen from the first run of `at`, in whatever order.
fn sides(problem: &Problem, at: OpId) -> SecondaryMap<OpId, Side> {
    let mut side: SecondaryMap<OpId, Side> = SecondaryMap::with_capacity(problem.len());
    side.resize(problem.len());
    side[OpId::SOURCE] = Side::Before;
    side[at] = Side::After;
    for id in (1..=at.index()).rev().map(OpId::at) {
        if id == at || side[id] == Side::Before {
            for &earlier in &problem.ops[id].after {
                side[earlier] = Side::Before;
            }
        }
    }
    for id in (at.index() + 1..problem.len()).map(OpId::at) {
        if problem.ops[id].after.iter().any(|&earlier| side[earlier] == Side::After) {
            side[id] = Side::After;
        }
    }
    side
}
