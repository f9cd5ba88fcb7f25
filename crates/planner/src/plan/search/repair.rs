//! From a plan that is too large to one that fits, and from one that fits to one that recomputes
//! nothing needlessly. Invariant: `repair` ends within the budget or says that it could not;
//! `polish` never leaves the budget.
//!
//! At the peak, of the tensors held across it, the one with the least seconds per byte and
//! overloaded point is dropped and made again at its next access. Each tensor that its producer
//! reads is held for longer at the current price of a byte, or made again too, whichever is
//! cheaper.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use cranelift_entity::EntityRef;
use fastrand::Rng;

use crate::effort::Meter;
use crate::plan::quantity::ByteCount;
use crate::plan::search::state::problem::{OpId, TensorId};
use crate::plan::search::state::{Event, State};
use crate::tuning::repair::{
    AT_ONCE, DEPTH, FAILURES, FORCED, JUST_BEFORE, LOOKS, PRICE_RISE, PRICE_RISE_IN_VAIN, TRIES,
    TRIES_PER_OPERATOR, WITHIN,
};

/// What it costs to hold a byte through points.
struct Prices {
    /// Picoseconds per byte and overloaded point; `None` while nothing has been dropped.
    price: Option<f64>,
    /// Weights of the points before each point.
    weight: Vec<f64>,
    values: Vec<ByteCount>,
}

impl Prices {
    fn review(&mut self, state: &State, budget: ByteCount) {
        state.tree().values(&mut self.values, state.problem.len());
        self.weight.clear();
        self.weight.push(0.0);
        let mut sum = 0.0;
        for &value in &self.values {
            sum += if value > budget { 1.0 } else { WITHIN.get() };
            self.weight.push(sum);
        }
    }

    /// Weight of the points between two accesses.
    fn between(&self, from: OpId, to: OpId) -> f64 {
        if from.index() + 1 < to.index() {
            self.weight[to.index()] - self.weight[from.index() + 1]
        } else {
            0.0
        }
    }
}

/// How an input becomes available.
enum Source {
    There,
    Hold(f64),
    Again(f64),
}

/// How many levels of inputs are followed, and how many inputs in all: of a densely connected graph
/// the levels alone are too many.
#[derive(Clone, Copy)]
struct Reach<'a> {
    depth: u32,
    looks: &'a Cell<u32>,
}

impl<'a> Reach<'a> {
    /// Of the next level; none if this is the last, or if all looks are used up.
    fn deeper(self) -> Option<Reach<'a>> {
        let looks = self.looks.get().checked_sub(1)?;
        self.looks.set(looks);
        self.depth.checked_sub(1).map(|depth| Reach { depth, ..self })
    }
}

fn source(
    state: &State,
    prices: &Prices,
    tensor: TensorId,
    point: OpId,
    reach: Reach<'_>,
) -> Source {
    let Err(index) = state.find(tensor, point) else { return Source::There };
    let accesses = state.accesses(tensor);
    if accesses.get(index).is_some_and(|next| !next.made) {
        return Source::There;
    }
    let held = &state.problem.tensors[tensor];
    let weight = prices.between(accesses[index - 1].point, point);
    let hold = prices.price.unwrap_or(0.0) * held.bytes.as_f64() * weight;
    let event = Event { point, op: held.producer };
    let cost = state.problem.ops[event.op].cost.as_f64();
    if !state.allows(event) || (hold <= cost && !state.defers(event)) {
        return Source::Hold(hold);
    }
    let Some(reach) = reach.deeper() else { return Source::Hold(hold) };
    let again = estimate(state, prices, event, reach);
    if again < hold { Source::Again(again) } else { Source::Hold(hold) }
}

/// What an event would cost, its inputs included.
fn estimate(state: &State, prices: &Prices, event: Event, reach: Reach<'_>) -> f64 {
    let op = &state.problem.ops[event.op];
    let own = if state.defers(event) { 0.0 } else { op.cost.as_f64() };
    let inputs =
        op.inputs.iter().map(|&tensor| match source(state, prices, tensor, event.point, reach) {
            Source::There => 0.0,
            Source::Hold(cost) | Source::Again(cost) => cost,
        });
    own + inputs.sum::<f64>()
}

