//! Operators that are alike and that nothing orders, such as the same call of each chunk of a loss.
//! Invariant: a line is below the time of recomputation of every legal schedule, whichever of them
//! runs for the first time last; all others have run by then.
//!
//! At the first run of any one of them the others may not have run yet, and need nothing. But one
//! of them is the last. `doc/theory/bound.md` has the proof.

use cranelift_entity::{EntityRef, SecondaryMap};

use crate::effort::Meter;
use crate::plan::quantity::{ByteCount, Picoseconds, Price};
use crate::plan::search::bound::instant::{Drawn, Side, sides};
use crate::plan::search::bound::{BoundOrder, CutInstant, Hull, Tangent};
use crate::plan::search::state::problem::{OpId, Problem};

/// The most operators of one kind that are considered: each takes a network and a cut.
const MOST: usize = 64;

/// An operator and those that are like it, in order; the nearest if there are too many, or if the
/// effort is spent.
fn alike(problem: &Problem, at: OpId, meter: &mut Meter) -> Vec<OpId> {
    let own = traits(problem, at);
    let mut alike: Vec<OpId> =
        problem.ops.keys().filter(|&id| traits(problem, id) == own).collect();
    alike.sort_by_key(|&id| (id.index().abs_diff(at.index()), id));
    let mut members = Vec::new();
    let mut seen: Vec<SecondaryMap<OpId, Side>> = Vec::new();
    for id in alike {
        if members.len() == MOST || !members.is_empty() && meter.is_over() {
            break;
        }
        if seen.iter().all(|sides| sides[id] == Side::Either) {
            members.push(id);
            meter.spend(problem.len() as u64 / 16);
            seen.push(sides(problem, id, &[]));
        }
    }
    members.sort_unstable();
    members
}

/// What operators have in common that are alike: time, and bytes in use and made.
fn traits(problem: &Problem, id: OpId) -> (Picoseconds, ByteCount, ByteCount) {
    let op = &problem.ops[id];
    let made = op.outputs.iter().map(|&tensor| problem.tensors[tensor].bytes).sum();
    (op.cost, problem.working_set(id), made)
}

/// Operators of which one runs for the first time last.
pub struct LastOf {
    /// The operators, in order.
    members: Vec<OpId>,
    /// The first run of the last of several in the given order: no bound, but its prices are good
    /// ones, and plans can be made of its cuts.
    guide: Option<CutInstant>,
    /// What every schedule holds while the last one runs.
    needed: ByteCount,
    /// Lines that hold whichever it is.
    hull: Hull,
    /// The budgets for which a line was sought.
    solved: Vec<ByteCount>,
    /// The time of recomputing everything once.
    most: Picoseconds,
}

impl LastOf {
    /// An operator and those that are like it.
    pub fn like(problem: &Problem, at: OpId, meter: &mut Meter) -> LastOf {
        LastOf {
            members: alike(problem, at, meter),
            guide: None,
            needed: ByteCount::ZERO,
            hull: Hull::default(),
            solved: Vec::new(),
            most: problem.total,
        }
    }

    /// Whether it binds more than the first run of any single operator that was known.
    pub fn binds(&self) -> bool {
        !self.hull.spare.is_empty()
    }

    /// The guide, if it binds.
    pub fn guide_mut(&mut self) -> Option<&mut CutInstant> {
        if self.binds() { self.guide.as_mut() } else { None }
    }

    /// Whether an operator is one of them.
    pub fn contains(&self, at: OpId) -> bool {
        self.members.binary_search(&at).is_ok()
    }

    /// Time of recomputation that no schedule within the budget beats; `None` if none fits.
    pub fn bound(&self, budget: ByteCount) -> Option<Picoseconds> {
        let least = self.hull.at((budget >= self.needed).then(|| budget - self.needed)?);
        (least <= self.most.wide()).then(|| least.narrow())
    }

    /// No budget below this many bytes suffices.
    pub fn least_budget(&self) -> ByteCount {
        self.needed + self.hull.least_room(self.most)
    }

    /// Adds a line at the price that the guide gives at a budget, unless its bound there is no
    /// higher than `floor`.
    pub fn solve(
        &mut self,
        problem: &Problem,
        budget: ByteCount,
        floor: Picoseconds,
        meter: &mut Meter,
    ) {
        let &[_, .., last] = &self.members[..] else { return };
        if self.solved.contains(&budget) {
            return;
        }
        if self.guide.is_none() {
            self.guide = CutInstant::new(problem, BoundOrder::Given, last, meter);
        }
        let Some(guide) = &mut self.guide else { return };
        guide.solve(budget, meter);
        let Some(price) = guide.price(budget) else { return };
        let line = self.line(problem, (budget, price), floor, meter);
        if !meter.is_over() {
            self.solved.push(budget);
        }
        if let Some((needed, tangent)) = line {
            self.needed = needed;
            self.hull.spare.push(tangent);
        }
    }

    /// That line, with what is needed.
    fn line(
        &self,
        problem: &Problem,
        (budget, price): (ByteCount, Price),
        floor: Picoseconds,
        meter: &mut Meter,
    ) -> Option<(ByteCount, Tangent)> {
        let mut lines: Vec<(ByteCount, Picoseconds)> = Vec::new();
        for (index, &at) in self.members.iter().enumerate().rev() {
            let earlier = [&self.members[..index], &self.members[index + 1..]].concat();
            let drawn = Drawn::new(problem, sides(problem, at, &earlier), at);
            let (needed, mut cuts) = drawn.network(problem, at);
            if price > cuts.highest_price {
                return None;
            }
            let value = cuts.cut(price, &[], meter)?.value;
            if value.wide() - price.charge_up(budget - needed) <= floor.wide() {
                return None;
            }
            lines.push((needed, value));
        }
        let needed = lines.iter().map(|&(needed, _)| needed).min()?;
        let values = lines.iter().map(|&(more, value)| value + price.charge_down(more - needed));
        Some((needed, Tangent { price, value: values.min()? }))
    }
}
