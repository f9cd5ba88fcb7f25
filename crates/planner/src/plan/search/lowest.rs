//! The plan with the smallest peak that is found, whatever it costs in seconds. Invariant: what is
//! reached depends on the graph, the order, the seed and the work alone, not on what was planned
//! before, nor on what is aimed at; more work contains all that less has found, and no planner's
//! smallest plan is lower.
//!
//! 1. *Cuts.* Bisection between what is reached and what is refuted, from the cuts that bind.
//! 2. *Peers*, on a second thread. What every other planner reaches with no budget at all.
//! 3. *Squeeze.* The lowest plan, repaired to ever less, until the effort is spent.
//!
//! `doc/theory/recompute.md` describes all of it.

use std::cmp::Reverse;

use fastrand::Rng;

use crate::effort::Effort;
use crate::graph::Graph;
use crate::id::NodeId;
use crate::plan::search::Search;
use crate::plan::search::attempt::Attempt;
use crate::plan::search::binding_instants::tight;
use crate::plan::search::peers::{PEERS, peer};
use crate::plan::search::quantity::ByteCount;
use crate::plan::search::squeeze::squeeze;
use crate::plan::search::state::State;
use crate::plan::{Plan, Planner};
use crate::profile::Profile;
use crate::units::Bytes;

/// Halvings of the distance between what is known to be feasible and what is not.
const BISECTIONS: usize = 12;
/// Work for each, per operator.
const BISECTION_WORK: u64 = 100;

/// The part of the effort within which a plan is found that a refusal may name.
const NAMED: f64 = 0.8;
/// Plans with small peaks that are worth a look for the smallest slab.
const SMALL_PLANS: usize = 8;

/// A search for the smallest peak. It goes on where it stopped.
pub struct Lowest<'a> {
    search: Search<'a>,
    graph: &'a Graph,
    profile: &'a Profile,
    order: Vec<NodeId>,
    /// Cuts and peers are done.
    has_begun: bool,
    random: Rng,
    /// The lowest plans of the peers.
    peers: Vec<Vec<NodeId>>,
    /// The plans that were known while there was effort to spare.
    named: Vec<Plan>,
}

