//! Schedules that also move what they hold. Invariant: within a budget none is slower than the one
//! that was known, which moves nothing; where the smallest slab is wanted, none is larger.
//!
//! What recomputation does not have to save, transfers do: for several budgets above the one that
//! is asked for, the search recomputes that far, and the rest is away while nobody needs it. The
//! fastest of these are improved, and given addresses.
//!
//! How far above: what is away at an instant went out before it and comes back after it, so the
//! lanes hide at most as many bytes as they move out and back in a step. The budgets lie up to one
//! and a half times that higher, and the step as it stands is tried, too.

use crate::check::check;
use crate::effort::{Effort, Meter};
use crate::fit::smallest::Laid;
use crate::goal::Goal;
use crate::graph::Graph;
use crate::id::{LaneId, NodeId};
use crate::machine::Route;
use crate::plan::offload::{Home, Offloaded, Offloading};
use crate::plan::{Plan, Planner, Search, simulate};
use crate::profile::Profile;
use crate::schedule::{Lowering, Residents, Schedule, lower};
use crate::units::Bytes;

/// How far above the budget is recomputed, in parts of what the lanes hide at most.
const LEVELS: [f64; 8] = [0.1, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0, 1.5];
/// Work of the search at each of them, per operator.
const WORK_OF_A_LEVEL: u64 = 60;
/// The part of the time for all levels, and that for improving the fastest of them.
const SEARCH: f64 = 0.35;
const IMPROVE: f64 = 0.5;
/// The part of the time that is left for the addresses of one plan.
const ADDRESSES: f64 = 0.2;
/// Of the levels, so many are improved.
const IMPROVED: usize = 3;
/// Work for a first look at a level, per run.
const LOOK: u64 = 40;
/// Parts of the budget that are left free, one after the other, where addresses do not pack.
const SLACK: [f64; 8] = [0.0, 0.004, 0.01, 0.02, 0.04, 0.07, 0.12, 0.2];

/// What schedules with moves are looked for with.
pub struct Tiered<'a> {
    pub graph: &'a Graph,
    pub profile: &'a Profile,
    pub order: &'a [NodeId],
    pub residents: &'a Residents,
    pub route: Route,
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
        search: &mut Search<'_>,
        budget: Bytes,
        known: Option<Schedule>,
        meter: &Meter<'_>,
    ) -> Option<Schedule> {
        let of_known = known.as_ref().map(|known| self.seconds(known));
        let least = self.profile.total(self.order).0;
        if of_known.is_some_and(|seconds| seconds <= least) {
            return known;
        }
        let levels = self.levels(search, budget, meter);
        let is_faster = |candidate: &Candidate| {
            of_known.is_none_or(|seconds| candidate.offloaded.seconds.0 < seconds)
        };
        let sequences: Vec<Vec<NodeId>> =
            self.looked_at(&levels, budget, meter).into_iter().map(|found| found.runs).collect();
        for slack in SLACK {
            let target = Bytes((budget.0 as f64 * (1.0 - slack)) as u64);
            let mut found = match slack {
                0.0 => self.improved(&sequences, target, meter),
                _ => self.looked_at(&sequences, target, meter),
            };
            found.retain(is_faster);
            for Candidate { runs, offloaded } in found {
                let plan = Plan::with_moves(Planner::Auto, &runs, &offloaded.moves);
                let schedule = self.lay_out(&plan, Goal::Within(budget), meter);
                if schedule.slab <= budget {
                    return Some(schedule);
                }
            }
        }
        known
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
            let found = offloading.smallest();
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
    fn seconds(&self, schedule: &Schedule) -> f64 {
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

    /// Sequences that recompute so much that what they hold is within several budgets.
    fn levels(
        &self,
        search: &mut Search<'_>,
        budget: Bytes,
        meter: &Meter<'_>,
    ) -> Vec<Vec<NodeId>> {
        let peak = simulate(self.graph, self.profile, self.order).curve.peak;
        let hidden = self.hidden();
        let mut found: Vec<Vec<NodeId>> = vec![self.order.to_vec()];
        for level in LEVELS.into_iter().rev() {
            let bytes = budget + Bytes((hidden * level) as u64);
            if bytes >= peak {
                continue;
            }
            let work = self.order.len() as u64 * WORK_OF_A_LEVEL;
            let effort = meter.round(work, SEARCH / LEVELS.len() as f64);
            if let Some(plan) = search.plan(bytes, &effort).plan {
                let runs = plan.runs();
                if found.last() != Some(&runs) {
                    found.push(runs);
                }
            }
        }
        found
    }

    /// The most bytes that transfers hide behind the runs of a step.
    fn hidden(&self) -> f64 {
        let seconds = |lane: LaneId| 1.0 / self.profile.hierarchy.lanes[lane].link.bandwidth;
        let step = self.profile.total(self.order).0;
        let bytes = step / (seconds(self.route.out) + seconds(self.route.back));
        bytes.clamp(0.0, Bytes::LIMIT.0 as f64)
    }

    /// The fastest of some sequences after a first look.
    fn looked_at(
        &self,
        sequences: &[Vec<NodeId>],
        budget: Bytes,
        meter: &Meter<'_>,
    ) -> Vec<Candidate> {
        let mut found = self.candidates(sequences, budget, &mut |runs| {
            meter.round(LOOK * runs as u64, IMPROVE / LEVELS.len() as f64)
        });
        found.truncate(IMPROVED);
        found
    }

    /// All of some sequences with as much effort as there is.
    fn improved(
        &self,
        sequences: &[Vec<NodeId>],
        budget: Bytes,
        meter: &Meter<'_>,
    ) -> Vec<Candidate> {
        self.candidates(sequences, budget, &mut |_| {
            let share = IMPROVE / sequences.len().max(1) as f64;
            meter.round((meter.effort().work as f64 * share) as u64, share)
        })
    }

    /// What becomes of each sequence under its effort, the fastest first.
    fn candidates<'e>(
        &self,
        sequences: &[Vec<NodeId>],
        budget: Bytes,
        effort: &mut dyn FnMut(usize) -> Effort<'e>,
    ) -> Vec<Candidate> {
        let mut found = Vec::new();
        for runs in sequences {
            let offloading = self.offloading(runs);
            let effort = effort(runs.len());
            let offloaded = offloading.within(budget, effort.seed, &mut Meter::new(&effort));
            found.extend(offloaded.map(|offloaded| Candidate { runs: runs.clone(), offloaded }));
        }
        found.sort_by(|a, b| a.offloaded.seconds.0.total_cmp(&b.offloaded.seconds.0));
        found
    }
}
