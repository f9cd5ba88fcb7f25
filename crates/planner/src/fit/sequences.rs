//! Sequences of runs whose storages may be away. Invariant: what comes out was simulated, and holds
//! no more than its budget.
//!
//! What recomputation does not have to save, transfers do: the search recomputes as far as to a
//! budget above the one that is asked for, and the rest is away while nobody needs it. How far
//! above is found by bisection: where the lanes are just in time. Then both are improved in turns.

use std::cmp::Ordering;

use crate::analysis::{Motion, Move};
use crate::effort::Meter;
use crate::id::{LaneId, NodeId, StorageId};
use crate::machine::{Link, Route};
use crate::plan::offload::{Crossing, Home, Offloading};
use crate::plan::{self, Instance, Plan, Planner, Search};
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// How many budgets above the one that is asked for are recomputed to, and how far up, in parts of
/// what the lanes hide at most.
const LEVELS: u32 = 7;
const MOST_HIDDEN: f64 = 1.5;
/// So many where it is nearly known how far, and how near that is.
const FEW_LEVELS: u32 = 3;
const NEAR: f64 = 0.06;
/// Lanes are in time where the step waits for no more than this part of it.
const IN_TIME: f64 = 4e-3;
/// Work of the search at each of them, per operator.
const WORK_OF_A_LEVEL: u64 = 60;
/// The part of the time for all levels; half of it goes into sequences, half into a look at what
/// moves.
pub const SEARCH: f64 = 0.25;
const OF_A_LOOK: f64 = SEARCH / (2 * LEVELS) as f64;
/// Of the levels, so many are improved.
const IMPROVED: usize = 3;
/// Work for a look at what moves, per run.
const LOOK: u64 = 200;
/// How much more is moved than has to be, in parts of what the lanes hide at most.
const SPARE: [f64; 6] = [0.0, 0.01, 0.03, 0.06, 0.12, 0.2];
/// So often, ever more thoroughly.
const MOST_THOROUGH: u32 = 4;
/// The part of the time that is left for one step of that.
const LEG: f64 = 0.1;
/// So many storages are computed again instead of brought back, each on trial.
const MOST_INSTEAD: usize = 8;
/// Bytes a second of lanes that take next to no time.
const INSTANT: f64 = 1e15;

/// What sequences with moves are looked for with.
pub struct Sequences<'a> {
    pub instance: Instance<'a>,
    pub route: Route,
    /// What is settled of each storage.
    pub home: &'a dyn Fn(StorageId) -> Home,
    /// Bytes of the tier that are not to be had.
    pub taken: Bytes,
    /// Whether a transfer may be under way when a step ends.
    pub crossing: Crossing,
}

/// How far above a budget to recompute to, in parts of what the lanes hide at most: between where
/// they are in time, or nothing is found, and where they are late.
#[derive(Clone, Copy)]
pub struct Bracket {
    in_time: f64,
    late: f64,
    highest: f64,
    levels: u32,
    /// Whether the highest of them is to be tried, which needs most of the lanes, and whether the
    /// order of the program is.
    tries_highest: bool,
    tries_program: bool,
}

impl Bracket {
    /// Nothing is known yet.
    pub fn whole() -> Bracket {
        Bracket {
            in_time: 0.0,
            late: MOST_HIDDEN,
            highest: MOST_HIDDEN,
            levels: LEVELS,
            tries_highest: true,
            tries_program: true,
        }
    }

    /// What is known of a budget that is a little less or more.
    fn near(self) -> Bracket {
        let Bracket { in_time, late, .. } = self;
        let (in_time, late) = ((in_time - NEAR).max(0.0), late + NEAR);
        Bracket { in_time, late, levels: FEW_LEVELS, ..self }
    }

    fn middle(self) -> f64 {
        (self.in_time + self.late) / 2.0
    }
}

/// Takes another plan where that is faster, and says whether it is.
fn improve(best: &mut Plan, other: Option<Plan>) -> bool {
    match other {
        Some(other) if other.seconds < best.seconds => {
            *best = other;
            true
        }
        Some(_) | None => false,
    }
}

/// One leg of a descent: within which budget, until when, and how thoroughly.
#[derive(Clone, Copy)]
struct Leg {
    budget: Bytes,
    until: f64,
    thoroughly: u32,
}

impl Leg {
    fn work(self, runs: &[NodeId], meter: &Meter<'_>) -> u64 {
        (LOOK * runs.len() as u64 * 3u64.pow(self.thoroughly)).min(meter.left())
    }

    fn is_over(self, meter: &Meter<'_>) -> bool {
        meter.part() > self.until || meter.is_over()
    }
}

