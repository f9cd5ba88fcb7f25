//! Where plans come from: a set of operators to run again, turned into events just in time.
//! Invariant: nothing here promises to fit; `repair` and `polish` follow.

use std::cmp::Reverse;
use std::ops::ControlFlow;

use cranelift_entity::{EntityRef, SecondaryMap};

use crate::effort::Effort;
use crate::graph::Graph;
use crate::plan::quantity::{ByteCount, Picoseconds};
use crate::plan::search::attempt::Attempt;
use crate::plan::search::binding_instants::{highest, tight};
use crate::plan::search::bound::{BoundOrder, CutInstant};
use crate::plan::search::peers::peer;
use crate::plan::search::repair::repair;
use crate::plan::search::state::problem::{OpId, Problem};
use crate::plan::search::state::{Event, State};
use crate::plan::search::{Search, Stand};
use crate::plan::{Plan, Planner};
use crate::tuning::min_peak::NAMED;
use crate::tuning::starts::{
    ATTEMPTS, FINEST, FIRST_WORK, INSTANTS, LEAST_FIRST_WORK, OVER, REPAIR_NOISE, ROUNDS,
    TRIED_FIRST, TRIED_LATER,
};
use crate::units::{Bytes, Seconds};

impl Search<'_> {
    /// The fastest known plan within a budget; if there is none, one that is quickly made: from the
    /// cuts at the highest instant, or by the quickest of the other planners that reaches tight
    /// budgets.
    pub(crate) fn first_plan(&mut self, budget: Bytes, effort: &Effort<'_>) -> Option<Plan> {
        self.exhaust(ByteCount::of(budget));
        if self.fastest_within(budget).is_none() {
            let given = self.given.clone();
            let mut state = State::new(&given);
            let mut attempt = Attempt::new(ByteCount::of(budget), effort);
            for at in highest(&mut state, 1) {
                self.add_instant(at, &mut attempt);
            }
            let leg = attempt.meter.leg(LEAST_FIRST_WORK.get() * given.len() as u64);
            attempt.under(leg, |attempt| self.start_where_it_binds(&mut state, attempt));
            if attempt.best().is_none() && self.bound(budget).is_some() {
                let plan = peer(self.instance, budget, Planner::Dtr, &mut attempt.meter);
                plan.into_iter().for_each(|plan| self.offer_of_rule(plan));
            }
        }
        self.fastest_within(budget).cloned()
    }

    /// The fastest known plan within a budget, after the one that exceeds it least was repaired.
    pub(in crate::plan) fn second_plan(
        &mut self,
        budget: Bytes,
        effort: &Effort<'_>,
    ) -> Option<Plan> {
        let mut attempt = Attempt::new(ByteCount::of(budget), effort);
        let leg = attempt.meter.leg(FIRST_WORK.get() * self.given.len() as u64);
        attempt.under(leg, |attempt| self.start_from_neighbour(attempt));
        self.fastest_within(budget).cloned()
    }

    /// Has the next race for a budget start over from plans with small peaks: where the race is
    /// stuck, these may lead elsewhere.
    pub(in crate::plan) fn start_over(&mut self, budget: Bytes, effort: &Effort<'_>) {
        let mut attempt = Attempt::new(ByteCount::of(budget), effort);
        let lowest = self.smallest(effort, NAMED.get(), |_| Vec::new(), |_| true);
        for plan in lowest.iter().filter(|plan| plan.peak <= budget) {
            self.finish_runs(&plan.runs(), &mut attempt);
        }
        let limit = attempt.limit;
        self.last = Some(Stand { limit, runners: attempt.found, has_started: true });
    }

    /// Makes plans from cuts and from whatever else is cheap.
    pub(super) fn starts(&mut self, attempt: &mut Attempt<'_>, first: &mut Option<Seconds>) {
        let (given, reordered) = (self.given.clone(), self.reordered.clone());
        let mut states = [State::new(&given), State::new(&reordered)];
        if self.starts_from_cuts(&mut states[0], attempt, first).is_break() {
            return;
        }
        for state in &mut states {
            if self.starts_from_blocks(state, attempt).is_break() {
                return;
            }
            self.starts_from_nothing(state, attempt);
        }
        first.get_or_insert(attempt.meter.elapsed());
    }

    /// Plans between the cuts at the instants that bind most, in rounds, as long as they become
    /// better. Breaks if no other start is needed, or none can be made.
    fn starts_from_cuts(
        &mut self,
        state: &mut State,
        attempt: &mut Attempt<'_>,
        first: &mut Option<Seconds>,
    ) -> ControlFlow<()> {
        let mut waiting = highest(state, INSTANTS.get());
        if let Some(&at) = waiting.first() {
            self.add_instant(at, attempt);
            self.bounds.add_last(&self.given, at, attempt.limit, &mut attempt.meter);
        }
        if let Some(at) = self.binding(BoundOrder::Given, attempt.limit) {
            self.start_from((BoundOrder::Given, at), state, attempt);
        }
        waiting.retain(|&at| !self.bounds.is_known(at));
        let mut tried: Vec<OpId> = Vec::new();
        for round in 0..ROUNDS.get() {
            for (number, at) in waiting.drain(..).enumerate() {
                if round == 0 && number == INSTANTS.get() {
                    self.first_start(state, attempt, first);
                }
                if self.is_over(attempt) {
                    break;
                }
                self.add_instant(at, attempt);
            }
            self.first_start(state, attempt, first);
            if self.is_over(attempt) {
                return ControlFlow::Break(());
            }
            let before = attempt.best();
            let most = if round == 0 { TRIED_FIRST.get() } else { TRIED_LATER.get() };
            for at in self.untried(&tried, most, attempt.limit) {
                tried.push(at);
                self.start_from((BoundOrder::Any, at), state, attempt);
                let is_optimal = |best| self.is_optimal(best, self.floor(attempt.limit));
                if attempt.meter.is_over() || attempt.best().is_some_and(is_optimal) {
                    return ControlFlow::Break(());
                }
            }
            if round > 0 && attempt.best() == before {
                break;
            }
            // Where the best plan is tight, other cuts may bind.
            if let Some(best) = self.best(attempt.limit.bytes()) {
                waiting = tight(self.instance, &best.runs(), state.problem, attempt.limit);
                waiting.retain(|&at| !self.bounds.is_known(at));
            }
        }
        ControlFlow::Continue(())
    }

    /// Whether time is up, or the cuts prove that no plan fits.
    fn is_over(&self, attempt: &Attempt<'_>) -> bool {
        attempt.meter.is_over() || self.bound(attempt.limit.bytes()).is_none()
    }

    /// At most `most` instants that were not tried yet, those that bind most first.
    fn untried(&self, tried: &[OpId], most: usize, limit: ByteCount) -> Vec<OpId> {
        let mut ranked: Vec<(Option<Picoseconds>, OpId)> =
            self.bounds.instants.iter().map(|it| (it.bound(limit), it.at)).collect();
        ranked.sort_by_key(|&(bound, at)| (Reverse(bound.unwrap_or(Picoseconds::MAX)), at));
        let instants = ranked.iter().map(|&(_, at)| at);
        instants.filter(|at| !tried.contains(at)).take(most).collect()
    }

    /// Plans in which the forward pass runs again: block by block, from either end, then by time
    /// per byte. Breaks if time is up.
    fn starts_from_blocks(
        &mut self,
        state: &mut State,
        attempt: &mut Attempt<'_>,
    ) -> ControlFlow<()> {
        let problem = state.problem;
        let (all, end) = forward(problem);
        let up = |op: OpId| op.index() as f64;
        for depth in [1, 2] {
            let blocks = per_block(self.instance.graph, problem, depth);
            if !blocks.is_empty() {
                interpolate(state, end, &[], &blocks, up, attempt.limit);
                self.finish(state, attempt);
                interpolate(state, end, &[], &blocks, |op| -up(op), attempt.limit);
                self.finish(state, attempt);
            }
            if attempt.meter.is_over() {
                return ControlFlow::Break(());
            }
        }
        interpolate(state, end, &[], &all, |op| per_byte(problem, op), attempt.limit);
        self.finish(state, attempt);
        ControlFlow::Continue(())
    }

    /// Plans by repair alone, from the step in which nothing runs again.
    fn starts_from_nothing(&mut self, state: &mut State, attempt: &mut Attempt<'_>) {
        for noise in [0.0, REPAIR_NOISE.get()] {
            state.set(&[]);
            if attempt.meter.is_over()
                || !repair(state, attempt.limit, noise, &mut attempt.random, &mut attempt.meter)
            {
                break;
            }
            self.finish(state, attempt);
        }
    }

    /// A plan at once, whatever the time. Better ones come later.
    fn first_start(
        &mut self,
        state: &mut State,
        attempt: &mut Attempt<'_>,
        first: &mut Option<Seconds>,
    ) {
        if attempt.best().is_none() && self.bound(attempt.limit.bytes()).is_some() {
            let ops = self.given.len() as u64;
            let work = attempt.meter.effort().in_proportion(FIRST_WORK.get() * ops);
            let untimed = attempt.meter.untimed(work.max(LEAST_FIRST_WORK.get() * ops));
            attempt.under(untimed, |attempt| {
                self.start_where_it_binds(state, attempt);
                if attempt.best().is_none() {
                    self.start_from_neighbour(attempt);
                }
            });
        }
        if attempt.best().is_some() {
            first.get_or_insert(attempt.meter.elapsed());
        }
    }

    /// A plan between the cuts at the instant that binds most.
    pub(super) fn start_where_it_binds(&mut self, state: &mut State, attempt: &mut Attempt<'_>) {
        for order in [BoundOrder::Given, BoundOrder::Any] {
            if let Some(at) = self.binding(order, attempt.limit) {
                self.start_between((order, at), attempt.limit, false, state, attempt);
            }
        }
    }

    /// The instant that binds most at a budget; none if everything can be held at all of them.
    pub(super) fn binding(&mut self, order: BoundOrder, limit: ByteCount) -> Option<OpId> {
        let all = self.bounds.cuts(order).map(|instant| (instant.bound(limit), instant.at));
        let (bound, at) = all.max_by_key(|&(bound, at)| (bound, Reverse(at)))?;
        (bound > Some(Picoseconds::ZERO)).then_some(at)
    }

    /// The instant of an operator whose cuts are of an order.
    fn instant(&mut self, order: BoundOrder, at: OpId) -> Option<&mut CutInstant> {
        self.bounds.cuts(order).find(|instant| instant.at == at)
    }

    /// The known plan that exceeds the budget least, repaired.
    fn start_from_neighbour(&mut self, attempt: &mut Attempt<'_>) {
        let Some(above) =
            self.found.iter().find(|found| ByteCount::of(found.plan.peak) > attempt.limit).cloned()
        else {
            return;
        };
        self.finish_runs(&above.runs(), attempt);
    }

    /// A plan between the two cuts around a target at one instant: as much of their difference,
    /// from the front or from the back, as is enough. Returns by how much it exceeds the budget.
    fn start_between(
        &mut self,
        (order, at): (BoundOrder, OpId),
        target: ByteCount,
        backwards: bool,
        state: &mut State,
        attempt: &mut Attempt<'_>,
    ) -> ByteCount {
        let instant = self.instant(order, at).expect("it was added");
        instant.solve(target, &mut attempt.meter);
        let [small, large] = instant.bracket(target).map(|line| line.late.clone());
        let rank = |op: OpId| if backwards { -(op.index() as f64) } else { op.index() as f64 };
        interpolate(state, at, &small, &large, rank, attempt.limit);
        let over = state.peak() - attempt.limit;
        self.finish(state, attempt);
        over
    }

    /// Plans between the two cuts around the budget at one instant, and the cuts as they are.
    pub(super) fn start_from(
        &mut self,
        (order, at): (BoundOrder, OpId),
        state: &mut State,
        attempt: &mut Attempt<'_>,
    ) {
        let Some(instant) = self.instant(order, at) else { return };
        if instant.bound(attempt.limit) == Some(Picoseconds::ZERO) {
            return; // It does not bind: everything can be held there.
        }
        for backwards in [false, true] {
            let mut target = attempt.limit;
            for _ in 0..ATTEMPTS.get() {
                let over = self.start_between((order, at), target, backwards, state, attempt);
                if over <= ByteCount::ZERO || attempt.meter.is_over() {
                    break;
                }
                target -= over * OVER.get() / 10 + ByteCount(1);
            }
        }
        let Some(instant) = self.instant(order, at) else { return };
        for late in instant.bracket(attempt.limit).map(|line| line.late.clone()) {
            just_in_time(state, at, &late);
            self.finish(state, attempt);
        }
    }
}

