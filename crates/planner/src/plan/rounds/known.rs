//! Addresses for plans that are known already: those that did not fit when a round found them, and
//! those of other planners. Invariant: a plan is tried only if it is faster than what fits.

use crate::effort::{Effort, Meter};
use crate::plan::quantity::Picoseconds;
use crate::plan::realize::Realize;
use crate::plan::rounds::Rounds;
use crate::plan::search::peer;
use crate::plan::{Plan, Planner};
use crate::tuning::rounds::{
    ADDRESSES, FASTEST, LEAST_LAST, LEAST_LESS, MOST_ADDRESSES, MOST_LAST, NODES_OF_LAST, UNTAKEN,
};
use crate::units::Bytes;

impl<R: Realize> Rounds<'_, '_, R> {
    /// Tries all plans that are known to be within the budget and faster than what fits, the
    /// fastest first, until one fits. A plan of another planner may pack even if one that holds
    /// less does not. If nothing fits, the one that holds the least comes before all others, since
    /// slack makes packing easy, and each has half of what time is left.
    pub(super) fn offer_all(&mut self, peers: &[Plan], effort: &Effort<'_>) {
        let peers = peers.iter().map(|plan| Plan { planner: Planner::Auto, ..plan.clone() });
        let all = peers.chain(self.search.known().cloned());
        let within = all.filter(|plan| plan.peak <= self.budget);
        let mut known: Vec<(Picoseconds, Plan)> =
            within.map(|plan| (self.search.extra(&plan), plan)).collect();
        known.sort_by_key(|&(extra, _)| extra);
        known.dedup();
        let none_fits = self.best.is_none();
        if none_fits && let Some(lowest) = (0..known.len()).min_by_key(|&at| known[at].1.peak) {
            known[..=lowest].rotate_right(1);
        }
        let share = if none_fits { UNTAKEN.get() } else { 1.0 };
        let meter = Meter::new(effort);
        for (number, (extra, plan)) in known.into_iter().take(MOST_LAST.get()).enumerate() {
            let floor = if number < FASTEST.get() { self.floor_of_addresses() } else { 0 };
            let effort = &Effort { floor, ..meter.round(effort.work, share) };
            if self.is_too_late(number, &meter) || !self.wants(extra) && !none_fits {
                return;
            }
            if self.wants(extra) && self.offer(&plan, effort).is_ok() && !none_fits {
                return;
            }
        }
    }

    /// Has every other planner plan for ever less than its last plan held, as if it were used
    /// alone: if its plan within the budget does not pack, another one may. Without a deadline, all
    /// of them have one more floor. Whether one of their plans is now the fastest that fits.
    pub(super) fn press(&mut self, heard: &[Plan], effort: &Effort<'_>) -> bool {
        let mut has_any = false;
        let (instance, budget) = (self.search.instance(), self.budget);
        let mut meter = Meter::new(effort);
        let most = if meter.has_deadline() { u64::MAX } else { effort.floor_beside };
        for (number, &Plan { planner, peak: mut reached, .. }) in (1..).zip(heard) {
            let mut target = budget;
            let until = f64::from(number) / heard.len() as f64;
            // Below what it reaches, a planner gives the same plan again.
            while reached <= target
                && reached > Bytes::ZERO
                && meter.spent() < most
                && meter.share() < until
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
                    has_any = true;
                    break;
                }
            }
        }
        has_any
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
    pub(super) fn offer_known(&mut self, effort: &Effort<'_>) {
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
}
