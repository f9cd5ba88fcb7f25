//! When what is chosen leaves and returns. Invariant: each lane moves one thing after another; what
//! leaves is held until it has left, what returns from when it begins to; and at no run is more
//! held than the budget, as long as no more is held where everything chosen is away at once.
//!
//! Out: in the order of the accesses before, each as soon as that is over. Back: in the order of
//! the accesses behind, each as early as there is room up to that access, but not earlier than a
//! little before it would be late. Where there is no room for a run, it waits for what is leaving;
//! where something has not arrived, it waits for that.
//!
//! The step is a cycle: three of them are played one after the other, and the second is taken. What
//! crosses its border may depend on the step before; [`Border::Closed`] lets nothing cross.

use std::collections::VecDeque;

use crate::analysis::{Motion, Move};
use crate::plan::offload::idle::Course;
use crate::plan::offload::room::Room;

/// Whether a transfer may be under way when a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Border {
    Open,
    Closed,
}

/// Transfers begin to return so much of a step before they would be late: what is measured differs
/// from what is predicted.
const EARLY: f64 = 0.01;
/// Steps that are played, and the one that is taken.
const STEPS: usize = 3;
const TAKEN: usize = 1;

/// A storage that is away once. Positions are counted on over all steps, and those of the step
/// before the first one come first.
#[derive(Clone, Copy)]
struct Away {
    idle: usize,
    last: usize,
    next: usize,
    is_written: bool,
}

/// What is on its way out, with the run before which it is expected to have left.
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
    budget: i64,
    border: Border,
    aways: Vec<Away>,
    room: Room,
    now: f64,
    out_free: f64,
    back_free: f64,
    leaving: VecDeque<Leaving>,
    is_away: Vec<bool>,
    arrives: Vec<f64>,
    events: Vec<Event>,
}

/// The moves of the chosen intervals, in rising order; `writes` says which are written out.
pub(super) fn moves(
    course: &Course,
    chosen: &[bool],
    writes: &[bool],
    budget: u64,
    border: Border,
) -> Vec<Move> {
    let runs = course.runs();
    let all = (STEPS + 1) * runs;
    let held = course.held_without(chosen);
    let mut aways = Vec::new();
    for (index, idle) in course.idle.iter().enumerate().filter(|&(index, _)| chosen[index]) {
        for step in 0..=STEPS {
            let [last, next] = [idle.last, idle.next].map(|at| at as usize + step * runs);
            // Of the step before the first one only what comes back behind it.
            if next >= runs {
                aways.push(Away { idle: index, last, next, is_written: writes[index] });
            }
        }
    }
    let count = aways.len();
    let mut player = Player {
        course,
        budget: budget as i64,
        border,
        aways,
        room: Room::new((0..all).map(|at| held[at % runs])),
        now: 0.0,
        out_free: 0.0,
        back_free: 0.0,
        leaving: VecDeque::new(),
        is_away: vec![false; count],
        arrives: vec![0.0; count],
        events: Vec::new(),
    };
    player.play(runs, all);
    player.fold(runs)
}

