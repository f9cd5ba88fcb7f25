//! Schedules that also move what they hold, in a slab. Invariant: within a budget none is slower
//! than the known one, which moves nothing; if the smallest slab is requested, none is larger.

use crate::check::check;
use crate::effort::Meter;
use crate::fit::sequences::{Sequences, with_instant_lanes};
use crate::fit::slab::{Laid, Slab};
use crate::fit::turns::fastest_in_turns;
use crate::goal::Goal;
use crate::id::StorageId;
use crate::machine::Route;
use crate::plan::offload::{Crossing, Home};
use crate::plan::{Instance, Plan, Planner, Search};
use crate::schedule::{Residents, Schedule};
use crate::tuning::turns::ADDRESSES;
use crate::units::Bytes;

/// The search for schedules with moves.
pub struct Tiered<'a> {
    pub slab: Slab<'a>,
    pub route: Route,
}

impl Tiered<'_> {
    /// The fastest schedule within a budget: the known one, or one that also moves.
    pub fn within(
        &self,
        search: &Search<'_>,
        budget: Bytes,
        known: Option<Schedule>,
        meter: &Meter<'_>,
    ) -> Option<Schedule> {
        let home = |storage| self.home(storage);
        let known = known.map(|known| (self.seconds(&known), known));
        let mut slab = self.slab;
        fastest_in_turns(&self.sequences(&home), search, budget, known, &mut slab, meter)
    }

    /// The smallest slab that is found; of those that are no larger than `enough`, the fastest
    /// schedule.
    ///
    /// Moves are chosen as if lanes took no time: measured rates differ from run to run, and a slab
    /// that was found once is to be found again on request. Plans for the lanes as they are count
    /// only if their slab is no larger than `enough`.
    pub fn smallest(
        &self,
        search: &mut Search<'_>,
        known: Option<Laid>,
        enough: Bytes,
        meter: &Meter<'_>,
    ) -> Laid {
        let home = |storage| self.home(storage);
        let instant = with_instant_lanes(self.slab.instance.profile);
        let moving = self.sequences(&home);
        let sequences = moving.lowest(search, known.as_ref().map(|(_, plan)| plan), meter);
        let mut best = known.map(|known| (self.rank(&known.0, enough), known));
        for runs in sequences {
            for (profile, most) in [(&instant, Bytes::LIMIT), (self.slab.instance.profile, enough)]
            {
                let moving =
                    Sequences { instance: Instance { profile, ..moving.instance }, ..moving };
                let offloading = moving.offloading(&runs);
                let least = offloading.least();
                let slab = best.as_ref().map(|(_, (best, _))| best.slab);
                if least > most || slab.is_some_and(|slab| slab > enough && least >= slab) {
                    continue;
                }
                let found = offloading.smallest(meter);
                // Without its moves it would not leave in the tier what another schedule relies on.
                if found.is_none() && !self.slab.residents.below.is_empty() && best.is_some() {
                    continue;
                }
                let stays = || moving.instance.plan(Planner::Auto, &runs);
                let plan = Plan { planner: Planner::Auto, ..found.unwrap_or_else(stays) };
                let schedule = self.lay_out(&plan, Goal::Smallest, meter);
                let rank = self.rank(&schedule, enough);
                let is_better = best.as_ref().is_none_or(|(least, _)| rank < *least);
                if schedule.slab <= most && is_better {
                    best = Some((rank, (schedule, plan)));
                }
            }
        }
        best.expect("the order itself is a sequence").1
    }

    /// By how much a slab exceeds what is enough; if it does not, then by seconds.
    fn rank(&self, schedule: &Schedule, enough: Bytes) -> (Bytes, f64) {
        match schedule.slab.saturating_sub(enough) {
            Bytes::ZERO => (Bytes::ZERO, self.seconds(schedule)),
            more => (more, 0.0),
        }
    }

    /// Addresses for a plan, in a fraction of the remaining time.
    fn lay_out(&self, plan: &Plan, goal: Goal, meter: &Meter<'_>) -> Schedule {
        self.slab.lay_out(plan, goal, meter.round(meter.effort().work, ADDRESSES.get()))
    }

    /// Seconds of a schedule, waiting included.
    pub fn seconds(&self, schedule: &Schedule) -> f64 {
        check(self.slab.instance.graph, self.slab.instance.profile, schedule, schedule.slab)
            .map_or(f64::INFINITY, |timeline| timeline.seconds.0)
    }

    /// Sequences in which everything may be away except what must stay where another schedule has
    /// it.
    fn sequences<'s>(&'s self, home: &'s dyn Fn(StorageId) -> Home) -> Sequences<'s> {
        let Tiered { slab: Slab { instance, residents }, route } = *self;
        let (taken, crossing) = (Bytes(residents.end_below), Crossing::Allowed);
        Sequences { instance, route, home, taken, crossing }
    }

    /// Where another schedule requires a storage to be.
    fn home(&self, storage: StorageId) -> Home {
        let Residents { addresses, below, .. } = self.slab.residents;
        let placeholder = self
            .slab
            .instance
            .graph
            .producer(storage)
            .map(|node| &self.slab.instance.graph.nodes()[node]);
        match placeholder.and_then(|node| node.parameter.as_ref()) {
            Some(name) if below.contains_key(name) => Home::Below,
            Some(name) if addresses.contains_key(name) => Home::Device,
            Some(_) | None => Home::Anywhere,
        }
    }
}
