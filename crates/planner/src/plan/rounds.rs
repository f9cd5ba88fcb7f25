//! One budget, planned in rounds: a faster plan is searched for and realized, and the next round
//! learns from the result. Invariant: what a round does depends on the rounds before it, not on how
//! much of the effort is left; so more work finds all that less work finds, and the answer is the
//! fastest of all plans that were realized.
//!
//! A first plan is made at once, for so much less than the budget that its addresses are quickly
//! found. A round then searches for a faster plan, usually with three times the work of the round
//! before, and realizes it: gives it addresses, for example. If it does not fit, the number of
//! missing bytes is known. Then a slightly smaller budget is planned, because a little slack makes
//! packing much easier.
//!
//! If a round with much work finds nothing new, the race starts over, once, from plans with small
//! peaks.
//!
//! If nothing fits for a while, or nothing new is found, the rounds stop, and the smallest plan is
//! searched for instead, as if that had been requested. Once that fits the budget, the rounds
//! continue from there.
//!
//! The floor is done whatever the effort: a first plan, then a first round and, at the same time,
//! the plans of all other planners.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;

use crate::aside::Aside;
use crate::effort::{Effort, Meter};
use crate::plan::quantity::Picoseconds;
use crate::plan::realize::{Realize, Unplaced};
use crate::plan::search::{PEERS, Search, peer};
use crate::plan::{Infeasible, Plan, Planner};
use crate::tuning::rounds::{
    ADDRESSES, FASTEST, FIRST_MORE, FIRST_ROUND, FIRST_SHARE, FIRST_TRIES, FRUITLESS, GROWTH, LAST,
    LEAST_GAIN, LEAST_LAST, LEAST_LESS, MORE_THAN_MISSING, MOST_ADDRESSES, MOST_FIRST, MOST_LAST,
    NODES_OF_LAST, SLACK, START_OVER, STOP, STOP_OFFERS, UNTAKEN,
};
use crate::units::{Bytes, Seconds};

/// How rounds ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The effort was spent, or nothing is left to find.
    InOrder,
    /// The same plans came again and again, and the fastest of them do not fit.
    Fruitless,
    /// Without a deadline, after a first round in which no plan fitted: with less work none might
    /// have fitted at all.
    Late,
}

/// The outcome for a budget.
pub struct InRounds<T, R> {
    /// The result of the fastest plan that fits; or the refusal.
    pub made: Result<T, R>,
    /// Time until the first plan was found.
    pub first: Seconds,
    /// The plans that fitted, each faster than the one before.
    pub improvements: Vec<Improvement>,
}

/// A plan that fits was found, faster than all before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Improvement {
    /// When, by the effort's clock.
    pub at: Seconds,
    /// How long the step takes.
    pub seconds: Seconds,
}

/// A budget, and what was found for it.
pub struct Rounds<'r, 'a, R: Realize> {
    search: &'r mut Search<'a>,
    budget: Bytes,
    realize: &'r mut R,
    /// The fastest plan that fits: its time beyond that of all first runs, and its result.
    best: Option<(Picoseconds, R::Made)>,
    /// Times of plans that did not fit when first tried.
    refused: Vec<Picoseconds>,
    /// Time until the first plan was found.
    first: Option<Seconds>,
    improvements: Vec<Improvement>,
}

/// The fastest plan within a budget, wherever tensors are placed.
///
/// # Errors
/// If not even the smallest plan that is found is within it.
pub fn fastest(
    search: &mut Search<'_>,
    budget: Bytes,
    effort: &Effort<'_>,
) -> Result<Plan, Box<Infeasible>> {
    Rounds::new(search, budget, &mut Unplaced).run(effort).made
}

impl<'r, 'a, R: Realize> Rounds<'r, 'a, R> {
    /// Nothing is found yet.
    pub fn new(search: &'r mut Search<'a>, budget: Bytes, realize: &'r mut R) -> Self {
        Rounds {
            search,
            budget,
            realize,
            best: None,
            refused: Vec::new(),
            first: None,
            improvements: Vec::new(),
        }
    }

    /// All rounds, beginning with the floor; the smallest plan if nothing else fits.
    pub fn run(mut self, effort: &Effort<'_>) -> InRounds<R::Made, R::Refusal> {
        // The floor is a list of things to do, not an amount of work.
        let meter = Meter::new(effort).uncounted();
        let mut heard = Vec::new();
        self.first_plan(&meter);
        let ended = self.with_peers(effort, &meter, &mut heard);
        let fits = self.best.is_some();
        let until = if fits { 1.0 } else { STOP_OFFERS.get() };
        let offers = meter.rest_until(until);
        self.offer_known(&Effort { work: 0, ..offers });
        if !self.refused.is_empty() {
            let earnest = Effort { work: effort.work, ..offers };
            self.offer_all(&heard, &earnest);
            self.press(heard, &earnest);
        }
        if self.best.is_none() || ended != Ended::InOrder {
            let restarted = self.restart(&meter);
            if let (Err(refused), None) = (restarted, &self.best) {
                return self.ended(Err(refused), &meter);
            }
        } else if !fits {
            self.go_on(&meter);
        }
        let (_, made) = self.best.take().expect("a plan that fits stays until a better one does");
        self.ended(Ok(made), &meter)
    }

