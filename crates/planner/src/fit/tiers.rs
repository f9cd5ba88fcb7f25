//! Schedules that also move what they hold. Invariant: within a budget none is slower than the
//! known one, which moves nothing; if the smallest slab is requested, none is larger.
//!
//! The fastest sequences that are known to hold no more than the budget
//! (`crates/planner/src/fit/sequences.rs`) are given addresses. If these do not pack, the sequences
//! are made for less than the budget.

use crate::check::check;
use crate::effort::Meter;
use crate::fit::sequences::{Bracket, Sequences, fastest_of, with_instant_lanes};
use crate::fit::slab::{Laid, Slab};
use crate::goal::Goal;
use crate::id::StorageId;
use crate::machine::Route;
use crate::plan::offload::{Crossing, Home};
use crate::plan::{Instance, Plan, Planner, Search};
use crate::schedule::{Residents, Schedule};
use crate::units::Bytes;

/// Number of turns; in each, sequences are improved for as many bytes as addresses pack for.
const TURNS: u32 = 6;
/// Fraction of a turn for moves and recomputation; the rest is for addresses.
const DESCENT: f64 = 0.7;
/// Fraction of the remaining time for the addresses of one plan.
const ADDRESSES: f64 = 0.1;
/// The first aim is the budget less one part in this many: slack costs time but makes packing
/// easier.
const SLACK: u64 = 80;
/// If addresses do not pack, the aim falls by one part in this many of the budget; then by twice
/// as much each time.
const STEP: u64 = 100;
/// The bisection of aims ends if they differ by at most one part in this many.
const CLOSE: u64 = 500;

/// The search for schedules with moves.
pub struct Tiered<'a> {
    pub slab: Slab<'a>,
    pub route: Route,
}

/// The bytes that plans aim at so that their addresses pack within a budget.
struct Target {
    budget: Bytes,
    aim: Bytes,
    /// The highest aim for which they packed.
    fits: Option<Bytes>,
    /// The lowest aim for which they did not.
    fails: Option<Bytes>,
    /// By how much the aim falls next if they do not.
    step: Bytes,
}

impl Target {
    fn new(budget: Bytes) -> Target {
        let step = Bytes(budget.0 / STEP);
        let aim = budget.saturating_sub(Bytes(budget.0 / SLACK));
        Target { budget, aim, fits: None, fails: None, step }
    }

    /// Chooses the next aim after this many bytes were missing. A layout that fails says little
    /// about how much less would do.
    fn learn(&mut self, missing: Bytes) {
        match missing {
            Bytes::ZERO => self.fits = Some(self.aim),
            _ => self.fails = Some(self.aim),
        }
        self.aim = match (self.fits, self.fails) {
            (_, None) => self.budget,
            (None, Some(fails)) => {
                let less = fails.saturating_sub(self.step);
                self.step = self.step + self.step;
                less
            }
            (Some(fits), Some(fails)) => {
                let between = fails.saturating_sub(fits);
                if between.0 <= fits.0 / CLOSE { fits } else { fits + Bytes(between.0 / 2) }
            }
        };
    }
}

