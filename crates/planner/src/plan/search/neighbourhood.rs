//! Large-neighbourhood search: remove a part of the plan, repair it with noise, polish, keep what
//! is not worse. Invariant: the final state fits and is the best one seen.
//!
//! Source: Shaw, "Using constraint programming and local search methods to solve vehicle routing
//! problems", 1998.

use cranelift_entity::EntityRef;
use fastrand::Rng;

use crate::effort::Meter;
use crate::plan::quantity::{ByteCount, Picoseconds};
use crate::plan::search::repair::{polish, repair};
use crate::plan::search::state::State;
use crate::tuning::neighbourhood::{NOISES, PARTS, POLISH_NOISE};

/// What is removed: events at random, those of a window of points, or those of a window of
/// operators.
#[derive(Clone, Copy)]
enum Part {
    Random,
    Points,
    Ops,
}

/// Improves a plan that fits until it costs `floor`, or until `work` is done, or until nothing is
/// left of the effort.
pub fn improve(
    state: &mut State,
    budget: ByteCount,
    random: &mut Rng,
    meter: &mut Meter,
    work: u64,
    floor: Picoseconds,
) {
    let points = state.problem.len();
    let end = meter.spent().saturating_add(work);
    let mut best = (state.extra(), state.events());
    state.commit();
    while state.len() > 0 && best.0 > floor && meter.spent() < end && !meter.is_over() {
        let before = state.extra();
        let mark = state.mark();
        let events = state.events();
        let share = one_of(PARTS.get(), random);
        let part = [Part::Random, Part::Points, Part::Ops][random.usize(..3)];
        let reach = ((points as f64 * share) as usize).max(3) / 2;
        let centre = events[random.usize(..events.len())];
        let near = |a: usize, b: usize| a + reach >= b && a < b + reach;
        for &event in &events {
            let is_in_part = match part {
                Part::Random => random.f64() < share,
                Part::Points => near(event.point.index(), centre.point.index()),
                Part::Ops => near(event.op.index(), centre.op.index()),
            };
            if is_in_part {
                state.remove(event);
            }
        }
        let noise = one_of(NOISES.get(), random);
        let fits = repair(state, budget, noise, random, meter);
        if fits {
            polish(state, budget, POLISH_NOISE.get(), random, meter);
        }
        meter.spend(std::mem::take(&mut state.work) + (points + events.len()) as u64 / 16);
        if fits && state.extra() <= before {
            if state.extra() < best.0 {
                best = (state.extra(), state.events());
            }
            state.commit();
        } else {
            state.undo_to(mark);
        }
    }
    state.set(&best.1);
}

/// One of several values, drawn at random.
pub fn one_of<const N: usize>(values: [f64; N], random: &mut Rng) -> f64 {
    values[random.usize(..N)]
}
