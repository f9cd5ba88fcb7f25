//! From a plan to one with a smaller peak, whatever that costs in seconds. Invariant: the final
//! state has the smallest peak seen, and what a leg does depends on nothing but the plan and the
//! random numbers; the effort only determines where it ends.
//!
//! One leg plans the order that the plan really has. It repairs the plan to a little less than its
//! peak; if that fails, it tries to save less, and removes parts of the plan, at the point that
//! binds or elsewhere, to repair them with noise.

use cranelift_entity::EntityRef;
use fastrand::Rng;

use crate::effort::Meter;
use crate::id::NodeId;
use crate::plan::Instance;
use crate::plan::quantity::ByteCount;
use crate::plan::search::neighbourhood::one_of;
use crate::plan::search::repair::{polish, repair};
use crate::plan::search::state::runs::{rebase, sequence};
use crate::plan::search::state::{Event, State};
use crate::tuning::neighbourhood::NOISES;
use crate::tuning::squeeze::{FAILURES, FIRST_STEP, PARTS};

/// One leg: from a sequence of runs to one that peaks no higher.
pub fn squeeze(
    instance: Instance<'_>,
    runs: &[NodeId],
    random: &mut Rng,
    meter: &mut Meter,
) -> Vec<NodeId> {
    let (problem, events) = rebase(instance, runs);
    let mut state = State::new(&problem);
    state.set(&events);
    meter.spend(problem.len() as u64);
    let mut best: (ByteCount, Vec<Event>) = (state.peak(), state.events());
    let mut step = best.0 / FIRST_STEP.get();
    let mut failures = 0;
    while failures < FAILURES.get() && !meter.is_over() {
        step = step.max(ByteCount(1));
        let goal = best.0 - step;
        let mark = state.mark();
        let noise = if failures == 0 { 0.0 } else { one_of(NOISES.get(), random) };
        if failures > 1 {
            kick(&mut state, random);
        }
        let fits = repair(&mut state, goal, noise, random, meter);
        meter.spend(std::mem::take(&mut state.work) + problem.len() as u64 / 16);
        if state.peak() < best.0 {
            let saved = best.0 - state.peak();
            best = (state.peak(), state.events());
            state.commit();
            failures = 0;
            step = if fits { step.max(saved) * 2 } else { step / 2 };
        } else {
            state.undo_to(mark);
            failures += 1;
            step = step / 2;
        }
    }
    state.set(&best.1);
    polish(&mut state, best.0, 0.0, random, meter);
    meter.spend(std::mem::take(&mut state.work));
    sequence(&problem, &state.events())
}

/// Removes a part of the plan: events near the point that binds, near another point or operator, or
/// at random.
fn kick(state: &mut State, random: &mut Rng) {
    let points = state.problem.len();
    state.peak();
    let events = state.events();
    if events.is_empty() {
        return;
    }
    let at = state.tree().argmax();
    let share = one_of(PARTS.get(), random);
    let reach = ((points as f64 * share) as usize).max(2);
    let part = random.usize(..4);
    let centre = events[random.usize(..events.len())];
    for &event in &events {
        let near = |a: usize, b: usize| a.abs_diff(b) <= reach;
        let goes = match part {
            0 => near(event.point.index(), at),
            1 => near(event.op.index(), centre.op.index()),
            2 => near(event.point.index(), centre.point.index()),
            _ => random.f64() < share,
        };
        if goes {
            state.remove(event);
        }
    }
}
