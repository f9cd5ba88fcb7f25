//! When the chosen storages leave and return. Invariant: each lane moves one storage at a time; a
//! storage is held until it has left, and again from when it begins to return; no run holds more
//! than the budget, provided that this is true when everything chosen is away at once.
//!
//! Out: in the order of the preceding accesses, each as soon as that access is over; when the lane
//! is idle, storages that are not written until then go ahead. Back: in the order of the next
//! accesses, each as early as it fits in memory up to that access, but not earlier than a little
//! before it would be late. If there is no memory for a run, it waits for what is leaving; if
//! something has not arrived, it waits for that.
//!
//! The step is a cycle: three of them are played one after the other, and the second is used.
//! Transfers that cross its border may depend on the step before; with [`Border::Closed`] nothing
//! crosses.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use crate::analysis::{Motion, Move};
use crate::plan::max_tree::MaxTree;
use crate::plan::offload::idle::Course;
use crate::plan::quantity::ByteCount;
use crate::tuning::offload::EARLY;
use crate::units::Bytes;

/// Whether a transfer may be under way when a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Border {
    Open,
    Closed,
}

/// Steps that are played, and the index of the one that is used.
const STEPS: usize = 3;
const TAKEN: usize = 1;

/// One stay of a storage away from the device. Positions are counted on over all steps, and those
/// of the step before the first one come first.
#[derive(Clone, Copy)]
struct Away {
    idle: usize,
    last: usize,
    next: usize,
    /// The first gap in which it may leave.
    settled: usize,
    is_written: bool,
}

/// A storage that is not needed and is on its way out, with the run before which it is expected to
/// have left.
struct Leaving {
    away: usize,
    finish: f64,
    expected: usize,
}

struct Event {
    gap: usize,
    away: usize,
    motion: Motion,
}

struct Player<'a> {
    course: &'a Course,
    budget: ByteCount,
    border: Border,
    aways: Vec<Away>,
    held: MaxTree,
    now: f64,
    out_free: f64,
    back_free: f64,
    leaving: VecDeque<Leaving>,
    /// Storages that may leave before the last access that needs them, sorted by that access.
    ahead: BTreeSet<(usize, usize)>,
    /// When each has left.
    left: Vec<Option<f64>>,
    is_away: Vec<bool>,
    /// Where each begins to return, and when it arrives.
    begins: Vec<usize>,
    arrives: Vec<f64>,
    events: Vec<Event>,
    missing: Vec<Missing>,
}

/// When the chosen storages move, and how long the step takes with these moves.
pub(super) struct Played {
    /// The moves, in rising order.
    pub moves: Vec<Move>,
    /// Seconds of the step that is used.
    pub seconds: f64,
    /// Where it waits.
    pub missing: Vec<Missing>,
}

/// With this many bytes fewer held at these positions, a step would not wait.
pub(super) struct Missing {
    pub positions: Range<usize>,
    pub bytes: ByteCount,
}

/// The chosen intervals, played; `writes` says which are written out.
pub(super) fn play(
    course: &Course,
    is_chosen: &[bool],
    writes: &[bool],
    budget: Bytes,
    border: Border,
) -> Played {
    let positions = course.positions();
    let all = (STEPS + 1) * positions;
    let held = course.held_without(is_chosen);
    let mut aways = Vec::new();
    for (index, idle) in course.idle.iter().enumerate().filter(|&(index, _)| is_chosen[index]) {
        for step in 0..=STEPS {
            let [last, next] = [idle.last, idle.next].map(|at| at as usize + step * positions);
            // Of the step before the first one, only what returns after it.
            if next >= positions {
                let first = if border == Border::Closed { last / positions * positions } else { 0 };
                let settled = (idle.settled + (step * positions) as i64).max(first as i64) as usize;
                let is_written = writes[index];
                aways.push(Away { idle: index, last, next, settled, is_written });
            }
        }
    }
    let count = aways.len();
    let mut player = Player {
        course,
        budget: ByteCount::of(budget),
        border,
        aways,
        held: MaxTree::new(&(0..all).map(|at| held[at % positions]).collect::<Vec<_>>()),
        now: 0.0,
        out_free: 0.0,
        back_free: 0.0,
        leaving: VecDeque::new(),
        ahead: BTreeSet::new(),
        left: vec![None; count],
        is_away: vec![false; count],
        begins: vec![0; count],
        arrives: vec![0.0; count],
        events: Vec::new(),
        missing: Vec::new(),
    };
    let seconds = player.play(positions, all);
    let missing = std::mem::take(&mut player.missing);
    Played { moves: player.fold(positions), seconds, missing }
}