impl Tiered<'_> {
    /// The fastest schedule within a budget: the known one, or one that also moves.
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
        let least = self.slab.instance.seconds().0;
        if of_known.is_some_and(|seconds| seconds <= least) {
            return known;
        }
        let home = |storage| self.home(storage);
        let moving = self.sequences(&home);
        let (mut found, mut bracket) = (Vec::new(), Bracket::whole());
        let mut best = of_known.zip(known);
        let mut target = Target::new(budget);
        let mut aimed_at = None;
        for turn in 0..TURNS {
            if aimed_at.replace(target.aim) != Some(target.aim) {
                // Plans improved for another aim are among the new starting points.
                found = moving.within(&found, target.aim, meter);
                found.extend(moving.levels(search, target.aim, &mut bracket, meter));
                found = fastest_of(found);
            }
            let until = (1.0 - meter.part()) / f64::from(TURNS - turn);
            let share = DESCENT * until / found.len().max(1) as f64;
            for candidate in &mut found {
                moving.descend(candidate, target.aim, share, meter);
            }
            found = fastest_of(found);
            if turn + 1 == TURNS
                && let Some(fastest) = found.first_mut()
            {
                moving.recompute_instead(fastest, target.aim, share, meter);
            }
            let mut missing = None;
            if let Some(candidate) = found.first()
                && let seconds = candidate.seconds.0
                && best.as_ref().is_none_or(|(best, _)| seconds < *best)
            {
                let schedule = self.lay_out(candidate, Goal::Within(budget), meter);
                let more = schedule.slab.saturating_sub(budget);
                missing = Some(more);
                if more == Bytes::ZERO {
                    best = Some((seconds, schedule));
                }
            }
            let is_least = best.as_ref().is_some_and(|&(seconds, _)| seconds <= least);
            if found.is_empty() && target.aim == budget || is_least || meter.is_over() {
                break;
            }
            target.learn(missing.unwrap_or(Bytes::ZERO));
        }
        best.map(|(_, schedule)| schedule)
    }

    /// The smallest slab that is found; of those that are no larger than `enough`, the fastest
    /// schedule.
    ///
    /// Moves are chosen as if lanes took no time: measured rates differ from run to run, and a slab
    /// that was found once is to be found again on request. Plans for the lanes as they are count
    /// only if their slab is no larger than `enough`.
    pub fn smallest(
        &self,
        search: &mut Search<'_>,
        known: Option<Laid>,
        enough: Bytes,
        meter: &Meter<'_>,
    ) -> Laid {
        let home = |storage| self.home(storage);
        let instant = with_instant_lanes(self.slab.instance.profile);
        let moving = self.sequences(&home);
        let sequences = moving.lowest(search, known.as_ref().map(|(_, plan)| plan), meter);
        let mut best = known.map(|known| (self.rank(&known.0, enough), known));
        for runs in sequences {
            for (profile, most) in [(&instant, Bytes::LIMIT), (self.slab.instance.profile, enough)]
            {
                let moving =
                    Sequences { instance: Instance { profile, ..moving.instance }, ..moving };
                let offloading = moving.offloading(&runs);
                let least = offloading.least();
                let slab = best.as_ref().map(|(_, (best, _))| best.slab);
                if least > most || slab.is_some_and(|slab| slab > enough && least >= slab) {
                    continue;
                }
                let found = offloading.smallest(meter);
                // Without its moves it would not leave in the tier what another schedule relies on.
                if found.is_none() && !self.slab.residents.below.is_empty() && best.is_some() {
                    continue;
                }
                let stays = || moving.instance.plan(Planner::Auto, &runs);
                let plan = Plan { planner: Planner::Auto, ..found.unwrap_or_else(stays) };
                let schedule = self.lay_out(&plan, Goal::Smallest, meter);
                let rank = self.rank(&schedule, enough);
                let is_better = best.as_ref().is_none_or(|(least, _)| rank < *least);
                if schedule.slab <= most && is_better {
                    best = Some((rank, (schedule, plan)));
                }
            }
        }
        best.expect("the order itself is a sequence").1
    }

    /// By how much a slab exceeds what is enough; if it does not, then by seconds.
    fn rank(&self, schedule: &Schedule, enough: Bytes) -> (Bytes, f64) {
        match schedule.slab.saturating_sub(enough) {
            Bytes::ZERO => (Bytes::ZERO, self.seconds(schedule)),
            more => (more, 0.0),
        }
    }

    /// Addresses for a plan, in a fraction of the remaining time.
    fn lay_out(&self, plan: &Plan, goal: Goal, meter: &Meter<'_>) -> Schedule {
        self.slab.lay_out(plan, goal, meter.round(meter.effort().work, ADDRESSES))
    }

    /// Seconds of a schedule, waiting included.
    pub fn seconds(&self, schedule: &Schedule) -> f64 {
        check(self.slab.instance.graph, self.slab.instance.profile, schedule, schedule.slab)
            .map_or(f64::INFINITY, |timeline| timeline.seconds.0)
    }

    /// Sequences in which everything may be away except what must stay where another schedule has
    /// it.
    fn sequences<'s>(&'s self, home: &'s dyn Fn(StorageId) -> Home) -> Sequences<'s> {
        let Tiered { slab: Slab { instance, residents }, route } = *self;
        let (taken, crossing) = (Bytes(residents.end_below), Crossing::Allowed);
        Sequences { instance, route, home, taken, crossing }
    }

    /// Where another schedule requires a storage to be.
    fn home(&self, storage: StorageId) -> Home {
        let Residents { addresses, below, .. } = self.slab.residents;
        let placeholder = self
            .slab
            .instance
            .graph
            .producer(storage)
            .map(|node| &self.slab.instance.graph.nodes()[node]);
        match placeholder.and_then(|node| node.parameter.as_ref()) {
            Some(name) if below.contains_key(name) => Home::Below,
            Some(name) if addresses.contains_key(name) => Home::Device,
            Some(_) | None => Home::Anywhere,
        }
    }
}