/// Adds an event and those that `estimate` chose for its inputs.
fn drop_until(state: &mut State, prices: &Prices, event: Event, depth: u32) -> bool {
    let problem = state.problem;
    let wanted: Vec<OpId> = match depth {
        0 => Vec::new(),
        _ => {
            let looks = Cell::new(LOOKS.get());
            let reach = Reach { depth, looks: &looks };
            let is_again = |tensor: &&TensorId| {
                matches!(source(state, prices, **tensor, event.point, reach), Source::Again(_))
            };
            problem.ops[event.op]
                .inputs
                .iter()
                .filter(is_again)
                .map(|&tensor| problem.tensors[tensor].producer)
                .collect()
        }
    };
    if !state.add(event) {
        return false;
    }
    for op in wanted {
        let event = Event { op, ..event };
        if !state.has(event) {
            drop_until(state, prices, event, depth - 1);
        }
    }
    true
}

/// A tensor that could be dropped, by rising score. The score is a lower bound until it is exact.
#[derive(Clone, Copy, PartialEq)]
struct DropCandidate {
    score: f64,
    is_exact: bool,
    event: Event,
    per_score: f64,
}

impl Eq for DropCandidate {}

impl PartialOrd for DropCandidate {
    fn partial_cmp(&self, other: &DropCandidate) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DropCandidate {
    fn cmp(&self, other: &DropCandidate) -> std::cmp::Ordering {
        self.score
            .total_cmp(&other.score)
            .then(self.event.cmp(&other.event))
            .then(self.is_exact.cmp(&other.is_exact))
    }
}

/// The tensors held across point `at` that could be dropped there, with the scores that they have
/// at least.
fn candidates(
    state: &State,
    prices: &Prices,
    at: usize,
    noise: f64,
    random: &mut Rng,
) -> Vec<DropCandidate> {
    let mut found = Vec::new();
    for (tensor, held) in &state.problem.tensors {
        let accesses = state.accesses(tensor);
        if held.bytes == ByteCount::ZERO
            || held.producer.index() > at
            || held.producer == OpId::SOURCE
        {
            continue;
        }
        if accesses.last().is_none_or(|last| last.point.index() < at) {
            continue;
        }
        let next = accesses.partition_point(|access| access.point.index() <= at);
        let Some(access) = accesses.get(next).filter(|access| next > 0 && !access.made) else {
            continue;
        };
        let event = Event { point: access.point, op: held.producer };
        if !state.allows(event) {
            continue;
        }
        let before = accesses[next - 1].point;
        let mut weight = prices.between(before, access.point);
        if before.index() == at {
            weight = weight.max(JUST_BEFORE.get());
        }
        let per_score =
            held.bytes.as_f64() * weight.max(WITHIN.get()) / (1.0 + noise * random.f64());
        let own = if state.defers(event) { 0.0 } else { state.problem.ops[event.op].cost.as_f64() };
        found.push(DropCandidate {
            score: (own + 1.0) / per_score,
            is_exact: prices.price.is_none(),
            event,
            per_score,
        });
    }
    found
}

/// Adds events until the plan fits; `false` if no way was found or the effort was spent.
pub fn repair(
    state: &mut State,
    budget: ByteCount,
    noise: f64,
    random: &mut Rng,
    meter: &mut Meter,
) -> bool {
    let mut prices = Prices { price: None, weight: Vec::new(), values: Vec::new() };
    let mut failures = 0;
    for _ in 0..4 * state.problem.len() {
        if state.peak() <= budget {
            return true;
        }
        meter.spend(std::mem::take(&mut state.work) + state.problem.len() as u64 / 16);
        if meter.is_over() {
            return false;
        }
        let at = state.tree().argmax();
        prices.review(state, budget);
        let mut open: BinaryHeap<Reverse<DropCandidate>> =
            candidates(state, &prices, at, noise, random).into_iter().map(Reverse).collect();
        let (before, here) = (state.tree().max(), prices.values[at]);
        let (mut taken, mut tries) =
            (0, TRIES.get() + state.problem.len() / TRIES_PER_OPERATOR.get());
        let mut refused = Vec::new();
        while let Some(Reverse(candidate)) = open.pop() {
            meter.spend(std::mem::take(&mut state.work));
            if meter.is_over() {
                return state.peak() <= budget;
            }
            if !candidate.is_exact {
                let looks = Cell::new(LOOKS.get());
                let reach = Reach { depth: DEPTH.get(), looks: &looks };
                let cost = estimate(state, &prices, candidate.event, reach);
                state.work += 1;
                open.push(Reverse(DropCandidate {
                    score: (cost + 1.0) / candidate.per_score,
                    is_exact: true,
                    ..candidate
                }));
                continue;
            }
            if tries == 0 {
                refused.push(candidate);
                break;
            }
            tries -= 1;
            let price = prices.price.map_or(candidate.score, |price| {
                price.max(candidate.score).min(price * PRICE_RISE.get())
            });
            prices.price = Some(price);
            let mark = state.mark();
            if !drop_until(state, &prices, candidate.event, DEPTH.get()) {
                continue;
            }
            let max = state.peak();
            let now = state.tree().at(at);
            if now < here && max <= before {
                taken += 1;
                if now <= budget || taken >= AT_ONCE.get() {
                    break;
                }
            } else {
                state.undo_to(mark);
                refused.push(candidate);
            }
        }
        if taken > 0 {
            failures = 0;
            continue;
        }
        failures += 1;
        let price = prices.price.map(|price| price * PRICE_RISE_IN_VAIN.get());
        prices.price = price;
        refused.extend(open.into_iter().map(|Reverse(candidate)| candidate));
        refused.sort_unstable();
        if failures > FAILURES.get() || !force(state, &prices, &refused, at, before, here, meter) {
            return false;
        }
    }
    false
}

/// For when no drop helps by itself: takes the first that relieves the point without raising the
/// peak by much.
fn force(
    state: &mut State,
    prices: &Prices,
    refused: &[DropCandidate],
    at: usize,
    before: ByteCount,
    here: ByteCount,
    meter: &mut Meter,
) -> bool {
    for candidate in refused {
        meter.spend(std::mem::take(&mut state.work));
        if meter.is_over() {
            return false;
        }
        let mark = state.mark();
        if !drop_until(state, prices, candidate.event, 3 * DEPTH.get()) {
            continue;
        }
        if state.peak() <= before + before / FORCED.get() && state.tree().at(at) < here {
            return true;
        }
        state.undo_to(mark);
    }
    false
}

/// Removes events, most seconds per byte first, while the plan fits.
pub fn polish(
    state: &mut State,
    budget: ByteCount,
    noise: f64,
    random: &mut Rng,
    meter: &mut Meter,
) {
    let problem = state.problem;
    let mut order: Vec<(f64, Event)> = state
        .events()
        .into_iter()
        .map(|event| {
            let op = &problem.ops[event.op];
            let bytes: ByteCount =
                op.outputs.iter().map(|&tensor| problem.tensors[tensor].bytes).sum();
            (op.cost.as_f64() / (1.0 + bytes.as_f64()) * (1.0 + noise * random.f64()), event)
        })
        .collect();
    order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    for (index, (_, event)) in order.into_iter().enumerate() {
        if index % 64 == 63 {
            meter.spend(std::mem::take(&mut state.work) + 16);
            if meter.is_over() {
                return;
            }
        }
        if !state.has(event) || !state.removal_may_fit(event, budget) {
            continue;
        }
        let mark = state.mark();
        if state.remove(event) && state.peak() > budget {
            state.undo_to(mark);
        }
    }
}
