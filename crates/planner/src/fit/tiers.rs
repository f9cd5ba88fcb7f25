//! Schedules that also move what they hold. Invariant: within a budget none is slower than the one
//! that was known, which moves nothing; where the smallest slab is wanted, none is larger.
//!
//! The fastest sequences that are known to hold no more than the budget
//! (`crates/planner/src/fit/sequences.rs`) are given addresses. Where these do not pack, less is
//! aimed at.

use crate::check::check;
use crate::effort::Meter;
use crate::fit::sequences::{SEARCH, Sequences, by_seconds};
use crate::fit::smallest::Laid;
use crate::goal::Goal;
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::machine::Route;
use crate::plan::offload::{Crossing, Home};
use crate::plan::{Plan, Planner, Search};
use crate::profile::Profile;
use crate::schedule::{Lowering, Residents, Schedule, lower};
use crate::units::Bytes;

/// So often, sequences are improved, each time with as many bytes as addresses pack for.
const TURNS: usize = 6;
/// The part of a turn for moves and recomputation; in what is left, they get addresses.
const DESCENT: f64 = 0.7;
/// The part of the time that is left for the addresses of one plan.
const ADDRESSES: f64 = 0.2;
/// Budgets are as close as need be where they differ by this part.
const CLOSE: u64 = 500;

/// What schedules with moves are looked for with.
pub struct Tiered<'a> {
    pub graph: &'a Graph,
    pub profile: &'a Profile,
    pub order: &'a [NodeId],
    pub residents: &'a Residents,
    pub route: Route,
}

/// How much is aimed at so that addresses pack within a budget.
struct Target {
    aim: Bytes,
    /// The most for which they did.
    fits: Bytes,
    /// The least for which they did not.
    fails: Bytes,
}

impl Target {
    /// Where so many bytes were missing: as much less; then half way between what fits and what
    /// does not.
    fn learn(&mut self, missing: Bytes) {
        match missing {
            Bytes::ZERO => self.fits = self.aim,
            _ => self.fails = self.aim,
        }
        let between = self.fails.saturating_sub(self.fits);
        self.aim = match self.fits {
            Bytes::ZERO => self.aim.saturating_sub(missing),
            fits if between.0 <= fits.0 / CLOSE => fits,
            fits => fits + Bytes(between.0 / 2),
        };
    }
}

impl Tiered<'_> {
    /// The fastest schedule within a budget: the one that is known, or one that also moves.
    pub fn within(
        &self,
        search: &Search<'_>,
        budget: Bytes,
        known: Option<Schedule>,
        meter: &Meter<'_>,
    ) -> Option<Schedule> {
        let mut meter = meter.clone();
        let meter = &mut meter;
        let of_known = known.as_ref().map(|known| self.seconds(known));
        let least = self.profile.total(self.order).0;
        if of_known.is_some_and(|seconds| seconds <= least) {
            return known;
        }
        let home = |storage| self.home(storage);
        let moving = self.sequences(&home);
        let mut found = moving.levels(search, budget, meter);
        let mut best = of_known.zip(known);
        let mut target = Target { aim: budget, fits: Bytes::ZERO, fails: budget + Bytes(1) };
        for turn in 1..=TURNS {
            let until = SEARCH + (1.0 - SEARCH) * turn as f64 / TURNS as f64;
            let share = DESCENT * (until - meter.part()).max(0.0) / found.len().max(1) as f64;
            for candidate in &mut found {
                moving.descend(candidate, target.aim, share, meter);
            }
            found.sort_by(by_seconds);
            let mut missing = None;
            for candidate in &found {
                let seconds = candidate.offloaded.seconds.0;
                if best.as_ref().is_some_and(|(best, _)| seconds >= *best) {
                    break;
                }
                let schedule = self.lay_out(&candidate.plan(), Goal::Within(budget), meter);
                let more = schedule.slab.saturating_sub(budget);
                missing = Some(missing.map_or(more, |missing: Bytes| missing.min(more)));
                if more == Bytes::ZERO {
                    best = Some((seconds, schedule));
                }
            }
            let is_least = best.as_ref().is_some_and(|&(seconds, _)| seconds <= least);
            if found.is_empty() || is_least || meter.is_over() {
                break;
            }
            let aimed_at = target.aim;
            if let Some(missing) = missing {
                target.learn(missing);
            }
            if target.aim != aimed_at {
                found = moving.within(&found, target.aim, meter);
            }
        }
        best.map(|(_, schedule)| schedule)
    }

    /// The smallest slab that is found.
    pub fn smallest(
        &self,
        search: &mut Search<'_>,
        known: Option<Laid>,
        meter: &Meter<'_>,
    ) -> Laid {
        let home = |storage| self.home(storage);
        let moving = self.sequences(&home);
        let sequences = moving.lowest(search, known.as_ref().map(|(_, plan)| plan), meter);
        let mut best = known;
        for runs in sequences {
            let offloading = moving.offloading(&runs);
            let least = offloading.least();
            if best.as_ref().is_some_and(|(best, _)| least >= best.slab) {
                continue;
            }
            let found = offloading.smallest(meter);
            // Without its moves it would not do what another schedule relies on.
            if found.is_none() && !self.residents.below.is_empty() && best.is_some() {
                continue;
            }
            let moves = found.map_or(Vec::new(), |found| found.moves);
            let plan = Plan::with_moves(Planner::Auto, &runs, &moves);
            let schedule = self.lay_out(&plan, Goal::Smallest, meter);
            if best.as_ref().is_none_or(|(best, _)| schedule.slab < best.slab) {
                best = Some((schedule, plan));
            }
        }
        best.expect("the order itself is a sequence")
    }

    /// Addresses for a plan, in a part of the time that is left.
    fn lay_out(&self, plan: &Plan, goal: Goal, meter: &Meter<'_>) -> Schedule {
        let effort = meter.round(meter.effort().work, ADDRESSES);
        let task = Lowering { residents: self.residents, effort, ..Lowering::to(goal) };
        lower(self.graph, self.profile, plan, &task)
    }

    /// Seconds of a schedule, waiting included.
    pub fn seconds(&self, schedule: &Schedule) -> f64 {
        check(self.graph, self.profile, schedule, schedule.slab)
            .map_or(f64::INFINITY, |timeline| timeline.seconds.0)
    }

    /// Sequences in which everything may be away but what stays where another schedule has it.
    fn sequences<'s>(&'s self, home: &'s dyn Fn(StorageId) -> Home) -> Sequences<'s> {
        let Tiered { graph, profile, order, route, residents } = *self;
        let (taken, crossing) = (Bytes(residents.end_below), Crossing::Allowed);
        Sequences { graph, profile, order, route, home, taken, crossing }
    }

    /// What another schedule has settled of a storage.
    fn home(&self, storage: StorageId) -> Home {
        let Residents { addresses, below, .. } = self.residents;
        let placeholder = self.graph.producer(storage).map(|node| &self.graph.nodes()[node]);
        match placeholder.and_then(|node| node.parameter.as_ref()) {
            Some(name) if below.contains_key(name) => Home::Below,
            Some(name) if addresses.contains_key(name) => Home::Device,
            Some(_) | None => Home::Anywhere,
        }
    }
}
