//! The budget planner where what is held may move. Invariant: its schedule is none slower than the
//! fastest that was found to move nothing; without a deadline, threads do not change it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::aside::Aside;
use crate::effort::{Effort, Meter};
use crate::fit::smallest::Laid;
use crate::fit::tiers::Tiered;
use crate::fit::{BudgetedPlanner, Terms, within};
use crate::machine::Route;
use crate::plan::{self, LOWEST, PlanError, Search};
use crate::schedule::{Residents, Schedule};
use crate::units::{Bytes, Seconds};

/// The part of the time for the bound: it is as good as it gets soon, and processors are few.
const PROOF: f64 = 0.2;

impl BudgetedPlanner<'_> {
    /// A schedule within the budget; beside it, on a second thread, what none of them beats.
    pub(super) fn found_and_proven(
        &mut self,
        budget: Bytes,
        meter: &mut Meter<'_>,
        terms: Terms<'_>,
        first: &mut Option<Seconds>,
    ) -> Result<Schedule, PlanError> {
        let (found, proven) = std::thread::scope(|scope| {
            let instance = self.instance;
            let effort = meter.round(terms.effort.work, PROOF);
            let prove = move || plan::lower_bound_with_moves(instance, budget, &effort);
            let prover = Aside::begin(scope, prove);
            let found = self.found(budget, meter, terms, first);
            // A thread that panicked leaves a weaker bound, and its message.
            (found, prover.end())
        });
        self.proven.extend(proven.map(|least| (budget, least)));
        found
    }

    /// The fastest schedule that is found within the budget; beside what moves, on a second thread,
    /// what moves nothing.
    pub(super) fn with_moves(
        &self,
        search: &mut Search<'_>,
        route: Route,
        (budget, meter): (Bytes, &Meter<'_>),
        terms: Terms<'_>,
        first: &mut Option<Seconds>,
    ) -> Result<Schedule, Box<Laid>> {
        let tiered = Tiered { instance: self.instance, residents: terms.residents, route };
        // What another schedule has away cannot stay.
        let is_possible = terms.residents.below.is_empty() && budget >= search.least_budget();
        let seconds = |schedule: &Schedule| tiered.seconds(schedule);
        let least = self.instance.seconds().0;
        // One that takes no longer than all first runs is enough: nobody looks further. Without a
        // deadline the same seed has to give the same schedule, whoever is first.
        let is_done = AtomicBool::new(false);
        let ends = |found: &Option<Schedule>| {
            let is_least = found.as_ref().is_some_and(|found| seconds(found) <= least);
            is_done.fetch_or(is_least && meter.has_deadline(), Relaxed);
        };
        let clock = || match is_done.load(Relaxed) {
            true => Seconds(f64::INFINITY),
            false => (terms.effort.clock)(),
        };
        let effort = Effort { clock: &clock, ..meter.round(terms.effort.work, 1.0) };
        let above = search.anew();
        let (stays, moves) = std::thread::scope(|scope| {
            let stays = is_possible.then(|| {
                Aside::begin(scope, || {
                    let mut first = None;
                    let terms = Terms { effort: &effort, ..terms };
                    let found = self.in_rounds(search, budget, terms, &mut first).ok();
                    ends(&found);
                    (found, first)
                })
            });
            let moves = tiered.within(&above, budget, None, &Meter::new(&effort));
            ends(&moves);
            // A thread that panicked leaves no schedule, and its message.
            let stays = stays.and_then(|stays| stays.end());
            (stays, moves)
        });
        let (stays, of_first) = stays.unwrap_or_default();
        *first = Some(of_first.unwrap_or(meter.elapsed()));
        // The first of several that are as fast: the one that moves nothing.
        let found = stays.into_iter().chain(moves);
        let fastest = found.min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        fastest.map_or_else(
            || {
                // As if the smallest had been asked for.
                let known = self.lowest_without_moves(search, terms.residents, meter);
                within(budget, tiered.smallest(search, known, budget, meter))
            },
            Ok,
        )
    }

    /// The smallest slab of a schedule that moves nothing; none where something has to.
    fn lowest_without_moves(
        &self,
        search: &mut Search<'_>,
        residents: &Residents,
        meter: &Meter<'_>,
    ) -> Option<Laid> {
        let may_stay = residents.below.is_empty();
        may_stay.then(|| self.lowest(search, Bytes::ZERO, residents, &meter.until(LOWEST)))
    }

    /// The smallest slab where what is held may move, and the fastest schedule in it.
    pub(super) fn smallest_with_moves(
        &self,
        search: &mut Search<'_>,
        route: Route,
        terms: Terms<'_>,
        meter: &Meter<'_>,
    ) -> Schedule {
        let tiered = Tiered { instance: self.instance, residents: terms.residents, route };
        let known = self.lowest_without_moves(search, terms.residents, meter);
        let (smallest, _) = tiered.smallest(search, known, Bytes::ZERO, meter);
        let slab = smallest.slab;
        let faster = tiered.within(search, slab, Some(smallest.clone()), meter);
        Schedule { budget: slab, slab, ..faster.unwrap_or(smallest) }
    }
}
