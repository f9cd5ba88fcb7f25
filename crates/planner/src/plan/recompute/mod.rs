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
mod flow;
mod meter;
mod neighbourhood;
mod order;
mod problem;
mod repair;
mod runs;
mod starts;
mod state;
mod tree;

use std::cmp::Reverse;

use cranelift_entity::EntityRef;
use fastrand::Rng;

use self::bound::Instant;
use self::meter::Meter;
use self::neighbourhood::improve;
use self::problem::{OpId, Picoseconds, Problem, Size, picoseconds};
use self::repair::{polish, repair};
use self::runs::{rebase, steps};
use self::starts::{forward, interpolate, just_in_time, per_block, per_byte};
use self::state::State;
use super::{Effort, Plan, PlanError, Planner, simulate};
use crate::graph::{Graph, NodeId};
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// Instants at the highest stages of the unplanned step, and as many spread out over it.
const INSTANTS: usize = 6;
/// Starts that are improved side by side.
const RUNNERS: usize = 6;
/// Work for a first plan, per operator.
const FIRST_WORK: u64 = 200;
/// The other planners, the quicker ones first.
const PEERS: [Planner; 6] = [Planner::Chen, Planner::Dtr, Planner::Knapsack, Planner::Rotor, Planner::Capuchin, Planner::Xla];
/// Parts of the effort at whose ends branch and bound goes on to the next instant.
const PROOF: [f64; 4] = [0.5, 0.7, 0.85, 0.95];
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
    given: Problem,
    reordered: Problem,
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
        let given = Problem::new(graph, profile, order);
        let moved = order::improved(&given);
        let reordered = Problem::new(graph, profile, &moved);
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
            if self.resume(&mut pool, &mut random, &mut meter) {
                let (given, floor) = (self.given.clone(), self.floor(pool.limit));
                self.race(pool, &given, None, floor, &mut random, &mut meter);
            } else {
                self.sharpen(pool.limit, &mut meter);
                if self.bound(budget).is_some() {
                    self.starts(&mut pool, &mut random, &mut meter, &mut first);
                }
                if self.bound(budget).is_none() {
                    return Answer { plan: None, bound: None, first: meter.elapsed() };
                }
                self.race_and_prove(pool, &mut random, &mut meter);
            }
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
        let extra = steps.iter().map(|&node| picoseconds(self.profile.seconds[node].0)).sum::<Picoseconds>() - self.given.total;
        let is_worse = |other: &Found| other.peak <= peak && other.extra <= extra;
        if !self.found.iter().any(is_worse) {
            self.found.retain(|other| other.peak < peak || other.extra < extra);
            let slot = self.found.partition_point(|other| other.peak < peak);
            self.found.insert(slot, Found { peak, extra, steps });
        }
        peak
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
            let (problem, events) = rebase(self.graph, self.profile, &lowest.steps);
            let mut state = State::new(&problem);
            state.set(&events);
            if self.finish(&mut state, pool, random, meter) || self.bound(Bytes(limit as u64)).is_none() {
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
            self.offer(runs);
            pool.take(self.best(Bytes(pool.limit as u64)).cloned());
            pool.push(state.extra(), steps(state.problem, &state.events()));
        }
        fits
    }

    /// Makes the hulls of the instants that bind most exact at a budget.
    fn sharpen(&mut self, limit: Size, meter: &mut Meter) {
        self.instants.sort_by_key(|instant| (Reverse(instant.bound(limit).unwrap_or(Picoseconds::MAX)), instant.at));
        for instant in self.instants.iter_mut().take(2 * INSTANTS) {
            if meter.is_over() {
                return;
            }
            instant.solve(&self.given, limit, meter);
        }
    }

    /// Goes on where the last search ended, if its budget was this one or a little more.
    fn resume(&mut self, pool: &mut Pool, random: &mut Rng, meter: &mut Meter) -> bool {
        let limit = pool.limit;
        let near = |last: &Pool| limit <= last.limit && last.limit - limit <= limit / 8;
        let Some(last) = self.last.take().filter(near) else { return false };
        for (_, steps) in last.found {
            let (problem, events) = rebase(self.graph, self.profile, &steps);
            let mut state = State::new(&problem);
            state.set(&events);
            self.finish(&mut state, pool, random, meter);
        }
        pool.best().is_some()
    }

    /// Makes plans from cuts and from whatever else is cheap.
    fn starts(&mut self, pool: &mut Pool, random: &mut Rng, meter: &mut Meter, first: &mut Option<Seconds>) {
        if pool.best().is_none() {
            let mut patient = meter.patient(FIRST_WORK * self.given.len() as u64);
            self.start_from_neighbour(pool, random, &mut patient);
            meter.spend(patient.spent() - meter.spent());
        }
        if pool.best().is_some() {
            *first = Some(meter.elapsed());
        }
        let (given, reordered) = (self.given.clone(), self.reordered.clone());
        let mut states = [State::new(&given), State::new(&reordered)];
        let mut values = Vec::new();
        states[0].peak();
        states[0].tree().values(&mut values, given.len());
        let mut waiting = highest(&values, INSTANTS);
        let mut tried: Vec<OpId> = Vec::new();
        for round in 0..3 {
            for at in waiting.drain(..) {
                self.add_instant(at, pool.limit, meter);
                if round == 0 && tried.is_empty() {
                    // A plan at once; better ones later.
                    tried.push(at);
                    if self.bound(Bytes(pool.limit as u64)).is_none() {
                        return;
                    }
                    self.start_from(at, &mut states[0], pool, random, meter);
                    if pool.best().is_some() {
                        first.get_or_insert(meter.elapsed());
                    }
                }
                if meter.is_over() {
                    return;
                }
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
                if meter.is_over() || self.is_proven(pool) {
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

    /// The plan that is known to need the least more than fits, repaired.
    fn start_from_neighbour(&mut self, pool: &mut Pool, random: &mut Rng, meter: &mut Meter) {
        let Some(above) = self.found.iter().find(|found| size(found.peak) > pool.limit) else { return };
        let (problem, events) = rebase(self.graph, self.profile, &above.steps);
        let mut state = State::new(&problem);
        state.set(&events);
        self.finish(&mut state, pool, random, meter);
    }

    /// Plans between the two cuts around the budget at one instant, and the cuts as they are.
    fn start_from(&mut self, at: OpId, state: &mut State, pool: &mut Pool, random: &mut Rng, meter: &mut Meter) {
        let Some(index) = self.instants.iter().position(|instant| instant.at == at) else { return };
        if self.instants[index].bound(pool.limit) == Some(0) {
            return; // It does not bind: everything can be held there.
        }
        let up = |op: OpId| op.index() as f64;
        for backwards in [false, true] {
            let mut target = pool.limit;
            for _ in 0..3 {
                self.instants[index].solve(&self.given, target, meter);
                let [small, large] = self.instants[index].bracket(target).map(|line| line.late.clone());
                let rank = |op| if backwards { -up(op) } else { up(op) };
                let fits = interpolate(state, at, &small, &large, rank, pool.limit);
                let over = state.peak() - pool.limit;
                self.finish(state, pool, random, meter);
                if fits || meter.is_over() {
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
    fn race_and_prove(&mut self, pool: Pool, random: &mut Rng, meter: &mut Meter) {
        let limit = pool.limit;
        if self.is_proven(&pool) {
            return;
        }
        let best = self.best(Bytes(limit as u64)).cloned();
        let waiting = best.as_ref().map_or(Vec::new(), |best| tight(self.graph, self.profile, &best.steps, &self.given, limit));
        let enough = best.map_or(Picoseconds::MAX, |best| best.extra);
        let mut instants = std::mem::take(&mut self.instants);
        let given = self.given.clone();
        let floor = instants.iter().filter_map(|instant| instant.bound(limit)).max().unwrap_or(0);
        // News come when they come: where the same seed has to give the same plan, nobody listens.
        let news = meter.has_deadline().then(|| News::new(floor));
        std::thread::scope(|scope| {
            let mut prover = meter.clone();
            let (graph, profile) = (self.graph, self.profile);
            let (instants, given, news) = (&mut instants, &given, news.as_ref());
            let thread = scope.spawn(move || {
                add_instants(given, instants, waiting, limit, &mut prover.until(PROOF[0]));
                let plans = peers(graph, profile, given, limit, &mut prover);
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
        let proven = |best: Option<&Found>, floor| best.is_some_and(|best| best.extra - floor <= given.total / 1_000_000);
        runners.sort_by_key(|runner| runner.0);
        runners.truncate(RUNNERS);
        while !runners.is_empty() && !meter.is_over() {
            let share = if runners.len() == 1 { 1 } else { 3 };
            let work = meter.left() / (share * LEGS * runners.len() as u64);
            for index in 0..runners.len() {
                for _ in 0..LEGS {
                    if meter.is_over() || proven(self.best(Bytes(limit as u64)), floor) {
                        let best = self.best(Bytes(limit as u64)).map(|best| (best.extra, best.steps.clone()));
                        self.last = Some(Pool { limit, found: best.into_iter().chain(runners).collect() });
                        return;
                    }
                    self.leg(&mut runners[index], limit, work.max(1), floor, random, meter);
                }
            }
            runners.sort_by_key(|runner| runner.0);
            runners.truncate(runners.len().div_ceil(3));
            self.last = Some(Pool { limit, found: runners.clone() });
            if let Some(news) = news {
                let (least, sets) = news.read();
                floor = floor.max(least);
                let mut fresh = Pool { limit, found: Vec::new() };
                for (at, late) in sets {
                    just_in_time(&mut state, at, &late);
                    self.finish(&mut state, &mut fresh, random, meter);
                }
                fresh.found.sort_by_key(|found| found.0);
                runners.extend(fresh.found.into_iter().take(2));
            }
        }
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
        runner.0 = runner.1.iter().map(|&node| picoseconds(self.profile.seconds[node].0)).sum::<Picoseconds>() - self.given.total;
        self.offer(runner.1.clone());
    }

    fn add_instant(&mut self, at: OpId, limit: Size, meter: &mut Meter) {
        add_instants(&self.given, &mut self.instants, vec![at], limit, meter);
    }

    /// Time of recomputation that no plan within the budget beats.
    fn floor(&self, limit: Size) -> Picoseconds {
        self.instants.iter().filter_map(|instant| instant.bound(limit)).max().unwrap_or(0)
    }

    /// Nothing more than a millionth of the step is to be gained.
    fn is_proven(&self, pool: &Pool) -> bool {
        pool.best().is_some_and(|best| best - self.floor(pool.limit) <= self.given.total / 1_000_000)
    }
}

/// Operators that run again after an instant.
type LateSet = (OpId, Vec<OpId>);

/// What the prover found out so far.
struct News(std::sync::Mutex<(Picoseconds, Vec<LateSet>)>);

impl News {
    fn new(floor: Picoseconds) -> News {
        News(std::sync::Mutex::new((floor, Vec::new())))
    }

    fn write(&self, floor: Picoseconds, sets: impl Iterator<Item = LateSet>) {
        if let Ok(mut news) = self.0.lock() {
            news.0 = news.0.max(floor);
            news.1.extend(sets);
        }
    }

    fn read(&self) -> (Picoseconds, Vec<LateSet>) {
        self.0.lock().map_or((0, Vec::new()), |mut news| (news.0, std::mem::take(&mut news.1)))
    }
}

/// The plans of the other planners, as far as there is time for them.
fn peers(graph: &Graph, profile: &Profile, problem: &Problem, limit: Size, meter: &mut Meter) -> Vec<Vec<NodeId>> {
    let order: Vec<NodeId> = problem.ops.values().filter_map(|op| op.node).collect();
    // None of them takes much more than this.
    let work = (order.len() * order.len()) as u64 / 32;
    let mut plans = Vec::new();
    for planner in PEERS {
        if meter.left() / 8 < work || meter.until(PROOF[0]).is_over() {
            break;
        }
        meter.spend(work);
        match super::plan(graph, profile, &order, Bytes(limit as u64), planner) {
            Ok(plan) => plans.push(plan.steps),
            Err(PlanError::Infeasible(proof)) => plans.push(proof.plan.steps),
            Err(_) => {}
        }
    }
    plans
}

/// Adds instants, with their hulls at a budget.
fn add_instants(problem: &Problem, instants: &mut Vec<Instant>, waiting: Vec<OpId>, limit: Size, meter: &mut Meter) {
    for at in waiting {
        if instants.iter().all(|instant| instant.at != at)
            && let Some(mut instant) = Instant::new(problem, at, meter)
        {
            instant.solve(problem, limit, meter);
            instants.push(instant);
        }
    }
}

/// Raises the bound at one budget by branch and bound at the instants that bind.
fn prove(problem: &Problem, instants: &mut [Instant], limit: Size, enough: Picoseconds, news: Option<&News>, meter: &mut Meter) {
    let mut branched: Vec<OpId> = Vec::new();
    for share in PROOF {
        let open = instants.iter_mut().filter(|instant| !branched.contains(&instant.at));
        let Some(instant) = open.max_by_key(|instant| (instant.bound(limit), Reverse(instant.at))) else { return };
        branched.push(instant.at);
        let sets = instant.branch(problem, limit, enough, &mut meter.until(share));
        if let (Some(news), Some(floor)) = (news, instant.bound(limit)) {
            let at = instant.at;
            news.write(floor, sets.into_iter().rev().take(2).map(|set| (at, set)));
        }
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

/// The `count` highest stages, and as many more that are far from each other.
fn highest(values: &[Size], count: usize) -> Vec<OpId> {
    let mut stages: Vec<usize> = (1..values.len()).collect();
    stages.sort_by_key(|&stage| (Reverse(values[stage]), stage));
    let mut chosen: Vec<usize> = stages.iter().copied().take(1).collect();
    for &stage in &stages {
        if chosen.iter().all(|other| stage.abs_diff(*other) > values.len() / 20) {
            chosen.push(stage);
        }
        if chosen.len() > count {
            break;
        }
    }
    chosen.extend(stages.into_iter().skip(1).take(count));
    chosen.dedup();
    chosen.into_iter().map(OpId::at).collect()
}

/// The operators in whose first runs a plan is tight, largest working set first, then spread out; as `problem` has them.
fn tight(graph: &Graph, profile: &Profile, steps: &[NodeId], problem: &Problem, limit: Size) -> Vec<OpId> {
    let (own, events) = rebase(graph, profile, steps);
    let mut state = State::new(&own);
    state.set(&events);
    let mut values = Vec::new();
    state.peak();
    state.tree().values(&mut values, own.len());
    let place: std::collections::HashMap<NodeId, OpId> = problem.ops.iter().filter_map(|(id, op)| Some((op.node?, id))).collect();
    let mut stages: Vec<OpId> = own
        .ops
        .iter()
        .filter(|(id, op)| op.node.is_some() && values[id.index()] >= limit - limit / 50)
        .filter_map(|(_, op)| place.get(&op.node?).copied())
        .collect();
    stages.sort_by_key(|&id| (Reverse(problem.working_set(id)), id));
    let spread = stages.iter().skip(4).step_by((stages.len() / 8).max(1)).take(4).copied();
    let mut chosen: Vec<OpId> = stages.iter().take(4).copied().chain(spread).collect();
    chosen.dedup();
    chosen
}

#[cfg(test)]
mod state_tests;
