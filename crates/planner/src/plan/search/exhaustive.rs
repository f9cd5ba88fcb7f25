//! Small steps: every order and every recomputation. Invariant: the answer depends on the step and
//! the budget alone; where nothing is written in place and nothing takes over memory, what is found
//! is the fastest of all schedules.
//!
//! A board is the set of operators that have run and the set of tensors that are there. A move runs
//! an operator whose inputs are there, for the first time or again; tensors are dropped only to
//! make room for a move, and never more of them than needed. Dijkstra's search over the boards
//! finds the least time of recomputation, unless there are too many of them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::{Mutex, PoisonError};

use cranelift_entity::SecondaryMap;

use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::plan::quantity::{ByteCount, Picoseconds};
use crate::plan::rematerialize::mutated_storages;
use crate::plan::search::state::problem::{Op, OpId, Problem, TensorId};
use crate::plan::{Instance, Plan, Planner};
use crate::tuning::exhaustive::MOST_BOARDS;

/// Most operators, and most tensors, of a small step: one bit each.
const MOST_OPS: usize = 32;
const MOST_TENSORS: usize = 64;

/// A set of operators.
type Ops = u32;
/// A set of tensors.
type Tensors = u64;

/// How a search ended.
#[derive(Clone)]
pub enum Outcome {
    /// The fastest plan.
    Found(Plan),
    /// No sequence fits.
    Impossible,
    /// There are too many boards.
    Unknown,
}

/// Which operators have run, and what is there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Board {
    ran: Ops,
    there: Tensors,
}

/// How a board is reached.
#[derive(Clone, Copy)]
struct Reached {
    extra: Picoseconds,
    /// The board before, and the operator that ran on it; none at the start.
    from: Option<(Board, u32)>,
}

/// An operator as a move.
struct Move {
    node: NodeId,
    cost: Picoseconds,
    inputs: Tensors,
    outputs: Tensors,
    /// Bytes that it makes, workspace included.
    adds: ByteCount,
    kept: ByteCount,
    /// Inputs whose memory an output may take over, and the bytes that this saves.
    takes_over: Tensors,
    taken: ByteCount,
    /// Operators that must have run before its first run.
    after: Ops,
    may_repeat: bool,
    /// It may run again until one of these has run,
    until: Ops,
    /// or, for its other outputs, once all that touch those which are written in place have run.
    since: Option<Ops>,
    /// Outputs that are written in place.
    spoiled: Tensors,
}

/// A small step.
pub struct SmallStep {
    /// By operator, from number 1 on.
    moves: Vec<Move>,
    bytes: Vec<ByteCount>,
    start: Tensors,
    resting: ByteCount,
    /// Bytes of tensors that nothing reads, which are there until anything has run.
    unread: ByteCount,
    /// What was found so far.
    answers: Mutex<Vec<Answer>>,
}

/// What was found for all budgets in a range.
struct Answer {
    budgets: RangeInclusive<ByteCount>,
    outcome: Outcome,
}

impl SmallStep {
    /// The step of a problem, if it is small.
    pub fn new(graph: &Graph, problem: &Problem) -> Option<SmallStep> {
        if problem.len() > MOST_OPS || problem.tensors.len() > MOST_TENSORS {
            return None;
        }
        let bytes: Vec<ByteCount> = problem.tensors.values().map(|tensor| tensor.bytes).collect();
        let source = &problem.ops[OpId::SOURCE].outputs;
        let is_unread = |&tensor: &TensorId| problem.tensors[tensor].readers.is_empty();
        let (unread, start): (Vec<TensorId>, Vec<TensorId>) =
            source.iter().partition(|tensor| is_unread(tensor));
        let unread = unread.into_iter().map(|tensor| problem.tensors[tensor].bytes).sum();
        let is_written = mutated_storages(graph);
        let moves = problem.ops.values().skip(1).map(|op| a_move(graph, problem, op, &is_written));
        let moves = moves.collect::<Option<_>>()?;
        let (start, resting) = (set(&start), problem.resting);
        Some(SmallStep { moves, bytes, start, resting, unread, answers: Mutex::default() })
    }