impl<'a> Lowest<'a> {
    /// Nothing is known yet but the order itself.
    pub fn new(graph: &'a Graph, profile: &'a Profile, order: &[NodeId], seed: u64) -> Lowest<'a> {
        Lowest {
            search: Search::new(graph, profile, order),
            graph,
            profile,
            order: order.to_vec(),
            has_begun: false,
            random: Rng::with_seed(seed),
            peers: Vec::new(),
            named: Vec::new(),
        }
    }

    /// Goes on until a plan peaks at `target` or less, or until the effort is spent. The peers are
    /// a floor: they are heard whatever the effort.
    pub fn reach(&mut self, target: Bytes, effort: &Effort<'_>) -> bool {
        let mut attempt = Attempt::new(ByteCount::of(target), effort);
        if !self.has_begun {
            self.begin(&mut attempt);
            self.has_begun = true;
            self.name();
        }
        let least = self.search.least_budget();
        while self.peak() > target.max(least) && !attempt.meter.is_over() {
            let lowest = self.plan().runs();
            let (random, meter) = (&mut self.random, &mut attempt.meter);
            let limit = ByteCount::of(target);
            let runs = squeeze(self.graph, self.profile, &lowest, limit, random, meter);
            self.search.offer(runs);
            if !attempt.meter.until(NAMED).is_over() {
                self.name();
            }
        }
        self.peak() <= target
    }

    /// Of two plans the one that holds less may need the larger slab, so the peers' plans stay,
    /// too.
    fn name(&mut self) {
        let peers = self.peers.iter().map(|runs| Plan::of_runs(Planner::Auto, runs.clone()));
        self.named = self.plans().take(SMALL_PLANS).chain(peers).collect();
    }

    /// Cuts, and the peers beside them.
    fn begin(&mut self, attempt: &mut Attempt<'_>) {
        let (graph, profile, order) = (self.graph, self.profile, &self.order);
        let search = &mut self.search;
        let plans = std::thread::scope(|scope| {
            let mut meter = attempt.meter.above(Effort::FLOOR);
            let peers = scope.spawn(move || {
                let reach = |planner| peer(graph, profile, order, Bytes::ZERO, planner, &mut meter);
                PEERS.into_iter().filter_map(reach).collect::<Vec<_>>()
            });
            search.bisect(attempt);
            // A thread that panicked leaves fewer plans, and its message.
            peers.join().unwrap_or_default()
        });
        for runs in &plans {
            self.search.offer(runs.clone());
        }
        self.peers = plans;
    }

    /// The smallest peak so far.
    pub fn peak(&self) -> Bytes {
        self.search.found.first().map_or(Bytes::LIMIT, |found| found.peak)
    }

    /// The plan with that peak.
    pub fn plan(&self) -> Plan {
        self.plans().next().unwrap_or_else(|| Plan::of_runs(Planner::Auto, self.order.clone()))
    }

    /// Plans with small peaks, the smallest first; each is faster than the one before.
    pub fn plans(&self) -> impl Iterator<Item = Plan> {
        self.search.found.iter().map(|found| Plan::of_runs(Planner::Auto, found.runs.clone()))
    }

    /// The lowest of them, the smallest first, then the peers' own; but only what was found with
    /// effort to spare: who goes for one of their peaks with the same effort reaches it, even if
    /// the machine is somewhat slower then.
    pub fn named(&self) -> &[Plan] {
        &self.named
    }

    /// The lowest plans of the peers.
    pub fn peers(&self) -> &[Vec<NodeId>] {
        &self.peers
    }

    /// No schedule whatever needs less, by the cuts known so far.
    pub fn least_budget(&self) -> Bytes {
        self.search.least_budget()
    }
}

impl Search<'_> {
    /// Bisects between the largest peak that is refuted, or was not reached, and the smallest that
    /// is known.
    fn bisect(&mut self, attempt: &mut Attempt<'_>) {
        let mut refused = ByteCount::ZERO;
        for _ in 0..BISECTIONS {
            let reached = self.found.first().map_or(ByteCount::ZERO, |it| ByteCount::of(it.peak));
            let floor = ByteCount::of(self.least_budget()).max(refused);
            let target = floor + (reached - floor) / 2;
            if target >= reached || attempt.meter.is_over() {
                break;
            }
            attempt.limit = target;
            attempt.found.clear();
            let leg = attempt.meter.leg(BISECTION_WORK * self.given.len() as u64);
            attempt.under(leg, |attempt| self.lower_peak(attempt));
            if self.found.first().is_none_or(|found| ByteCount::of(found.peak) > target) {
                refused = target;
            }
        }
    }

    /// Looks for any plan within a budget: from the cuts that bind, and from the plan with the
    /// smallest peak.
    fn lower_peak(&mut self, attempt: &mut Attempt<'_>) {
        let limit = attempt.limit;
        for _ in 0..2 {
            let Some(lowest) = self.found.first().cloned() else { return };
            let peak = ByteCount::of(lowest.peak);
            let binding = tight(self.graph, self.profile, &lowest.runs, &self.given, peak);
            for at in binding.into_iter().take(2) {
                self.add_instant(at, attempt);
            }
            if self.finish_runs(&lowest.runs, attempt) || self.bound(limit.bytes()).is_none() {
                return;
            }
            let given = self.given.clone();
            let mut state = State::new(&given);
            let binding = self
                .instants
                .iter()
                .max_by_key(|instant| (instant.bound(limit), Reverse(instant.at)))
                .map(|instant| instant.at);
            if let Some(at) = binding {
                self.start_from(at, &mut state, attempt);
            }
            if self.found.first().is_some_and(|found| ByteCount::of(found.peak) <= limit)
                || attempt.meter.is_over()
            {
                return;
            }
        }
    }
}