    fn ended(
        self,
        made: Result<R::Made, R::Refusal>,
        meter: &Meter<'_>,
    ) -> InRounds<R::Made, R::Refusal> {
        let first = self.first.unwrap_or(meter.elapsed());
        InRounds { made, first, improvements: self.improvements }
    }

    /// A plan at once: one that is quickly made, for ever less than the budget until the simplest
    /// way to choose addresses suffices. Better ones come later.
    fn first_plan(&mut self, meter: &Meter<'_>) {
        let most = MOST_FIRST.get() * self.search.operators() as u64;
        let mut slack = Bytes::ZERO;
        for _ in 0..FIRST_TRIES.get() {
            let aim = self.budget.saturating_sub(slack);
            let effort = meter.until(FIRST_SHARE.get()).round(most, 1.0);
            let Some(plan) = self.search.first_plan(aim, &effort) else { return };
            self.first.get_or_insert(meter.elapsed());
            match self.offer(&plan, &self.part(meter, 0)) {
                // That of another planner is soon improved.
                Ok(()) if self.search.rule_of(&plan.sequence).is_some() => {
                    if let Some(plan) = self.search.second_plan(aim, &effort) {
                        // If it does not fit at once, it may fit later.
                        let _ = self.offer(&plan, &self.part(meter, 0));
                    }
                    return;
                }
                Ok(()) => return,
                Err(missing) => {
                    let more = Bytes(missing.0 / FIRST_MORE.get());
                    slack = (missing + more).max(slack + slack);
                }
            }
        }
    }

    /// The first rounds, while the other planners make their plans on a second thread.
    fn with_peers(
        &mut self,
        effort: &Effort<'_>,
        meter: &Meter<'_>,
        heard: &mut Vec<Plan>,
    ) -> Ended {
        let (instance, budget) = (self.search.instance(), self.budget);
        // If nothing fits, the other planners get no more than their floor.
        let is_over = AtomicBool::new(false);
        let clock = || match (effort.clock)() {
            now if now.0.is_finite() && is_over.load(Relaxed) => Effort::LATE,
            now => now,
        };
        let of_peers = Effort { clock: &clock, ..*effort };
        std::thread::scope(|scope| {
            let (send, peers) = mpsc::channel();
            if self.search.least_extra(budget).is_none_or(|extra| extra > Picoseconds::ZERO) {
                let mut clock = Meter::new(&of_peers).uncounted().above(effort.floor_beside);
                Aside::begin(scope, move || {
                    for planner in PEERS {
                        let is_interrupted = clock.elapsed().0.is_infinite();
                        let plan = peer(instance, budget, planner, &mut clock);
                        if is_interrupted || send.send(plan).is_err() {
                            return;
                        }
                    }
                });
            } else {
                drop(send);
            }
            if !meter.has_deadline() {
                // Nothing may depend on how fast the peers are.
                self.hear(peers.iter(), heard);
            }
            let mut turns = match meter.has_deadline() {
                true => meter.until(1.0 - LAST.get()),
                false => meter.clone(),
            };
            let ended = self.rounds(&mut turns, |rounds| rounds.hear(peers.try_iter(), heard));
            is_over.store(self.best.is_none(), Relaxed);
            self.hear(peers.into_iter(), heard);
            ended
        })
    }

    /// Further rounds, from a plan that fits and its result.
    pub fn go_on_from(mut self, known: &Plan, made: R::Made, effort: &Effort<'_>) {
        self.best = Some((self.search.extra(known), made));
        self.search.offer(known.clone());
        self.go_on(&Meter::new(effort).uncounted());
    }

    /// Starts again from the smallest plan, apart from what was found; the better of both stays.
    fn restart(&mut self, meter: &Meter<'_>) -> Result<(), R::Refusal> {
        let (plan, made) = self.realize.smallest(self.search, self.budget, meter)?;
        let extra = self.search.extra(&plan);
        let found = self.best.replace((extra, made));
        self.note(extra, meter.now());
        let refused = std::mem::take(&mut self.refused);
        self.search.offer(plan);
        self.first.get_or_insert(meter.elapsed());
        self.go_on(meter);
        self.refused = refused;
        if let Some(found) = found
            && let Some((extra, _)) = self.best
            && !self.is_gain(extra, found.0)
        {
            self.best = Some(found);
        }
        Ok(())
    }