    /// The fastest plan within a budget.
    pub fn fastest(&self, instance: Instance<'_>, limit: ByteCount) -> Outcome {
        // A poisoned lock means that a thread panicked while it added an answer; the rest holds.
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = answers.iter().find(|it| it.budgets.contains(&limit)) {
            return known.outcome.clone();
        }
        let outcome = self.search(instance, limit);
        // Of several plans that are equally fast, a smaller budget may lead to another one.
        let least = match outcome {
            Outcome::Impossible => ByteCount::ZERO,
            Outcome::Found(_) | Outcome::Unknown => limit,
        };
        answers.push(Answer { budgets: least..=limit, outcome: outcome.clone() });
        outcome
    }

    /// Dijkstra's search.
    fn search(&self, instance: Instance<'_>, limit: ByteCount) -> Outcome {
        let everything: Ops = (0..self.moves.len()).fold(0, |all, op| all | 1 << op);
        let start = Board { ran: 0, there: self.start };
        let mut useful: HashMap<Ops, Tensors> = HashMap::new();
        let first = Reached { extra: Picoseconds::ZERO, from: None };
        let mut reached: HashMap<Board, Reached> = HashMap::from([(start, first)]);
        let mut open = BinaryHeap::from([Reverse((Picoseconds::ZERO, start))]);
        let mut next = Vec::new();
        while let Some(Reverse((extra, board))) = open.pop() {
            if board.ran == everything {
                let runs = self.runs(&reached, board);
                return Outcome::Found(instance.plan(Planner::Auto, runs));
            }
            if reached[&board].extra < extra {
                continue;
            }
            for (op, it) in self.moves.iter().enumerate() {
                let is_first = board.ran >> op & 1 == 0;
                if board.there & it.inputs != it.inputs || !self.may_run(board, op) {
                    continue;
                }
                let ran = board.ran | 1 << op;
                let useful = *useful.entry(ran).or_insert_with(|| self.useful(ran));
                next.clear();
                self.run(board, op, useful, limit, &mut next);
                if reached.len() + next.len() > MOST_BOARDS.get() {
                    return Outcome::Unknown;
                }
                let extra = if is_first { extra } else { extra + it.cost };
                for &there in &next {
                    let after = Board { ran, there };
                    let is_better = reached.get(&after).is_none_or(|known| extra < known.extra);
                    if after != board && is_better {
                        let from = Some((board, op as u32));
                        reached.insert(after, Reached { extra, from });
                        open.push(Reverse((extra, after)));
                    }
                }
            }
        }
        Outcome::Impossible
    }

    /// The runs that lead to a board.
    fn runs(&self, reached: &HashMap<Board, Reached>, end: Board) -> Vec<NodeId> {
        let mut runs = Vec::new();
        let mut at = end;
        while let Some((before, op)) = reached[&at].from {
            runs.push(self.moves[op as usize].node);
            at = before;
        }
        runs.reverse();
        runs
    }

    /// Whether an operator whose inputs are there may run on a board, for the first time or again.
    fn may_run(&self, board: Board, op: usize) -> bool {
        let it = &self.moves[op];
        match board.ran >> op & 1 {
            0 => board.ran & it.after == it.after,
            _ => self.made_again(board.ran, op) & !board.there != 0,
        }
    }

    /// What an operator may make again after these have run; nothing if it may not run again.
    fn made_again(&self, ran: Ops, op: usize) -> Tensors {
        let it = &self.moves[op];
        match it.since {
            _ if !it.may_repeat => 0,
            _ if ran & it.until == 0 => it.outputs,
            Some(since) if ran & since == since => it.outputs & !it.spoiled,
            _ => 0,
        }
    }

    /// What may still be read. More is never worse, so the rest may be dropped.
    fn useful(&self, ran: Ops) -> Tensors {
        let mut useful = 0;
        loop {
            let before = useful;
            for (op, it) in self.moves.iter().enumerate() {
                let waits = ran >> op & 1 == 0;
                // What it may not make again now it may make again later.
                let made = self.made_again(ran, op) | self.made_again(Ops::MAX, op);
                if waits || made & useful != 0 {
                    useful |= it.inputs;
                }
            }
            if useful == before {
                return useful;
            }
        }
    }

