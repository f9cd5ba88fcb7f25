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
//! searched for instead, as if that had been requested. Once that fits the budget, other planners
//! are asked, under a deadline, and the rounds continue from there.
//!
//! The floor is done whatever the effort: a first plan, then a first round and, during the later
//! ones on a second thread, the plans of all other planners.

mod known;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;

use crate::aside::{Aside, Scope};
use crate::effort::{Effort, Meter};
use crate::plan::quantity::Picoseconds;
use crate::plan::realize::{Realize, Unplaced};
use crate::plan::search::{PEERS, Search, peer};
use crate::plan::{Infeasible, Plan};
use crate::tuning::rounds::{
    FIRST_MORE, FIRST_ROUND, FIRST_SHARE, FIRST_TRIES, FRUITLESS, GROWTH, HEARD, LAST, LEAST_GAIN,
    LONGER, MORE_THAN_MISSING, MOST_FIRST, SLACK, START_OVER, STOP, STOP_LATEST, STOP_OFFERS,
    TAKEN, UNTAKEN,
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

/// The fastest result within a budget, looked for as if nothing were known yet: what is known
/// stands in the way of other starts.
///
/// # Errors
/// If not even the smallest plan fits.
pub fn fastest_from_scratch<R: Realize>(
    search: &mut Search<'_>,
    budget: Bytes,
    realize: &mut R,
    effort: &Effort<'_>,
) -> Result<R::Made, R::Refusal> {
    let mut fresh = search.fresh();
    let made = Rounds::new(&mut fresh, budget, realize).run(effort).made;
    search.learn(fresh);
    made
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
        self.first_plan(&meter);
        // If nothing fits, the other planners get no more than their floor.
        let is_over = AtomicBool::new(false);
        let clock = || match (effort.clock)() {
            now if now.0.is_finite() && is_over.load(Relaxed) => Effort::LATE,
            now => now,
        };
        let of_peers = Effort { clock: &clock, ..*effort };
        let refused = std::thread::scope(|scope| {
            let mut heard = Vec::new();
            let mut begun = None;
            if !meter.has_deadline() {
                // Nothing may depend on how fast the peers are.
                let peers = begun.insert(self.peers(scope, &of_peers));
                self.hear(peers.iter(), &mut heard);
            }
            let mut turns = match meter.has_deadline() {
                true => meter.until(1.0 - LAST.get()),
                false => meter.clone(),
            };
            let ended = self.rounds(&mut turns, |rounds| {
                // On a busy machine they would take half of the first round's time.
                let peers = begun.get_or_insert_with(|| rounds.peers(scope, &of_peers));
                rounds.hear(peers.try_iter(), &mut heard);
            });
            let peers = begun.unwrap_or_else(|| self.peers(scope, &of_peers));
            let fits = self.best.is_some();
            is_over.store(!fits, Relaxed);
            match fits {
                true => self.hear(peers.iter(), &mut heard),
                // The smallest plan is searched for before the last of them are there.
                false => self.hear(peers.try_iter(), &mut heard),
            }
            let refused = self.after_rounds(ended, heard, effort, &meter);
            let mut late = Vec::new();
            self.hear(peers.iter(), &mut late);
            self.after_peers(&late, &meter);
            refused
        });
        let made = match (self.best.take(), refused) {
            (Some((_, made)), _) => Ok(made),
            (None, refused) => Err(refused.expect("without a plan there is a refusal")),
        };
        let first = self.first.unwrap_or(meter.elapsed());
        InRounds { made, first, improvements: self.improvements }
    }

    /// What follows the first rounds: thorough addresses for what is known if these did not fit,
    /// then the smallest plan, or further rounds. The refusal if nothing fits.
    fn after_rounds(
        &mut self,
        ended: Ended,
        heard: Vec<Plan>,
        effort: &Effort<'_>,
        meter: &Meter<'_>,
    ) -> Option<R::Refusal> {
        let fits = self.best.is_some();
        let until = if fits { 1.0 } else { self.stop(meter) * STOP_OFFERS.get() };
        let offers = meter.rest_until(until);
        self.offer_known(&Effort { work: 0, ..offers });
        let mut has_pressed = false;
        if !self.refused.is_empty() {
            let earnest = Effort { work: effort.work, ..offers };
            self.offer_all(&heard, &earnest);
            has_pressed = self.press(&heard, &earnest);
        }
        // A plan of another planner may be far from what fits next to the smallest one.
        let is_far = !fits && has_pressed;
        if self.best.is_none() || is_far || ended != Ended::InOrder {
            return self.restart(heard, meter).err();
        }
        if !fits {
            self.go_on(meter);
        }
        None
    }

    /// What the other planners found late: their floor counts, too.
    fn after_peers(&mut self, late: &[Plan], meter: &Meter<'_>) {
        if late.is_empty() {
            return;
        }
        let effort = meter.round(meter.effort().work, 1.0);
        self.offer_known(&Effort { work: 0, ..effort });
        if self.best.is_none() {
            self.offer_all(late, &effort);
            self.press(late, &effort);
            if self.best.is_some() {
                self.go_on(meter);
            }
        }
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

    /// The plans of the other planners, as a second thread makes them; none if nothing is faster
    /// than what is given.
    fn peers<'s>(
        &self,
        scope: &'s Scope<'s, '_>,
        effort: &'s Effort<'s>,
    ) -> mpsc::Receiver<Option<Plan>>
    where
        'a: 's,
    {
        let (instance, budget) = (self.search.instance(), self.budget);
        let (send, peers) = mpsc::channel();
        if self.search.least_extra(budget).is_none_or(|extra| extra > Picoseconds::ZERO) {
            Aside::begin(scope, move || {
                let mut meter = Meter::new(effort).uncounted().above(effort.floor_beside);
                for planner in PEERS {
                    let is_interrupted = meter.elapsed().0.is_infinite();
                    let plan = peer(instance, budget, planner, &mut meter);
                    if is_interrupted || send.send(plan).is_err() {
                        return;
                    }
                }
            });
        }
        peers
    }

    /// Further rounds, from a plan that fits and its result.
    pub fn go_on_from(mut self, known: &Plan, made: R::Made, effort: &Effort<'_>) {
        self.best = Some((self.search.extra(known), made));
        self.search.offer(known.clone());
        self.go_on(&Meter::new(effort).uncounted());
    }

    /// Starts again from the smallest plan, apart from what was found; the better of both stays.
    /// Under a deadline, the other planners, or addresses for their plans, may have had no time.
    fn restart(&mut self, heard: Vec<Plan>, meter: &Meter<'_>) -> Result<(), R::Refusal> {
        let (plan, made) = self.realize.smallest(self.search, self.budget, meter)?;
        let extra = self.search.extra(&plan);
        let found = self.best.replace((extra, made));
        self.note(extra, meter.now());
        let refused = std::mem::take(&mut self.refused);
        self.search.offer(plan);
        self.first.get_or_insert(meter.elapsed());
        if meter.has_deadline() && found.is_none() {
            let effort = meter.round(meter.effort().work, HEARD.get());
            let heard = self.heard_by_now(heard, &effort);
            self.offer_all(&heard, &effort);
            self.press(&heard, &effort);
        }
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

    /// The plans heard of other planners, and those of the planners that have not been heard.
    fn heard_by_now(&mut self, mut heard: Vec<Plan>, effort: &Effort<'_>) -> Vec<Plan> {
        let mut meter = Meter::new(effort).uncounted();
        for planner in PEERS {
            if meter.is_late() || heard.iter().any(|plan| plan.planner == planner) {
                continue;
            }
            let plan = peer(self.search.instance(), self.budget, planner, &mut meter);
            self.hear([plan].into_iter(), &mut heard);
        }
        heard
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
            let start = meter.now();
            let answer = self.search.plan(aim, &Effort { seed, ..round });
            meter.spend(work);
            if answer.plan.is_some() {
                self.first.get_or_insert(answer.first);
            }
            match answer.plan {
                Some(plan) => match self.offer(&plan, &self.addresses(meter, work, start)) {
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
            if meter.would_exceed(work) || best.is_none() && meter.share() > self.stop(meter) {
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

    /// This much work for addresses of what a round has found since `start`: in a share of the time
    /// left once something fits, or a few times as long as the round took.
    fn addresses<'e>(&self, meter: &Meter<'e>, work: u64, start: Seconds) -> Effort<'e> {
        let effort = self.part(meter, work);
        if self.best.is_none() {
            return effort;
        }
        let took = meter.now().0 - start.0;
        let most = (effort.deadline.0 * TAKEN.get()).max(took * LONGER.get());
        Effort { deadline: Seconds(effort.deadline.0.min(most)), ..effort }
    }

    /// The share of the whole effort after which rounds stop if no plan fits.
    fn stop(&self, meter: &Meter<'_>) -> f64 {
        let latest = STOP_LATEST.get() * self.search.operators() as f64;
        match meter.has_deadline() {
            true => STOP.get().min(latest / meter.effort().deadline.0.max(latest)),
            false => STOP.get(),
        }
    }

    /// This much work for a round, or for its addresses: in all the remaining time or, while
    /// nothing fits, in a fraction of the time until the rounds stop.
    fn part<'e>(&self, meter: &Meter<'e>, work: u64) -> Effort<'e> {
        match self.best {
            Some(_) => meter.round(work, 1.0),
            None => meter.until(self.stop(meter)).round(work, UNTAKEN.get()),
        }
    }
}