impl Sequences<'_> {
    /// A sequence whose storages may be away.
    pub fn offloading<'s>(&'s self, runs: &'s [NodeId]) -> Offloading<'s> {
        let Sequences { instance, route, home, taken, crossing, .. } = *self;
        Offloading::with_homes(instance.graph, instance.profile, runs, route, home, taken)
            .with_crossing(crossing)
    }

    /// Sequences of which the one with the smallest peak is sought: the step as it stands, what is
    /// known to be small, and the lowest that the search finds.
    pub fn lowest(
        &self,
        search: &mut Search<'_>,
        known: Option<&Plan>,
        meter: &Meter<'_>,
    ) -> Vec<Vec<NodeId>> {
        let mut sequences = vec![self.instance.order.to_vec()];
        sequences.extend(known.map(Plan::runs));
        let lowest =
            search.lowest(&meter.round(self.instance.order.len() as u64 * WORK_OF_A_LEVEL, SEARCH));
        sequences.push(lowest.runs());
        sequences
    }

    /// The fastest of sequences that recompute so much that what they hold is within several
    /// budgets, moved to the one that is asked for.
    ///
    /// The more is moved, the less runs again, up to where the lanes are in time no longer; so the
    /// budgets are halved in between. The bracket is that of a budget like this one afterwards.
    pub fn levels(
        &self,
        search: &Search<'_>,
        budget: Bytes,
        bracket: &mut Bracket,
        meter: &mut Meter<'_>,
    ) -> Vec<Plan> {
        let peak = self.instance.peak(self.instance.order);
        let work = self.instance.order.len() as u64 * WORK_OF_A_LEVEL;
        // The level of the step as it stands.
        let whole = peak.saturating_sub(budget).0 as f64 / self.hidden();
        // The fastest where they are in time.
        let mut fastest = 0.0;
        let mut found = Vec::new();
        let program = self.instance.graph.compute_nodes();
        if bracket.tries_program && program != self.instance.order {
            // It may hold more, and suit the lanes better. What cannot be moved to this budget may
            // be to a larger one.
            let moved = self.moved(program, budget, meter);
            bracket.tries_program = moved.is_none();
            found.extend(moved);
        }
        let (mut level, mut is_highest) = (0, bracket.tries_highest);
        while level < bracket.levels {
            let middle = if is_highest { bracket.highest } else { bracket.middle() };
            let bytes = budget + Bytes((self.hidden() * middle).ceil() as u64);
            let effort = meter.round(work, of_left(OF_A_LOOK, meter));
            meter.spend(work);
            let runs = match bytes >= peak {
                true => Some(self.instance.order.to_vec()),
                // One that knows a plan for less looks less for another.
                false => search.anew().plan(bytes, &effort).plan.map(|plan| plan.runs()),
            };
            if is_highest && runs.is_none() && middle < whole {
                // No sequence holds so little: more than lanes hide has to be away.
                bracket.in_time = middle;
                (bracket.highest, bracket.late) = (whole, whole);
                continue;
            }
            level += 1;
            let is_known = runs.is_some();
            let moved = runs.and_then(|runs| self.moved(runs, budget, meter));
            if std::mem::replace(&mut is_highest, false) {
                bracket.tries_highest = moved.is_none();
            }
            let is_in_time = moved.as_ref().is_some_and(|moved| {
                let seconds = moved.seconds.0;
                let total = self.instance.profile.total(&moved.runs()).0;
                seconds < fastest || seconds <= total * (1.0 + IN_TIME)
            });
            match &moved {
                Some(moved) if is_in_time => {
                    (bracket.in_time, fastest) = (middle, moved.seconds.0);
                }
                // More has to be away where no sequence holds so little.
                None if !is_known => bracket.in_time = middle,
                Some(_) | None => bracket.late = bracket.late.min(middle),
            }
            found.extend(moved);
            if bracket.in_time >= bracket.late {
                break;
            }
        }
        *bracket = bracket.near();
        found
    }

    /// A sequence with what has to be away for a budget, after a look.
    fn moved(&self, runs: Vec<NodeId>, budget: Bytes, meter: &mut Meter<'_>) -> Option<Plan> {
        let offloading = self.offloading(&runs);
        let work = (LOOK * runs.len() as u64).min(meter.left());
        let effort = meter.round(work, of_left(OF_A_LOOK, meter));
        meter.spend(work);
        let moved = offloading.within(budget, effort.seed, &mut Meter::new(&effort))?;
        Some(Plan { planner: Planner::Auto, ..moved })
    }

    /// The same sequences within another budget.
    pub fn within(&self, found: &[Plan], budget: Bytes, meter: &mut Meter<'_>) -> Vec<Plan> {
        let moved = found.iter().map(|found| self.moved(found.runs(), budget, meter));
        moved.flatten().collect()
    }

    /// The most bytes that transfers hide behind the runs of a step.
    fn hidden(&self) -> f64 {
        let seconds =
            |lane: LaneId| 1.0 / self.instance.profile.hierarchy.lanes[lane].link.bandwidth;
        let step = self.instance.seconds().0;
        let bytes = step / (seconds(self.route.out) + seconds(self.route.back));
        bytes.clamp(1.0, Bytes::LIMIT.0 as f64)
    }

    /// Moves and recomputation in turns, as long as that is faster; then more thoroughly.
    pub fn descend(&self, best: &mut Plan, budget: Bytes, share: f64, meter: &mut Meter<'_>) {
        let until = meter.part() + share;
        for thoroughly in 0..MOST_THOROUGH {
            self.recompute_less(best, Leg { budget, until, thoroughly }, meter);
        }
    }

    /// A little more is moved than has to be, so that there is room for less recomputation; what
    /// moves then is chosen anew.
    fn recompute_less(&self, best: &mut Plan, leg: Leg, meter: &mut Meter<'_>) {
        let (hidden, budget) = (self.hidden(), leg.budget);
        let work = leg.work(&best.runs(), meter);
        let mut spares = SPARE.iter();
        while let Some(spare) = spares.next() {
            if leg.is_over(meter) {
                break;
            }
            let (runs, spare) = (best.runs(), Bytes((hidden * spare) as u64));
            let moved = match spare {
                Bytes::ZERO => Some(best.clone()),
                spare => self.moved_in(leg, &runs, budget.saturating_sub(spare), meter),
            };
            let Some(moved) = moved else { continue };
            let away = self.away(&runs, &moved);
            meter.spend(work);
            let effort = meter.round(work, LEG);
            let fewer = plan::relieved(self.instance, &runs, &away, budget, &effort);
            let next = self.moved_in(leg, &fewer, budget, meter);
            if improve(best, next) {
                spares = SPARE.iter();
            }
        }
    }

    /// What would come back for a call is computed again there, one storage at a time, as long as
    /// that is faster.
    pub fn recompute_instead(
        &self,
        best: &mut Plan,
        budget: Bytes,
        share: f64,
        meter: &mut Meter<'_>,
    ) {
        let leg = Leg { budget, until: meter.part() + share, thoroughly: 0 };
        while self.one_instead(best, leg, meter) {}
    }

    /// One storage: those first whose transfers take the longest in comparison. Whether something
    /// faster was found.
    fn one_instead(&self, best: &mut Plan, leg: Leg, meter: &mut Meter<'_>) -> bool {
        let (graph, profile) = (self.instance.graph, self.instance.profile);
        let link = profile.hierarchy.lanes[self.route.back].link;
        let (runs, moves) = (best.runs(), best.sequence.moves());
        let waiting = best.seconds.0 - profile.total(&runs).0;
        let gain = |back: &Move| {
            let maker = graph.producer(back.storage).filter(|&node| graph.runs(node))?;
            let again = profile.seconds[maker].0;
            let gain = link.seconds(graph.storages()[back.storage]).0 - again;
            (gain > 0.0 && again < waiting).then_some((gain, *back))
        };
        let back = moves.iter().filter(|it| it.motion == Motion::Prefetch);
        let mut returns: Vec<(f64, Move)> = back.filter_map(gain).collect();
        returns.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let once_more = |(_, back): (f64, Move)| {
            let from = back.before as usize;
            let reads = |&node: &NodeId| graph.reads(node).contains(&back.storage);
            let ahead = runs.get(from..)?.iter().position(reads)?;
            plan::once_more(graph, &runs, back.storage, from + ahead)
        };
        let more: Vec<Vec<NodeId>> =
            returns.into_iter().filter_map(once_more).take(MOST_INSTEAD).collect();
        more.into_iter().any(|runs| {
            let next = if leg.is_over(meter) {
                None
            } else {
                self.moved_in(leg, &runs, leg.budget, meter)
            };
            improve(best, next)
        })
    }

    /// What has to be away for a budget, in one step of a leg.
    fn moved_in(
        &self,
        leg: Leg,
        runs: &[NodeId],
        budget: Bytes,
        meter: &mut Meter<'_>,
    ) -> Option<Plan> {
        let work = leg.work(runs, meter);
        meter.spend(work);
        let effort = meter.round(work, LEG);
        let seed = effort.seed.wrapping_add(u64::from(leg.thoroughly));
        let moved = self.offloading(runs).within(budget, seed, &mut Meter::new(&effort))?;
        Some(Plan { planner: Planner::Auto, ..moved })
    }

    /// What is away at each run.
    fn away(&self, runs: &[NodeId], moved: &Plan) -> Vec<Bytes> {
        let all = self.instance.simulate(&runs.into()).curve.held;
        let left = self.instance.simulate(&moved.sequence).curve.held;
        all.into_iter().zip(left).map(|(all, left)| all.saturating_sub(left)).collect()
    }
}

/// The same machine with lanes that take next to no time: on it whatever may be away is, and only
/// for as long as nobody needs it, whatever the lanes are really like.
pub fn with_instant_lanes(profile: &Profile) -> Profile {
    let mut instant = profile.clone();
    for lane in instant.hierarchy.lanes.values_mut() {
        lane.link = Link { latency: Seconds(0.0), bandwidth: INSTANT };
    }
    instant
}

/// A share of the time, in parts of what is left of it.
fn of_left(share: f64, meter: &Meter<'_>) -> f64 {
    share / (1.0 - meter.part()).max(share)
}

/// The fastest of what was found, the faster before the slower.
pub fn fastest_of(mut found: Vec<Plan>) -> Vec<Plan> {
    found.sort_by(by_seconds);
    found.dedup_by(|a, b| a.runs() == b.runs());
    found.truncate(IMPROVED);
    found
}

/// The faster before the slower.
fn by_seconds(a: &Plan, b: &Plan) -> Ordering {
    a.seconds.0.total_cmp(&b.seconds.0)
}
