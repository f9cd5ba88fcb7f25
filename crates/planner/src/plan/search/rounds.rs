//! One budget, planned in rounds. Invariant: what a round does depends on the rounds before it, not
//! on how much of the effort is left; so more work contains all that less has found, and what is
//! answered is the fastest of all plans that were taken.
//!
//! A round asks the search for a faster plan, with three times the work of the round before, and
//! hands it to whoever asked: an engine looks for addresses, and where there are none, says how
//! many bytes are missing. Then a little less of the budget is asked for, because a little slack
//! makes packing much easier.
//!
//! Where nothing is taken for a while, or nothing new is found, the rounds stop, and whoever asked
//! goes for the smallest peak instead, as if that had been asked for. Once that is within the
//! budget, the rounds go on from there.
//!
//! The floor: a first round, and the plans of all other planners, which are made beside it. They
//! are done whatever the effort.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;

use crate::aside::Aside;
use crate::effort::{Effort, Meter};
use crate::plan::quantity::{ByteCount, Picoseconds};
use crate::plan::search::Search;
use crate::plan::search::peers::{PEERS, peer};
use crate::plan::{Plan, Planner};
use crate::units::{Bytes, Seconds};

/// Work of the first round, per operator.
pub const FIRST_ROUND: u64 = 100;
/// Of the work of a round, that of the next.
const GROWTH: u64 = 3;
/// Parts of the budget that are left free, one after the other, where addresses do not pack. Less
/// slack costs less time of the step, more slack packs sooner. How these and the figures below were
/// chosen: `doc/theory/recompute.md`.
const SLACK: [f64; 8] = [0.0, 0.003, 0.008, 0.02, 0.045, 0.08, 0.13, 0.2];
/// The part of the time after which rounds stop while nothing was taken.
const STOP: f64 = 0.1;
/// The part of the time until then that a round gets while nothing was taken, and again its
/// addresses.
const UNTAKEN: f64 = 0.5;
/// The part of the time after which plans of other planners are not looked at any more while
/// nothing was taken.
const STOP_OFFERS: f64 = 0.15;
/// The part of the time that is left for the addresses of known plans, in earnest.
const LAST: f64 = 0.08;
/// Work for the addresses of each of the fastest of them that comes before a deadline counts: per
/// operator, and at most.
const ADDRESSES: u64 = 20;
const MOST_ADDRESSES: u64 = 20_000;
/// How many these are.
const FASTEST: usize = 2;
/// Plans that are laid out in earnest where first addresses did not do.
const MOST_LAST: usize = 32;
/// Nodes of all plans together that are looked at whatever the time; and as many plans at least.
const NODES_OF_LAST: usize = 65_536;
const LEAST_LAST: usize = 4;
/// Rounds of ever more work after which nothing new is expected of further ones.
const FRUITLESS: usize = 5;
/// A plan that is faster by less than this part of the step is not worth new addresses.
const LEAST_GAIN: f64 = 1e-6;

/// How rounds ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The effort was spent, or nothing is left to find.
    InOrder,
    /// The same plans came again and again, of which the fastest are not taken.
    Fruitless,
    /// Without a deadline, after a first round in which nothing was taken: with less work nothing
    /// might have been taken at all.
    Late,
}

/// What became of a budget.
pub struct InRounds<T, R> {
    /// The fastest plan that was taken, as it was taken; or what became of the smallest.
    pub taken: Result<T, R>,
    /// Until the first plan was found.
    pub first: Seconds,
}

/// Whoever takes plans, and the fastest that it took.
struct Taker<'t, T> {
    take: &'t mut dyn FnMut(&Plan, &Effort<'_>) -> Result<T, Bytes>,
    best: Option<(Picoseconds, T)>,
    least_gain: Picoseconds,
    /// Times of plans whose first addresses do not do.
    refused: Vec<Picoseconds>,
}

impl<T> Taker<'_, T> {
    /// Whether a plan of this time is worth a look.
    fn wants(&self, extra: Picoseconds) -> bool {
        self.best.as_ref().is_none_or(|(least, _)| extra < *least - self.least_gain)
    }

    /// Has a plan looked at, unless it is not faster; by how many bytes it is too large.
    fn offer(&mut self, extra: Picoseconds, plan: &Plan, effort: &Effort<'_>) -> Result<(), Bytes> {
        if self.wants(extra) {
            self.best = Some((extra, (self.take)(plan, effort)?));
        }
        Ok(())
    }
}

