//! Sequences of runs whose storages may be away. Invariant: each result was simulated, and holds no
//! more than its budget.
//!
//! Transfers save what recomputation does not: the search recomputes down to a budget above the
//! requested one, and the rest is away while no run needs it. Bisection finds how far above: so far
//! that the lanes are just in time. Then both are improved in turns.

use std::cmp::Ordering;

use crate::analysis::{Motion, Move};
use crate::effort::Meter;
use crate::id::{LaneId, NodeId, StorageId};
use crate::machine::{Link, Route};
use crate::plan::offload::{Crossing, Home, Offloading};
use crate::plan::{self, Instance, Plan, Planner, Search};
use crate::profile::Profile;
use crate::tuning::sequences::{
    FEW_LEVELS, FIRST_OF_A_LEVEL, IMPROVED, IN_TIME, LEG, LEVELS, LOOK, MOST_HIDDEN, MOST_INSTEAD,
    MOST_THOROUGH, NEAR, SEARCH, SPARE, WORK_OF_A_LEVEL,
};
use crate::units::{Bytes, Seconds};

/// Bytes per second of lanes that take next to no time.
const INSTANT: f64 = 1e15;

/// The search for sequences with moves.
pub struct Sequences<'a> {
    pub instance: Instance<'a>,
    pub route: Route,
    /// Where each storage has to be, if that is already decided.
    pub home: &'a dyn Fn(StorageId) -> Home,
    /// Bytes of the tier that are unavailable.
    pub taken: Bytes,
    /// Whether a transfer may be under way when a step ends.
    pub crossing: Crossing,
}

/// How far above a budget to recompute to, as a fraction of the bytes that the lanes hide at most:
/// between a level at which they are in time, or nothing is found, and one at which they are late.
#[derive(Clone, Copy)]
pub struct Bracket {
    in_time: f64,
    late: f64,
    highest: f64,
    levels: u32,
    /// Whether to try the highest level first, which needs the lanes most.
    tries_highest: bool,
    /// Whether to try program order.
    tries_program: bool,
    /// Whether to try the step as it stands, if that is above the highest level.
    tries_whole: bool,
}

impl Bracket {
    /// The bracket if nothing is known yet.
    pub fn whole() -> Bracket {
        Bracket {
            in_time: 0.0,
            late: MOST_HIDDEN.get(),
            highest: MOST_HIDDEN.get(),
            levels: LEVELS.get(),
            tries_highest: true,
            tries_program: true,
            tries_whole: true,
        }
    }

    /// The bracket for a slightly smaller or larger budget.
    fn near(self) -> Bracket {
        let Bracket { in_time, late, .. } = self;
        let (in_time, late) = ((in_time - NEAR.get()).max(0.0), late + NEAR.get());
        Bracket { in_time, late, levels: FEW_LEVELS.get(), ..self }
    }

    fn middle(self) -> f64 {
        (self.in_time + self.late) / 2.0
    }
}