/// Sets the events that run each operator of `late` (in order) again in the first point after
/// `instant` that reads what it makes, other recomputations' reads included. Returns the peak.
pub fn just_in_time(state: &mut State, instant: OpId, late: &[OpId]) -> ByteCount {
    state.set(&[]);
    for &op in late.iter().rev() {
        let points = state.problem.ops[op].outputs.iter().filter_map(|&tensor| {
            let accesses = state.accesses(tensor);
            let next = accesses.partition_point(|access| access.point <= instant.max(op));
            accesses[next..].iter().find(|access| !access.made).map(|access| access.point)
        });
        if let Some(point) = points.min() {
            state.add(Event { point, op });
        }
    }
    state.commit();
    state.peak()
}

/// Between a set that recomputes too little and one that fits: as much of the difference, in the
/// given order of preference, as is enough. Leaves the least that fits (or, if even `large` does
/// not, `large`) in the state.
pub fn interpolate(
    state: &mut State,
    instant: OpId,
    small: &[OpId],
    large: &[OpId],
    rank: impl Fn(OpId) -> f64,
    budget: ByteCount,
) -> bool {
    let mut more: Vec<OpId> =
        large.iter().copied().filter(|op| small.binary_search(op).is_err()).collect();
    more.sort_by(|&a, &b| rank(a).total_cmp(&rank(b)).then(a.cmp(&b)));
    let mut make = |count: usize| {
        let mut set: Vec<OpId> = small.iter().chain(&more[..count]).copied().collect();
        set.sort_unstable();
        just_in_time(state, instant, &set)
    };
    let (mut low, mut high) = (0, more.len());
    if make(high) > budget {
        return false;
    }
    let step = (more.len() / FINEST.get()).max(1);
    let mut shown = high;
    while high - low > step {
        let middle = low.midpoint(high);
        shown = middle;
        if make(middle) <= budget { high = middle } else { low = middle }
    }
    if shown != high {
        make(high);
    }
    true
}

