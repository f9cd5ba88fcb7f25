//! The budget planner: which nodes run again, when, and in which order everything runs, so that the step is as fast as
//! possible within a budget; and a proof of how fast it could be at best. Invariant: every plan that leaves this room
//! was simulated and fits; the bound holds for every legal schedule in any order.
//!
//! A search knows one graph ([`Search`]) and plans it for one budget after another. For each budget:
//!
//! 1. *Bound.* Minimum cuts at the instants that bind give a lower bound, and sets of operators to run again.
//! 2. *Starts.* Those sets, and others that are cheap to make, become plans: `repair` until they fit, `polish` what is
//!    needless. The known plan that needs the least more than fits is a start too. The plans of all other planners are
//!    made beside the search; none of them can be better than what comes out.
//! 3. *Race.* The best starts are improved by large-neighbourhood search in short legs; after each leg the order that
//!    the plan really has becomes the one that is planned; the worse runners drop out. Beside it, on a second thread,
//!    branch and bound raises the bound.
//!
//! Asked again for the same budget or a little less, it goes on with the race. `doc/theory/recompute.md` tells the whole story.

mod bound;
mod branch;
mod cuts;
mod flow;
mod instants;
mod meter;
mod neighbourhood;
mod order;
mod problem;
mod prove;
mod repair;
mod runs;
mod starts;
mod state;
mod tree;

use std::cmp::Reverse;
use std::sync::Arc;

use cranelift_entity::EntityRef;
use fastrand::Rng;

use self::bound::Instant;
use self::instants::{add_instants, highest, tight};
use self::meter::Meter;
use self::neighbourhood::improve;
use self::problem::{OpId, Picoseconds, Problem, Size, picoseconds};
use self::prove::{News, PREPARATION, peers, prove};
use self::repair::{polish, repair};
use self::runs::{rebase, steps};
use self::starts::{forward, interpolate, just_in_time, per_block, per_byte};
use self::state::State;
use super::{Effort, Plan, Planner, simulate};
use crate::graph::{Graph, NodeId};
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// Instants at the highest stages of the unplanned step, and as many spread out over it.
const INSTANTS: usize = 6;
/// Starts that are improved side by side.
const RUNNERS: usize = 6;
/// Work for a first plan, per operator.
const FIRST_WORK: u64 = 200;
/// Halvings of the distance between what is known to be feasible and what is not.
const SQUEEZES: usize = 12;
/// Work for each, per operator.
const SQUEEZE_WORK: u64 = 100;
/// Legs of each runner before the worse ones drop out.
const LEGS: u64 = 8;

/// A sequence of runs that fits.
#[derive(Clone, Debug)]
struct Found {
    peak: Bytes,
    extra: Picoseconds,
    steps: Vec<NodeId>,
}

/// What is known about one graph: lines of the bound, and plans.
pub struct Search<'a> {
    graph: &'a Graph,
    profile: &'a Profile,
    given: Arc<Problem>,
    reordered: Arc<Problem>,
    instants: Vec<Instant>,
    /// No other has both a smaller peak and less time; by rising peak.
    found: Vec<Found>,
    /// Where the last search for a plan ended.
    last: Option<Pool>,
}

/// The answer for one budget.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The fastest plan that was found; `None` where none was.
    pub plan: Option<Plan>,
    /// No schedule takes less time; `None` where none fits.
    pub bound: Option<Seconds>,
    /// Until the first plan was found.
    pub first: Seconds,
}