    /// What may be there after an operator ran: one set for each way to make room for it.
    fn run(
        &self,
        board: Board,
        op: usize,
        useful: Tensors,
        limit: ByteCount,
        next: &mut Vec<Tensors>,
    ) {
        let it = &self.moves[op];
        let is_first = board.ran >> op & 1 == 0;
        // Copies that are made again are dropped.
        let there = board.there & !it.outputs;
        let unread = if board.ran == 0 { self.unread } else { ByteCount::ZERO };
        let needs = self.kept(board.ran) + unread + self.size(there) + it.adds + it.kept;
        let stays = if is_first { it.outputs } else { self.made_again(board.ran, op) };
        let droppable: Vec<Tensors> =
            members(there & !it.inputs).filter(|&one| self.size(one) > ByteCount::ZERO).collect();
        // An input that nothing will read is taken over; one that may be read is dropped for that.
        let taken: Vec<(Tensors, ByteCount)> = match it.takes_over & !useful {
            0 => std::iter::once((0, ByteCount::ZERO))
                .chain(members(it.takes_over).map(|one| (one, it.taken)))
                .collect(),
            _ => vec![(0, it.taken)],
        };
        for (dropped, saved) in taken {
            let ended = self.make_room(there, &droppable, needs - saved - limit, &mut |left| {
                next.push((left & !dropped | stays) & useful);
                match next.len() > MOST_BOARDS.get() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            if ended.is_break() {
                return;
            }
        }
    }

    /// Bytes there between runs whatever is dropped.
    fn kept(&self, ran: Ops) -> ByteCount {
        let kept =
            (0..self.moves.len()).filter(|op| ran >> op & 1 != 0).map(|op| self.moves[op].kept);
        self.resting + kept.sum::<ByteCount>()
    }

    fn size(&self, set: Tensors) -> ByteCount {
        members(set).map(|one| self.bytes[one.trailing_zeros() as usize]).sum()
    }

    /// Every way to drop at least `excess` bytes without dropping more tensors than needed, up to
    /// the number of boards that may be visited.
    fn make_room(
        &self,
        there: Tensors,
        droppable: &[Tensors],
        excess: ByteCount,
        then: &mut impl FnMut(Tensors) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if excess <= ByteCount::ZERO {
            return then(there);
        }
        let all: ByteCount = droppable.iter().map(|&one| self.size(one)).sum();
        if all < excess {
            return ControlFlow::Continue(());
        }
        droppable.iter().enumerate().try_for_each(|(index, &one)| {
            self.make_room(there & !one, &droppable[index + 1..], excess - self.size(one), then)
        })
    }
}

fn a_move(
    graph: &Graph,
    problem: &Problem,
    op: &Op,
    is_written: &SecondaryMap<StorageId, bool>,
) -> Option<Move> {
    let node = op.node?;
    let tensors = &problem.tensors;
    let droppable = graph.fresh(node).iter().filter(|&&storage| !graph.is_kept(storage));
    let made = droppable.zip(&op.outputs);
    let spoiled: Vec<TensorId> =
        made.filter(|&(&storage, _)| is_written[storage]).map(|(_, &tensor)| tensor).collect();
    let is_clear = |storages: &[StorageId]| !storages.iter().any(|&storage| is_written[storage]);
    let kept = graph.fresh(node).iter().copied().filter(|&storage| graph.is_kept(storage));
    let is_alone = is_clear(graph.reads(node)) && is_clear(&kept.collect::<Vec<_>>());
    let outputs: ByteCount = op.outputs.iter().map(|&tensor| tensors[tensor].bytes).sum();
    Some(Move {
        node,
        cost: op.cost,
        inputs: set(&op.inputs),
        outputs: set(&op.outputs),
        adds: outputs + op.workspace,
        kept: op.kept,
        takes_over: set(&op.takes_over),
        taken: op.taken,
        after: ops(&op.after) | ops(&op.behind),
        may_repeat: op.until > 0,
        until: ops(&op.ends),
        since: (is_alone && !spoiled.is_empty())
            .then(|| spoiled.iter().fold(0, |all, &tensor| all | ops(&tensors[tensor].readers))),
        spoiled: set(&spoiled),
    })
}

fn ops(list: &[OpId]) -> Ops {
    let real = list.iter().filter(|&&op| op != OpId::SOURCE);
    real.fold(0, |all, op| all | 1 << (op.as_u32() - 1))
}

fn set(tensors: &[TensorId]) -> Tensors {
    tensors.iter().fold(0, |all, tensor| all | 1 << tensor.as_u32())
}

fn members(mut set: Tensors) -> impl Iterator<Item = Tensors> {
    std::iter::from_fn(move || {
        let one = set & set.wrapping_neg();
        set &= !one;
        (one != 0).then_some(one)
    })
}
