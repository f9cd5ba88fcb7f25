//! The budget planner if what is held may move. Invariant: its schedule is no slower than the
//! fastest that was found to move nothing; without a deadline, the timing of threads does not
//! change it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::aside::Aside;
use crate::effort::{Effort, Meter};
use crate::fit::BudgetedPlanner;
use crate::fit::slab::{Laid, Slab};
use crate::fit::tiers::Tiered;
use crate::fit::turns::Turns;
use crate::machine::Route;
use crate::plan::{self, Plan, PlanError, Realize, Rounds, Search};
use crate::schedule::Schedule;
use crate::tuning::bound::WITH_MOVES;
use crate::tuning::turns::{FASTER, STAYING, UNTAKEN};
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
        self,
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
        // If nothing fits for a while, the budget counts as near the smallest from then on: without
        // moves, only the floor is still done, and nothing with moves.
        let (has_found, was_vain) = (AtomicBool::new(false), AtomicBool::new(false));
        let is_vain = || {
            let is_late = meter.has_deadline() && meter.share() > UNTAKEN.get();
            was_vain.fetch_or(is_late && !has_found.load(Relaxed), Relaxed);
            was_vain.load(Relaxed)
        };
        let now = |late: Seconds| match is_done.load(Relaxed) {
            true => Effort::INTERRUPTED,
            false if is_vain() => late.max((given.clock)()),
            false => (given.clock)(),
        };
        let (of_stays, of_moves) = (|| now(Effort::LATE), || now(Effort::INTERRUPTED));
        let effort = meter.round(given.work, 1.0);
        let of_stays = Effort { clock: &of_stays, ..effort };
        let of_moves = Effort { clock: &of_moves, ..effort };
        let above = search.fresh();
        let mut turns = Turns::new::<Slab<'_>>(budget);
        let (stays, moves) = std::thread::scope(|scope| {
            let stays = is_possible.then(|| {
                Aside::begin(scope, || {
                    let mut noting = Noting { slab: self, has_found: &has_found };
                    let rounds = Rounds::new(search, budget, &mut noting).run(&of_stays);
                    let found = rounds.made.ok();
                    ends(&found);
                    (found, rounds.first)
                })
            });
            let mut noting = Noting { slab: self, has_found: &has_found };
            let meter = Meter::new(&of_moves);
            let moves = tiered.within(&mut turns, &above, None, &mut noting, &meter);
            ends(&moves);
            // If that thread panicked, its message was printed, and there is no schedule of it.
            let stays = stays.and_then(|stays| stays.end());
            (stays, moves)
        });
        let (stays, of_first) = stays.unzip();
        let elapsed = meter.elapsed();
        *first = Some(of_first.filter(|&it| it < elapsed).unwrap_or(elapsed));
        // Of equally fast ones the first, which moves nothing.
        let found = stays.flatten().into_iter().chain(moves);
        let fastest = found.min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        match fastest {
            Some(fastest) if was_vain.load(Relaxed) => {
                let known = Some(fastest.clone());
                let faster = tiered.within(&mut turns, search, known, &mut { self }, meter);
                Ok(faster.map_or(fastest, |faster| Schedule { budget, ..faster }))
            }
            Some(fastest) => Ok(fastest),
            None => {
                let left = meter.round(given.work, 1.0);
                self.near_smallest(search, &tiered, (budget, &mut turns), &Meter::new(&left))
            }
        }
    }

    /// The fastest schedule within a budget that is near the smallest, which is looked for first,
    /// as if it had been requested.
    fn near_smallest(
        &self,
        search: &mut Search<'_>,
        tiered: &Tiered<'_>,
        (budget, turns): (Bytes, &mut Turns),
        meter: &Meter<'_>,
    ) -> Result<Schedule, Box<Laid>> {
        let stays = |search: &mut Search<'_>| self.lowest_without_moves(search, meter);
        let (smallest, plan) = tiered.smallest(search, stays, budget, meter);
        let (mut slab, known) = (*self, Some(smallest.clone()));
        if smallest.slab <= budget {
            let faster = tiered.within(turns, search, known, &mut slab, meter);
            return Ok(Schedule { budget, ..faster.unwrap_or(smallest) });
        }
        // A faster schedule within the smallest slab may have a smaller one.
        let effort = meter.round(meter.effort().work, FASTER.get());
        let within = &mut Turns::new::<Slab<'_>>(smallest.slab);
        let faster = tiered.within(within, search, known, &mut slab, &Meter::new(&effort));
        let found = faster.unwrap_or(smallest);
        if found.slab <= budget {
            return Ok(Schedule { budget, ..found });
        }
        let last = tiered.within(turns, search, None, &mut slab, meter);
        last.ok_or_else(|| Box::new((found, plan)))
    }

    /// The smallest slab of a schedule that moves nothing; absent if something has to move.
    fn lowest_without_moves(&self, search: &mut Search<'_>, meter: &Meter<'_>) -> Option<Laid> {
        let may_stay = self.residents.below.is_empty();
        let effort = meter.round(meter.effort().work, STAYING.get());
        may_stay.then(|| self.lowest(search, Bytes::ZERO, &Meter::new(&effort)))
    }

    /// The fastest schedule in the smallest slab that is found if what is held may move. Its budget
    /// is that slab, which does not depend on measured rates; its own may be smaller.
    pub fn smallest_with_moves(
        &self,
        search: &mut Search<'_>,
        route: Route,
        meter: &Meter<'_>,
    ) -> Schedule {
        let tiered = Tiered { slab: *self, route };
        let stays = |search: &mut Search<'_>| self.lowest_without_moves(search, meter);
        let (smallest, _) = tiered.smallest(search, stays, Bytes::ZERO, meter);
        let (budget, known) = (smallest.slab, Some(smallest.clone()));
        let turns = &mut Turns::new::<Slab<'_>>(budget);
        let faster = tiered.within(turns, search, known, &mut { *self }, meter);
        Schedule { budget, ..faster.unwrap_or(smallest) }
    }
}

/// A slab that notes whether any plan fitted.
struct Noting<'a, 'f> {
    slab: Slab<'a>,
    has_found: &'f AtomicBool,
}

impl Realize for Noting<'_, '_> {
    type Made = Schedule;
    type Refusal = Box<Laid>;
    const MAY_MISS: bool = true;

    fn realize(
        &mut self,
        plan: &Plan,
        budget: Bytes,
        effort: &Effort<'_>,
    ) -> Result<Schedule, Bytes> {
        let made = self.slab.realize(plan, budget, effort);
        self.has_found.fetch_or(made.is_ok(), Relaxed);
        made
    }

    fn smallest(
        &mut self,
        search: &mut Search<'_>,
        budget: Bytes,
        meter: &Meter<'_>,
    ) -> Result<(Plan, Schedule), Box<Laid>> {
        let made = self.slab.smallest(search, budget, meter);
        self.has_found.fetch_or(made.is_ok(), Relaxed);
        made
    }
}