/// Per-block checkpointing, a block being a module path up to its `depth`-th number: what one block
/// makes and another reads stays, everything else in the forward pass runs again.
pub fn per_block(graph: &Graph, problem: &Problem, depth: usize) -> Vec<OpId> {
    let mut block: SecondaryMap<OpId, &str> = SecondaryMap::new();
    for (id, op) in &problem.ops {
        block[id] = op.node.map_or("", |node| block_path(graph.module_of(node), depth));
    }
    let crosses = |id: OpId| {
        let readers =
            problem.ops[id].outputs.iter().flat_map(|&tensor| &problem.tensors[tensor].readers);
        readers.copied().any(|reader| problem.ops[reader].forward && block[reader] != block[id])
    };
    let inside = |&id: &OpId| {
        problem.ops[id].forward
            && problem.ops[id].until > 0
            && !block[id].is_empty()
            && !crosses(id)
    };
    problem.ops.keys().skip(1).filter(inside).collect()
}

/// A module path up to its `depth`-th component that is or ends in a number (`h.3`, `layer_3`);
/// empty if it has fewer.
fn block_path(path: &str, depth: usize) -> &str {
    let (mut seen, mut end) = (0, 0);
    for component in path.split('.') {
        end += component.len();
        let tail = component.rsplit('_').next().unwrap_or(component);
        if !tail.is_empty() && tail.bytes().all(|byte| byte.is_ascii_digit()) {
            seen += 1;
            if seen == depth {
                return &path[..end];
            }
        }
        end += 1;
    }
    ""
}

/// All forward operators that may run again, and the last point of the forward pass.
pub fn forward(problem: &Problem) -> (Vec<OpId>, OpId) {
    let ops: Vec<OpId> = problem
        .ops
        .keys()
        .skip(1)
        .filter(|&id| problem.ops[id].forward && problem.ops[id].until > 0)
        .collect();
    let end = problem
        .ops
        .keys()
        .skip(1)
        .find(|&id| !problem.ops[id].forward)
        .map_or(problem.len() - 1, |id| id.index() - 1);
    (ops, OpId::at(end))
}

/// Picoseconds per byte of what an operator makes.
pub fn per_byte(problem: &Problem, op: OpId) -> f64 {
    let op = &problem.ops[op];
    op.cost.as_f64()
        / (1.0
            + op.outputs
                .iter()
                .map(|&tensor| problem.tensors[tensor].bytes)
                .sum::<ByteCount>()
                .as_f64())
}
