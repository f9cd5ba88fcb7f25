//! The smallest slab of the budget planner. Invariant: no other planner's smallest slab is smaller,
//! given the same effort; without a deadline, a search that is told what is enough takes the same
//! path as one that is not, and ends as soon as that is reached.
//!
//! Three threads: the search for the smallest peak, the other planners, and addresses for the plans
//! of those, as if each had been requested alone. When the search ends, its own lowest plans get
//! theirs; if there is a deadline, one of them while it waits for the other planners.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};

use crate::aside::Aside;
use crate::effort::{Effort, Meter};
use crate::fit::slab::{Laid, Slab};
use crate::goal::Goal;
use crate::plan::{self, Plan, Planner, Search};
use crate::schedule::Schedule;
use crate::tuning::min_peak::NAMED;
use crate::tuning::min_slab::{LOOK, OWN_FLOOR, PEAK};
use crate::units::{Bytes, Seconds};

/// The search for the smallest slab.
pub struct SmallestSlab<'a, 'e> {
    pub slab: Slab<'a>,
    /// Bytes of a slab that is small enough.
    pub enough: Bytes,
    /// The effort.
    pub meter: &'a Meter<'e>,
}

impl SmallestSlab<'_, '_> {
    /// Of the plans with small peaks, the fastest whose slab is small enough, or else the one with
    /// the smallest slab; or the best so far. The plans of the other planners are kept in `known`,
    /// so that they are made only once.
    pub fn search(
        &self,
        search: &mut Search<'_>,
        best: Option<&Laid>,
        known: &mut Option<Vec<Plan>>,
    ) -> Laid {
        let lowest_offered = AtomicU64::new(u64::MAX);
        let noted = known.take();
        let best = std::thread::scope(|scope| {
            let (offer, offered) = mpsc::channel();
            let lowest_offered = &lowest_offered;
            let peers = Aside::begin(scope, move || {
                let offer = |plan: &Plan| {
                    let plan = Plan { planner: Planner::Auto, ..plan.clone() };
                    lowest_offered.fetch_min(plan.peak.0, Ordering::Relaxed);
                    // If the receiving thread panicked, which prints its message, sending fails.
                    let _ = offer.send(plan);
                };
                match noted {
                    Some(plans) => {
                        plans.iter().for_each(offer);
                        plans
                    }
                    None => plan::lowest_of_peers(self.slab.instance, self.meter, offer),
                }
            });
            let laid_of_peers =
                Aside::begin(scope, move || self.of_peers(best, offered, lowest_offered));
            let mut meanwhile = None;
            let peers = |search: &Search<'_>| {
                if self.meter.has_deadline() && !peers.has_ended() {
                    meanwhile = self.until(&peers, search);
                }
                known.insert(peers.end().unwrap_or_default()).clone()
            };
            let mut early = None;
            // What is requested may be found late; what is named should be found again.
            let of_cuts = if self.enough == Bytes::ZERO { NAMED.get() } else { 1.0 };
            let plans = search.smallest(
                &self.meter.round(self.meter.effort().work, PEAK.get()),
                of_cuts,
                peers,
                |lowest| {
                    if lowest.peak > self.enough {
                        return false;
                    }
                    let schedule = self.lay_out(lowest, self.rest(LOOK.get()));
                    let is_enough = schedule.slab <= self.enough;
                    early = is_enough.then(|| (schedule, lowest.clone()));
                    is_enough
                },
            );
            let own = early.or_else(|| self.of_search(best, plans));
            let others = laid_of_peers.end().flatten().into_iter().chain(meanwhile);
            others.fold(own, |best, other| Some(self.better(best, other)))
        });
        best.unwrap_or_else(|| {
            let plan = self.slab.instance.unplanned(Planner::Auto);
            (self.lay_out(&plan, self.rest(1.0)), plan)
        })
    }

    /// Addresses for a plan of the search until the other planners are done: for the fastest that
    /// holds no more than is enough, or else for the lowest.
    fn until(&self, peers: &Aside<'_, Vec<Plan>>, search: &Search<'_>) -> Option<Laid> {
        let plan = search.fastest_within(self.enough).or_else(|| search.known().next())?;
        let clock = || match peers.has_ended() {
            true => Seconds(f64::INFINITY),
            false => (self.meter.effort().clock)(),
        };
        let schedule = self.lay_out(plan, Effort { clock: &clock, ..self.of_own(1.0) });
        Some((schedule, plan.clone()))
    }

    /// Lays out each plan quickly, then the lowest thoroughly; stops if it is too late for another.
    fn of_search(&self, best: Option<&Laid>, plans: Vec<Plan>) -> Option<Laid> {
        let grace = self.meter.with_grace(self.slab.instance.order.len());
        let lowest = plans.first().cloned().map(|plan| (plan, 1.0));
        plans.into_iter().map(|plan| (plan, LOOK.get())).chain(lowest).fold(
            best.cloned(),
            |best, (plan, share)| {
                if self.is_hopeless(&best, &plan) || best.is_some() && grace.is_over() {
                    return best;
                }
                Some(self.better(best, (self.lay_out(&plan, self.of_own(share)), plan)))
            },
        )
    }

    /// Lays out the plans of the other planners as they arrive; one that is no longer the lowest
    /// waits until all are there. Without a deadline nothing may depend on how fast they arrive, so
    /// all of them wait.
    fn of_peers(
        &self,
        best: Option<&Laid>,
        offered: Receiver<Plan>,
        lowest_offered: &AtomicU64,
    ) -> Option<Laid> {
        let mut best = best.cloned();
        let mut waiting = Vec::new();
        let lay_out = |plan: &Plan, best: Option<Laid>, effort: Effort<'_>| {
            if self.is_hopeless(&best, plan) {
                return best;
            }
            Some(self.better(best, (self.lay_out(plan, effort), plan.clone())))
        };
        let clock = self.meter.effort().clock;
        let grace = self.meter.with_grace(self.slab.instance.order.len());
        let is_too_late = |best: &Option<Laid>| best.is_some() && grace.is_over();
        for plan in offered {
            let peak = plan.peak.0;
            let must_wait =
                || !self.meter.has_deadline() || lowest_offered.load(Ordering::Relaxed) < peak;
            let waits = must_wait() || is_too_late(&best);
            if !waits {
                let impatient = || if must_wait() { Seconds(f64::INFINITY) } else { clock() };
                best = lay_out(&plan, best, Effort { clock: &impatient, ..self.rest(1.0) });
            }
            if waits || must_wait() {
                waiting.push(plan);
            }
        }
        waiting.sort_by_key(|plan| plan.peak);
        // The lowest had its floor; these have only the remaining time, and if it is too late for
        // all of them, only the lowest of them is laid out.
        let without_floor = || self.meter.round(self.meter.effort().work, 1.0);
        waiting.iter().enumerate().fold(best, |best, (number, plan)| {
            match number > 0 && is_too_late(&best) {
                true => best,
                false => lay_out(plan, best, without_floor()),
            }
        })
    }

    /// Under a deadline, what is small enough is aimed at: to fail at less takes long.
    fn lay_out(&self, plan: &Plan, effort: Effort<'_>) -> Schedule {
        match self.meter.has_deadline() && plan.peak <= self.enough {
            true => self.slab.lay_out(plan, Goal::Within(self.enough), effort),
            false => self.slab.smallest_of(plan, self.enough, effort),
        }
    }

    fn rest(&self, share: f64) -> Effort<'_> {
        Slab::rest(self.meter, share)
    }

    /// The same for a plan of the search's own.
    fn of_own(&self, share: f64) -> Effort<'_> {
        let rest = self.rest(share);
        Effort { floor: rest.floor.min(rest.in_proportion(OWN_FLOOR.get())), ..rest }
    }

    /// Whether the plan cannot be better, whatever its addresses.
    fn is_hopeless(&self, best: &Option<Laid>, plan: &Plan) -> bool {
        best.as_ref().is_some_and(|(best, _)| plan.peak > best.slab.max(self.enough))
    }

    /// The one whose slab exceeds what is enough by less, or else the faster one.
    fn better(&self, one: Option<Laid>, other: Laid) -> Laid {
        let rank = |(schedule, plan): &Laid| (schedule.slab.max(self.enough), plan.seconds);
        match one {
            Some(one) if rank(&one) <= rank(&other) => one,
            Some(_) | None => other,
        }
    }
}
