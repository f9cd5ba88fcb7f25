//! Schedules that also move what they hold. Invariant: within a budget none is slower than the one
//! that was known, which moves nothing; where the smallest slab is wanted, none is larger.
//!
//! What recomputation does not have to save, transfers do: the search recomputes as far as to a
//! budget above the one that is asked for, and the rest is away while nobody needs it. How far
//! above is found by bisection: where the lanes are just in time. The fastest of these are improved,
//! and given addresses.

use std::cmp::Ordering;

use crate::analysis::{Move, liveness_with, memory_curve};
use crate::check::check;
use crate::effort::Meter;
use crate::fit::smallest::Laid;
use crate::goal::Goal;
use crate::graph::Graph;
use crate::id::{LaneId, NodeId};
use crate::machine::Route;
use crate::plan::offload::{Home, Offloaded, Offloading};
use crate::plan::{self, Plan, Planner, Search, simulate};
use crate::profile::Profile;
use crate::schedule::{Lowering, Residents, Schedule, lower};
use crate::units::Bytes;

/// How many budgets above the one that is asked for are recomputed to, and how far up, in parts of
/// what the lanes hide at most.
const LEVELS: u32 = 7;
const MOST_HIDDEN: f64 = 1.5;
/// Lanes are in time where the step waits for no more than this part of it.
const IN_TIME: f64 = 4e-3;
/// Work of the search at each of them, per operator.
const WORK_OF_A_LEVEL: u64 = 60;
/// The part of the time for all levels.
const SEARCH: f64 = 0.4;
/// Of the levels, so many are improved.
const IMPROVED: usize = 3;
/// Work for a look at what moves, per run.
const LOOK: u64 = 200;
/// So often, sequences are improved, each time with as many bytes as addresses pack for.
const TURNS: usize = 6;
/// The part of a turn for moves and recomputation; in what is left, they get addresses.
const DESCENT: f64 = 0.7;
/// How much more is moved than has to be, in parts of what the lanes hide at most.
const SPARE: [f64; 6] = [0.0, 0.01, 0.03, 0.06, 0.12, 0.2];
/// So often, ever more thoroughly.
const MOST_THOROUGH: u32 = 4;
/// The part of the time that is left for one step of that.
const LEG: f64 = 0.1;
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

