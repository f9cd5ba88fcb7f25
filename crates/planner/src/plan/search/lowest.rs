//! The plan with the smallest peak that is found, whatever it costs in seconds. Invariant: what is
//! reached depends on the graph, the order, the seed and the work alone, neither on what was
//! planned before nor on any budget; more work finds all that less work finds, and no planner's
//! smallest plan is lower.
//!
//! 1. *Cuts.* Bisection between what is reached and what is refuted, from the cuts that bind; if
//!    there is a deadline, in a share of the time, whatever work that is. Of a small step, then all
//!    sequences.
//! 2. *Peers*, on a second thread. What every other planner reaches for a budget of zero.
//! 3. *Squeeze.* The lowest plan, repaired to ever less, until the effort is spent.
//!
//! `doc/theory/recompute.md` describes all of it.

use fastrand::Rng;

use crate::effort::Effort;
use crate::plan::quantity::ByteCount;
use crate::plan::search::attempt::Attempt;
use crate::plan::search::binding_instants::tight;
use crate::plan::search::bound::BoundOrder;
use crate::plan::search::squeeze::squeeze;
use crate::plan::search::state::State;
use crate::plan::search::{KnownPlan, Search};
use crate::plan::{Plan, Planner};
use crate::tuning::min_peak::{BISECTION_WORK, BISECTIONS, NAMED, SMALL_PLANS};
use crate::tuning::rounds::FIRST_ROUND;

/// The search for small peaks.
struct Lowest<'a> {
    search: Search<'a>,
    random: Rng,
    /// Plans that a refusal may name.
    named: Vec<Plan>,
}

impl<'a> Search<'a> {
    /// Plans with small peaks, the smallest first; but only what is found with effort to spare, so
    /// that a search for one of their peaks with the same effort reaches it even if the machine is
    /// half as fast then. All that is found becomes known.
    ///
    /// If there is a deadline, the cuts have this share of the time.
    ///
    /// `peers` is given what they found, and waits for the plans of
    /// [`super::lowest_of_peers`], which are a floor: they are used whatever the effort. If the
    /// lowest plan of cuts and peers is small enough, nothing is squeezed.
    pub fn smallest(
        &mut self,
        effort: &Effort<'_>,
        share: f64,
        peers: impl FnOnce(&Search<'_>) -> Vec<Plan>,
        is_enough: impl FnOnce(&Plan) -> bool,
    ) -> Vec<Plan> {
        let mut lowest =
            Lowest { search: self.fresh(), random: Rng::with_seed(effort.seed), named: Vec::new() };
        // A request for a budget has a first round whatever the effort.
        let work = effort.work.max(FIRST_ROUND.get() * self.given.len() as u64);
        let effort = Effort { work, ..*effort };
        lowest.go(&mut Attempt::new(ByteCount::ZERO, &effort), share, peers, is_enough);
        self.learn(lowest.search);
        lowest.named
    }

    /// Takes over what another search of the same step has found.
    pub fn learn(&mut self, other: Search<'_>) {
        self.refuted = self.refuted.max(other.least_budget());
        for known in other.found {
            self.offer(known.plan);
        }
        self.of_rules.extend(other.of_rules);
    }
}

impl Lowest<'_> {
    fn go(
        &mut self,
        attempt: &mut Attempt<'_>,
        share: f64,
        peers: impl FnOnce(&Search<'_>) -> Vec<Plan>,
        is_enough: impl FnOnce(&Plan) -> bool,
    ) {
        // The other planners take their time anyway, so the work of the cuts is no limit then.
        let meter = match attempt.meter.has_deadline() {
            true => attempt.meter.until(share).by_time(),
            false => attempt.meter.clone(),
        };
        attempt.under(meter, |attempt| self.search.bisect(attempt));
        self.search.exhaust_lowest();
        let of_peers = peers(&self.search);
        for plan in of_peers {
            self.search.offer_of_rule(plan);
        }
        self.name();
        if self.named.first().is_some_and(is_enough) {
            return;
        }
        let least = self.search.least_budget();
        while !attempt.meter.is_over() {
            let Some(lowest) = self.search.found.first().filter(|found| found.plan.peak > least)
            else {
                return;
            };
            let (random, meter) = (&mut self.random, &mut attempt.meter);
            let runs = squeeze(self.search.instance, &lowest.runs(), random, meter);
            self.search.offer(self.search.instance.plan(Planner::Auto, runs));
            if !attempt.meter.until(NAMED.get()).is_over() {
                self.name();
            }
        }
    }

    /// Names several plans: of two, the one that holds less may need the larger slab.
    fn name(&mut self) {
        let found = self.search.found.iter().take(SMALL_PLANS.get());
        self.named = found.map(|found| found.plan.clone()).collect();
    }
}

impl Search<'_> {
    /// Plans of a small step become known that hold ever less, by bisection.
    fn exhaust_lowest(&mut self) {
        let mut refused = ByteCount::of(self.least_budget());
        while self.small.is_some()
            && let Some(reached) = self.found.first().map(|it| ByteCount::of(it.plan.peak))
            && refused < reached
        {
            let target = refused + (reached - refused) / 2;
            let is_low = |it: &KnownPlan| ByteCount::of(it.plan.peak) <= target;
            if !self.exhaust(target) || !self.found.first().is_some_and(is_low) {
                refused = target + ByteCount(1);
            }
        }
    }

    /// Bisects between the largest peak that is refuted, or was not reached, and the smallest that
    /// is known.
    fn bisect(&mut self, attempt: &mut Attempt<'_>) {
        let mut refused = ByteCount::ZERO;
        for number in 0..BISECTIONS.get() {
            let reached =
                self.found.first().map_or(ByteCount::ZERO, |it| ByteCount::of(it.plan.peak));
            let floor = ByteCount::of(self.least_budget()).max(refused);
            // What is proven to be needed may suffice.
            let target = if number == 0 { floor } else { floor + (reached - floor) / 2 };
            if target >= reached || attempt.meter.is_over() {
                break;
            }
            attempt.limit = target;
            attempt.found.clear();
            let leg = attempt.meter.leg(BISECTION_WORK.get() * self.given.len() as u64);
            attempt.under(leg, |attempt| self.lower_peak(attempt));
            if self.found.first().is_none_or(|found| ByteCount::of(found.plan.peak) > target) {
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
            let (runs, peak) = (lowest.runs(), ByteCount::of(lowest.plan.peak));
            let binding = tight(self.instance, &runs, &self.given, peak);
            for at in binding.into_iter().take(2) {
                self.add_instant(at, attempt);
            }
            if self.finish_runs(&runs, attempt) || self.bound(limit.bytes()).is_none() {
                return;
            }
            let given = self.given.clone();
            let mut state = State::new(&given);
            if let Some(at) = self.binding(BoundOrder::Any, limit) {
                self.start_from((BoundOrder::Any, at), &mut state, attempt);
            }
            if self.found.first().is_some_and(|found| ByteCount::of(found.plan.peak) <= limit)
                || attempt.meter.is_over()
            {
                return;
            }
        }
    }
}
