//! Schedules that also move what they hold, in a slab. Invariant: within a budget none is slower
//! than the known one, which moves nothing; if the smallest slab is requested, none is larger.

use crate::check::check;
use crate::effort::{Effort, Meter};
use crate::fit::sequences::{Sequences, with_instant_lanes};
use crate::fit::slab::{Laid, Slab};
use crate::fit::turns::Turns;
use crate::goal::Goal;
use crate::id::{NodeId, StorageId};
use crate::machine::Route;
use crate::plan::offload::{Crossing, Home};
use crate::plan::{Instance, Plan, Planner, Realize, Search};
use crate::schedule::{Residents, Schedule};
use crate::tuning::min_slab::OWN_FLOOR;
use crate::tuning::turns::SMALLEST;
use crate::units::Bytes;

/// The search for schedules with moves.
pub struct Tiered<'a> {
    pub slab: Slab<'a>,
    pub route: Route,
}

impl Tiered<'_> {
    /// The fastest schedule within the budget of turns: the known one, or one that also moves.
    pub fn within(
        &self,
        turns: &mut Turns,
        search: &Search<'_>,
        known: Option<Schedule>,
        realize: &mut impl Realize<Made = Schedule>,
        meter: &Meter<'_>,
    ) -> Option<Schedule> {
        let home = |storage| self.home(storage);
        let known = known.map(|known| (self.seconds(&known), known));
        turns.fastest(&self.sequences(&home), search, known, realize, meter)
    }

    /// The smallest slab that is found; of those that are no larger than `enough`, the fastest
    /// schedule. `stays` finds one of a plan that moves nothing. It is asked last, since moves
    /// reach further; if there is a deadline, only if nothing was small enough.
    ///
    /// Moves are chosen as if lanes took no time: measured rates differ from run to run, and a slab
    /// that was found once is to be found again on request. Plans for the lanes as they are count
    /// only if their slab is no larger than `enough`.
    pub fn smallest(
        &self,
        search: &mut Search<'_>,
        stays: impl FnOnce(&mut Search<'_>) -> Option<Laid>,
        enough: Bytes,
        meter: &Meter<'_>,
    ) -> Laid {
        let home = |storage| self.home(storage);
        let moving = self.sequences(&home);
        let mut best = None;
        for runs in moving.lowest(search, meter) {
            best = self.smaller(best, &moving, runs, enough, meter);
        }
        let is_enough = |best: &Option<Laid>| best.as_ref().is_some_and(|it| it.0.slab <= enough);
        if !(meter.has_deadline() && is_enough(&best))
            && let Some(stays) = stays(search)
        {
            let runs = stays.1.runs();
            best = self.better(best, stays, enough);
            best = self.smaller(best, &moving, runs, enough, meter);
        }
        best.expect("the order itself is a sequence")
    }

    /// The best slab so far, or a smaller one for a sequence, with what has to be away.
    fn smaller(
        &self,
        mut best: Option<Laid>,
        moving: &Sequences<'_>,
        runs: Vec<NodeId>,
        enough: Bytes,
        meter: &Meter<'_>,
    ) -> Option<Laid> {
        let instant = with_instant_lanes(self.slab.instance.profile);
        for (profile, most) in [(&instant, Bytes::LIMIT), (self.slab.instance.profile, enough)] {
            let moving = Sequences { instance: Instance { profile, ..moving.instance }, ..*moving };
            let offloading = moving.offloading(&runs);
            let least = offloading.least();
            let slab = best.as_ref().map(|(best, _)| best.slab);
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
            let schedule = self.lay_out(&plan, meter);
            if schedule.slab <= most {
                best = self.better(best, (schedule, plan), enough);
            }
        }
        best
    }

    /// The one whose slab exceeds what is enough by less, or else the faster one.
    fn better(&self, best: Option<Laid>, other: Laid, enough: Bytes) -> Option<Laid> {
        let rank = |(schedule, _): &Laid| self.rank(schedule, enough);
        match best {
            Some(best) if rank(&best) <= rank(&other) => Some(best),
            Some(_) | None => Some(other),
        }
    }

    /// By how much a slab exceeds what is enough, then the seconds.
    fn rank(&self, schedule: &Schedule, enough: Bytes) -> (Bytes, f64) {
        (schedule.slab.saturating_sub(enough), self.seconds(schedule))
    }

    /// The smallest slab for a plan, in a fraction of the remaining time, with a floor.
    fn lay_out(&self, plan: &Plan, meter: &Meter<'_>) -> Schedule {
        let effort = meter.round(meter.effort().work, SMALLEST.get());
        let floor = effort.in_proportion(OWN_FLOOR.get());
        self.slab.lay_out(plan, Goal::Smallest, Effort { floor, ..effort })
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
