//! The budget planner: which nodes run again, when, and in which order everything runs, so that the
//! step is as fast as possible within a budget; and a proof of how fast it could be at best.
//! Invariant: every plan that leaves this module was simulated and fits; the bound holds for every
//! legal schedule in any order.
//!
//! A search knows one graph ([`Search`]) and plans it for one budget after another. Of a small
//! step, it tries every sequence. For each budget:
//!
//! 1. *Bound.* Minimum cuts at the instants that bind give a lower bound, and sets of operators to
//!    run again.
//! 2. *Starts.* Those sets, and others that are cheap to make, become plans: `repair` makes them
//!    fit, `polish` removes what is needless. The known plan that exceeds the budget least is a
//!    start too. The plans of all other planners are made at the same time; none of them can be
//!    better than the result.
//! 3. *Race.* The best starts are improved by large-neighbourhood search in short legs; after each
//!    leg the order that the plan really has becomes the one that is planned; the worse runners
//!    drop out. At the same time, on a second thread, branch and bound raises the bound.
//!
//! For the same budget or a slightly smaller one, a later call continues the race.
//! `doc/theory/recompute.md` describes all of it.

mod attempt;
mod binding_instants;
mod bound;
mod exhaustive;
mod lowest;
mod neighbourhood;
mod order;
mod peers;
mod prove;
mod race;
mod relieved;
mod repair;
mod squeeze;
mod starts;
mod state;

use std::cmp::Reverse;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::analysis::Sequence;
use crate::aside::Aside;
use crate::effort::{Effort, Meter};
use crate::id::NodeId;
use crate::plan::quantity::{ByteCount, Picoseconds};
use crate::plan::search::attempt::{Attempt, Runner};
pub use crate::plan::search::bound::BoundOrder;
use crate::plan::search::bound::Bounds;
use crate::plan::search::exhaustive::{Outcome, SmallStep};
pub use crate::plan::search::peers::{FLOORS, PEERS, lowest_of_peers, peer};
pub use crate::plan::search::prove::{lower_bound, lower_bound_with_moves};
pub use crate::plan::search::relieved::relieved;
use crate::plan::search::repair::{polish, repair};
use crate::plan::search::state::State;
use crate::plan::search::state::problem::{OpId, Problem};
use crate::plan::search::state::runs::{rebase, sequence};
use crate::plan::{Instance, Plan, Planner, needed_by_any};
use crate::tuning::exhaustive::MOST_UNKNOWN;
use crate::tuning::min_peak::NAMED;
use crate::tuning::starts::{INSTANTS, RESUMED};
use crate::units::{Bytes, Seconds};

/// A plan that moves nothing, and its time beyond that of all first runs.
#[derive(Clone, Debug)]
struct KnownPlan {
    plan: Plan,
    extra: Picoseconds,
}

impl KnownPlan {
    fn runs(&self) -> Vec<NodeId> {
        self.plan.runs()
    }
}

/// Where a search ended.
struct Stand {
    /// Its budget.
    limit: ByteCount,
    /// The runners still in the race.
    runners: Vec<Runner>,
    /// Whether the effort sufficed for all starts.
    has_started: bool,
}

/// What is known about one graph: lines of the bound, and plans.
pub struct Search<'a> {
    instance: Instance<'a>,
    given: Arc<Problem>,
    reordered: Arc<Problem>,
    bounds: Bounds,
    /// Plans that no other beats in both peak and time; by rising peak.
    found: Vec<KnownPlan>,
    /// Where the last search for a plan ended.
    last: Option<Stand>,
    /// No budget below this suffices: what any step needs, or more if the search for the smallest
    /// peak has shown that.
    refuted: Bytes,
    /// Sequences that other planners made, by their hashes.
    of_rules: Vec<(u64, Planner)>,
    /// The step, if it is small.
    small: Option<Arc<SmallStep>>,
    /// The number of budgets for which there were too many sequences to try.
    unknown: u32,
}