impl Search<'_> {
    /// Plans one budget in rounds. `take` is handed plans within the budget, each faster than what
    /// it has taken before, with the effort that it may spend on it; where it cannot take one, it
    /// answers by how many bytes it is too large. `lowest` is asked where nothing was taken: it
    /// goes for the smallest peak with what is left of the effort, and takes a plan or refuses.
    pub fn in_rounds<T, R>(
        &mut self,
        budget: Bytes,
        effort: &Effort<'_>,
        mut take: impl FnMut(&Plan, &Effort<'_>) -> Result<T, Bytes>,
        lowest: impl FnOnce(&mut Self, &Meter<'_>) -> Result<(Plan, T), R>,
    ) -> InRounds<T, R> {
        // The floor is in what is done, not in work.
        let meter = Meter::new(effort).uncounted();
        let mut taker = self.taker(&mut take, None);
        let instance = self.instance;
        let mut first = None;
        let mut heard = Vec::new();
        let mut ended = Ended::InOrder;
        // Where nothing is taken, nobody waits for more of the other planners than their floor.
        let is_over = AtomicBool::new(false);
        let clock = || match (effort.clock)() {
            now if now.0.is_finite() && is_over.load(Relaxed) => Seconds(f64::MAX),
            now => now,
        };
        let beside = Effort { clock: &clock, ..*effort };
        std::thread::scope(|scope| {
            let (send, peers) = mpsc::channel();
            if self.best(budget).is_none_or(|best| best.extra > Picoseconds::ZERO) {
                let mut clock = Meter::new(&beside).uncounted().above(effort.floor_beside);
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
                self.hear(peers.iter(), &mut heard);
            }
            let mut turns = match meter.has_deadline() {
                true => meter.until(1.0 - LAST),
                false => meter.clone(),
            };
            ended = self.rounds(budget, &mut turns, &mut taker, &mut first, |search| {
                search.hear(peers.try_iter(), &mut heard);
            });
            is_over.store(taker.best.is_none(), Relaxed);
            self.hear(peers.into_iter(), &mut heard);
        });
        let is_taken = taker.best.is_some();
        let until = if is_taken { 1.0 } else { STOP_OFFERS };
        let offers = meter.rest_until(until);
        self.offer_known(budget, &mut taker, &Effort { work: 0, ..offers });
        if !taker.refused.is_empty() {
            let earnest = Effort { work: effort.work, ..offers };
            self.offer_all(budget, &heard, &mut taker, &earnest);
            self.press(budget, heard, &mut taker, &earnest);
        }
        if taker.best.is_none() || ended != Ended::InOrder {
            let anew = self.begin_anew(budget, &meter, &mut taker, &mut first, lowest);
            if let (Err(refused), None) = (anew, &taker.best) {
                let first = first.unwrap_or(meter.elapsed());
                return InRounds { taken: Err(refused), first };
            }
        } else if !is_taken {
            self.go_on(budget, &meter, &mut taker, &mut first);
        }
        let (_, taken) = taker.best.expect("a plan that was taken stays until a better one is");
        InRounds { taken: Ok(taken), first: first.unwrap_or(meter.elapsed()) }
    }

    /// Further rounds within a budget, as those of [`Search::in_rounds`], from a plan that was
    /// taken.
    pub fn faster_than(
        &mut self,
        known: &Plan,
        budget: Bytes,
        effort: &Effort<'_>,
        mut take: impl FnMut(&Plan, &Effort<'_>) -> Result<(), Bytes>,
    ) {
        let mut taker = self.taker(&mut take, Some((self.extra(known), ())));
        self.offer(known.clone());
        self.go_on(budget, &Meter::new(effort).uncounted(), &mut taker, &mut None);
    }

    /// What was taken is the best so far.
    fn taker<'t, T>(
        &self,
        take: &'t mut dyn FnMut(&Plan, &Effort<'_>) -> Result<T, Bytes>,
        best: Option<(Picoseconds, T)>,
    ) -> Taker<'t, T> {
        let least_gain =
            Picoseconds::round_down(Seconds(self.given.total.seconds().0 * LEAST_GAIN));
        Taker { take, best, least_gain, refused: Vec::new() }
    }

    /// From the smallest plan, beside what was taken, if anything; the better of both stays.
    fn begin_anew<T, R>(
        &mut self,
        budget: Bytes,
        meter: &Meter<'_>,
        taker: &mut Taker<'_, T>,
        first: &mut Option<Seconds>,
        lowest: impl FnOnce(&mut Self, &Meter<'_>) -> Result<(Plan, T), R>,
    ) -> Result<(), R> {
        let (plan, taken) = lowest(self, meter)?;
        let best = Some((self.extra(&plan), taken));
        self.offer(plan);
        first.get_or_insert(meter.elapsed());
        let mut anew = self.taker(&mut *taker.take, best);
        self.go_on(budget, meter, &mut anew, first);
        let better = anew.best.filter(|&(extra, _)| taker.wants(extra));
        taker.best = better.or(taker.best.take());
        Ok(())
    }

    /// Further rounds, from what was taken.
    fn go_on<T>(
        &mut self,
        budget: Bytes,
        meter: &Meter<'_>,
        taker: &mut Taker<'_, T>,
        first: &mut Option<Seconds>,
    ) {
        if !meter.would_exceed(FIRST_ROUND * self.given.len() as u64) {
            self.rounds(budget, &mut meter.clone(), taker, first, |_| {});
            self.offer_known(budget, taker, &meter.round(0, 1.0));
        }
    }

    /// Plans of other planners become known.
    fn hear(&mut self, plans: impl Iterator<Item = Option<Plan>>, heard: &mut Vec<Plan>) {
        for plan in plans.flatten() {
            self.offer_of_rule(plan.clone());
            heard.push(plan);
        }
    }

    fn rounds<T>(
        &mut self,
        budget: Bytes,
        meter: &mut Meter<'_>,
        taker: &mut Taker<'_, T>,
        first: &mut Option<Seconds>,
        mut hear: impl FnMut(&mut Self),
    ) -> Ended {
        let mut work = FIRST_ROUND * self.given.len() as u64;
        let (mut turn, mut turns) = (0, SLACK.len());
        let mut missing = Bytes(u64::MAX);
        let (mut fruitless, mut had_nothing) = (0, None);
        loop {
            let of_this_round = work;
            let before = (self.peaks(), taker.best.as_ref().map(|&(extra, _)| extra));
            // What was missing before, and a tenth of it, may be less than the slack would be.
            let slack = Bytes((budget.0 as f64 * SLACK[turn]) as u64)
                .min(Bytes(missing.0.saturating_add(missing.0 / 10)));
            let aim = budget.saturating_sub(slack);
            let round = part(meter, work, &taker.best);
            let seed = round.seed.wrapping_add(meter.spent());
            let answer = self.plan(aim, &Effort { seed, ..round });
            meter.spend(work);
            if answer.plan.is_some() {
                first.get_or_insert(answer.first);
            }
            match answer.plan {
                Some(plan) => {
                    let extra = self.extra(&plan);
                    let addresses = part(meter, work, &taker.best);
                    match taker.offer(extra, &plan, &addresses) {
                        Ok(()) => work = work.saturating_mul(GROWTH),
                        Err(more) => {
                            missing = more;
                            if turn + 1 < turns {
                                turn += 1;
                            } else {
                                work = work.saturating_mul(GROWTH);
                            }
                        }
                    }
                }
                // Nothing fits with so much slack.
                None if turn > 0 => {
                    turns = turn;
                    turn -= 1;
                    work = work.saturating_mul(GROWTH);
                }
                None if taker.best.is_none() => return Ended::InOrder,
                None => work = work.saturating_mul(GROWTH),
            }
            hear(self);
            // What may be worth more than what later rounds find.
            self.offer_known(budget, taker, &meter.round(0, 1.0));
            let is_optimal =
                |extra: Picoseconds| self.is_optimal(extra, self.floor(ByteCount::of(budget)));
            // Of the first round, however many follow.
            let had_nothing = *had_nothing.get_or_insert(taker.best.is_none());
            let best = taker.best.as_ref().map(|&(extra, _)| extra);
            fruitless = match before == (self.peaks(), best) {
                true => fruitless + usize::from(work > of_this_round),
                false => 0,
            };
            if best.is_some_and(is_optimal) {
                return Ended::InOrder;
            }
            let is_refused = self.best(budget).is_some_and(|known| taker.wants(known.extra));
            if fruitless == FRUITLESS && is_refused {
                return Ended::Fruitless;
            }
            if meter.would_exceed(work) || best.is_none() && meter.share() > STOP {
                return match had_nothing && !meter.has_deadline() {
                    true => Ended::Late,
                    false => Ended::InOrder,
                };
            }
        }
    }

    /// Has all plans looked at that are known to be within the budget and faster than what was
    /// taken, the fastest first, until one is taken. A plan of another planner may pack where one
    /// that holds less does not.
    fn offer_all<T>(
        &mut self,
        budget: Bytes,
        peers: &[Plan],
        taker: &mut Taker<'_, T>,
        effort: &Effort<'_>,
    ) {
        let known = self.found.iter().map(|known| (known.extra, known.plan.clone()));
        let peers = peers
            .iter()
            .map(|plan| (self.extra(plan), Plan { planner: Planner::Auto, ..plan.clone() }));
        let mut known: Vec<(Picoseconds, Plan)> =
            peers.chain(known).filter(|(_, plan)| plan.peak <= budget).collect();
        known.sort_by_key(|&(extra, _)| extra);
        known.dedup();
        let (meter, least_looks) = (Meter::new(effort), self.least_looks());
        for (number, (extra, plan)) in known.into_iter().take(MOST_LAST).enumerate() {
            let floor = if number < FASTEST { self.floor_of_addresses() } else { 0 };
            let effort = &Effort { floor, ..meter.round(effort.work, 1.0) };
            if number >= least_looks && meter.is_late()
                || !taker.wants(extra)
                || taker.offer(extra, &plan, effort).is_ok()
            {
                return;
            }
        }
    }

    /// The peaks of all known plans, and their times.
    fn peaks(&self) -> Vec<(Bytes, Picoseconds)> {
        self.found.iter().map(|known| (known.plan.peak, known.extra)).collect()
    }

    /// Asks every other planner for ever less than it was heard to hold, as if it had been asked
    /// alone: where its plan within the budget does not pack, another one may.
    fn press<T>(
        &mut self,
        budget: Bytes,
        heard: Vec<Plan>,
        taker: &mut Taker<'_, T>,
        effort: &Effort<'_>,
    ) {
        let (instance, mut meter) = (self.instance, Meter::new(effort));
        for Plan { planner, peak: mut reached, .. } in heard {
            let mut target = budget;
            // One that is asked for less than it reaches gives the same plan again.
            while reached <= target && reached > Bytes::ZERO && !meter.is_late() {
                target = reached - Bytes(1);
                let Some(plan) = peer(instance, target, planner, &mut meter) else { break };
                let extra = self.extra(&plan);
                let taken = Plan { planner: Planner::Auto, ..plan.clone() };
                reached = plan.peak;
                let effort =
                    Effort { floor: self.floor_of_addresses(), ..meter.round(effort.work, 1.0) };
                if reached <= budget
                    && taker.wants(extra)
                    && taker.offer(extra, &taken, &effort).is_ok()
                {
                    self.offer_of_rule(plan);
                    break;
                }
            }
        }
    }

    /// Work for the addresses of one plan in earnest that comes before a deadline counts.
    fn floor_of_addresses(&self) -> u64 {
        (ADDRESSES * self.given.len() as u64).min(MOST_ADDRESSES)
    }

    /// Plans that are looked at whatever the time.
    fn least_looks(&self) -> usize {
        (NODES_OF_LAST / self.given.len().max(1)).max(LEAST_LAST)
    }

    /// Has a first look taken at the plans that are known to be within the budget, the fastest
    /// first, until one is taken.
    fn offer_known<T>(&mut self, budget: Bytes, taker: &mut Taker<'_, T>, effort: &Effort<'_>) {
        let (meter, least_looks) = (Meter::new(effort), self.least_looks());
        for (number, plan) in self.within(budget).enumerate() {
            let extra = self.extra(&plan);
            if taker.refused.contains(&extra) {
                continue;
            }
            if number >= least_looks && meter.is_late()
                || !taker.wants(extra)
                || taker.offer(extra, &plan, effort).is_ok()
            {
                return;
            }
            taker.refused.push(extra);
        }
    }
}

/// So much work of a round, or of its addresses: in all the time that is left, or, while nothing
/// was taken, in a part of what is left until the rounds stop.
fn part<'a, T>(meter: &Meter<'a>, work: u64, taken: &Option<T>) -> Effort<'a> {
    match taken {
        Some(_) => meter.round(work, 1.0),
        None => meter.until(STOP).round(work, UNTAKEN),
    }
}
