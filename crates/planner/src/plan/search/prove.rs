//! What a second thread does during the race: it raises the bound. Invariant: nothing here waits
//! for the race, and with a limit of work alone nothing here depends on how fast the race is.

use std::cmp::Reverse;
use std::sync::Mutex;

use crate::effort::{Effort, Meter};
use crate::id::NodeId;
use crate::plan::Instance;
use crate::plan::quantity::{ByteCount, Picoseconds};
use crate::plan::search::binding_instants::highest;
use crate::plan::search::bound::{BoundOrder, Bounds, CutInstant, MovingInstant, Rates};
use crate::plan::search::state::State;
use crate::plan::search::state::problem::{OpId, Problem};
use crate::tuning::bound::INSTANTS;
use crate::units::{Bytes, Seconds};

/// An instant, and operators that run again after it.
pub type LateSet = (OpId, Vec<OpId>);

/// What race and prover exchange: the bound, and the best plan so far.
pub struct SharedBounds(Mutex<Known>);

struct Known {
    /// No plan takes less.
    floor: Picoseconds,
    /// The time of the best plan.
    best: Picoseconds,
    /// Sets of operators from which plans are made.
    sets: Vec<LateSet>,
}

impl SharedBounds {
    /// The bound and the best plan at the start.
    pub fn new(floor: Picoseconds, best: Picoseconds) -> SharedBounds {
        SharedBounds(Mutex::new(Known { floor, best, sets: Vec::new() }))
    }

    /// From the prover: a bound, and sets of operators from which plans are made. To the prover:
    /// the best plan so far.
    fn offer_bound(&self, floor: Picoseconds, sets: impl Iterator<Item = LateSet>) -> Picoseconds {
        self.0.lock().map_or(Picoseconds::MAX, |mut known| {
            known.floor = known.floor.max(floor);
            known.sets.extend(sets);
            known.best
        })
    }

    /// From the race: its best plan. To the race: the bound so far.
    pub fn offer_plan(&self, best: Picoseconds) -> Picoseconds {
        self.0.lock().map_or(Picoseconds::ZERO, |mut known| {
            known.best = known.best.min(best);
            known.floor
        })
    }

    /// The sets since the last time.
    pub fn sets(&self) -> Vec<LateSet> {
        self.0.lock().map_or(Vec::new(), |mut known| std::mem::take(&mut known.sets))
    }
}

/// Raises the bound at one budget by branch and bound, instant by instant: each time the one that
/// binds most, for half of the remaining time.
pub fn prove(
    problem: &Problem,
    bounds: &mut Bounds,
    limit: ByteCount,
    mut enough: Picoseconds,
    shared: Option<&SharedBounds>,
    meter: &mut Meter,
) {
    let mut branched: Vec<OpId> = Vec::new();
    while !meter.is_over() {
        let floor = bounds.floor(limit);
        if let Some(shared) = shared {
            enough = enough.min(shared.offer_bound(floor, [].into_iter()));
        }
        let open = bounds.instants.iter_mut().filter(|instant| !branched.contains(&instant.at));
        let Some(instant) = open.max_by_key(|instant| (instant.bound(limit), Reverse(instant.at)))
        else {
            return;
        };
        if floor >= enough {
            return;
        }
        branched.push(instant.at);
        let mut half = meter.half();
        let sets = instant.branch(problem, limit, enough, &mut half);
        meter.spend(half.spent() - meter.spent());
        if let (Some(shared), Some(floor)) = (shared, instant.bound(limit)) {
            let at = instant.at;
            shared.offer_bound(floor, sets.into_iter().rev().take(2).map(|set| (at, set)));
        }
    }
}

/// Time that no schedule within a budget beats, if its first runs are in the given order or,
/// depending on `kind`, in any; `None` if no such schedule fits. `known` are the runs of one that
/// fits; empty if none is known.
pub fn lower_bound(
    instance: Instance<'_>,
    kind: BoundOrder,
    budget: Bytes,
    known: &[NodeId],
    effort: &Effort<'_>,
) -> Option<Seconds> {
    let profile = instance.profile;
    let mut meter = Meter::new(effort);
    let problem = Problem::new(instance);
    let limit = ByteCount::of(budget);
    let mut bounds = Bounds::default();
    for at in highest(&mut State::new(&problem), INSTANTS.get()) {
        let Some(mut instant) = CutInstant::new(&problem, kind, at, &mut meter) else { break };
        instant.solve(limit, &mut meter);
        instant.bound(limit)?;
        bounds.instants.push(instant);
    }
    let known: Picoseconds =
        known.iter().map(|&node| Picoseconds::round_down(profile.seconds[node])).sum();
    let enough = if known > Picoseconds::ZERO { known - problem.total } else { Picoseconds::MAX };
    prove(&problem, &mut bounds, limit, enough, None, &mut meter);
    Some((problem.total + bounds.floor(limit)).seconds())
}

/// Time that no schedule within a budget beats, in whatever order its nodes run for the first time
/// and whatever it moves between the device and tiers below; for a run of many steps.
pub fn lower_bound_with_moves(
    instance: Instance<'_>,
    budget: Bytes,
    effort: &Effort<'_>,
) -> Seconds {
    let Instance { graph, profile, .. } = instance;
    let mut meter = Meter::new(effort);
    let problem = Problem::new(instance);
    let Some(rates) = Rates::new(&profile.hierarchy) else { return problem.total.seconds() };
    let limit = ByteCount::of(budget);
    let mut least = problem.total;
    for at in highest(&mut State::new(&problem), INSTANTS.get()) {
        if meter.is_over() {
            break;
        }
        let instant = MovingInstant::new((graph, profile), &problem, rates, at, limit);
        if let Some(mut instant) = instant {
            least = least.max(instant.solve(&mut meter));
        }
    }
    least.seconds()
}
