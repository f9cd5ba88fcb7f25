//! The lower bound: what no schedule can avoid, one minimum cut per instant. Invariant: every [`Line`] is below the time
//! of recomputation of every legal schedule, whatever its order, at every budget; all arithmetic is in whole numbers
//! and rounds down.
//!
//! Fix an instant: the first run of operator `t`. Every other operator runs for the first time before it (it must: an
//! ancestor), after it (a descendant), or on either side. Whatever runs after `t` finds what it reads in memory while
//! `t` runs, or some operator makes it after `t`; for one that has run before, that is a recomputation. At a price for
//! each byte held across `t`, choosing what is held and what runs again is a minimum cut. Where the cuts on both sides
//! of a budget leave a gap, branch and bound over single operators closes it. `doc/theory/bound.md` has the network
//! and the proof.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use cranelift_entity::{EntityRef, SecondaryMap};

use super::flow::{Arc, Arcs, ENDLESS, Network, Vertex};
use super::meter::Meter;
use super::problem::{OpId, Picoseconds, Problem, Size, TensorId};

/// Prices are whole multiples of 2⁻²⁴ picoseconds per byte.
const PRICE_BITS: u32 = 24;

/// Bytes at a price, rounded down.
fn charge(price: i64, bytes: Size) -> i64 {
    ((price as i128 * bytes as i128) >> PRICE_BITS) as i64
}

/// `price · room`, rounded up.
fn charge_up(price: i64, room: Size) -> i128 {
    -((-(price as i128 * room as i128)) >> PRICE_BITS)
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
    /// Operators that run after the instant though they could have, or must have, run before it; in order.
    pub late: Vec<OpId>,
}

/// Lines that hold under the same decisions, by falling bytes, and prices that improve the bound but are no corner.
#[derive(Clone, Debug, Default)]
pub struct Hull {
    /// The corners.
    pub lines: Vec<Line>,
    spare: Vec<(i64, Picoseconds)>,
}