/// Takes another plan if that is faster; returns whether it is.
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
        (LOOK.get() * runs.len() as u64 * 3u64.pow(self.thoroughly)).min(meter.left())
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

    /// Candidates for the sequence with the smallest peak: the step as it stands, and the lowest
    /// that the search finds.
    pub fn lowest(&self, search: &mut Search<'_>, meter: &Meter<'_>) -> [Vec<NodeId>; 2] {
        let lowest = search.lowest(
            &meter.round(self.instance.order.len() as u64 * WORK_OF_A_LEVEL.get(), SEARCH.get()),
        );
        [self.instance.order.to_vec(), lowest.runs()]
    }

    /// Fast sequences that recompute down to several budgets, with moves down to the requested one.
    ///
    /// The more is moved, the less runs again, up to where the lanes are no longer in time; that
    /// level is found by bisection. Afterwards the bracket suits a budget similar to this one.
    pub fn levels(
        &self,
        search: &Search<'_>,
        budget: Bytes,
        bracket: &mut Bracket,
        meter: &mut Meter<'_>,
    ) -> Vec<Plan> {
        let peak = self.instance.peak(self.instance.order);
        let work = self.instance.order.len() as u64 * WORK_OF_A_LEVEL.get();
        // The level at which the step as it stands fits.
        let whole = peak.saturating_sub(budget).0 as f64 / self.hidden();
        // The time at the last level at which they were in time.
        let mut fastest = 0.0;
        let mut found = Vec::new();
        let program = self.instance.graph.compute_nodes();
        if bracket.tries_program && program != self.instance.order {
            // It may hold more but suit the lanes better. If it cannot be moved to this budget, it
            // may be to a larger one.
            let moved = self.moved(program, budget, meter);
            bracket.tries_program = moved.is_none();
            found.extend(moved);
        }
        if bracket.tries_whole && whole > bracket.highest {
            // What moves alone give: where transfers take longer than the step, runs save little.
            let moved = self.moved(self.instance.order.to_vec(), budget, meter);
            bracket.tries_whole = moved.is_none();
            found.extend(moved);
        }
        let (mut level, mut is_highest) = (0, bracket.tries_highest);
        while level < bracket.levels {
            let middle = if is_highest { bracket.highest } else { bracket.middle() };
            let bytes = budget + Bytes((self.hidden() * middle).ceil() as u64);
            let effort = meter.round(work, of_left(of_a_look(), meter));
            meter.spend(work);
            let runs = match bytes >= peak {
                true => Some(self.instance.order.to_vec()),
                // A fresh search: one that knows a plan for less looks less for another.
                false => {
                    let mut search = search.fresh();
                    search.first_plan(bytes, &meter.round(u64::MAX, FIRST_OF_A_LEVEL.get()));
                    search.plan(bytes, &effort).plan.map(|plan| plan.runs())
                }
            };
            if is_highest && runs.is_none() && middle < whole {
                // No sequence holds this little: more has to be away than lanes hide.
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
                seconds < fastest || seconds <= total * (1.0 + IN_TIME.get())
            });
            match &moved {
                Some(moved) if is_in_time => {
                    (bracket.in_time, fastest) = (middle, moved.seconds.0);
                }
                // More has to be away if no sequence holds this little.
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

    /// A sequence with the moves that a budget requires, chosen with little work.
    fn moved(&self, runs: Vec<NodeId>, budget: Bytes, meter: &mut Meter<'_>) -> Option<Plan> {
        let offloading = self.offloading(&runs);
        let work = (LOOK.get() * runs.len() as u64).min(meter.left());
        let effort = meter.round(work, of_left(of_a_look(), meter));
        meter.spend(work);
        let moved = offloading.within(budget, effort.seed, &mut Meter::new(&effort))?;
        Some(Plan { planner: Planner::Auto, ..moved })
    }

    /// The same runs with moves of which none crosses the border between two steps: what does has
    /// one address at both ends of a step, which makes packing harder.
    pub fn within_a_step(&self, plan: &Plan, budget: Bytes, meter: &mut Meter<'_>) -> Option<Plan> {
        let closed = Sequences { crossing: Crossing::Never, ..*self };
        (self.crossing == Crossing::Allowed).then(|| closed.moved(plan.runs(), budget, meter))?
    }

    /// The same sequences within another budget.
    pub fn within(&self, found: &[Plan], budget: Bytes, meter: &mut Meter<'_>) -> Vec<Plan> {
        let moved = found.iter().map(|found| self.moved(found.runs(), budget, meter));
        moved.flatten().collect()
    }

    /// The most bytes that can leave and return during the runs of a step.
    fn hidden(&self) -> f64 {
        let seconds =
            |lane: LaneId| 1.0 / self.instance.profile.hierarchy.lanes[lane].link.bandwidth;
        let step = self.instance.seconds().0;
        let bytes = step / (seconds(self.route.out) + seconds(self.route.back));
        bytes.clamp(1.0, Bytes::LIMIT.0 as f64)
    }

    /// Improves moves and recomputation in turns while the plan gets faster; then more thoroughly.
    pub fn descend(&self, best: &mut Plan, budget: Bytes, share: f64, meter: &mut Meter<'_>) {
        let until = meter.part() + share;
        for thoroughly in 0..MOST_THOROUGH.get() {
            self.recompute_less(best, Leg { budget, until, thoroughly }, meter);
        }
    }

    /// Moves slightly more than necessary, so that less has to be recomputed; then chooses the
    /// moves again.
    fn recompute_less(&self, best: &mut Plan, leg: Leg, meter: &mut Meter<'_>) {
        let (hidden, budget) = (self.hidden(), leg.budget);
        let work = leg.work(&best.runs(), meter);
        let spares_of_a_pass = SPARE.get();
        let mut spares = spares_of_a_pass.iter();
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
            let effort = meter.round(work, LEG.get());
            let fewer = plan::relieved(self.instance, &runs, &away, budget, &effort);
            let next = self.moved_in(leg, &fewer, budget, meter);
            if improve(best, next) {
                spares = spares_of_a_pass.iter();
            }
        }
    }

    /// Recomputes storages for a call instead of bringing them back, one at a time, as long as that
    /// is faster.
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

    /// Does so for one storage, first for those whose transfers exceed their recomputation most;
    /// returns whether something faster was found.
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
            returns.into_iter().filter_map(once_more).take(MOST_INSTEAD.get()).collect();
        more.into_iter().any(|runs| {
            let next = if leg.is_over(meter) {
                None
            } else {
                self.moved_in(leg, &runs, leg.budget, meter)
            };
            improve(best, next)
        })
    }

    /// A sequence with the moves that a budget requires, in one step of a leg.
    fn moved_in(
        &self,
        leg: Leg,
        runs: &[NodeId],
        budget: Bytes,
        meter: &mut Meter<'_>,
    ) -> Option<Plan> {
        let work = leg.work(runs, meter);
        meter.spend(work);
        let effort = meter.round(work, LEG.get());
        let seed = effort.seed.wrapping_add(u64::from(leg.thoroughly));
        let moved = self.offloading(runs).within(budget, seed, &mut Meter::new(&effort))?;
        Some(Plan { planner: Planner::Auto, ..moved })
    }

    /// The bytes that are away at each run.
    fn away(&self, runs: &[NodeId], moved: &Plan) -> Vec<Bytes> {
        let all = self.instance.simulate(&runs.into()).curve.held;
        let left = self.instance.simulate(&moved.sequence).curve.held;
        all.into_iter().zip(left).map(|(all, left)| all.saturating_sub(left)).collect()
    }
}

/// The same machine with lanes that take next to no time: everything that may be away is then away
/// exactly while no run needs it, whatever the real lanes are like.
pub fn with_instant_lanes(profile: &Profile) -> Profile {
    let mut instant = profile.clone();
    for lane in instant.hierarchy.lanes.values_mut() {
        lane.link = Link { latency: Seconds(0.0), bandwidth: INSTANT };
    }
    instant
}

/// Fraction of the whole time for each of the two halves of one level.
fn of_a_look() -> f64 {
    SEARCH.get() / f64::from(2 * LEVELS.get())
}

/// A share of the whole time, as a fraction of the remaining time.
fn of_left(share: f64, meter: &Meter<'_>) -> f64 {
    share / (1.0 - meter.part()).max(share)
}

/// The fastest of the plans found, in order of time.
pub fn fastest_of(mut found: Vec<Plan>) -> Vec<Plan> {
    found.sort_by(by_seconds);
    found.dedup_by(|a, b| a.runs() == b.runs());
    found.truncate(IMPROVED.get());
    found
}

/// Orders faster plans first.
fn by_seconds(a: &Plan, b: &Plan) -> Ordering {
    a.seconds.0.total_cmp(&b.seconds.0)
}
