//! When to move what: parameters, state and activations leave the device while no node needs them.
//! Invariant: every plan that leaves this module was simulated; no run holds more than the budget,
//! and its seconds include all waiting.
//!
//! The input is a sequence of runs, recomputations included. First, idle intervals of storages are
//! chosen such that the budget is met if all of them are away; then two lanes move them. A search
//! exchanges some of the chosen ones for others, as long as that makes the step faster.
//! `doc/theory/offload.md` says more.

mod choice;
mod idle;
mod lanes;

pub use idle::Home;

use fastrand::Rng;

use crate::analysis::{Motion, Move, Sequence};
use crate::effort::{Effort, Meter};
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::machine::Route;
use crate::plan::offload::choice::{Choice, cover, prune};
use crate::plan::offload::idle::Course;
use crate::plan::offload::lanes::{Border, Missing, Played, play};
use crate::plan::quantity::ByteCount;
use crate::plan::{Plan, Planner};
use crate::profile::Profile;
use crate::tuning::offload::{DISTURBED, LEAST, MOST_WANTED};
use crate::units::Bytes;

/// Relative difference allowed between the played and the simulated seconds.
const ALMOST: f64 = 1e-6;

/// Whether a transfer may be under way when a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossing {
    /// It may, if that makes the step faster.
    Allowed,
    /// Every transfer that a step begins has arrived when the step is over.
    Never,
}

/// A sequence of runs whose storages may be away.
pub struct Offloading<'a> {
    graph: &'a Graph,
    profile: &'a Profile,
    runs: &'a [NodeId],
    course: Course,
    crossing: Crossing,
}

