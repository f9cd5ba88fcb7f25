//! Sequences of runs whose storages may be away. Invariant: what comes out was simulated, and holds
//! no more than its budget.
//!
//! What recomputation does not have to save, transfers do: for several budgets above the one that
//! is asked for, the search recomputes that far, and the rest is away while nobody needs it.
//!
//! How far above: what is away at an instant went out before it and comes back after it, so the
//! lanes hide at most as many bytes as they move out and back in a step. The budgets lie up to one
//! and a half times that higher, and the step as it stands is tried, too.

use crate::effort::{Effort, Meter};
use crate::graph::Graph;
use crate::id::{LaneId, NodeId, StorageId};
use crate::machine::Route;
use crate::plan::offload::{Crossing, Home, Offloaded, Offloading};
use crate::plan::{Plan, Planner, Search, simulate};
use crate::profile::Profile;
use crate::units::Bytes;

/// How far above the budget is recomputed, in parts of what the lanes hide at most.
const LEVELS: [f64; 8] = [0.1, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0, 1.5];
/// Work of the search at each of them, per operator.
const WORK_OF_A_LEVEL: u64 = 60;
/// The part of the time for all levels, and that for improving the fastest of them.
const SEARCH: f64 = 0.35;
const IMPROVE: f64 = 0.5;
/// Of the levels, so many are improved.
const IMPROVED: usize = 3;
/// Work for a first look at a level, per run.
const LOOK: u64 = 40;
/// What sequences with moves are looked for with.
pub struct Sequences<'a> {
    pub graph: &'a Graph,
    pub profile: &'a Profile,
    pub order: &'a [NodeId],
    pub route: Route,
    /// What is settled of each storage.
    pub home: &'a dyn Fn(StorageId) -> Home,
    /// Bytes of the tier that are not to be had.
    pub taken: Bytes,
    /// Whether a transfer may be under way when a step ends.
    pub crossing: Crossing,
}

/// A sequence of runs with moves.
pub struct Candidate {
    pub runs: Vec<NodeId>,
    pub offloaded: Offloaded,
}

impl Candidate {
    /// The plan that it is.
    pub fn plan(&self) -> Plan {
        Plan::with_moves(Planner::Auto, &self.runs, &self.offloaded.moves)
    }
}

impl Sequences<'_> {
    /// A sequence whose storages may be away.
    pub fn offloading<'s>(&'s self, runs: &'s [NodeId]) -> Offloading<'s> {
        let Sequences { graph, profile, route, home, taken, crossing, .. } = *self;
        Offloading::with_homes(graph, profile, runs, route, home, taken).with_crossing(crossing)
    }

    /// Sequences of which the one with the smallest peak is sought: the step as it stands, what is
    /// known to be small, and the lowest that the search finds.
    pub fn lowest(
        &self,
        search: &mut Search<'_>,
        known: Option<&Plan>,
        meter: &Meter<'_>,
    ) -> Vec<Vec<NodeId>> {
        let mut sequences = vec![self.order.to_vec()];
        sequences.extend(known.map(Plan::runs));
        let lowest = search.lowest(&meter.round(self.order.len() as u64 * WORK_OF_A_LEVEL, SEARCH));
        sequences.push(lowest.runs());
        sequences
    }

    /// Sequences that recompute so much that what they hold is within several budgets.
    pub fn levels(
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
    pub fn looked_at(
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
    pub fn improved(
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
