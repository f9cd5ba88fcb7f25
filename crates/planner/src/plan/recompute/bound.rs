//! The lower bound: what no schedule can avoid, one minimum cut per instant. Invariant: every [`Line`] is below the time
//! of recomputation of every legal schedule, whatever its order, at every budget; all arithmetic is in whole numbers
//! and rounds down.
//!
//! Fix an instant: the first run of operator `t`. Every other operator runs for the first time before it (it must: an
//! ancestor), after it (a descendant), or on either side. Whatever runs after `t` finds what it reads in memory while
//! `t` runs, or some operator makes it after `t`; for one that has run before, that is a recomputation. At a price for
//! each byte held across `t`, choosing what is held and what runs again is a minimum cut. `doc/theory/bound.md` has
//! the network and the proof.

use cranelift_entity::{EntityRef, SecondaryMap};

use super::flow::{Arc, Arcs, ENDLESS, Network, Vertex};
use super::problem::{OpId, Picoseconds, Problem, Size, TensorId};

/// Prices are whole multiples of 2⁻²⁴ picoseconds per byte.
const PRICE_BITS: u32 = 24;

/// Bytes at a price, rounded down.
fn charge(price: i64, bytes: Size) -> i64 {
    ((price as i128 * bytes as i128) >> PRICE_BITS) as i64
}

/// Recomputation takes at least `value − price · room`, where `room` is the budget less what the instant itself needs.
#[derive(Clone, Debug)]
pub struct Line {
    price: i64,
    value: Picoseconds,
    /// Time of the operators that run again.
    pub seconds: Picoseconds,
    /// Bytes held across the instant.
    pub bytes: Size,
    /// Operators that run after the instant though they could have, or must have, run before it.
    pub late: Vec<OpId>,
}

/// The lines around a budget.
#[derive(Clone, Copy, Debug)]
pub struct Bracket {
    /// Recomputation takes at least this long; `None` = no schedule fits.
    pub bound: Option<Picoseconds>,
    /// Recomputes too little: holds more bytes than there is room for.
    pub over: usize,
    /// Fits.
    pub under: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Side {
    Before,
    #[default]
    Either,
    After,
}

/// One instant with its network and the lines known so far.
pub struct Instant {
    /// The operator whose first run it is.
    pub at: OpId,
    /// Lines by falling bytes.
    pub lines: Vec<Line>,
    /// What every schedule holds while it runs.
    pub needed: Size,
    /// Prices and values that improve the bound but are no corner of the hull.
    spare: Vec<(i64, Picoseconds)>,
    most: Picoseconds,
    side: SecondaryMap<OpId, Side>,
    network: Network,
    /// The price and the value of the flow in the network.
    flow: Option<(i64, i64)>,
    runs_again: Vec<(Arc, Vertex, OpId, i64)>,
    held: Vec<(Arc, Vertex, Vertex, Size)>,
    endless: Vec<Arc>,
    source: Vertex,
    sink: Vertex,
}

impl Instant {
    /// The instant of an operator.
    pub fn new(problem: &Problem, at: OpId) -> Instant {
        let side = sides(problem, at);
        let (ops, tensors) = (problem.len(), problem.tensors.len());
        // An operator's vertex is on the sink's side where it runs after the instant; a tensor's where it is there after
        // the instant; an operator's second vertex where it does not run before the instant.
        let runs = |op: OpId| op.as_u32();
        let there = |tensor: TensorId| ops as Vertex + tensor.as_u32();
        let not_before = |op: OpId| (ops + tensors) as Vertex + op.as_u32();
        let source = (2 * ops + tensors) as Vertex;
        let sink = source + 1;
        let mut arcs = Arcs::default();
        let (mut runs_again, mut held, mut endless) = (Vec::new(), Vec::new(), Vec::new());
        let mut kept_before = 0;
        for (id, op) in &problem.ops {
            let before = match side[id] {
                Side::After => continue,
                Side::Before => {
                    kept_before += op.kept;
                    source
                }
                Side::Either => {
                    endless.push(arcs.add(runs(id), not_before(id)));
                    let either = op.after.iter().filter(|&&earlier| side[earlier] == Side::Either);
                    endless.extend(either.map(|&earlier| arcs.add(not_before(id), not_before(earlier))));
                    if op.kept > 0 {
                        held.push((arcs.add(not_before(id), sink), not_before(id), sink, op.kept));
                    }
                    not_before(id)
                }
            };
            let cost = if op.once { ENDLESS } else { op.cost };
            runs_again.push((arcs.add(before, runs(id)), before, id, cost));
            for &tensor in &op.outputs {
                let bytes = if problem.ops[at].inputs.contains(&tensor) { 0 } else { problem.tensors[tensor].bytes };
                held.push((arcs.add(runs(id), there(tensor)), runs(id), there(tensor), bytes));
                if problem.tensors[tensor].readers.iter().any(|&reader| reader != at && side[reader] == Side::After) {
                    endless.push(arcs.add(there(tensor), sink));
                }
            }
            // What the instant or its descendants make is not held across it.
            let early = op.inputs.iter().filter(|&&tensor| side[problem.tensors[tensor].producer] != Side::After);
            endless.extend(early.map(|&tensor| arcs.add(there(tensor), runs(id))));
        }
        let network = Network::new(sink as usize + 1, &arcs);
        let needed = problem.resting + kept_before + problem.working_set(at);
        let (lines, spare) = (Vec::new(), Vec::new());
        let most = problem.total;
        let mut instant = Instant { at, lines, needed, spare, most, side, network, flow: None, runs_again, held, endless, source, sink };
        let bytes: Size = problem.tensors.values().map(|tensor| tensor.bytes).sum::<Size>() + kept_before;
        let all_held = instant.cut(problem, 0);
        // As dear as arithmetic allows: next to nothing is held.
        let none_held = instant.cut(problem, (((1i128 << 58) << PRICE_BITS) / (bytes.max(1) as i128)).min(1 << 62) as i64);
        instant.lines = vec![all_held, none_held];
        instant
    }