impl Hull {
    fn prices(&self) -> impl Iterator<Item = (i64, Picoseconds)> + '_ {
        self.lines.iter().map(|line| (line.price, line.value)).chain(self.spare.iter().copied())
    }

    /// Time of recomputation with this much room, at least.
    fn at(&self, room: Size) -> i128 {
        self.prices().map(|(price, value)| value as i128 - charge_up(price, room)).max().unwrap_or(0).max(0)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Side {
    Before,
    #[default]
    Either,
    After,
}

/// A decision: does the operator run after the instant?
type Decision = (OpId, bool);

/// One instant with its network and what is known of it.
pub struct Instant {
    /// The operator whose first run it is.
    pub at: OpId,
    /// What holds without decisions.
    pub hull: Hull,
    /// What every schedule holds while it runs.
    needed: Size,
    /// Found by branch and bound: no plan within this many bytes takes less.
    proven: Vec<(Size, Picoseconds)>,
    /// Recomputing everything once.
    most: Picoseconds,
    dearest: i64,
    network: Network,
    /// Price and value of the flow in the network, and the decisions that it obeys.
    flow: Option<(i64, i64, Vec<Decision>)>,
    runs_again: Vec<Run>,
    held: Vec<Holding>,
    endless: Vec<Arc>,
    source: Vertex,
    sink: Vertex,
}

/// An operator that may run after the instant: crossing `pay` costs its time.
struct Run {
    pay: Arc,
    /// Endless where it is decided that it runs after the instant.
    late: Arc,
    /// Endless where it is decided that it does not.
    never: Arc,
    from: Vertex,
    op: OpId,
    cost: Picoseconds,
}

/// Bytes that may be held.
struct Holding {
    pay: Arc,
    from: Vertex,
    to: Vertex,
    bytes: Size,
}

impl Instant {
    /// The instant of an operator; `None` where the effort was spent before its first cuts were known.
    pub fn new(problem: &Problem, at: OpId, meter: &mut Meter) -> Option<Instant> {
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
                        held.push(Holding { pay: arcs.add(not_before(id), sink), from: not_before(id), to: sink, bytes: op.kept });
                    }
                    not_before(id)
                }
            };
            let cost = if op.once { ENDLESS } else { op.cost };
            let (late, never) = (arcs.add(runs(id), sink), arcs.add(source, runs(id)));
            runs_again.push(Run { pay: arcs.add(before, runs(id)), late, never, from: before, op: id, cost });
            for &tensor in &op.outputs {
                let bytes = if problem.ops[at].inputs.contains(&tensor) { 0 } else { problem.tensors[tensor].bytes };
                let pay = arcs.add(runs(id), there(tensor));
                held.push(Holding { pay, from: runs(id), to: there(tensor), bytes });
                if problem.tensors[tensor].readers.iter().any(|&reader| reader != at && side[reader] == Side::After) {
                    endless.push(arcs.add(there(tensor), sink));
                }
            }
            // None of them comes from the instant or its descendants: whoever reads those is a descendant too.
            endless.extend(op.inputs.iter().map(|&tensor| arcs.add(there(tensor), runs(id))));
        }
        let network = Network::new(sink as usize + 1, &arcs);
        let needed = problem.resting + kept_before + problem.working_set(at);
        let bytes: Size = held.iter().map(|holding| holding.bytes).sum();
        // As dear as arithmetic allows: next to nothing is held.
        let dearest = (((1i128 << 58) << PRICE_BITS) / bytes.max(1) as i128).min(1 << 62) as i64;
        let (hull, proven, most) = (Hull::default(), Vec::new(), problem.total);
        let mut instant = Instant { at, hull, needed, proven, most, dearest, network, flow: None, runs_again, held, endless, source, sink };
        let all_held = instant.cut(problem, 0, &[], meter)?;
        let none_held = instant.cut(problem, dearest, &[], meter)?;
        instant.hull.lines = vec![all_held, none_held];
        Some(instant)
    }

    /// The minimum cut at a price under decisions.
    fn cut(&mut self, problem: &Problem, price: i64, decisions: &[Decision], meter: &mut Meter) -> Option<Line> {
        let value = match self.flow.take() {
            Some((paid, value, obeyed)) if paid <= price && obeyed == decisions => {
                for holding in &self.held {
                    self.network.raise(holding.pay, charge(price, holding.bytes) - charge(paid, holding.bytes));
                }
                value
            }
            _ => {
                self.network.clear();
                self.runs_again.iter().for_each(|run| self.network.raise(run.pay, run.cost));
                self.held.iter().for_each(|holding| self.network.raise(holding.pay, charge(price, holding.bytes)));
                self.endless.iter().for_each(|&arc| self.network.raise(arc, ENDLESS));
                for &(op, is_late) in decisions {
                    if let Ok(index) = self.runs_again.binary_search_by_key(&op, |run| run.op) {
                        let run = &self.runs_again[index];
                        self.network.raise(if is_late { run.late } else { run.never }, ENDLESS);
                    }
                }
                0
            }
        };
        meter.spend((self.held.len() + self.runs_again.len()) as u64 * 4);
        let value = value + self.network.augment(self.source, self.sink, || meter.is_over())?;
        self.flow = Some((price, value, decisions.to_vec()));
        let network = &self.network;
        let crosses = |from: Vertex, to: Vertex| network.is_on_source_side(from) && !network.is_on_source_side(to);
        let again = self.runs_again.iter().filter(|run| crosses(run.from, run.op.as_u32()));
        let held = self.held.iter().filter(|holding| crosses(holding.from, holding.to));
        let late = self.runs_again.iter().map(|run| run.op).filter(|op| !network.is_on_source_side(op.as_u32()));
        Some(Line {
            price,
            value,
            seconds: again.map(|run| problem.ops[run.op].cost).sum(),
            bytes: held.map(|holding| holding.bytes).sum(),
            late: late.collect(),
        })
    }

    /// Time of recomputation that no plan within the budget beats; `None` where no schedule fits.
    pub fn bound(&self, budget: Size) -> Option<Picoseconds> {
        if budget < self.needed {
            return None;
        }
        let proven = self.proven.iter().filter(|(bytes, _)| budget <= *bytes).map(|(_, least)| *least as i128);
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
    pub fn solve(&mut self, problem: &Problem, budget: Size, meter: &mut Meter) {
        let mut hull = std::mem::take(&mut self.hull);
        self.close_in(problem, &mut hull, budget - self.needed, &[], meter);
        self.hull = hull;
    }

    /// The corners around a budget: the first holds more than fits, the second fits. The same one twice at the ends.
    pub fn bracket(&self, budget: Size) -> [&Line; 2] {
        let lines = &self.hull.lines;
        let under = lines.partition_point(|line| line.bytes > budget - self.needed).min(lines.len() - 1);
        [&lines[under.saturating_sub(1)], &lines[under]]
    }

    /// Adds corners to a hull until it is exact at `room`.
    fn close_in(&mut self, problem: &Problem, hull: &mut Hull, room: Size, decisions: &[Decision], meter: &mut Meter) {
        loop {
            let under = hull.lines.partition_point(|line| line.bytes > room);
            if under == 0 || under == hull.lines.len() {
                return;
            }
            let (a, b) = (&hull.lines[under - 1], &hull.lines[under]);
            let price = (((b.seconds - a.seconds) as i128) << PRICE_BITS) / (a.bytes - b.bytes) as i128;
            let price = price.clamp(0, self.dearest as i128) as i64;
            if hull.prices().any(|(known, _)| known == price) {
                return;
            }
            let (most, least) = (a.bytes, b.bytes);
            let chord = a.seconds + charge(price, most);
            let Some(line) = self.cut(problem, price, decisions, meter) else { return };
            let is_below = line.seconds + charge(price, line.bytes) < chord - chord / 10_000_000 - 1;
            if is_below && least < line.bytes && line.bytes < most {
                hull.lines.insert(under, line);
            } else {
                hull.spare.push((line.price, line.value));
                return;
            }
        }
    }

    /// Branch and bound over single operators: raises the bound at this budget towards the least time with which the
    /// instant can be crossed, or to `enough`. Returns the sets of late operators of what it found to fit.
    pub fn branch(&mut self, problem: &Problem, budget: Size, enough: Picoseconds, meter: &mut Meter) -> Vec<Vec<OpId>> {
        let room = budget - self.needed;
        let mut found: Vec<Vec<OpId>> = Vec::new();
        let mut upper = enough as i128;
        let mut open =
            BinaryHeap::from([Reverse(Branch { least: self.hull.at(room), number: 0, decisions: Vec::new(), hull: self.hull.clone() })]);
        let mut number = 0;
        let mut proven = 0;
        while let Some(Reverse(branch)) = open.pop() {
            proven = branch.least.min(upper);
            if branch.least >= upper || meter.is_over() {
                break;
            }
            let lines = &branch.hull.lines;
            let under = lines.partition_point(|line| line.bytes > room);
            if under == 0 {
                // Everything that these decisions leave open can be held.
                continue;
            }
            let Some(op) = lines.get(under).and_then(|fits| self.pivot(problem, &lines[under - 1], fits)) else {
                proven = branch.least;
                break;
            };
            for is_late in [true, false] {
                let mut decisions = branch.decisions.clone();
                decisions.push((op, is_late));
                let agrees = |line: &&Line| line.late.binary_search(&op).is_ok() == is_late;
                let mut hull = Hull { lines: lines.iter().filter(agrees).cloned().collect(), spare: Vec::new() };
                if hull.lines.first().is_none_or(|line| line.bytes <= room) {
                    let Some(line) = self.cut(problem, 0, &decisions, meter) else { break };
                    hull.lines.insert(0, line);
                }
                if hull.lines.last().is_none_or(|line| line.bytes > room) {
                    let Some(line) = self.cut(problem, self.dearest, &decisions, meter) else { break };
                    hull.lines.push(line);
                }
                if let Some(line) = hull.lines.iter().find(|line| line.bytes <= room)
                    && (line.seconds as i128) < upper
                {
                    upper = line.seconds as i128;
                    found.push(line.late.clone());
                }
                self.close_in(problem, &mut hull, room, &decisions, meter);
                if let Some(line) = hull.lines.iter().find(|line| line.bytes <= room)
                    && (line.seconds as i128) < upper
                {
                    upper = line.seconds as i128;
                    found.push(line.late.clone());
                }
                // Decisions only add to what the parent asks for.
                let least = hull.at(room).max(branch.least);
                if least < upper && least <= self.most as i128 {
                    number += 1;
                    open.push(Reverse(Branch { least, number, decisions, hull }));
                }
            }
            if meter.is_over() {
                break; // A child may be missing: the parent's bound stands.
            }
            if open.is_empty() {
                proven = upper;
            }
        }
        if proven > 0 {
            self.proven.push((budget, proven.min(self.most as i128) as Picoseconds));
        }
        found
    }

    /// The operator to decide: of those that tell two cuts apart, the one that makes most.
    fn pivot(&self, problem: &Problem, over: &Line, under: &Line) -> Option<OpId> {
        let differs = |op: &OpId| over.late.binary_search(op).is_ok() != under.late.binary_search(op).is_ok();
        let made = |op: &OpId| problem.ops[*op].outputs.iter().map(|&tensor| problem.tensors[tensor].bytes).sum::<Size>();
        over.late.iter().chain(&under.late).filter(|op| differs(op)).max_by_key(|op| (made(op), Reverse(**op))).copied()
    }
}

/// Open decisions of a branch and bound, least bound first.
struct Branch {
    least: i128,
    number: u64,
    decisions: Vec<Decision>,
    hull: Hull,
}

impl PartialEq for Branch {
    fn eq(&self, other: &Branch) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Branch {}

impl PartialOrd for Branch {
    fn partial_cmp(&self, other: &Branch) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Branch {
    fn cmp(&self, other: &Branch) -> std::cmp::Ordering {
        self.least.cmp(&other.least).then(self.number.cmp(&other.number))
    }
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
