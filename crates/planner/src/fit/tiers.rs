//! Schedules that also move what they hold. Invariant: within a budget none is slower than the one
//! that was known, which moves nothing; where the smallest slab is wanted, none is larger.
//!
//! The fastest sequences that are known to hold no more than the budget
//! (`crates/planner/src/fit/sequences.rs`) are given addresses.

use crate::check::check;
use crate::effort::Meter;
use crate::fit::sequences::{Candidate, Sequences};
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

/// The part of the time that is left for the addresses of one plan.
const ADDRESSES: f64 = 0.2;
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
        let home = |storage| self.home(storage);
        let moving = self.sequences(&home);
        let levels = moving.levels(search, budget, meter);
        let is_faster = |candidate: &Candidate| {
            of_known.is_none_or(|seconds| candidate.offloaded.seconds.0 < seconds)
        };
        let sequences: Vec<Vec<NodeId>> =
            moving.looked_at(&levels, budget, meter).into_iter().map(|found| found.runs).collect();
        for slack in SLACK {
            let target = Bytes((budget.0 as f64 * (1.0 - slack)) as u64);
            let mut found = match slack {
                0.0 => moving.improved(&sequences, target, meter),
                _ => moving.looked_at(&sequences, target, meter),
            };
            found.retain(is_faster);
            for candidate in found {
                let schedule = self.lay_out(&candidate.plan(), Goal::Within(budget), meter);
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