impl<'a> Offloading<'a> {
    /// A sequence on a machine with a tier below the device.
    pub fn new(
        graph: &'a Graph,
        profile: &'a Profile,
        runs: &'a [NodeId],
        route: Route,
    ) -> Offloading<'a> {
        Offloading::with_homes(graph, profile, runs, route, &|_| Home::Anywhere, Bytes::ZERO)
    }

    /// The same with a fixed set of storages away when a step begins, which takes `taken` bytes of
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
        let least = Bytes(largest.0 / LEAST.get());
        let course = Course::new(graph, profile, runs, route, (least, taken), home);
        Offloading { graph, profile, runs, course, crossing: Crossing::Allowed }
    }

    /// The same with another rule for what crosses the border of the step.
    pub fn with_crossing(self, crossing: Crossing) -> Offloading<'a> {
        Offloading { crossing, ..self }
    }

    /// The fewest bytes held at the peak, whatever is away.
    pub fn least(&self) -> Bytes {
        self.most_held(&Choice::all(&self.course))
    }

    fn most_held(&self, choice: &Choice) -> Bytes {
        let held = self.course.held_without(&choice.is_chosen).into_iter().max();
        held.unwrap_or_default().bytes()
    }

    /// The least budget for which a choice that fits the tier is found, or one of that size.
    fn least_in_tier(&self, meter: &Meter<'_>) -> Bytes {
        let least = self.least();
        if Choice::all(&self.course).has_room(&self.course) {
            return least;
        }
        let nothing = vec![ByteCount::ZERO; self.course.positions()];
        let suffices = |budget: Bytes| {
            cover(&self.course, &mut Choice::given(&self.course), (budget, &nothing), None, meter)
        };
        let most = self.course.held.iter().copied().max().unwrap_or_default();
        let (mut low, mut high) = (least.0, most.bytes().0);
        while low < high {
            let middle = low + (high - low) / 2;
            if suffices(Bytes(middle)) { high = middle } else { low = middle + 1 }
        }
        Bytes(high)
    }

    /// A choice with the smallest peak that is found, regardless of time.
    pub fn smallest(&self, meter: &Meter<'_>) -> Option<Plan> {
        let effort = Effort::work(1, 0);
        self.within(self.least_in_tier(meter), 1, &mut Meter::new(&effort))
    }

    /// The fastest choice that is found within a budget; `None` if too much is held even with
    /// everything away, or if none was found in time.
    pub fn within(&self, budget: Bytes, seed: u64, meter: &mut Meter<'_>) -> Option<Plan> {
        let course = &self.course;
        let given = Choice::given(course);
        let mut wanted = vec![ByteCount::ZERO; course.positions()];
        let mut choice = given.clone();
        if !choice.has_room(course) || !cover(course, &mut choice, (budget, &wanted), None, meter) {
            return None;
        }
        prune(course, &mut choice, (budget, &wanted));
        let (best, mut missing) = self.simulated(&choice, budget, f64::INFINITY);
        let mut best = best?;
        // Of two that take equally long, the one that moves less.
        let burden = |plan: &Plan, choice: &Choice| {
            let chosen = (0..course.idle.len()).filter(|&index| choice.is_chosen[index]);
            let lanes: f64 = chosen.map(|index| course.burden(index)).sum();
            plan.seconds.0 + lanes * ALMOST
        };
        let mut random = Rng::with_seed(seed);
        let least = course.elapsed[self.runs.len()];
        let work = (self.runs.len() * 8 + course.idle.len()) as u64;
        // Where the step waits, more bytes are to be free.
        for _ in 0..MOST_WANTED.get() {
            if best.seconds.0 <= least || missing.is_empty() || !meter.take(work) {
                break;
            }
            for Missing { positions, bytes } in missing.drain(..) {
                wanted[positions].iter_mut().for_each(|wanted| *wanted += bytes);
            }
            let mut other = given.clone();
            if !cover(course, &mut other, (budget, &wanted), None, meter) {
                break;
            }
            prune(course, &mut other, (budget, &wanted));
            let (simulated, more) = self.simulated(&other, budget, f64::INFINITY);
            missing = more;
            if let Some(simulated) = simulated
                && burden(&simulated, &other) < burden(&best, &choice)
            {
                (best, choice) = (simulated, other);
            }
        }
        wanted.fill(ByteCount::ZERO);
        while best.seconds.0 > least && meter.take(work) {
            let mut other = choice.clone();
            self.disturb(&mut other, &mut random);
            if !cover(course, &mut other, (budget, &wanted), Some(&mut random), meter) {
                continue;
            }
            prune(course, &mut other, (budget, &wanted));
            if let (Some(simulated), _) = self.simulated(&other, budget, best.seconds.0)
                && burden(&simulated, &other) <= burden(&best, &choice)
            {
                (best, choice) = (simulated, other);
            }
        }
        Some(best)
    }

    /// The choice that has some storages away, each for the longest time that it lies idle within
    /// the step; `None` if too much is held even so.
    pub fn of_storages(&self, is_away: &dyn Fn(StorageId) -> bool, budget: Bytes) -> Option<Plan> {
        let choice = self.longest(is_away);
        let fits = self.most_held(&choice) <= budget && choice.has_room(&self.course);
        fits.then(|| self.simulated(&choice, budget, f64::INFINITY).0).flatten()
    }

    /// The same choice if lanes took no time: away from one access to the next.
    pub fn at_once(&self, is_away: &dyn Fn(StorageId) -> bool) -> Sequence {
        let choice = self.longest(is_away);
        let chosen = self.course.idle.iter().zip(&choice.is_chosen);
        let mut moves: Vec<Move> = chosen
            .filter(|&(_, &is_chosen)| is_chosen)
            .flat_map(|(idle, _)| {
                [
                    (idle.last + 1, Motion::Offload),
                    (idle.last + 1, Motion::Release),
                    (idle.next, Motion::Prefetch),
                ]
                .map(|(before, motion)| Move {
                    before,
                    storage: idle.storage,
                    motion,
                })
            })
            .collect();
        moves.sort_by_key(|next| next.before);
        Sequence::with_moves(self.runs, &moves)
    }

    /// Some storages away, each for the longest time that it lies idle within the step.
    fn longest(&self, is_away: &dyn Fn(StorageId) -> bool) -> Choice {
        let course = &self.course;
        let mut choice = Choice::given(course);
        for &(from, to) in &course.groups {
            let within = |index: &usize| (course.idle[*index].next as usize) < course.positions();
            let longest = (from..to)
                .filter(within)
                .max_by(|&a, &b| course.idle[a].seconds.total_cmp(&course.idle[b].seconds));
            if let Some(index) = longest.filter(|_| is_away(course.idle[from].storage)) {
                choice.add(course, index);
            }
        }
        choice
    }

    /// Brings some of what is away back, and sends something else away.
    fn disturb(&self, choice: &mut Choice, random: &mut Rng) {
        let all = choice.is_chosen.len();
        let away: Vec<usize> = (0..all).filter(|&index| choice.is_chosen[index]).collect();
        let most = (away.len() / DISTURBED.get()).max(2);
        for _ in 0..random.usize(1..=most).min(away.len()) {
            choice.remove(&self.course, away[random.usize(0..away.len())]);
        }
        if random.bool() && all > 0 {
            let index = random.usize(0..all);
            let was = choice.is_chosen[index];
            choice.add(&self.course, index);
            if !was && !choice.has_room(&self.course) {
                choice.remove(&self.course, index);
            }
        }
    }

    /// The moves of a choice, simulated; the faster of those that may cross the border and those
    /// that may not. `None` if they would take more than `enough` seconds.
    fn simulated(&self, choice: &Choice, budget: Bytes, enough: f64) -> Simulated {
        let &Offloading { graph, profile, runs, ref course, crossing } = self;
        let writes = course.writes(&choice.is_chosen);
        let least = course.elapsed[runs.len()];
        let simulate = |Played { moves, seconds, missing }: Played| {
            if seconds > enough * (1.0 + ALMOST) {
                return (None, missing);
            }
            let sequence = Sequence::with_moves(runs, &moves);
            let plan = Plan::new(graph, profile, Planner::Offload, sequence);
            ((plan.peak <= budget).then_some(plan), missing)
        };
        let play = |border| simulate(play(course, &choice.is_chosen, &writes, budget, border));
        if crossing == Crossing::Never {
            return play(Border::Closed);
        }
        let open = play(Border::Open);
        if open.0.as_ref().is_some_and(|open| open.seconds.0 <= least) {
            return open;
        }
        let closed = play(Border::Closed);
        let seconds = |simulated: &Simulated| {
            simulated.0.as_ref().map_or(f64::INFINITY, |simulated| simulated.seconds.0)
        };
        if seconds(&closed) < seconds(&open) { closed } else { open }
    }
}

/// The plan that a choice gives, and where bytes were missing.
type Simulated = (Option<Plan>, Vec<Missing>);
