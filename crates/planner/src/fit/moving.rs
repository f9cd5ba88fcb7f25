//! The budget planner if what is held may move. Invariant: its schedule is no slower than the
//! fastest that was found to move nothing; without a deadline, the timing of threads does not
//! change it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::aside::Aside;
use crate::effort::{Effort, Meter};
use crate::fit::BudgetedPlanner;
use crate::fit::slab::{Laid, Slab, within};
use crate::fit::tiers::Tiered;
use crate::machine::Route;
use crate::plan::{self, PlanError, Rounds, Search};
use crate::schedule::Schedule;
use crate::tuning::bound::WITH_MOVES;
use crate::tuning::min_slab::SMALLEST;
use crate::units::{Bytes, Seconds};

impl BudgetedPlanner<'_> {
    /// A schedule within the budget; at the same time, a second thread proves a bound for the
    /// budget.
    pub(super) fn found_and_proven(
        &mut self,
        route: Route,
        budget: Bytes,
        meter: &mut Meter<'_>,
        first: &mut Option<Seconds>,
    ) -> Result<Schedule, PlanError> {
        let (found, proven) = std::thread::scope(|scope| {
            let instance = self.slab.instance;
            let effort = meter.round(meter.effort().work, WITH_MOVES.get());
            let prove = move || plan::lower_bound_with_moves(instance, budget, &effort);
            let prover = Aside::begin(scope, prove);
            let (rule, slab) = (self.rule(), self.slab);
            let found = match &mut self.search {
                Some(search) => slab
                    .with_moves(search, route, budget, meter, first)
                    .map_err(|smallest| self.refusal(budget, *smallest)),
                None => rule.fit(budget, meter, first),
            };
            // If that thread panicked, its message was printed, and the bound is weaker.
            (found, prover.end())
        });
        self.proven.extend(proven.map(|least| (budget, least)));
        found
    }
}

impl Slab<'_> {
    /// The fastest schedule that is found within the budget; a second thread looks for schedules
    /// that move nothing.
    fn with_moves(
        mut self,
        search: &mut Search<'_>,
        route: Route,
        budget: Bytes,
        meter: &Meter<'_>,
        first: &mut Option<Seconds>,
    ) -> Result<Schedule, Box<Laid>> {
        let given = meter.effort();
        let tiered = Tiered { slab: self, route };
        // What another schedule keeps in the tier below cannot stay on the device.
        let is_possible = self.residents.below.is_empty() && budget >= search.least_budget();
        let seconds = |schedule: &Schedule| tiered.seconds(schedule);
        let least = self.instance.seconds().0;
        // A schedule that takes no longer than all first runs ends both searches; not so without a
        // deadline, when the same seed has to give the same schedule, whichever thread is first.
        let is_done = AtomicBool::new(false);
        let ends = |found: &Option<Schedule>| {
            let is_least = found.as_ref().is_some_and(|found| seconds(found) <= least);
            is_done.fetch_or(is_least && meter.has_deadline(), Relaxed);
        };
        let clock = || match is_done.load(Relaxed) {
            true => Seconds(f64::INFINITY),
            false => (given.clock)(),
        };
        let effort = Effort { clock: &clock, ..meter.round(given.work, 1.0) };
        let above = search.fresh();
        let (stays, moves) = std::thread::scope(|scope| {
            let stays = is_possible.then(|| {
                Aside::begin(scope, || {
                    let rounds = Rounds::new(search, budget, &mut self).run(&effort);
                    let found = rounds.made.ok();
                    ends(&found);
                    (found, rounds.first)
                })
            });
            let moves = tiered.within(&above, budget, None, &Meter::new(&effort));
            ends(&moves);
            // If that thread panicked, its message was printed, and there is no schedule of it.
            let stays = stays.and_then(|stays| stays.end());
            (stays, moves)
        });
        let (stays, of_first) = stays.unzip();
        *first = Some(of_first.unwrap_or(meter.elapsed()));
        // Of equally fast ones the first, which moves nothing.
        let found = stays.flatten().into_iter().chain(moves);
        let fastest = found.min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        fastest.map_or_else(
            || {
                // As if the smallest slab had been requested.
                let known = self.lowest_without_moves(search, meter);
                within(budget, tiered.smallest(search, known, budget, meter))
            },
            Ok,
        )
    }

    /// The smallest slab of a schedule that moves nothing; absent if something has to move.
    fn lowest_without_moves(&self, search: &mut Search<'_>, meter: &Meter<'_>) -> Option<Laid> {
        let may_stay = self.residents.below.is_empty();
        may_stay.then(|| self.lowest(search, Bytes::ZERO, &meter.until(SMALLEST.get())))
    }

    /// The fastest schedule in the smallest slab that is found if what is held may move.
    pub fn smallest_with_moves(
        &self,
        search: &mut Search<'_>,
        route: Route,
        meter: &Meter<'_>,
    ) -> Schedule {
        let tiered = Tiered { slab: *self, route };
        let known = self.lowest_without_moves(search, meter);
        let (smallest, _) = tiered.smallest(search, known, Bytes::ZERO, meter);
        let slab = smallest.slab;
        let faster = tiered.within(search, slab, Some(smallest.clone()), meter);
        Schedule { budget: slab, slab, ..faster.unwrap_or(smallest) }
    }
}
