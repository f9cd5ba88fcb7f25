//! What is away when: parameters, state and activations leave the device while nobody needs them.
//! Invariant: what leaves this room was simulated; at no run is more held than the budget, and its
//! seconds have all waiting in them.
//!
//! Given is a sequence of runs, recomputations included. First intervals are chosen in which
//! storages lie idle, so that the budget is met where all of them are away; then two lanes move
//! them. A search exchanges some of the chosen ones for others, as long as that makes the step
//! faster. `doc/theory/offload.md` says more.

mod choice;
mod idle;
mod lanes;
mod room;

pub use idle::Home;

use fastrand::Rng;

use crate::analysis::{Move, liveness_with, memory_curve, seconds_with};
use crate::effort::{Effort, Meter};
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::machine::Route;
use crate::plan::offload::choice::{cover, prune};
use crate::plan::offload::idle::Course;
use crate::plan::offload::lanes::{Border, moves};
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// Storages smaller than this part of the largest one stay: a transfer of each has a latency.
const LEAST: u64 = 1 << 14;

/// What is away, and what it costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Offloaded {
    /// The moves, in rising order.
    pub moves: Vec<Move>,
    /// Most bytes held on the device.
    pub peak: Bytes,
    /// Seconds of the step, waiting included.
    pub seconds: Seconds,
}

/// Whether a transfer may be under way when a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossing {
    /// It may, where that makes the step faster.
    Allowed,
    /// All that a step begins has arrived when it is over.
    Never,
}

/// A sequence of runs whose storages may be away.
pub struct Offloading<'a> {
    graph: &'a Graph,
    profile: &'a Profile,
    runs: &'a [NodeId],
    route: Route,
    course: Course,
    crossing: Crossing,
}