impl<'a> Search<'a> {
    /// Nothing is known yet beyond the order itself.
    pub fn new(graph: &'a Graph, profile: &'a Profile, order: &[NodeId]) -> Search<'a> {
        let given = Arc::new(Problem::new(graph, profile, order));
        let moved = order::improved(&given);
        let reordered = Arc::new(Problem::new(graph, profile, &moved));
        let mut search = Search { graph, profile, given, reordered, instants: Vec::new(), found: Vec::new(), last: None };
        search.offer(order.to_vec());
        search.offer(moved);
        search
    }

    /// Plans one budget.
    pub fn plan(&mut self, budget: Bytes, effort: &Effort<'_>) -> Answer {
        let mut meter = Meter::new(effort);
        let mut first = None;
        if self.best(budget).is_none_or(|best| best.extra > 0) {
            let mut random = Rng::with_seed(effort.seed);
            let mut pool = Pool { limit: size(budget), found: Vec::new() };
            pool.take(self.best(budget).cloned());
            let resumed = self.resume(&mut pool, &mut random, &mut meter);
            self.sharpen(pool.limit, &mut meter);
            if !resumed && self.bound(budget).is_some() {
                self.starts(&mut pool, &mut random, &mut meter, &mut first);
            }
            if self.bound(budget).is_none() {
                return Answer { plan: None, bound: None, first: meter.elapsed() };
            }
            self.race_and_prove(pool, !resumed, &mut random, &mut meter);
        }
        let first = first.unwrap_or(meter.elapsed());
        let plan = self.best(budget).map(|best| Plan { planner: Planner::Auto, steps: best.steps.clone() });
        Answer { plan, bound: self.bound(budget), first }
    }

    /// Time that no schedule within the budget beats, by the cuts known so far; `None` where no schedule fits.
    pub fn bound(&self, budget: Bytes) -> Option<Seconds> {
        let least = self.instants.iter().map(|instant| instant.bound(size(budget))).try_fold(0, |most, bound| Some(bound?.max(most)))?;
        // Costs were rounded down to picoseconds, so the sum of both is below the time of every schedule.
        Some(Seconds((self.given.total + least) as f64 * 1e-12))
    }

    /// No budget below this one suffices, by the cuts known so far.
    pub fn least_budget(&self) -> Bytes {
        Bytes(self.instants.iter().map(Instant::least_budget).max().unwrap_or(self.given.resting).max(0) as u64)
    }

    /// Makes a sequence of runs known, if it is better than what is.
    pub fn offer(&mut self, steps: Vec<NodeId>) -> Bytes {
        let peak = simulate(self.graph, self.profile, &steps).curve.peak;
        let extra = self.extra(&steps);
        let is_worse = |other: &Found| other.peak <= peak && other.extra <= extra;
        if !self.found.iter().any(is_worse) {
            self.found.retain(|other| other.peak < peak || other.extra < extra);
            let slot = self.found.partition_point(|other| other.peak < peak);
            self.found.insert(slot, Found { peak, extra, steps });
        }
        peak
    }

    /// Time of a sequence beyond that of all first runs.
    fn extra(&self, steps: &[NodeId]) -> Picoseconds {
        steps.iter().map(|&node| picoseconds(self.profile.seconds[node].0)).sum::<Picoseconds>() - self.given.total
    }

    /// The fastest known plan within a budget.
    fn best(&self, budget: Bytes) -> Option<&Found> {
        self.found.iter().rev().find(|found| found.peak <= budget)
    }

    /// The plan with the smallest peak that is found with a fixed amount of work, whatever it costs; so asking for that
    /// peak later finds it again. The deadline is a limit all the same.
    pub fn smallest(&mut self, effort: &Effort<'_>) -> Plan {
        let mut meter = Meter::new(effort);
        let mut random = Rng::with_seed(effort.seed);
        let mut refused = 0;
        for _ in 0..SQUEEZES {
            let reached = self.found.first().map_or(0, |found| size(found.peak));
            let floor = size(self.least_budget()).max(refused);
            let target = floor + (reached - floor) / 2;
            if target >= reached || meter.is_over() {
                break;
            }
            let mut pool = Pool { limit: target, found: Vec::new() };
            let mut leg = meter.leg(SQUEEZE_WORK * self.given.len() as u64);
            self.squeeze(&mut pool, &mut random, &mut leg);
            meter.spend(leg.spent() - meter.spent());
            if self.found.first().is_none_or(|found| size(found.peak) > target) {
                refused = target;
            }
        }
        self.lowest()
    }

    /// The plan with the smallest peak that is known.
    pub fn lowest(&self) -> Plan {
        let steps = self.found.first().map_or(Vec::new(), |found| found.steps.clone());
        Plan { planner: Planner::Auto, steps }
    }

    /// Looks for any plan within a budget: from the cuts that bind, and from the plan with the smallest peak.
    fn squeeze(&mut self, pool: &mut Pool, random: &mut Rng, meter: &mut Meter) {
        let limit = pool.limit;
        for _ in 0..2 {
            let Some(lowest) = self.found.first().cloned() else { return };
            for at in tight(self.graph, self.profile, &lowest.steps, &self.given, size(lowest.peak)).into_iter().take(2) {
                self.add_instant(at, limit, meter);
            }
            if self.finish_steps(&lowest.steps, pool, random, meter) || self.bound(Bytes(limit as u64)).is_none() {
                return;
            }
            let given = self.given.clone();
            let mut state = State::new(&given);
            let binding = self.instants.iter().max_by_key(|instant| (instant.bound(limit), Reverse(instant.at))).map(|instant| instant.at);
            if let Some(at) = binding {
                self.start_from(at, &mut state, pool, random, meter);
            }
            if self.found.first().is_some_and(|found| size(found.peak) <= limit) || meter.is_over() {
                return;
            }
        }
    }

    /// The known plans within a budget, fastest first, with some distance between their peaks.
    pub fn within(&self, budget: Bytes) -> impl Iterator<Item = Plan> {
        let mut above = budget;
        let found = self.found.iter().rev().filter(move |found| {
            let is_next = found.peak <= Bytes(above.0 - above.0 / 128);
            if is_next {
                above = found.peak;
            }
            is_next
        });
        found.map(|found| Plan { planner: Planner::Auto, steps: found.steps.clone() })
    }

    /// Repairs, polishes and offers what is in `state`.
    fn finish(&mut self, state: &mut State, pool: &mut Pool, random: &mut Rng, meter: &mut Meter) -> bool {
        let fits = repair(state, pool.limit, 0.0, random, meter);
        if fits {
            polish(state, pool.limit, 0.0, random, meter);
        }
        meter.spend(std::mem::take(&mut state.work));
        if fits {
            let runs = steps(state.problem, &state.events());
            self.offer(runs.clone());
            pool.take(self.best(Bytes(pool.limit as u64)).cloned());
            pool.push(state.extra(), runs);
        }
        fits
    }

    /// The same for a sequence of runs.
    fn finish_steps(&mut self, steps: &[NodeId], pool: &mut Pool, random: &mut Rng, meter: &mut Meter) -> bool {
        let (problem, events) = rebase(self.graph, self.profile, steps);
        let mut state = State::new(&problem);
        state.set(&events);
        self.finish(&mut state, pool, random, meter)
    }

    /// Makes the hulls of the instants that bind most exact at a budget.
    fn sharpen(&mut self, limit: Size, meter: &mut Meter) {
        self.instants.sort_by_key(|instant| (Reverse(instant.bound(limit).unwrap_or(Picoseconds::MAX)), instant.at));
        for instant in self.instants.iter_mut().take(2 * INSTANTS) {
            if meter.is_over() {
                return;
            }
            instant.solve(limit, meter);
        }
    }

    /// Goes on where the last search ended, if its budget was this one or a little more.
    fn resume(&mut self, pool: &mut Pool, random: &mut Rng, meter: &mut Meter) -> bool {
        let limit = pool.limit;
        let near = |last: &Pool| limit <= last.limit && last.limit - limit <= limit / 8;
        let Some(last) = self.last.take().filter(near) else { return false };
        for (_, steps) in last.found {
            self.finish_steps(&steps, pool, random, meter);
        }
        pool.best().is_some()
    }

    /// Makes plans from cuts and from whatever else is cheap.
    fn starts(&mut self, pool: &mut Pool, random: &mut Rng, meter: &mut Meter, first: &mut Option<Seconds>) {
        let (given, reordered) = (self.given.clone(), self.reordered.clone());
        let mut states = [State::new(&given), State::new(&reordered)];
        let mut values = Vec::new();
        states[0].peak();
        states[0].tree().values(&mut values, given.len());
        let mut waiting = highest(&values, INSTANTS);
        let mut tried: Vec<OpId> = Vec::new();
        for round in 0..3 {
            for (number, at) in waiting.drain(..).enumerate() {
                if round == 0 && number == INSTANTS {
                    self.first_start(&mut states[0], pool, random, meter, first);
                }
                if meter.is_over() || self.bound(Bytes(pool.limit as u64)).is_none() {
                    break;
                }
                self.add_instant(at, pool.limit, meter);
            }
            self.first_start(&mut states[0], pool, random, meter, first);
            if meter.is_over() || self.bound(Bytes(pool.limit as u64)).is_none() {
                return;
            }
            let before = pool.best();
            let mut ranked: Vec<(Option<Picoseconds>, OpId)> =
                self.instants.iter().map(|instant| (instant.bound(pool.limit), instant.at)).collect();
            ranked.sort_by_key(|&(bound, at)| (Reverse(bound.unwrap_or(Picoseconds::MAX)), at));
            let fresh: Vec<OpId> =
                ranked.iter().map(|&(_, at)| at).filter(|at| !tried.contains(at)).take(if round == 0 { 3 } else { 2 }).collect();
            for at in fresh {
                tried.push(at);
                self.start_from(at, &mut states[0], pool, random, meter);
                if meter.is_over() || pool.best().is_some_and(|best| self.is_optimal(best, self.floor(pool.limit))) {
                    return;
                }
            }
            if round > 0 && pool.best() == before {
                break;
            }
            // Where the best plan is tight, other cuts may bind.
            if let Some(best) = self.best(Bytes(pool.limit as u64)) {
                waiting = tight(self.graph, self.profile, &best.steps, &given, pool.limit);
                waiting.retain(|at| self.instants.iter().all(|instant| instant.at != *at));
                waiting.truncate(8);
            }
        }
        for state in &mut states {
            let problem = state.problem;
            let (all, end) = forward(problem);
            let up = |op: OpId| op.index() as f64;
            for depth in [1, 2] {
                let blocks = per_block(self.graph, problem, depth);
                if !blocks.is_empty() {
                    interpolate(state, end, &[], &blocks, up, pool.limit);
                    self.finish(state, pool, random, meter);
                    interpolate(state, end, &[], &blocks, |op| -up(op), pool.limit);
                    self.finish(state, pool, random, meter);
                }
                if meter.is_over() {
                    return;
                }
            }
            interpolate(state, end, &[], &all, |op| per_byte(problem, op), pool.limit);
            self.finish(state, pool, random, meter);
            for noise in [0.0, 0.5] {
                state.set(&[]);
                if meter.is_over() || !repair(state, pool.limit, noise, random, meter) {
                    break;
                }
                self.finish(state, pool, random, meter);
            }
        }
        first.get_or_insert(meter.elapsed());
    }

    /// A plan at once, whatever the time: between the cuts that bind most, or from the plan that needs the least more than
    /// fits. Better ones later.
    fn first_start(&mut self, state: &mut State, pool: &mut Pool, random: &mut Rng, meter: &mut Meter, first: &mut Option<Seconds>) {
        if pool.best().is_none() && self.bound(Bytes(pool.limit as u64)).is_some() {
            let mut patient = meter.patient(FIRST_WORK * self.given.len() as u64);
            let binding = (0..self.instants.len()).max_by_key(|&index| (self.instants[index].bound(pool.limit), Reverse(index)));
            if let Some(index) = binding.filter(|&index| self.instants[index].bound(pool.limit) > Some(0)) {
                self.start_between(index, pool.limit, false, state, pool, random, &mut patient);
            }
            if pool.best().is_none() {
                self.start_from_neighbour(pool, random, &mut patient);
            }
            meter.spend(patient.spent() - meter.spent());
        }
        if pool.best().is_some() {
            first.get_or_insert(meter.elapsed());
        }
    }

    /// The plan that is known to need the least more than fits, repaired.
    fn start_from_neighbour(&mut self, pool: &mut Pool, random: &mut Rng, meter: &mut Meter) {
        let Some(above) = self.found.iter().find(|found| size(found.peak) > pool.limit).cloned() else { return };
        self.finish_steps(&above.steps, pool, random, meter);
    }

    /// A plan between the two cuts around a target at one instant: how much of their difference, from the front or from
    /// the back, is enough. Returns by how much it was not.
    #[allow(clippy::too_many_arguments)]
    fn start_between(
        &mut self,
        index: usize,
        target: Size,
        backwards: bool,
        state: &mut State,
        pool: &mut Pool,
        random: &mut Rng,
        meter: &mut Meter,
    ) -> Size {
        let instant = &mut self.instants[index];
        instant.solve(target, meter);
        let [small, large] = instant.bracket(target).map(|line| line.late.clone());
        let rank = |op: OpId| if backwards { -(op.index() as f64) } else { op.index() as f64 };
        interpolate(state, instant.at, &small, &large, rank, pool.limit);
        let over = state.peak() - pool.limit;
        self.finish(state, pool, random, meter);
        over
    }

    /// Plans between the two cuts around the budget at one instant, and the cuts as they are.
    fn start_from(&mut self, at: OpId, state: &mut State, pool: &mut Pool, random: &mut Rng, meter: &mut Meter) {
        let Some(index) = self.instants.iter().position(|instant| instant.at == at) else { return };
        if self.instants[index].bound(pool.limit) == Some(0) {
            return; // It does not bind: everything can be held there.
        }
        for backwards in [false, true] {
            let mut target = pool.limit;
            for _ in 0..3 {
                let over = self.start_between(index, target, backwards, state, pool, random, meter);
                if over <= 0 || meter.is_over() {
                    break;
                }
                target -= over * 7 / 10 + 1;
            }
        }
        for late in self.instants[index].bracket(pool.limit).map(|line| line.late.clone()) {
            just_in_time(state, at, &late);
            self.finish(state, pool, random, meter);
        }
    }

    /// Improves the best starts; on a second thread, raises the bound, whose cuts are further starts.
    fn race_and_prove(&mut self, pool: Pool, with_peers: bool, random: &mut Rng, meter: &mut Meter) {
        let limit = pool.limit;
        if pool.best().is_some_and(|best| self.is_optimal(best, self.floor(limit))) {
            return;
        }
        let best = self.best(Bytes(limit as u64)).cloned();
        let waiting = best.as_ref().map_or(Vec::new(), |best| tight(self.graph, self.profile, &best.steps, &self.given, limit));
        let enough = best.map_or(Picoseconds::MAX, |best| best.extra);
        let (given, floor) = (self.given.clone(), self.floor(limit));
        let mut instants = std::mem::take(&mut self.instants);
        // News come when they come: where the same seed has to give the same plan, nobody listens.
        let news = meter.has_deadline().then(|| News::new(floor, enough));
        std::thread::scope(|scope| {
            let mut prover = meter.clone();
            let (graph, profile) = (self.graph, self.profile);
            let (instants, given, news) = (&mut instants, &given, news.as_ref());
            let thread = scope.spawn(move || {
                add_instants(given, instants, &waiting, limit, &mut prover.until(PREPARATION));
                let plans = if with_peers { peers(graph, profile, given, limit, &mut prover) } else { Vec::new() };
                prove(given, instants, limit, enough, news, &mut prover);
                plans
            });
            self.race(pool, given, news, floor, random, meter);
            // A thread that panicked leaves a weaker bound, and its message.
            thread.join().unwrap_or_default().into_iter().for_each(|steps| {
                self.offer(steps);
            });
        });
        self.instants = instants;
    }

    /// Improves the best starts side by side; the worse ones drop out.
    fn race(&mut self, mut pool: Pool, given: &Problem, news: Option<&News>, mut floor: Picoseconds, random: &mut Rng, meter: &mut Meter) {
        let limit = pool.limit;
        let mut state = State::new(given);
        let mut runners = std::mem::take(&mut pool.found);
        runners.sort_by_key(|runner| runner.0);
        runners.truncate(RUNNERS);
        'race: while !runners.is_empty() {
            let share = if runners.len() == 1 { 1 } else { 3 };
            let work = meter.left() / (share * LEGS * runners.len() as u64);
            for index in 0..runners.len() {
                for _ in 0..LEGS {
                    if let Some(news) = news {
                        for (at, late) in news.sets() {
                            just_in_time(&mut state, at, &late);
                            self.finish(&mut state, &mut pool, random, meter);
                        }
                        floor = floor.max(news.race(self.best_extra(limit)));
                    }
                    if meter.is_over() || self.is_optimal(self.best_extra(limit), floor) {
                        break 'race;
                    }
                    self.leg(&mut runners[index], limit, work.max(1), floor, random, meter);
                }
            }
            runners.sort_by_key(|runner| runner.0);
            runners.truncate(runners.len().div_ceil(3));
            pool.found.sort_by_key(|found| found.0);
            runners.extend(pool.found.drain(..).take(2));
        }
        let best = self.best(Bytes(limit as u64)).map(|best| (best.extra, best.steps.clone()));
        self.last = Some(Pool { limit, found: best.into_iter().chain(runners).collect() });
    }

    /// Time of the fastest known plan within a limit.
    fn best_extra(&self, limit: Size) -> Picoseconds {
        self.best(Bytes(limit as u64)).map_or(Picoseconds::MAX, |best| best.extra)
    }

    /// One leg of one runner.
    fn leg(
        &mut self,
        runner: &mut (Picoseconds, Vec<NodeId>),
        limit: Size,
        work: u64,
        floor: Picoseconds,
        random: &mut Rng,
        meter: &mut Meter,
    ) {
        let (problem, events) = rebase(self.graph, self.profile, &runner.1);
        let mut state = State::new(&problem);
        state.set(&events);
        meter.spend(problem.len() as u64);
        if !repair(&mut state, limit, 0.0, random, meter) {
            return;
        }
        polish(&mut state, limit, 0.0, random, meter);
        improve(&mut state, limit, random, meter, work, floor);
        runner.1 = steps(&problem, &state.events());
        runner.0 = self.extra(&runner.1);
        self.offer(runner.1.clone());
    }

    fn add_instant(&mut self, at: OpId, limit: Size, meter: &mut Meter) {
        add_instants(&self.given, &mut self.instants, &[at], limit, meter);
    }

    /// Time of recomputation that no plan within the budget beats.
    fn floor(&self, limit: Size) -> Picoseconds {
        self.instants.iter().filter_map(|instant| instant.bound(limit)).max().unwrap_or(0)
    }

    /// Nothing more than a millionth of the step is to be gained.
    fn is_optimal(&self, extra: Picoseconds, floor: Picoseconds) -> bool {
        extra - floor <= self.given.total / 1_000_000
    }
}

/// Plans that fit one budget.
struct Pool {
    limit: Size,
    found: Vec<(Picoseconds, Vec<NodeId>)>,
}

impl Pool {
    fn take(&mut self, found: Option<Found>) {
        if let Some(found) = found {
            self.push(found.extra, found.steps);
        }
    }

    fn push(&mut self, extra: Picoseconds, steps: Vec<NodeId>) {
        if self.found.iter().all(|other| other.0 != extra) {
            self.found.push((extra, steps));
        }
    }

    fn best(&self) -> Option<Picoseconds> {
        self.found.iter().map(|found| found.0).min()
    }
}

fn size(bytes: Bytes) -> Size {
    bytes.0.min(Bytes::LIMIT.0) as Size
}

#[cfg(test)]
mod state_tests;
