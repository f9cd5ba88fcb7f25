//! The smallest slab, searched for in rungs, each with three times the work of the one before.
//! Invariant: what a rung does follows from the graph, the seed and the rungs before it, not from
//! the remaining effort or the request; so more effort passes through every schedule that less
//! effort passes through, and the slab that is named is the size of one of them. Under a deadline,
//! the first bisections of a rung are limited by its time instead of its work.
//!
//! A rung looks for the plan with the smallest slab, and then for faster plans within that slab.
//! These often need less than the slab, since their budget is reduced if addresses do not pack.
//! Under a deadline, the rounds are asked for ever less before that, and first of all for a slab
//! that would be enough: there, a rung depends on the request. If
//! the work left does not suffice for a last rung, it does only the first part, whose result does
//! not get worse with more work.

use std::convert::Infallible;

use crate::effort::{Effort, Meter};
use crate::fit::slab::{Laid, Slab};
use crate::fit::smallest::SmallestSlab;
use crate::plan::{Plan, Realize, Rounds, Search, fastest_from_scratch};
use crate::schedule::{ALIGNMENT, Schedule};
use crate::tuning::min_slab::{
    ASKED, ENOUGH, FASTER, LAST_STEP, LEAST, NEAR, SMALLEST, STEP, VAIN,
};
use crate::tuning::rounds::{FIRST_ROUND, GROWTH};
use crate::units::Bytes;