impl Player<'_> {
    fn play(&mut self, runs: usize, all: usize) {
        let mut leaves: Vec<usize> = (0..self.aways.len()).collect();
        let mut returns = leaves.clone();
        leaves.sort_by_key(|&away| (self.aways[away].last, self.aways[away].next));
        returns.sort_by_key(|&away| (self.aways[away].next, self.aways[away].last));
        let latest = self.latest_starts(&returns);
        let mut leaves = leaves.into_iter().peekable();
        while let Some(away) = leaves.next_if(|&away| self.aways[away].last < runs) {
            self.is_away[away] = true;
        }
        // The next to return, and the next to be there.
        let (mut returning, mut due) = (0, 0);
        for at in runs..all {
            if self.border == Border::Closed && at % runs == 0 {
                self.now = self.now.max(self.out_free);
            }
            self.release_what_left(at);
            while self.room.most(at, at + 1) > self.budget && self.release_one(at) {}
            while let Some(&away) = returns.get(returning)
                && self.may_return(away, at, latest[returning])
            {
                self.bring_back(away, at);
                returning += 1;
            }
            while let Some(&away) = returns.get(due).filter(|&&away| self.aways[away].next == at) {
                self.now = self.now.max(self.arrives[away]);
                due += 1;
            }
            self.now += self.elapsed(at + 1) - self.elapsed(at);
            while let Some(away) = leaves.next_if(|&away| self.aways[away].last == at) {
                self.leave(away, at);
            }
        }
    }

    /// Seconds of all runs before a position.
    fn elapsed(&self, at: usize) -> f64 {
        let runs = self.course.runs();
        let of_steps = self.course.elapsed[runs] * (at / runs) as f64;
        of_steps + self.course.elapsed[at % runs]
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

    /// Waits for what leaves first; false where nothing does.
    fn release_one(&mut self, at: usize) -> bool {
        let Some(Leaving { away, finish, expected }) = self.leaving.pop_front() else {
            return false;
        };
        self.now = self.now.max(finish);
        self.room.add(at, expected, -(self.course.idle[self.aways[away].idle].bytes as i64));
        self.is_away[away] = true;
        self.events.push(Event { gap: at, away, motion: Motion::Release });
        true
    }

    /// Whether the next to return begins to do so here.
    fn may_return(&self, away: usize, at: usize, latest: f64) -> bool {
        let Away { idle, last, next, .. } = self.aways[away];
        let runs = self.course.runs();
        if next <= at {
            return true;
        }
        if last >= at || !self.is_away[away] {
            return false;
        }
        let is_in_this_step = next / runs == at / runs;
        let is_time = self.elapsed(at) >= latest - EARLY * self.course.elapsed[runs];
        let bytes = self.course.idle[idle].bytes as i64;
        (is_in_this_step || self.border == Border::Open)
            && is_time
            && self.room.most(at, next) + bytes <= self.budget
    }

    fn bring_back(&mut self, away: usize, at: usize) {
        let Away { idle, next, .. } = self.aways[away];
        // It may be due before it has left.
        while !self.is_away[away] && self.release_one(at) {}
        let idle = &self.course.idle[idle];
        self.back_free = self.back_free.max(self.now) + idle.back;
        self.arrives[away] = self.back_free;
        self.room.add(at, next, idle.bytes as i64);
        self.events.push(Event { gap: at, away, motion: Motion::Prefetch });
    }

    fn leave(&mut self, away: usize, at: usize) {
        let Away { idle, next, is_written, .. } = self.aways[away];
        if !is_written {
            self.is_away[away] = true;
            self.events.push(Event { gap: at + 1, away, motion: Motion::Release });
            return;
        }
        let idle = &self.course.idle[idle];
        self.out_free = self.out_free.max(self.now) + idle.out;
        let finish = self.out_free;
        let has_left =
            |position: usize| self.elapsed(position) - self.elapsed(at + 1) >= finish - self.now;
        let expected = partition(at + 1, next, has_left);
        self.room.add(at + 1, expected, idle.bytes as i64);
        self.leaving.push_back(Leaving { away, finish, expected });
        self.events.push(Event { gap: at + 1, away, motion: Motion::Offload });
    }

    /// The moves of what leaves in the step that is taken, as moves of every step.
    fn fold(mut self, runs: usize) -> Vec<Move> {
        let from = (TAKEN + 1) * runs;
        self.events.retain(|event| (from..from + runs).contains(&self.aways[event.away].last));
        let mut moves: Vec<(Move, usize)> = Vec::with_capacity(self.events.len());
        for Event { gap, away, motion } in self.events {
            let Away { idle, next, .. } = self.aways[away];
            // Between two steps things leave at the end of one, and return at the beginning of the
            // other.
            let gap_in_step = gap - from;
            let is_of_next = match motion {
                Motion::Prefetch => gap_in_step >= runs,
                Motion::Offload | Motion::Release => gap_in_step > runs,
            };
            let before = (gap_in_step - if is_of_next { runs } else { 0 }) as u32;
            let storage = self.course.idle[idle].storage;
            moves.push((Move { before, storage, motion }, next - gap));
        }
        moves.sort_by_key(|(next, until)| (next.before, next.motion, *until));
        moves.into_iter().map(|(next, _)| next).collect()
    }
}

/// The first position from `from` to `to` for which something holds that holds from then on; `to`
/// where it never does.
fn partition(mut from: usize, mut to: usize, holds: impl Fn(usize) -> bool) -> usize {
    while from < to {
        let middle = (from + to) / 2;
        if holds(middle) { to = middle } else { from = middle + 1 }
    }
    from
}
