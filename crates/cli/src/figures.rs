//! What a plan costs, in the figures that verbs print. Invariant: all of them are read off checked
//! timelines; shares are of the unplanned step's time.

use serde_json::{Value, json};
use tightfit::schedule::Schedule;
use tightfit::timeline::Timeline;
use tightfit::units::{Bytes, Seconds};
use tightfit::{Bound, BoundOrder, Fitted, SecondHalf};
use tightfit_engine::{Budget, FittedGraph};

use crate::output;

/// The budget to the byte, so that it can be typed in again, and a separator; empty unless the
/// smallest budget was requested, since the user knows any other.
pub fn smallest(asked: Budget, bytes: Bytes, separator: &str) -> String {
    match asked {
        Budget::Smallest => format!("{} bytes{separator}", bytes.0),
        Budget::Absolute(_) | Budget::Share(_) => String::new(),
    }
}

/// Fraction of a slab that has to be unused for a plan to be worth a longer search.
const MUCH: f64 = 0.1;

/// Share of a deadline after which a search counts as cut short: its last rounds may not begin.
const CUT: f64 = 0.9;

/// The gap below which more time is not worth a word: as a share of the unplanned step's time.
const CLOSE: f64 = 5e-4;

/// The gap from which on a search without gain may be stuck far from the fastest plan.
const NEAR: f64 = 0.01;

/// The shortest deadline that is advised, in seconds; and how long a search must have been for its
/// fruitless second half to mean something.
const LEAST_ADVISED: f64 = 1.0;

/// What a search found in its second half if its deadline ended it and its plan is not known to be
/// nearly the fastest: a figure, and what follows from it.
pub fn late(planned: &FittedGraph, deadline: Seconds, took: Seconds) -> Option<(String, String)> {
    let figures = Figures::of(&planned.fitted, planned.unplanned.timeline().seconds);
    if took.0 < deadline.0 * CUT || figures.gap.is_some_and(|gap| gap < CLOSE) {
        return None;
    }
    let longer = (deadline.0 * 4.0).round().max(LEAST_ADVISED);
    let more = format!("with more time, as in --deadline {longer}s, a faster one may be found");
    Some(match planned.fitted.second_half()? {
        SecondHalf::First => {
            ("late".to_string(), format!("the first plan was found in its second half; {more}"))
        }
        SecondHalf::Faster(gain) => match share(gain, planned.unplanned.timeline().seconds) {
            share if share >= CLOSE => {
                let figure = format!("-{:.2} points", share * 100.0);
                (figure, format!("found in its second half; {more}"))
            }
            // Early in a search, long waits are usual.
            _ if took.0 < LEAST_ADVISED * CUT => return None,
            _ => {
                let is_near = figures.gap.is_some_and(|gap| gap < NEAR);
                let hope = if is_near { "is unlikely to" } else { "may still" };
                ("no gain".to_string(), format!("in its second half; more time {hope} help"))
            }
        },
    })
}

/// What to say of a plan that a deadline cut short and that leaves much of its slab unused,
/// although it is slower than the step as captured.
pub fn unused(planned: &FittedGraph, deadline: Seconds, took: Seconds) -> Option<String> {
    let (timeline, slab) = (planned.fitted.timeline(), planned.slab());
    let is_slower = timeline.seconds.0 > planned.unplanned.timeline().seconds.0 * (1.0 + 1e-9);
    let is_cut = took.0 >= deadline.0;
    let is_large = timeline.peak.0 as f64 <= slab.0 as f64 * (1.0 - MUCH);
    (is_cut && is_large && is_slower).then(|| {
        format!(
            "the plan uses {} of {slab}; with more time, as in --deadline 30s, a faster one may be \
             found",
            timeline.peak
        )
    })
}

/// The figures of one plan.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Predicted time of the step.
    pub step: Seconds,
    /// How much more it takes than the unplanned step, as a share.
    pub overhead: f64,
    /// How much more every schedule within the budget takes, at least.
    pub bound: Option<f64>,
    /// What the plan may lose to the best one: overhead less bound.
    pub gap: Option<f64>,
    /// The checked peak.
    pub peak: Bytes,
    /// The slab after layout.
    pub slab: Bytes,
    /// Nodes that run again.
    pub recomputed: usize,
}

impl Figures {
    /// The figures of a plan, relative to the time of the unplanned step.
    pub fn of(fitted: &Fitted, unplanned: Seconds) -> Figures {
        Figures::beside(fitted, fitted.bound(), unplanned)
    }

    /// The figures of a plan relative to a bound on schedules in any order; no bound if only one
    /// for the given order is known.
    pub fn in_any_order(fitted: &Fitted, unplanned: Seconds) -> Figures {
        let any = |bound: &Bound| bound.class.order == BoundOrder::Any;
        Figures::beside(fitted, fitted.bound().filter(any), unplanned)
    }

    fn beside(fitted: &Fitted, bound: Option<Bound>, unplanned: Seconds) -> Figures {
        let step = fitted.timeline().seconds;
        let bound = bound.map(|bound| bound.seconds);
        Figures {
            step,
            overhead: overhead(step, unplanned),
            bound: bound.map(|bound| overhead(bound, unplanned)),
            gap: bound.map(|bound| share(Seconds(step.0 - bound.0), unplanned)),
            peak: fitted.timeline().peak,
            slab: fitted.schedule().slab,
            recomputed: fitted.schedule().recomputed(),
        }
    }
}

/// What a plan moves between the device and the tier below it, in one step.
#[derive(Clone, Copy, Debug)]
pub struct Moves {
    /// Bytes that leave the device, and those that return.
    pub moved: [Bytes; 2],
    /// Bytes of the tier that the plan needs.
    pub below: Bytes,
    /// How long calls wait for transfers.
    pub stall: Seconds,
}

impl Moves {
    /// The moves of a schedule, as its timeline has them.
    pub fn of(schedule: &Schedule, timeline: &Timeline) -> Moves {
        let below = schedule.below.values().copied().sum();
        Moves { moved: schedule.moved(), below, stall: timeline.stall() }
    }

    /// In words; `None` if nothing moves.
    pub fn words(&self) -> Option<String> {
        let &Moves { moved: [out, back], below, stall } = self;
        (out + back > Bytes::ZERO).then(|| {
            format!(
                "{out} out, {back} back, {below} of the tier, {} of waiting",
                output::milliseconds(stall)
            )
        })
    }

    /// Adds them to a result in JSON.
    pub fn add_to(&self, result: &mut Value) {
        result["bytes_out"] = json!(self.moved[0]);
        result["bytes_back"] = json!(self.moved[1]);
        result["tier_bytes"] = json!(self.below);
        result["stall_seconds"] = json!(self.stall);
    }
}

/// How much more a step takes than the unplanned one, as a share of that. Rounding of the same
/// calls in another order must not make it negative.
pub fn overhead(step: Seconds, unplanned: Seconds) -> f64 {
    if unplanned.0 > 0.0 { (step.0 / unplanned.0 - 1.0).max(0.0) } else { 0.0 }
}

/// A share of a step; zero if the step takes no time.
pub fn share(part: Seconds, of: Seconds) -> f64 {
    if of.0 > 0.0 { (part.0 / of.0).max(0.0) } else { 0.0 }
}