impl Player<'_> {
    /// Plays all steps; returns the seconds of the one that is used.
    fn play(&mut self, positions: usize, all: usize) -> f64 {
        let mut leaves: Vec<usize> = (0..self.aways.len()).collect();
        let mut returns = leaves.clone();
        leaves.sort_by_key(|&away| (self.aways[away].last, self.aways[away].next));
        returns.sort_by_key(|&away| (self.aways[away].next, self.aways[away].last));
        let mut settles: Vec<usize> =
            leaves.iter().copied().filter(|&away| self.aways[away].is_written).collect();
        settles.sort_by_key(|&away| self.aways[away].settled);
        let mut settles = settles.into_iter().peekable();
        let latest = self.latest_starts(&returns);
        let mut leaves = leaves.into_iter().peekable();
        while let Some(away) = leaves.next_if(|&away| self.aways[away].last < positions) {
            self.is_away[away] = true;
        }
        // The next to return, and the next that must have arrived.
        let (mut returning, mut due) = (0, 0);
        let mut began = [0.0; STEPS + 2];
        for at in positions..all {
            if at % positions == 0 {
                began[at / positions] = self.now;
            }
            if self.border == Border::Closed && at % positions == 0 {
                self.now = self.now.max(self.out_free);
            }
            self.release_what_left(at);
            while self.held.at(at) > self.budget {
                let waits = self.leaving.front().filter(|leaving| leaving.finish > self.now);
                if let Some(bytes) = waits.map(|leaving| self.bytes(leaving.away)) {
                    self.miss(at, at + 1, bytes);
                }
                if !self.release_one(at) {
                    break;
                }
            }
            while let Some(&away) = returns.get(returning)
                && self.may_return(away, at, latest[returning])
            {
                self.bring_back(away, at);
                returning += 1;
            }
            while let Some(&away) = returns.get(due).filter(|&&away| self.aways[away].next == at) {
                self.arrive(away);
                due += 1;
            }
            while let Some(away) = settles.next_if(|&away| self.aways[away].settled <= at) {
                if self.left[away].is_none() && self.aways[away].last >= at {
                    self.ahead.insert((self.aways[away].last, away));
                }
            }
            let seconds = self.elapsed(at + 1) - self.elapsed(at);
            while self.out_free < self.now + seconds
                && let Some((_, away)) = self.ahead.pop_first()
            {
                self.begin_to_leave(away, at);
            }
            self.now += seconds;
            while let Some(away) = leaves.next_if(|&away| self.aways[away].last == at) {
                self.leave(away, at);
            }
        }
        began[TAKEN + 2] - began[TAKEN + 1]
    }

    /// Waits for what has not arrived.
    fn arrive(&mut self, away: usize) {
        let late = self.arrives[away] - self.now;
        if late > 0.0 {
            // It would have had to begin this much earlier.
            let began = self.begins[away];
            let early = |at: usize| self.elapsed(at) >= self.elapsed(began) - late;
            let from = partition(self.aways[away].last + 1, began, early);
            self.miss(from, began, self.bytes(away));
            self.now = self.arrives[away];
        }
    }

    /// Notes bytes that were missing in the step that is used.
    fn miss(&mut self, from: usize, to: usize, bytes: ByteCount) {
        let positions = self.course.positions();
        if from < to && from / positions == TAKEN + 1 && (to - 1) / positions == TAKEN + 1 {
            let positions = from % positions..(to - 1) % positions + 1;
            self.missing.push(Missing { positions, bytes });
        }
    }

    /// A position, or the end of what is played.
    fn played(&self, at: usize) -> usize {
        at.min((STEPS + 1) * self.course.positions())
    }

    /// Holds bytes from one position to before another.
    fn hold(&mut self, from: usize, to: usize, bytes: ByteCount) {
        self.held.add(from, self.played(to), bytes);
    }

    fn bytes(&self, away: usize) -> ByteCount {
        self.course.idle[self.aways[away].idle].bytes
    }

    /// Seconds of all runs before a position.
    fn elapsed(&self, at: usize) -> f64 {
        let positions = self.course.positions();
        let of_steps = self.course.elapsed[positions] * (at / positions) as f64;
        of_steps + self.course.elapsed[at % positions]
    }

    /// When each has to begin to return so as to be in time if the lane is never idle, in seconds
    /// of runs.
    fn latest_starts(&self, returns: &[usize]) -> Vec<f64> {
        let mut latest = vec![0.0; returns.len()];
        let mut before = f64::INFINITY;
        for (slot, &away) in returns.iter().enumerate().rev() {
            let Away { idle, next, .. } = self.aways[away];
            before = f64::min(before, self.elapsed(next)) - self.course.idle[idle].back;
            latest[slot] = before;
        }
        latest
    }

    fn release_what_left(&mut self, at: usize) {
        let is_over = |leaving: &Leaving, now| leaving.finish <= now || leaving.expected <= at;
        while self.leaving.front().is_some_and(|leaving| is_over(leaving, self.now)) {
            self.release_one(at);
        }
    }

    /// Waits for the first storage that is leaving; false if none is.
    fn release_one(&mut self, at: usize) -> bool {
        let Some(Leaving { away, finish, expected }) = self.leaving.pop_front() else {
            return false;
        };
        self.now = self.now.max(finish);
        self.hold(at, expected, -self.bytes(away));
        self.is_away[away] = true;
        self.events.push(Event { gap: at, away, motion: Motion::Release });
        true
    }

    /// Whether the next to return begins to do so here.
    fn may_return(&self, away: usize, at: usize, latest: f64) -> bool {
        let Away { last, next, .. } = self.aways[away];
        let positions = self.course.positions();
        if next <= at {
            return true;
        }
        if last >= at || !self.is_away[away] {
            return false;
        }
        let is_in_this_step = next / positions == at / positions;
        let is_time = self.elapsed(at + 1) > latest - EARLY.get() * self.course.elapsed[positions];
        (is_in_this_step || self.border == Border::Open)
            && is_time
            && self.held.max_in(at, self.played(next)) + self.bytes(away) <= self.budget
    }

    fn bring_back(&mut self, away: usize, at: usize) {
        let Away { idle, next, .. } = self.aways[away];
        // It may be due before it has left.
        while !self.is_away[away] && self.release_one(at) {}
        let idle = &self.course.idle[idle];
        self.back_free = self.back_free.max(self.now) + idle.back;
        (self.begins[away], self.arrives[away]) = (at, self.back_free);
        self.hold(at, next, self.bytes(away));
        self.events.push(Event { gap: at, away, motion: Motion::Prefetch });
    }

    /// Occupies the lane out from a gap on; returns when the storage has left.
    fn begin_to_leave(&mut self, away: usize, gap: usize) -> f64 {
        self.ahead.remove(&(self.aways[away].last, away));
        self.out_free = self.out_free.max(self.now) + self.course.idle[self.aways[away].idle].out;
        self.left[away] = Some(self.out_free);
        self.events.push(Event { gap, away, motion: Motion::Offload });
        self.out_free
    }

    /// The storage is no longer needed.
    fn leave(&mut self, away: usize, at: usize) {
        let Away { next, is_written, .. } = self.aways[away];
        if !is_written {
            self.is_away[away] = true;
            self.events.push(Event { gap: at + 1, away, motion: Motion::Release });
            return;
        }
        let finish = self.left[away].unwrap_or_else(|| self.begin_to_leave(away, at + 1));
        let has_left =
            |position: usize| self.elapsed(position) - self.elapsed(at + 1) >= finish - self.now;
        let expected = partition(at + 1, next, has_left);
        self.hold(at + 1, expected, self.bytes(away));
        let behind = self.leaving.partition_point(|leaving| leaving.finish <= finish);
        self.leaving.insert(behind, Leaving { away, finish, expected });
    }

    /// The moves of what leaves in the step that is used, as moves of every step.
    fn fold(mut self, positions: usize) -> Vec<Move> {
        let from = (TAKEN + 1) * positions;
        self.events.retain(|event| (from..from + positions).contains(&self.aways[event.away].last));
        let mut moves: Vec<(Move, (usize, usize))> = Vec::with_capacity(self.events.len());
        for Event { gap, away, motion } in self.events {
            let Away { idle, last, next, .. } = self.aways[away];
            // Between two steps, storages leave at the end of one and return at the beginning of
            // the other.
            let end = from + positions - 1;
            let is_of_next = match motion {
                Motion::Prefetch => gap >= end && next > end,
                Motion::Offload | Motion::Release => gap > end + 1,
            };
            // What leaves ahead may do so in the step before.
            let before = match is_of_next {
                true => gap.saturating_sub(end + 1),
                false if gap < from => gap + positions - from,
                false => gap.min(end) - from,
            } as u32;
            let storage = self.course.idle[idle].storage;
            // What is no longer needed leaves before what goes ahead.
            let order = match motion {
                Motion::Offload => (last + 1 - gap, next - gap),
                Motion::Release | Motion::Prefetch => (0, next - gap),
            };
            moves.push((Move { before, storage, motion }, order));
        }
        moves.sort_by_key(|(next, order)| (next.before, next.motion, *order));
        moves.into_iter().map(|(next, _)| next).collect()
    }
}

/// The first position from `from` to `to` at which `holds` is true, given that it stays true from
/// there on; `to` if it never is.
fn partition(mut from: usize, mut to: usize, holds: impl Fn(usize) -> bool) -> usize {
    while from < to {
        let middle = (from + to) / 2;
        if holds(middle) { to = middle } else { from = middle + 1 }
    }
    from
}