impl<'a> Offloading<'a> {
    /// A sequence on a machine with a way below the device.
    pub fn new(
        graph: &'a Graph,
        profile: &'a Profile,
        runs: &'a [NodeId],
        route: Route,
    ) -> Offloading<'a> {
        Offloading::with_homes(graph, profile, runs, route, &|_| Home::Anywhere, Bytes::ZERO)
    }

    /// The same where it is settled what is away when a step begins, which takes `taken` bytes of
    /// the tier.
    pub fn with_homes(
        graph: &'a Graph,
        profile: &'a Profile,
        runs: &'a [NodeId],
        route: Route,
        home: &dyn Fn(StorageId) -> Home,
        taken: Bytes,
    ) -> Offloading<'a> {
        let largest = graph.storages().values().copied().max().unwrap_or(Bytes::ZERO);
        let least = Bytes(largest.0 / LEAST);
        let course = Course::new(graph, profile, runs, route, (least, taken), home);
        Offloading { graph, profile, runs, route, course, crossing: Crossing::Allowed }
    }

    /// The same with another say over what crosses the border of the step.
    pub fn with_crossing(self, crossing: Crossing) -> Offloading<'a> {
        Offloading { crossing, ..self }
    }

    /// The least that is held at any run, whatever is away.
    pub fn least(&self) -> Bytes {
        let held = self.course.held_without(&vec![true; self.course.idle.len()]);
        Bytes(held.into_iter().max().unwrap_or(0).max(0) as u64)
    }

    /// The least budget for which a choice is found in the tier, or one of that size.
    fn least_in_tier(&self) -> Bytes {
        let least = self.least();
        if self.course.held_below(&vec![true; self.course.idle.len()]) <= self.course.capacity {
            return least;
        }
        let suffices = |budget: u64| {
            let mut chosen = self.course.given.clone();
            cover(&self.course, &mut chosen, budget, None)
        };
        let (mut low, mut high) = (least.0, self.course.held.iter().copied().max().unwrap_or(0));
        while low < high {
            let middle = low + (high - low) / 2;
            if suffices(middle) { high = middle } else { low = middle + 1 }
        }
        Bytes(high)
    }

    /// A choice with the smallest peak that is found.
    pub fn smallest(&self) -> Option<Offloaded> {
        let effort = Effort::work(1, 0);
        self.within(self.least_in_tier(), 1, &mut Meter::new(&effort))
    }

    /// The fastest choice that is found within a budget; none where too much is held even with
    /// everything away.
    pub fn within(&self, budget: Bytes, seed: u64, meter: &mut Meter<'_>) -> Option<Offloaded> {
        let mut chosen = self.course.given.clone();
        let has_room = self.course.held_below(&chosen) <= self.course.capacity;
        if !has_room || !cover(&self.course, &mut chosen, budget.0, None) {
            return None;
        }
        prune(&self.course, &mut chosen, budget.0);
        let mut best = self.played(&chosen, budget)?;
        let mut random = Rng::with_seed(seed);
        let least = self.course.elapsed[self.runs.len()];
        let work = (self.runs.len() * 8 + self.course.idle.len()) as u64;
        while best.seconds.0 > least && meter.take(work) {
            let mut other = chosen.clone();
            self.disturb(&mut other, &mut random);
            if !cover(&self.course, &mut other, budget.0, Some(&mut random)) {
                continue;
            }
            prune(&self.course, &mut other, budget.0);
            if let Some(played) = self.played(&other, budget)
                && played.seconds.0 <= best.seconds.0
            {
                (best, chosen) = (played, other);
            }
        }
        Some(best)
    }

    /// The choice that has some storages away, each for the longest time that it lies idle within
    /// the step; none where too much is held all the same.
    pub fn of_storages(
        &self,
        is_away: &dyn Fn(StorageId) -> bool,
        budget: Bytes,
    ) -> Option<Offloaded> {
        let Offloading { course, .. } = self;
        let mut chosen = course.given.clone();
        for &(from, to) in &course.groups {
            let within = |index: &usize| (course.idle[*index].next as usize) < course.runs();
            let longest = (from..to).filter(within).max_by(|&a, &b| {
                let idle = |index: usize| course.seconds_idle(&course.idle[index]);
                idle(a).total_cmp(&idle(b))
            });
            if let Some(index) = longest.filter(|_| is_away(course.idle[from].storage)) {
                chosen[index] = true;
            }
        }
        let held = course.held_without(&chosen).into_iter().max().unwrap_or(0);
        let has_room = course.held_below(&chosen) <= course.capacity;
        (held <= budget.0 as i64 && has_room).then(|| self.played(&chosen, budget)).flatten()
    }

    /// Brings some of what is away back, and has something else away.
    fn disturb(&self, chosen: &mut [bool], random: &mut Rng) {
        let away: Vec<usize> = (0..chosen.len()).filter(|&index| chosen[index]).collect();
        let most = (away.len() / 8).max(2);
        for _ in 0..random.usize(1..=most).min(away.len()) {
            let index = away[random.usize(0..away.len())];
            chosen[index] = self.course.given[index];
        }
        if random.bool() && !chosen.is_empty() {
            let index = random.usize(0..chosen.len());
            let was = std::mem::replace(&mut chosen[index], true);
            chosen[index] = was || self.course.held_below(chosen) <= self.course.capacity;
        }
    }

    /// The moves of a choice, simulated; the faster of what may cross the border and what may not.
    fn played(&self, chosen: &[bool], budget: Bytes) -> Option<Offloaded> {
        let &Offloading { graph, profile, runs, route, ref course, crossing } = self;
        let writes = course.writes(chosen);
        let play = |border| {
            let moves = moves(course, chosen, &writes, budget.0, border);
            let lives = liveness_with(graph, profile, runs, &moves);
            let peak = memory_curve(graph, profile, runs, &lives).peak;
            let seconds = seconds_with(graph, profile, runs, &moves, route);
            (peak <= budget).then_some(Offloaded { moves, peak, seconds })
        };
        let open = (crossing == Crossing::Allowed).then(|| play(Border::Open)).flatten();
        let least = course.elapsed[runs.len()];
        if open.as_ref().is_some_and(|open| open.seconds.0 <= least) {
            return open;
        }
        let closed = play(Border::Closed);
        open.into_iter().chain(closed).min_by(|a, b| a.seconds.0.total_cmp(&b.seconds.0))
    }
}
