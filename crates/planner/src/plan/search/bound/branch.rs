//! Branch and bound at one instant: if the cuts on both sides of a budget leave a gap, operators
//! are decided one by one. Invariant: what is proven holds for every schedule within the budget,
//! even if the effort ends in the middle.
//!
//! First, operators that every cheap cut has on the same side are settled and leave the network;
//! what remains is small. Parts of it that are alike, as the layers of a model are, can be
//! exchanged; only one order of them is examined. `doc/theory/bound.md` has the argument.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::effort::Meter;
use crate::plan::quantity::{ByteCount, Picoseconds, Price, WidePicoseconds};
use crate::plan::search::bound::Hull;
use crate::plan::search::bound::cuts::{Cuts, Decision, Line};
use crate::plan::search::bound::instant::{CutInstant, Proven};
use crate::plan::search::state::problem::{OpId, Problem};

impl CutInstant {
    /// Raises the bound at this budget towards the least time with which the instant can be
    /// crossed, or to `enough`. Returns the late operators of each cut found that fits.
    pub fn branch(
        &mut self,
        problem: &Problem,
        budget: ByteCount,
        enough: Picoseconds,
        meter: &mut Meter,
    ) -> Vec<Vec<OpId>> {
        let room = budget - self.needed;
        let Some((price, _)) = self.hull.best(room) else { return Vec::new() };
        // Recomputing everything once is enough if a schedule fits. A cut at the limit is no better
        // than what is known.
        let enough = enough.min(self.most);
        let limit = (enough.wide() + price.charge_up(room)).narrow();
        let mut found = Vec::new();
        let proven = match self.cuts.settled(price, limit, meter) {
            Some(mut cuts) => {
                descend(&mut cuts, problem, room, self.hull.at(room), enough, &mut found, meter)
            }
            None => enough.wide(),
        };
        if proven > WidePicoseconds::ZERO {
            self.proven.push(Proven { budget, least: proven.min(self.most.wide()).narrow() });
        }
        found
    }
}

/// The least time of a cut within `room`, or `enough`, or as much of it as is proven when the
/// effort ends.
fn descend(
    cuts: &mut Cuts,
    problem: &Problem,
    room: ByteCount,
    floor: WidePicoseconds,
    enough: Picoseconds,
    found: &mut Vec<Vec<OpId>>,
    meter: &mut Meter,
) -> WidePicoseconds {
    let (mut upper, mut proven, mut number) = (enough.wide(), floor, 0);
    let mut open = BinaryHeap::new();
    let mut branch = |cuts: &mut Cuts,
                      parent: &Subproblem,
                      decisions: Vec<Decision>,
                      upper: &mut WidePicoseconds,
                      meter: &mut Meter| {
        let agrees = |line: &&Line| {
            decisions.iter().all(|(op, is_late)| line.late.binary_search(op).is_ok() == *is_late)
        };
        let mut hull = Hull::new(parent.hull.lines.iter().filter(agrees).cloned().collect());
        if hull.lines.first().is_none_or(|line| line.bytes <= room) {
            hull.lines.insert(0, cuts.cut(Price::FREE, &decisions, meter)?);
        }
        if hull.lines.last().is_none_or(|line| line.bytes > room) {
            hull.lines.push(cuts.cut(cuts.highest_price, &decisions, meter)?);
        }
        hull.close_in(cuts, room, &decisions, meter);
        if let Some(line) = hull.lines.iter().find(|line| line.bytes <= room)
            && line.seconds.wide() < *upper
        {
            *upper = line.seconds.wide();
            found.push(cuts.late(line));
        }
        number += 1;
        // Decisions can only raise the parent's bound.
        Some(Subproblem { least: hull.at(room).max(parent.least), number, decisions, hull })
    };
    let root = Subproblem { least: floor, number: 0, decisions: Vec::new(), hull: Hull::default() };
    match branch(cuts, &root, Vec::new(), &mut upper, meter) {
        Some(root) => open.push(Reverse(root)),
        None => return proven,
    }
    while let Some(Reverse(parent)) = open.pop() {
        proven = parent.least.min(upper);
        if parent.least >= upper || meter.is_over() {
            break;
        }
        let lines = &parent.hull.lines;
        let under = lines.partition_point(|line| line.bytes > room);
        let corners =
            under.checked_sub(1).and_then(|over| Some((lines.get(over)?, lines.get(under)?)));
        let Some(op) = corners.and_then(|(over, fits)| pivot(problem, over, fits)) else { break };
        let with = |decisions: &[Decision]| [parent.decisions.as_slice(), decisions].concat();
        let never: Vec<Decision> = cuts
            .symmetric_to(op, &parent.decisions)
            .into_iter()
            .map(|other| (other, false))
            .collect();
        for decisions in [with(&[(op, true)]), with(&never)] {
            match branch(cuts, &parent, decisions, &mut upper, meter) {
                Some(child) if child.least < upper => open.push(Reverse(child)),
                Some(_) => {}
                None => return proven, // The parent's bound stands.
            }
        }
        if open.is_empty() {
            proven = upper;
        }
    }
    proven
}

/// The operator to decide: of those on which two cuts differ, the one that makes most bytes.
fn pivot(problem: &Problem, over: &Line, under: &Line) -> Option<OpId> {
    let differs =
        |op: &OpId| over.late.binary_search(op).is_ok() != under.late.binary_search(op).is_ok();
    let made = |op: &OpId| {
        problem.ops[*op]
            .outputs
            .iter()
            .map(|&tensor| problem.tensors[tensor].bytes)
            .sum::<ByteCount>()
    };
    over.late
        .iter()
        .chain(&under.late)
        .filter(|op| differs(op))
        .max_by_key(|op| (made(op), Reverse(**op)))
        .copied()
}

/// A node of the search: what is decided, and a bound under it; ordered by least bound.
struct Subproblem {
    least: WidePicoseconds,
    number: u64,
    decisions: Vec<Decision>,
    hull: Hull,
}

impl PartialEq for Subproblem {
    fn eq(&self, other: &Subproblem) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Subproblem {}

impl PartialOrd for Subproblem {
    fn partial_cmp(&self, other: &Subproblem) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Subproblem {
    fn cmp(&self, other: &Subproblem) -> std::cmp::Ordering {
        self.least.cmp(&other.least).then(self.number.cmp(&other.number))
    }
}
