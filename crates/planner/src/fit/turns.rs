//! The fastest plan that may move what it holds, in turns. Invariant: what is returned was realized
//! within the budget, and is no slower than what was known.
//!
//! In each turn, the fastest sequences that are known to hold no more than an aim
//! (`crates/planner/src/fit/sequences.rs`) are improved, and the fastest of all is realized: in a
//! slab, it gets addresses. If these do not pack, the next turn aims lower.

use crate::effort::Meter;
use crate::fit::sequences::{Bracket, Sequences, fastest_of};
use crate::plan::{Realize, Search};
use crate::tuning::turns::{ADDRESSES, CLOSE, DESCENT, SLACK, STEP, TURNS};
use crate::units::Bytes;

/// The bytes that plans aim at so that their addresses pack within a budget.
struct Target {
    budget: Bytes,
    aim: Bytes,
    /// The highest aim for which they packed.
    fits: Option<Bytes>,
    /// The lowest aim for which they did not.
    fails: Option<Bytes>,
    /// By how much the aim falls next if they do not.
    step: Bytes,
}

impl Target {
    /// The first aim leaves some slack if plans may take more than they hold.
    fn new(budget: Bytes, may_miss: bool) -> Target {
        let step = Bytes(budget.0 / STEP.get());
        let slack = if may_miss { Bytes(budget.0 / SLACK.get()) } else { Bytes::ZERO };
        let aim = budget.saturating_sub(slack);
        Target { budget, aim, fits: None, fails: None, step }
    }

    /// Chooses the next aim after this many bytes were missing. A layout that fails says little
    /// about how much less would do.
    fn learn(&mut self, missing: Bytes) {
        match missing {
            Bytes::ZERO => self.fits = Some(self.aim),
            _ => self.fails = Some(self.aim),
        }
        self.aim = match (self.fits, self.fails) {
            (_, None) => self.budget,
            (None, Some(fails)) => {
                let less = fails.saturating_sub(self.step);
                self.step = self.step + self.step;
                less
            }
            (Some(fits), Some(fails)) => {
                let between = fails.saturating_sub(fits);
                if between.0 <= fits.0 / CLOSE.get() { fits } else { fits + Bytes(between.0 / 2) }
            }
        };
    }
}

/// The fastest result within a budget, with its seconds: that of a plan with moves, or the known
/// one.
pub fn fastest_in_turns<R: Realize>(
    moving: &Sequences<'_>,
    search: &Search<'_>,
    budget: Bytes,
    known: Option<(f64, R::Made)>,
    realize: &mut R,
    meter: &Meter<'_>,
) -> Option<R::Made> {
    let meter = &mut meter.clone();
    let least = moving.instance.seconds().0;
    let is_least =
        |best: &Option<(f64, R::Made)>| best.as_ref().is_some_and(|&(seconds, _)| seconds <= least);
    let mut best = known;
    if is_least(&best) {
        return best.map(|(_, made)| made);
    }
    let (mut found, mut bracket) = (Vec::new(), Bracket::whole());
    let mut target = Target::new(budget, R::MAY_MISS);
    let mut aimed_at = None;
    for turn in 0..TURNS.get() {
        if aimed_at.replace(target.aim) != Some(target.aim) {
            // Plans improved for another aim are among the new starting points.
            found = moving.within(&found, target.aim, meter);
            found.extend(moving.levels(search, target.aim, &mut bracket, meter));
            found = fastest_of(found);
        }
        let until = (1.0 - meter.part()) / f64::from(TURNS.get() - turn);
        let share = DESCENT.get() * until / found.len().max(1) as f64;
        for candidate in &mut found {
            moving.descend(candidate, target.aim, share, meter);
        }
        found = fastest_of(found);
        if turn + 1 == TURNS.get()
            && let Some(fastest) = found.first_mut()
        {
            moving.recompute_instead(fastest, target.aim, share, meter);
        }
        let mut missing = Bytes::ZERO;
        if let Some(candidate) = found.first()
            && let seconds = candidate.seconds.0
            && best.as_ref().is_none_or(|(best, _)| seconds < *best)
        {
            let effort = meter.round(meter.effort().work, ADDRESSES.get());
            match realize.realize(candidate, budget, &effort) {
                Ok(made) => best = Some((seconds, made)),
                Err(more) => missing = more,
            }
        }
        if found.is_empty() && target.aim == budget || is_least(&best) || meter.is_over() {
            break;
        }
        target.learn(missing);
    }
    best.map(|(_, made)| made)
}