    /// The minimum cut at a price.
    fn cut(&mut self, problem: &Problem, price: i64) -> Line {
        let value = match self.flow {
            Some((paid, value)) if paid <= price => {
                for &(arc, _, _, bytes) in &self.held {
                    self.network.raise(arc, charge(price, bytes) - charge(paid, bytes));
                }
                value
            }
            _ => {
                self.network.clear();
                self.runs_again.iter().for_each(|&(arc, _, _, cost)| self.network.raise(arc, cost));
                self.held.iter().for_each(|&(arc, _, _, bytes)| self.network.raise(arc, charge(price, bytes)));
                self.endless.iter().for_each(|&arc| self.network.raise(arc, ENDLESS));
                0
            }
        } + self.network.augment(self.source, self.sink);
        self.flow = Some((price, value));
        let crosses = |from: Vertex, to: Vertex| self.network.is_on_source_side(from) && !self.network.is_on_source_side(to);
        let seconds =
            self.runs_again.iter().filter(|&&(_, from, op, _)| crosses(from, op.as_u32())).map(|&(_, _, op, _)| problem.ops[op].cost).sum();
        let bytes = self.held.iter().filter(|&&(_, from, to, _)| crosses(from, to)).map(|&(_, _, _, bytes)| bytes).sum();
        let late = self.runs_again.iter().map(|&(_, _, op, _)| op).filter(|op| !self.network.is_on_source_side(op.as_u32())).collect();
        Line { price, value, seconds, bytes, late }
    }

    /// The bound that the lines known so far give.
    pub fn bound(&self, budget: Size) -> Option<Picoseconds> {
        if budget < self.needed {
            return None;
        }
        let room = (budget - self.needed) as i128;
        let lines = self.lines.iter().map(|line| (line.price, line.value)).chain(self.spare.iter().copied());
        let least = lines.map(|(price, value)| value as i128 - ceil_charge(price, room)).max().unwrap_or(0).max(0);
        // Recomputing everything once is all that a cut can ask for: beyond that, nothing fits.
        (least <= self.most as i128).then_some(least as Picoseconds)
    }

    /// No budget below this many bytes suffices.
    pub fn least_budget(&self) -> Size {
        let known = self.lines.iter().map(|line| (line.price, line.value)).chain(self.spare.iter().copied());
        let room = known.filter(|(price, _)| *price > 0).map(|(price, value)| {
            // value − price · room > most for every room up to this.
            let excess = value as i128 - self.most as i128 - 1;
            (excess << PRICE_BITS).div_euclid(price as i128) + 1
        });
        self.needed + room.max().unwrap_or(0).max(0) as Size
    }

    /// Adds lines until the hull is exact at this budget.
    pub fn solve(&mut self, problem: &Problem, budget: Size) -> Bracket {
        let room = budget - self.needed;
        let last = self.lines.len() - 1;
        if self.lines[last].bytes > room {
            return Bracket { bound: self.bound(budget), over: last, under: last };
        }
        if self.lines[0].bytes <= room {
            return Bracket { bound: Some(0), over: 0, under: 0 };
        }
        loop {
            let under = self.lines.partition_point(|line| line.bytes > room);
            let (a, b) = (&self.lines[under - 1], &self.lines[under]);
            let bracket = |instant: &Instant| Bracket { bound: instant.bound(budget), over: under - 1, under };
            let price = (((b.seconds - a.seconds) as i128) << PRICE_BITS) / (a.bytes - b.bytes) as i128;
            let price = price.clamp(0, 1 << 62) as i64;
            let known = |(other, _): (i64, i64)| other == price;
            if self.lines.iter().map(|line| (line.price, line.value)).chain(self.spare.iter().copied()).any(known) {
                return bracket(self);
            }
            let (most, least) = (a.bytes, b.bytes);
            let chord = a.seconds as i128 + charge(price, most) as i128;
            let line = self.cut(problem, price);
            let below = line.seconds as i128 + (charge(price, line.bytes) as i128) < chord - chord / 10_000_000 - 1;
            if !below || line.bytes >= most || line.bytes <= least {
                self.spare.push((line.price, line.value));
                return bracket(self);
            }
            self.lines.insert(under, line);
        }
    }
}

/// `price · room`, rounded up.
fn ceil_charge(price: i64, room: i128) -> i128 {
    let product = price as i128 * room;
    -((-product) >> PRICE_BITS)
}

/// Where each operator runs for the first time, seen from the first run of `at`.
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
