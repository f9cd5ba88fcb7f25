//! A better order of first runs, for free: an operator that makes more bytes than it frees runs as
//! late as it may, one that frees more than it makes as early as it may. Invariant: the order that
//! leaves this pass respects every read and every version. It may peak higher than the one that
//! entered: it is a start, not an answer.

use cranelift_entity::{EntityRef, SecondaryMap};

use crate::id::NodeId;
use crate::plan::quantity::ByteCount;
use crate::plan::search::state::problem::{OpId, Problem};
use crate::tuning::order::PASSES;

/// The nodes of a problem in a better order.
pub fn improved(problem: &Problem) -> Vec<NodeId> {
    let mut order = Order::new(problem);
    for _ in 0..PASSES.get() {
        let mut moved = false;
        for at in (1..problem.len()).rev() {
            moved |= order.later(at);
        }
        for at in 1..problem.len() {
            moved |= order.earlier(at);
        }
        if !moved {
            break;
        }
    }
    order.sequence.iter().filter_map(|&op| problem.ops[op].node).collect()
}

struct Order<'a> {
    problem: &'a Problem,
    sequence: Vec<OpId>,
    place: SecondaryMap<OpId, usize>,
    followers: SecondaryMap<OpId, Vec<OpId>>,
}

impl<'a> Order<'a> {
    fn new(problem: &'a Problem) -> Order<'a> {
        let mut followers: SecondaryMap<OpId, Vec<OpId>> = SecondaryMap::new();
        let mut place = SecondaryMap::new();
        for (id, op) in &problem.ops {
            place[id] = id.index();
            for &earlier in op.after.iter().chain(&op.behind) {
                followers[earlier].push(id);
            }
        }
        Order { problem, sequence: problem.ops.keys().collect(), place, followers }
    }

    fn bytes(&self, op: OpId) -> ByteCount {
        let op = &self.problem.ops[op];
        op.kept
            + op.outputs.iter().map(|&tensor| self.problem.tensors[tensor].bytes).sum::<ByteCount>()
    }

    /// Moves the operator at a place to just before the first that must follow it, if that saves
    /// more bytes than are held longer for it.
    fn later(&mut self, at: usize) -> bool {
        let id = self.sequence[at];
        let op = &self.problem.ops[id];
        let Some(first) = self.followers[id].iter().map(|&follower| self.place[follower]).min()
        else {
            return false;
        };
        if op.anchored || op.outputs.is_empty() || first <= at + 1 {
            return false;
        }
        let would_live_on = |&reader: &OpId| reader != id && self.place[reader] >= first;
        let longer = op.inputs.iter().map(|&tensor| &self.problem.tensors[tensor]);
        let longer: ByteCount = longer
            .filter(|tensor| !tensor.readers.iter().any(would_live_on))
            .map(|tensor| tensor.bytes)
            .sum();
        let saves = self.bytes(id) > longer;
        if saves {
            self.shift(at, first - 1);
        }
        saves
    }

    /// Moves the operator at a place to just after the last that it must follow, if it frees more
    /// than it makes.
    fn earlier(&mut self, at: usize) -> bool {
        let id = self.sequence[at];
        let op = &self.problem.ops[id];
        if op.inputs.is_empty() {
            return false;
        }
        // What dies here can die earlier only after its other readers.
        let (mut earliest, mut let_go) = (
            op.after
                .iter()
                .chain(&op.behind)
                .map(|&earlier| self.place[earlier])
                .max()
                .unwrap_or(0),
            ByteCount::ZERO,
        );
        for &tensor in &op.inputs {
            let others =
                self.problem.tensors[tensor].readers.iter().filter(|&&reader| reader != id);
            let last = others.map(|&reader| self.place[reader]).max().unwrap_or(0);
            if last < at {
                earliest = earliest.max(last);
                let_go += self.problem.tensors[tensor].bytes;
            }
        }
        let moves = earliest + 1 < at && let_go > self.bytes(id);
        if moves {
            self.shift(at, earliest + 1);
        }
        moves
    }

    fn shift(&mut self, from: usize, to: usize) {
        if from < to {
            self.sequence[from..=to].rotate_left(1);
        } else {
            self.sequence[to..=from].rotate_right(1);
        }
        for place in from.min(to)..=from.max(to) {
            self.place[self.sequence[place]] = place;
        }
    }
}