impl Slab<'_> {
    /// The smallest slab that is found; under a deadline, with the fastest step that is found as if
    /// that slab had been the budget. If the deadline was not chosen, that has as much time again.
    pub fn named(&self, search: &mut Search<'_>, meter: &Meter<'_>) -> Laid {
        let smallest = self.lowest(search, Bytes::ZERO, meter);
        if !meter.has_deadline() {
            return smallest;
        }
        let (slab, mut known) = (smallest.0.slab, Known::new(*self, smallest.clone()));
        let effort = meter.once_more();
        let Ok(fastest) = fastest_from_scratch(search, slab, &mut known, &effort);
        if fastest.1.seconds >= smallest.1.seconds {
            return smallest;
        }
        // A slab that happens to be a little smaller may not be found again.
        (Schedule { slab, ..fastest.0 }, fastest.1)
    }

    /// The smallest slab that is found, or the first one that is small enough.
    pub fn lowest(&self, search: &mut Search<'_>, enough: Bytes, meter: &Meter<'_>) -> Laid {
        let meter = meter.uncounted();
        // A budget that is missed by this little may be a slab that was found when the machine was
        // less busy.
        let longer = meter.with_twice_the_time();
        let is_near =
            |(schedule, _): &Laid| schedule.slab.0 - schedule.slab.0 / NEAR.get() <= enough.0;
        let meter_at = |best: &Laid| if is_near(best) { &longer } else { &meter };
        let mut fresh = search.fresh();
        let mut peers = None;
        let mut work = FIRST_ROUND.get() * self.instance.order.len().max(1) as u64;
        let all = meter.effort().work.max(work);
        let mut best: Option<Laid> = None;
        let best = loop {
            let is_first = best.is_none();
            let is_cut = work > all;
            let is_proven = |search: &Search<'_>, (schedule, _): &Laid| {
                schedule.slab <= enough.max(search.least_budget())
            };
            let effort = best.as_ref().map_or(&meter, meter_at).round(work.min(all), 1.0);
            let meter_of_smallest = &Meter::new(&effort).until(SMALLEST.get());
            let slab = SmallestSlab { slab: *self, enough, meter: meter_of_smallest };
            let smallest = slab.search(&mut fresh, best.as_ref(), &mut peers);
            if is_proven(&fresh, &smallest) || is_cut || !is_first && meter_at(&smallest).is_over()
            {
                break smallest;
            }
            let left = |best: &Laid, share| meter_at(best).round(work, share);
            let (lower, is_first) = match fresh.is_small() {
                true => {
                    let effort = left(&smallest, 1.0);
                    (self.of_small_step(&mut fresh, smallest, &effort), is_first)
                }
                false if meter.has_deadline() => {
                    let effort = left(&smallest, FASTER.get());
                    let faster = self.faster(&mut fresh, smallest, &effort, is_first);
                    let effort = left(&faster, 1.0);
                    (self.of_less(&mut fresh, faster, enough, &effort), false)
                }
                false => (smallest, is_first),
            };
            let effort = left(&lower, 1.0);
            let faster = self.faster(&mut fresh, lower, &effort, is_first);
            // What is requested is sought as long as there is time.
            let is_vain = enough == Bytes::ZERO
                && best.as_ref().is_some_and(|best| best.0.slab <= faster.0.slab);
            let is_over = is_vain && meter.share() > VAIN.get() || meter_at(&faster).is_over();
            if is_proven(&fresh, &faster) || is_over || work == all {
                break faster;
            }
            work = work.saturating_mul(GROWTH.get());
            best = Some(faster);
        };
        search.learn(fresh);
        best
    }

    /// A smaller slab of a small step, by bisection down to what is proven to be needed: many of
    /// its plans hold equally little, and few of them pack.
    fn of_small_step(&self, search: &mut Search<'_>, known: Laid, effort: &Effort<'_>) -> Laid {
        let (meter, mut best) = (Meter::new(effort), known);
        let mut refused = search.least_budget();
        let mut target = refused;
        while target < best.0.slab && !meter.is_over() {
            let slab = best.0.slab;
            best = self.asked_for(target, search, best, &meter.round(effort.work, LEAST.get()));
            if best.0.slab == slab {
                refused = target + Bytes(ALIGNMENT);
            }
            target = refused + Bytes(best.0.slab.saturating_sub(refused).0 / 2);
        }
        best
    }

    /// A smaller slab of any step, by asking the rounds for ever less: what they find within a
    /// budget often packs better than the plans with the smallest peaks. Steps down grow with
    /// success and shrink without. A slab that would be enough is asked for first, and for longer
    /// than it took to find when none was.
    fn of_less(
        &self,
        search: &mut Search<'_>,
        known: Laid,
        enough: Bytes,
        effort: &Effort<'_>,
    ) -> Laid {
        let (meter, mut best) = (Meter::new(effort), known);
        if enough > Bytes::ZERO && enough < best.0.slab {
            let part = Effort { floor_beside: 0, ..meter.round(effort.work, ENOUGH.get()) };
            best = self.asked_for(enough, search, best, &part);
            if best.0.slab <= enough {
                return best;
            }
        }
        let mut step = best.0.slab.0 / STEP.get();
        while step >= (best.0.slab.0 / LAST_STEP.get()).max(1) && !meter.is_over() {
            let slab = best.0.slab;
            let target = slab.saturating_sub(Bytes(step));
            if target < search.least_budget() {
                step /= 2;
                continue;
            }
            let part = Effort { floor_beside: 0, ..meter.round(effort.work, ASKED.get()) };
            best = self.asked_for(target, search, best, &part);
            step = if best.0.slab < slab { step * 2 } else { step / 4 };
        }
        best
    }

    /// The smallest slab of plans that pack within a target, or what is known.
    fn asked_for(
        &self,
        target: Bytes,
        search: &mut Search<'_>,
        smallest: Laid,
        effort: &Effort<'_>,
    ) -> Laid {
        let mut known = Known::new(*self, smallest);
        Rounds::new(search, target, &mut known).run(effort);
        known.smallest
    }

    /// Among ever faster plans that pack within a known slab, the one with the smallest slab. In
    /// the first rung, the other planners take part, too.
    fn faster(
        &self,
        search: &mut Search<'_>,
        known: Laid,
        effort: &Effort<'_>,
        is_first: bool,
    ) -> Laid {
        let (budget, laid) = (known.0.slab, known.clone());
        let mut known = Known::new(*self, known);
        let rounds = Rounds::new(search, budget, &mut known);
        match is_first {
            true => drop(rounds.run(effort)),
            false => rounds.go_on_from(&laid.1.clone(), laid, effort),
        }
        known.smallest
    }
}

/// Plans within the slab of a known plan.
struct Known<'a> {
    slab: Slab<'a>,
    known: Laid,
    /// The smallest slab of those that packed.
    smallest: Laid,
}

impl<'a> Known<'a> {
    fn new(slab: Slab<'a>, known: Laid) -> Known<'a> {
        Known { slab, known: known.clone(), smallest: known }
    }
}

impl Realize for Known<'_> {
    type Made = Laid;
    type Refusal = Infallible;
    const MAY_MISS: bool = true;

    fn realize(&mut self, plan: &Plan, budget: Bytes, effort: &Effort<'_>) -> Result<Laid, Bytes> {
        let rank = |(schedule, plan): &Laid| (schedule.slab, plan.seconds);
        let laid = (self.slab.realize(plan, budget, effort)?, plan.clone());
        if rank(&laid) < rank(&self.smallest) {
            self.smallest = laid.clone();
        }
        Ok(laid)
    }

    fn smallest(
        &mut self,
        _: &mut Search<'_>,
        _: Bytes,
        _: &Meter<'_>,
    ) -> Result<(Plan, Laid), Infallible> {
        Ok((self.known.1.clone(), self.known.clone()))
    }
}