    /// Further rounds, from what fits.
    fn go_on(&mut self, meter: &Meter<'_>) {
        if !meter.would_exceed(self.first_round()) {
            self.rounds(&mut meter.clone(), |_| {});
            self.offer_known(&meter.round(0, 1.0));
        }
    }

    /// Work of the first round.
    fn first_round(&self) -> u64 {
        FIRST_ROUND.get() * self.search.operators() as u64
    }

    /// Makes plans of other planners known.
    fn hear(&mut self, plans: impl Iterator<Item = Option<Plan>>, heard: &mut Vec<Plan>) {
        for plan in plans.flatten() {
            self.search.offer_of_rule(plan.clone());
            heard.push(plan);
        }
    }

    /// Whether a plan of this time is worth realizing.
    fn wants(&self, extra: Picoseconds) -> bool {
        self.best.as_ref().is_none_or(|&(least, _)| self.is_gain(extra, least))
    }

    fn is_gain(&self, extra: Picoseconds, least: Picoseconds) -> bool {
        let total = self.search.total().seconds().0;
        extra < least - Picoseconds::round_down(Seconds(total * LEAST_GAIN.get()))
    }

    /// Realizes a plan if it is faster; the error is that of [`Realize::realize`].
    fn offer(&mut self, plan: &Plan, effort: &Effort<'_>) -> Result<(), Bytes> {
        let extra = self.search.extra(plan);
        if self.wants(extra) {
            self.best = Some((extra, self.realize.realize(plan, self.budget, effort)?));
            self.note(extra, (effort.clock)());
        }
        Ok(())
    }

    /// Notes that a plan fits, if it is faster than all before it.
    fn note(&mut self, extra: Picoseconds, at: Seconds) {
        let seconds = Seconds(self.search.total().seconds().0 + extra.seconds().0);
        if self.improvements.last().is_none_or(|last| seconds < last.seconds) {
            self.improvements.push(Improvement { at, seconds });
        }
    }

    fn rounds(&mut self, meter: &mut Meter<'_>, mut hear: impl FnMut(&mut Self)) -> Ended {
        let mut work = self.first_round();
        let (mut turn, mut turns) = (0, SLACK.get().len());
        let mut missing = Bytes(u64::MAX);
        let mut started_over = false;
        let (mut fruitless, mut had_nothing) = (0, None);
        loop {
            let of_this_round = work;
            let before = (self.search.peaks(), self.least());
            let aim = self.budget.saturating_sub(self.slack(SLACK.get()[turn], missing));
            let round = self.part(meter, work);
            let seed = round.seed.wrapping_add(meter.spent());
            let answer = self.search.plan(aim, &Effort { seed, ..round });
            meter.spend(work);
            if answer.plan.is_some() {
                self.first.get_or_insert(answer.first);
            }
            match answer.plan {
                Some(plan) => match self.offer(&plan, &self.part(meter, work)) {
                    Err(more) if turn + 1 < turns => (missing, turn) = (more, turn + 1),
                    Err(more) => {
                        missing = more;
                        work = work.saturating_mul(GROWTH.get());
                    }
                    // With more work, less slack may do.
                    Ok(()) => {
                        turn = turn.saturating_sub(1);
                        work = work.saturating_mul(GROWTH.get());
                    }
                },
                // Nothing fits with this much slack.
                None if turn > 0 => {
                    turns = turn;
                    turn -= 1;
                    work = work.saturating_mul(GROWTH.get());
                }
                None if self.best.is_none() => return Ended::InOrder,
                None => work = work.saturating_mul(GROWTH.get()),
            }
            hear(self);
            // They may be better than what later rounds find.
            self.offer_known(&meter.round(0, 1.0));
            // That of the first round, in all later ones, too.
            let had_nothing = *had_nothing.get_or_insert(self.best.is_none());
            let best = self.least();
            fruitless = match before == (self.search.peaks(), best) {
                true => fruitless + usize::from(work > of_this_round),
                false => 0,
            };
            if best.is_some_and(|extra| self.search.is_optimal_within(extra, self.budget)) {
                return Ended::InOrder;
            }
            if fruitless > 0
                && !started_over
                && of_this_round >= START_OVER.get() * self.first_round()
            {
                started_over = true;
                self.search.start_over(self.budget, &self.part(meter, work));
            }
            let known = self.search.least_extra(self.budget);
            if fruitless == FRUITLESS.get() && known.is_some_and(|extra| self.wants(extra)) {
                return Ended::Fruitless;
            }
            if meter.would_exceed(work) || best.is_none() && meter.share() > STOP.get() {
                return match had_nothing && !meter.has_deadline() {
                    true => Ended::Late,
                    false => Ended::InOrder,
                };
            }
        }
    }

