//! The race: the best starts are improved side by side, in short legs, while a second thread raises
//! the bound. Invariant: what a runner has reached is offered to the search after each leg, and
//! with a limit of work alone nothing that the second thread finds changes the race.

use crate::aside::Aside;
use crate::plan::Planner;
use crate::plan::quantity::Picoseconds;
use crate::plan::search::Search;
use crate::plan::search::attempt::{Attempt, Runner};
use crate::plan::search::binding_instants::tight;
use crate::plan::search::neighbourhood::improve;
use crate::plan::search::prove::{SharedBounds, prove};
use crate::plan::search::repair::{polish, repair};
use crate::plan::search::starts::just_in_time;
use crate::plan::search::state::State;
use crate::plan::search::state::problem::Problem;
use crate::plan::search::state::runs::{rebase, sequence};
use crate::tuning::bound::PREPARATION;
use crate::tuning::race::{DROPPED, LEGS, NEWCOMERS, RUNNERS};

impl Search<'_> {
    /// Improves the best starts; on a second thread, raises the bound, whose cuts are further
    /// starts. Returns the runners still in the race.
    pub(super) fn race_and_prove(&mut self, attempt: &mut Attempt<'_>) -> Vec<Runner> {
        let limit = attempt.limit;
        if attempt.meter.is_over()
            || attempt.best().is_some_and(|best| self.is_optimal(best, self.floor(limit)))
        {
            return std::mem::take(&mut attempt.found);
        }
        let best = self.best(limit.bytes()).cloned();
        let waiting = best
            .as_ref()
            .map_or(Vec::new(), |best| tight(self.instance, &best.runs(), &self.given, limit));
        let enough = best.map_or(Picoseconds::MAX, |best| best.extra);
        let (given, floor) = (self.given.clone(), self.floor(limit));
        let mut bounds = std::mem::take(&mut self.bounds);
        // When the other thread's bounds arrive is left to chance: if the same seed has to give the
        // same plan, they are not used.
        let shared = attempt.meter.has_deadline().then(|| SharedBounds::new(floor, enough));
        let runners = std::thread::scope(|scope| {
            let mut prover = attempt.meter.clone();
            let (bounds, given, shared) = (&mut bounds, &given, shared.as_ref());
            let prover = Aside::begin(scope, move || {
                let mut preparation = prover.until(PREPARATION.get());
                for &at in &waiting {
                    bounds.add_last(given, at, limit, &mut preparation);
                }
                for &at in &waiting {
                    bounds.add(given, at, limit, &mut preparation);
                }
                prove(given, bounds, limit, enough, shared, &mut prover);
            });
            let runners = self.race(attempt, given, shared, floor);
            // If that thread panicked, its message was printed, and the bound is weaker.
            prover.end();
            runners
        });
        self.bounds = bounds;
        runners
    }

    /// Improves the best starts side by side; the worse ones drop out.
    fn race(
        &mut self,
        attempt: &mut Attempt<'_>,
        given: &Problem,
        shared: Option<&SharedBounds>,
        mut floor: Picoseconds,
    ) -> Vec<Runner> {
        let limit = attempt.limit;
        let mut state = State::new(given);
        let mut runners = std::mem::take(&mut attempt.found);
        runners.sort_by_key(|runner| runner.extra);
        runners.truncate(RUNNERS.get());
        'race: while !runners.is_empty() {
            let share = if runners.len() == 1 { 1 } else { DROPPED.get() };
            let work = attempt.meter.left() / ((share * runners.len()) as u64 * LEGS.get());
            for runner in &mut runners {
                for _ in 0..LEGS.get() {
                    if let Some(shared) = shared {
                        for (at, late) in shared.sets() {
                            just_in_time(&mut state, at, &late);
                            self.finish(&mut state, attempt);
                        }
                        floor = floor.max(shared.offer_plan(self.best_extra(limit)));
                    }
                    if attempt.meter.is_over() || self.is_optimal(self.best_extra(limit), floor) {
                        break 'race;
                    }
                    self.leg(runner, work.max(1), floor, attempt);
                }
            }
            runners.sort_by_key(|runner| runner.extra);
            runners.truncate(runners.len().div_ceil(DROPPED.get()));
            attempt.found.sort_by_key(|found| found.extra);
            runners.extend(attempt.found.drain(..).take(NEWCOMERS.get()));
        }
        let best =
            self.best(limit.bytes()).map(|best| Runner { extra: best.extra, runs: best.runs() });
        best.into_iter().chain(runners).collect()
    }

    /// One leg of one runner.
    fn leg(
        &mut self,
        runner: &mut Runner,
        work: u64,
        floor: Picoseconds,
        attempt: &mut Attempt<'_>,
    ) {
        let Attempt { limit, random, meter, .. } = attempt;
        let (problem, events) = rebase(self.instance, &runner.runs);
        let mut state = State::new(&problem);
        state.set(&events);
        meter.spend(problem.len() as u64);
        if !repair(&mut state, *limit, 0.0, random, meter) {
            return;
        }
        polish(&mut state, *limit, 0.0, random, meter);
        improve(&mut state, *limit, random, meter, work, floor);
        runner.runs = sequence(&problem, &state.events());
        let plan = self.instance.plan(Planner::Auto, &runner.runs);
        runner.extra = self.extra(&plan);
        self.offer(plan);
    }
}