/// The answer for one budget.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The fastest plan that was found; `None` if none was.
    pub plan: Option<Plan>,
    /// No schedule takes less time; `None` if none fits.
    pub bound: Option<Seconds>,
    /// Time until the first plan was found.
    pub first: Seconds,
}

impl<'a> Search<'a> {
    /// Nothing is known yet beyond the order itself.
    pub fn new(instance: Instance<'a>) -> Search<'a> {
        let given = Arc::new(Problem::new(instance));
        let order = order::improved(&given);
        let reordered = Arc::new(Problem::new(Instance { order: &order, ..instance }));
        let small = SmallStep::new(instance.graph, &given).map(Arc::new);
        Search::of(instance, given, reordered, small)
    }

    /// A fresh search of the same step.
    pub(crate) fn fresh(&self) -> Search<'a> {
        let (given, reordered) = (self.given.clone(), self.reordered.clone());
        Search::of(self.instance, given, reordered, self.small.clone())
    }

    fn of(
        instance: Instance<'a>,
        given: Arc<Problem>,
        reordered: Arc<Problem>,
        small: Option<Arc<SmallStep>>,
    ) -> Search<'a> {
        let orders = [order_of(&given), order_of(&reordered)];
        let mut search = Search {
            instance,
            given,
            reordered,
            bounds: Bounds::default(),
            found: Vec::new(),
            last: None,
            refuted: needed_by_any(instance.graph, instance.profile, false),
            of_rules: Vec::new(),
            small,
            unknown: 0,
        };
        for order in orders {
            search.offer(instance.plan(Planner::Auto, order));
        }
        search
    }

    /// What is planned.
    pub(crate) fn instance(&self) -> Instance<'a> {
        self.instance
    }

    /// The number of operators.
    pub(in crate::plan) fn operators(&self) -> usize {
        self.given.len()
    }

    /// Whether the step is so small that all its sequences may be tried.
    pub(crate) fn is_small(&self) -> bool {
        self.small.is_some()
    }

    /// Time of all first runs.
    pub(in crate::plan) fn total(&self) -> Picoseconds {
        self.given.total
    }

    /// The fastest plan of a small step within a budget becomes known; false if none is found.
    fn exhaust(&mut self, limit: ByteCount) -> bool {
        let small = self.small.clone().filter(|_| self.unknown < MOST_UNKNOWN.get());
        match small.map(|small| small.fastest(self.instance, limit)) {
            Some(Outcome::Found(plan)) => {
                self.offer(plan);
                true
            }
            Some(Outcome::Unknown) => {
                self.unknown += 1;
                false
            }
            Some(Outcome::Impossible) | None => false,
        }
    }

    /// Plans one budget.
    pub fn plan(&mut self, budget: Bytes, effort: &Effort<'_>) -> Answer {
        self.exhaust(ByteCount::of(budget));
        let mut attempt = Attempt::new(ByteCount::of(budget), effort);
        let mut first = None;
        if self.best(budget).is_none_or(|best| best.extra > Picoseconds::ZERO) {
            self.recall(&mut attempt);
            let mut has_started = self.resume(&mut attempt);
            self.sharpen(&mut attempt);
            if !has_started && self.bound(budget).is_some() {
                self.starts(&mut attempt, &mut first);
                has_started = !attempt.meter.is_over();
            }
            if self.bound(budget).is_none() {
                return Answer { plan: None, bound: None, first: attempt.meter.elapsed() };
            }
            let runners = self.race_and_prove(&mut attempt);
            self.last = Some(Stand { limit: attempt.limit, runners, has_started });
        }
        let first = first.unwrap_or(attempt.meter.elapsed());
        let plan = self.fastest_within(budget).cloned();
        Answer { plan, bound: self.bound(budget), first }
    }

    /// The plan with the smallest peak that is found.
    pub fn lowest(&mut self, effort: &Effort<'_>) -> Plan {
        let instance = self.instance;
        let meter = Meter::new(effort);
        std::thread::scope(|scope| {
            let peers = Aside::begin(scope, || lowest_of_peers(instance, &meter, |_| {}));
            // If that thread panicked, its message was printed, and there are no plans of it.
            let peers = |_: &Search<'_>| peers.end().unwrap_or_default();
            let mut plans = self.smallest(effort, NAMED.get(), peers, |_| false);
            plans.swap_remove(0)
        })
    }

    /// Time that no schedule within the budget beats, by the cuts known so far; `None` if no
    /// schedule fits.
    pub fn bound(&self, budget: Bytes) -> Option<Seconds> {
        if budget < self.refuted {
            return None;
        }
        let least = self.bounds.within(ByteCount::of(budget))?;
        // Costs were rounded down to picoseconds, so the sum of both is below the time of every
        // schedule.
        Some((self.given.total + least).seconds())
    }

    /// No budget below this one suffices, by the cuts known so far.
    pub fn least_budget(&self) -> Bytes {
        let least = self.bounds.least_budget();
        least.unwrap_or(self.given.resting).bytes().max(self.refuted)
    }

    /// Makes a plan known, unless a known one is at least as good.
    pub fn offer(&mut self, plan: Plan) {
        let (peak, extra) = (plan.peak, self.extra(&plan));
        let is_worse = |other: &KnownPlan| other.plan.peak <= peak && other.extra <= extra;
        if !self.found.iter().any(is_worse) {
            self.found.retain(|other| other.plan.peak < peak || other.extra < extra);
            let slot = self.found.partition_point(|other| other.plan.peak < peak);
            let plan = Plan { planner: Planner::Auto, ..plan };
            self.found.insert(slot, KnownPlan { plan, extra });
        }
    }

    /// The same for a plan that another planner made.
    pub(in crate::plan) fn offer_of_rule(&mut self, plan: Plan) {
        self.of_rules.push((hash(&plan.sequence), plan.planner));
        self.offer(plan);
    }

    /// The planner that made exactly this sequence, the first of several; none if the search did.
    pub fn rule_of(&self, sequence: &Sequence) -> Option<Planner> {
        let own = hash(sequence);
        self.of_rules.iter().find(|(other, _)| *other == own).map(|&(_, planner)| planner)
    }

    /// Time of a plan beyond that of all first runs.
    pub(in crate::plan) fn extra(&self, plan: &Plan) -> Picoseconds {
        let seconds = &self.instance.profile.seconds;
        let runs = plan.runs().into_iter();
        let all: Picoseconds = runs.map(|node| Picoseconds::round_down(seconds[node])).sum();
        all - self.given.total
    }

    /// The fastest known plan within a budget.
    fn best(&self, budget: Bytes) -> Option<&KnownPlan> {
        self.found.iter().rev().find(|found| found.plan.peak <= budget)
    }

    /// The time of the fastest known plan within a budget, beyond that of all first runs.
    pub(in crate::plan) fn least_extra(&self, budget: Bytes) -> Option<Picoseconds> {
        self.best(budget).map(|best| best.extra)
    }

    /// All known plans, by rising peak.
    pub(crate) fn known(&self) -> impl Iterator<Item = &Plan> {
        self.found.iter().map(|known| &known.plan)
    }

    /// The peaks of all known plans, and their times.
    pub(in crate::plan) fn peaks(&self) -> Vec<(Bytes, Picoseconds)> {
        self.found.iter().map(|known| (known.plan.peak, known.extra)).collect()
    }

    /// The fastest known plan within a budget.
    pub(crate) fn fastest_within(&self, budget: Bytes) -> Option<&Plan> {
        self.best(budget).map(|best| &best.plan)
    }

    /// Repairs, polishes and offers what is in `state`.
    fn finish(&mut self, state: &mut State, attempt: &mut Attempt<'_>) -> bool {
        let fits = repair(state, attempt.limit, 0.0, &mut attempt.random, &mut attempt.meter);
        if fits {
            polish(state, attempt.limit, 0.0, &mut attempt.random, &mut attempt.meter);
        }
        attempt.meter.spend(std::mem::take(&mut state.work));
        if fits {
            let runs = sequence(state.problem, &state.events());
            self.offer(self.instance.plan(Planner::Auto, &runs));
            self.recall(attempt);
            attempt.push(state.extra(), runs);
        }
        fits
    }

    /// Notes the fastest known plan that fits.
    fn recall(&self, attempt: &mut Attempt<'_>) {
        if let Some(best) = self.best(attempt.limit.bytes()) {
            attempt.push(best.extra, best.runs());
        }
    }

    /// The same as [`Search::finish`] for a sequence of runs.
    fn finish_runs(&mut self, runs: &[NodeId], attempt: &mut Attempt<'_>) -> bool {
        let (problem, events) = rebase(self.instance, runs);
        let mut state = State::new(&problem);
        state.set(&events);
        self.finish(&mut state, attempt)
    }

    /// Makes the hulls of the instants that bind most exact at a budget.
    fn sharpen(&mut self, attempt: &mut Attempt<'_>) {
        let limit = attempt.limit;
        self.bounds.instants.sort_by_key(|instant| {
            (Reverse(instant.bound(limit).unwrap_or(Picoseconds::MAX)), instant.at)
        });
        for instant in self.bounds.instants.iter_mut().take(2 * INSTANTS.get()) {
            if attempt.meter.is_over() {
                return;
            }
            instant.solve(limit, &mut attempt.meter);
        }
    }

    /// Continues where the last search ended, if its budget was this one or a little more. Returns
    /// whether all starts were made then, and a plan is known now.
    fn resume(&mut self, attempt: &mut Attempt<'_>) -> bool {
        let limit = attempt.limit;
        let near =
            |last: &Stand| limit <= last.limit && last.limit - limit <= limit / RESUMED.get();
        let Some(last) = self.last.take().filter(near) else { return false };
        if limit == last.limit {
            last.runners.into_iter().for_each(|runner| attempt.push(runner.extra, runner.runs));
        } else {
            let given = self.given.clone();
            self.start_where_it_binds(&mut State::new(&given), attempt);
            for Runner { runs, .. } in last.runners {
                if attempt.meter.is_over() && attempt.best().is_some() {
                    break;
                }
                self.finish_runs(&runs, attempt);
            }
        }
        last.has_started && attempt.best().is_some()
    }

    fn add_instant(&mut self, at: OpId, attempt: &mut Attempt<'_>) {
        self.bounds.add(&self.given, at, attempt.limit, &mut attempt.meter);
    }

    /// Time of recomputation that no plan within the budget beats.
    fn floor(&self, limit: ByteCount) -> Picoseconds {
        self.bounds.floor(limit)
    }

    /// Time of the fastest known plan within a limit.
    fn best_extra(&self, limit: ByteCount) -> Picoseconds {
        self.least_extra(limit.bytes()).unwrap_or(Picoseconds::MAX)
    }

    /// Whether no plan within the budget is faster by more than a millionth of the step.
    pub(in crate::plan) fn is_optimal_within(&self, extra: Picoseconds, budget: Bytes) -> bool {
        self.is_optimal(extra, self.floor(ByteCount::of(budget)))
    }

    /// Whether no more than a millionth of the step can be gained.
    fn is_optimal(&self, extra: Picoseconds, floor: Picoseconds) -> bool {
        extra - floor <= self.given.total / 1_000_000
    }
}

/// Distinguishes sequences, unless one is constructed to look like another.
fn hash(sequence: &Sequence) -> u64 {
    let mut hasher = DefaultHasher::new();
    sequence.hash(&mut hasher);
    hasher.finish()
}

/// The nodes of a problem, in its order.
fn order_of(problem: &Problem) -> Vec<NodeId> {
    problem.ops.values().filter_map(|op| op.node).collect()
}