    /// Bytes of a fraction of the budget, but little more than what was missing before.
    fn slack(&self, fraction: f64, missing: Bytes) -> Bytes {
        let enough = missing.0.saturating_add(missing.0 / MORE_THAN_MISSING.get());
        Bytes((self.budget.0 as f64 * fraction) as u64).min(Bytes(enough))
    }

    /// The time of the fastest plan that fits, beyond that of all first runs.
    fn least(&self) -> Option<Picoseconds> {
        self.best.as_ref().map(|&(extra, _)| extra)
    }

    /// Tries all plans that are known to be within the budget and faster than what fits, the
    /// fastest first, until one fits. A plan of another planner may pack even if one that holds
    /// less does not.
    fn offer_all(&mut self, peers: &[Plan], effort: &Effort<'_>) {
        let peers = peers.iter().map(|plan| Plan { planner: Planner::Auto, ..plan.clone() });
        let all = peers.chain(self.search.known().cloned());
        let within = all.filter(|plan| plan.peak <= self.budget);
        let mut known: Vec<(Picoseconds, Plan)> =
            within.map(|plan| (self.search.extra(&plan), plan)).collect();
        known.sort_by_key(|&(extra, _)| extra);
        known.dedup();
        let meter = Meter::new(effort);
        for (number, (extra, plan)) in known.into_iter().take(MOST_LAST.get()).enumerate() {
            let floor = if number < FASTEST.get() { self.floor_of_addresses() } else { 0 };
            let effort = &Effort { floor, ..meter.round(effort.work, 1.0) };
            if self.is_too_late(number, &meter)
                || !self.wants(extra)
                || self.offer(&plan, effort).is_ok()
            {
                return;
            }
        }
    }

    /// Has every other planner plan for ever less than its last plan held, as if it were used
    /// alone: if its plan within the budget does not pack, another one may. Without a deadline, all
    /// of them have one more floor.
    fn press(&mut self, heard: Vec<Plan>, effort: &Effort<'_>) {
        let (instance, budget) = (self.search.instance(), self.budget);
        let mut meter = Meter::new(effort);
        let most = if meter.has_deadline() { u64::MAX } else { effort.floor_beside };
        for Plan { planner, peak: mut reached, .. } in heard {
            let mut target = budget;
            // Below what it reaches, a planner gives the same plan again.
            while reached <= target
                && reached > Bytes::ZERO
                && meter.spent() < most
                && !meter.is_late()
            {
                target = reached - Bytes(1);
                let Some(plan) = peer(instance, target, planner, &mut meter) else { break };
                let offered = Plan { planner: Planner::Auto, ..plan.clone() };
                reached = plan.peak;
                let effort =
                    Effort { floor: self.floor_of_addresses(), ..meter.round(effort.work, 1.0) };
                if reached <= budget
                    && self.wants(self.search.extra(&plan))
                    && self.offer(&offered, &effort).is_ok()
                {
                    self.search.offer_of_rule(plan);
                    break;
                }
            }
        }
    }

    /// Work units for thorough packing of one plan before a deadline counts.
    fn floor_of_addresses(&self) -> u64 {
        (ADDRESSES.get() * self.search.operators() as u64).min(MOST_ADDRESSES.get())
    }

    /// Whether no more plans are tried after this number of them: some are tried whatever the
    /// time, but only the first one after the grace of a chosen deadline.
    fn is_too_late(&self, tried: usize, meter: &Meter<'_>) -> bool {
        let least = (NODES_OF_LAST.get() / self.search.operators().max(1)).max(LEAST_LAST.get());
        tried >= least && meter.is_late() || tried > 0 && meter.with_grace(0).is_late()
    }

    /// Tries the plans that are known to be within the budget, the fastest first, until one fits.
    fn offer_known(&mut self, effort: &Effort<'_>) {
        let meter = Meter::new(effort);
        let mut most = Some(self.budget);
        for number in 0.. {
            let plan = most.and_then(|most| self.search.fastest_within(most));
            let Some(plan) = plan.cloned() else { return };
            // The next one holds noticeably less.
            most = plan.peak.0.checked_sub((plan.peak.0 / LEAST_LESS.get()).max(1)).map(Bytes);
            let extra = self.search.extra(&plan);
            if self.refused.contains(&extra) {
                continue;
            }
            if self.is_too_late(number, &meter)
                || !self.wants(extra)
                || self.offer(&plan, effort).is_ok()
            {
                return;
            }
            self.refused.push(extra);
        }
    }

    /// This much work for a round, or for its addresses: in all the remaining time or, while
    /// nothing fits, in a fraction of the time until the rounds stop.
    fn part<'e>(&self, meter: &Meter<'e>, work: u64) -> Effort<'e> {
        match self.best {
            Some(_) => meter.round(work, 1.0),
            None => meter.until(STOP.get()).round(work, UNTAKEN.get()),
        }
    }
}