/// A sequence of runs with moves.
struct Candidate {
    runs: Vec<NodeId>,
    offloaded: Offloaded,
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
        let mut found = self.levels(search, budget, meter);
        let mut best = of_known.zip(known);
        let mut target = Target { aim: budget, fits: Bytes::ZERO, fails: budget + Bytes(1) };
        for turn in 1..=TURNS {
            let until = SEARCH + (1.0 - SEARCH) * turn as f64 / TURNS as f64;
            let share = DESCENT * (until - meter.share()).max(0.0) / found.len().max(1) as f64;
            for candidate in &mut found {
                self.descend(candidate, target.aim, share, meter);
            }
            found.sort_by(by_seconds);
            let mut missing = None;
            for Candidate { runs, offloaded } in &found {
                let seconds = offloaded.seconds.0;
                if best.as_ref().is_some_and(|(best, _)| seconds >= *best) {
                    break;
                }
                let plan = Plan::with_moves(Planner::Auto, runs, &offloaded.moves);
                let schedule = self.lay_out(&plan, Goal::Within(budget), meter);
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
            if let Some(missing) = missing {
                target.learn(missing);
            }
            if target.aim < budget {
                found = self.within_less(&found, target.aim, meter);
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
        let mut sequences = vec![self.order.to_vec()];
        if let Some((_, plan)) = &known {
            sequences.push(plan.runs());
        }
        let lowest = search.lowest(&meter.round(self.order.len() as u64 * WORK_OF_A_LEVEL, SEARCH));
        sequences.push(lowest.runs());
        let mut best = known;
        for runs in sequences {
            let offloading = self.offloading(&runs);
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

    /// A sequence whose storages may be away, but for what stays where another schedule has put it.
    fn offloading<'s>(&'s self, runs: &'s [NodeId]) -> Offloading<'s> {
        let Residents { addresses, below, .. } = self.residents;
        let home = |storage| {
            let placeholder = self.graph.producer(storage).map(|node| &self.graph.nodes()[node]);
            match placeholder.and_then(|node| node.parameter.as_ref()) {
                Some(name) if below.contains_key(name) => Home::Below,
                Some(name) if addresses.contains_key(name) => Home::Device,
                Some(_) | None => Home::Anywhere,
            }
        };
        let taken = Bytes(self.residents.end_below);
        Offloading::with_homes(self.graph, self.profile, runs, self.route, &home, taken)
    }

    /// The fastest of sequences that recompute so much that what they hold is within several
    /// budgets, moved to the one that is asked for.
    ///
    /// The more is moved, the less runs again, up to where the lanes are in time no longer; so the
    /// budgets are halved in between.
    fn levels(&self, search: &Search<'_>, budget: Bytes, meter: &mut Meter<'_>) -> Vec<Candidate> {
        let peak = simulate(self.graph, self.profile, self.order).curve.peak;
        let work = self.order.len() as u64 * WORK_OF_A_LEVEL;
        let share = SEARCH / f64::from(LEVELS) / 2.0;
        // Where lanes are in time, and where they are not, in parts of what they hide at most.
        let (mut in_time, mut late) = (0.0, MOST_HIDDEN);
        // The fastest where they are in time.
        let mut fastest = 0.0;
        let mut found = Vec::new();
        for level in 0..LEVELS {
            let middle = if level == 0 { late } else { (in_time + late) / 2.0 };
            let bytes = budget + Bytes((self.hidden() * middle) as u64);
            let effort = meter.round(work, share / (1.0 - meter.share()).max(share));
            meter.spend(work);
            let runs = match bytes >= peak {
                true => Some(self.order.to_vec()),
                // One that knows a plan for less looks less for another.
                false => search.anew().plan(bytes, &effort).plan.map(|plan| plan.runs()),
            };
            let moved = runs.and_then(|runs| self.moved(runs, budget, share, meter));
            let is_in_time = moved.as_ref().is_some_and(|Candidate { runs, offloaded }| {
                let seconds = offloaded.seconds.0;
                let total = self.profile.total(runs).0;
                seconds < fastest || seconds <= total * (1.0 + IN_TIME)
            });
            match is_in_time {
                true => {
                    in_time = middle;
                    fastest = moved.as_ref().map_or(fastest, |moved| moved.offloaded.seconds.0);
                }
                false => late = middle,
            }
            found.extend(moved);
            if in_time >= late {
                break;
            }
        }
        found.sort_by(by_seconds);
        found.dedup_by(|a, b| a.runs == b.runs);
        found.truncate(IMPROVED);
        found
    }

    /// A sequence with what has to be away for a budget, after a look in a share of the time.
    fn moved(
        &self,
        runs: Vec<NodeId>,
        budget: Bytes,
        share: f64,
        meter: &mut Meter<'_>,
    ) -> Option<Candidate> {
        let offloading = self.offloading(&runs);
        let left = (1.0 - meter.share()).max(share);
        let work = (LOOK * runs.len() as u64).min(meter.left());
        let effort = meter.round(work, share / left);
        meter.spend(work);
        let offloaded = offloading.within(budget, effort.seed, &mut Meter::new(&effort))?;
        Some(Candidate { runs, offloaded })
    }

    /// The same sequences within less.
    fn within_less(
        &self,
        found: &[Candidate],
        budget: Bytes,
        meter: &mut Meter<'_>,
    ) -> Vec<Candidate> {
        let moved = found.iter().filter_map(|found| {
            self.moved(found.runs.clone(), budget, SEARCH / f64::from(LEVELS) / 2.0, meter)
        });
        moved.collect()
    }

    /// The most bytes that transfers hide behind the runs of a step.
    fn hidden(&self) -> f64 {
        let seconds = |lane: LaneId| 1.0 / self.profile.hierarchy.lanes[lane].link.bandwidth;
        let step = self.profile.total(self.order).0;
        let bytes = step / (seconds(self.route.out) + seconds(self.route.back));
        bytes.clamp(0.0, Bytes::LIMIT.0 as f64)
    }

    /// Moves and recomputation in turns: a little more is moved than has to be, so that there is
    /// room for less recomputation; what moves then is chosen anew. As long as that is faster; then
    /// more thoroughly.
    fn descend(&self, best: &mut Candidate, budget: Bytes, share: f64, meter: &mut Meter<'_>) {
        let (graph, profile, hidden) = (self.graph, self.profile, self.hidden());
        let until = meter.share() + share;
        for thoroughly in 0..MOST_THOROUGH {
            let work = (LOOK * best.runs.len() as u64 * 3u64.pow(thoroughly)).min(meter.left());
            let mut spares = SPARE.iter();
            while let Some(spare) = spares.next() {
                if meter.share() > until || meter.is_over() {
                    return;
                }
                let within = |runs: &[NodeId], budget: Bytes, meter: &mut Meter<'_>| {
                    meter.spend(work);
                    let effort = meter.round(work, LEG);
                    let seed = effort.seed.wrapping_add(u64::from(thoroughly));
                    self.offloading(runs).within(budget, seed, &mut Meter::new(&effort))
                };
                let spare = Bytes((hidden * spare) as u64);
                let moved = match spare {
                    Bytes::ZERO => Some(best.offloaded.clone()),
                    spare => within(&best.runs, budget.saturating_sub(spare), meter),
                };
                let Some(moved) = moved else { continue };
                let away = self.away(&best.runs, &moved);
                meter.spend(work);
                let effort = meter.round(work, LEG);
                let runs = plan::relieved(graph, profile, &best.runs, &away, budget, &effort);
                let next = within(&runs, budget, meter);
                if let Some(offloaded) = next
                    && offloaded.seconds.0 < best.offloaded.seconds.0
                {
                    *best = Candidate { runs, offloaded };
                    spares = SPARE.iter();
                }
            }
        }
    }

    /// What is away at each run.
    fn away(&self, runs: &[NodeId], offloaded: &Offloaded) -> Vec<Bytes> {
        let held = |moves: &[Move]| {
            let lives = liveness_with(self.graph, self.profile, runs, moves);
            memory_curve(self.graph, self.profile, runs, &lives).held
        };
        let (all, left) = (held(&[]), held(&offloaded.moves));
        all.into_iter().zip(left).map(|(all, left)| all.saturating_sub(left)).collect()
    }
}

fn by_seconds(a: &Candidate, b: &Candidate) -> Ordering {
    a.offloaded.seconds.0.total_cmp(&b.offloaded.seconds.0)
}
