//! The fastest plan that may move what it holds, in turns. Invariant: what is returned was realized
//! within the budget, and is no slower than what was known.
//!
//! In each turn, the fastest sequences that are known to hold no more than an aim
//! (`crates/planner/src/fit/sequences.rs`) are improved, and the fastest of all is realized: in a
//! slab, it gets addresses. If these do not pack, the next turn aims lower. Before the first turn,
//! those sequences as they are get simple addresses, for ever lower aims until one fits.

use crate::effort::{Effort, Meter};
use crate::fit::sequences::{Bracket, Sequences, fastest_of};
use crate::plan::{Plan, Realize, Search};
use crate::tuning::rounds::{FIRST_MORE, FIRST_TRIES};
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

/// The search in turns within one budget; a later one continues where an earlier one ended.
pub struct Turns {
    budget: Bytes,
    target: Target,
    bracket: Bracket,
    /// The fastest sequences found.
    found: Vec<Plan>,
    /// What they hold at most.
    aimed_at: Option<Bytes>,
}

impl Turns {
    /// Nothing is known yet of a budget for plans of this kind.
    pub fn new<R: Realize>(budget: Bytes) -> Turns {
        Turns {
            budget,
            target: Target::new(budget, R::MAY_MISS),
            bracket: Bracket::whole(),
            found: Vec::new(),
            aimed_at: None,
        }
    }

    /// The fastest result within the budget, with its seconds: that of a plan with moves, or the
    /// known one.
    pub fn fastest<R: Realize>(
        &mut self,
        moving: &Sequences<'_>,
        search: &Search<'_>,
        known: Option<(f64, R::Made)>,
        realize: &mut R,
        meter: &Meter<'_>,
    ) -> Option<R::Made> {
        let meter = &mut meter.clone();
        let least = moving.instance.seconds().0;
        let mut best = Best { known, least };
        if best.is_least() {
            return best.made();
        }
        for turn in 0..TURNS.get() {
            let aim = self.target.aim;
            if self.aimed_at.replace(aim) != Some(aim) {
                // Plans improved for another aim are among the new starting points.
                self.found = moving.within(&self.found, aim, meter);
                self.found.extend(moving.levels(search, aim, &mut self.bracket, meter));
                self.found = fastest_of(std::mem::take(&mut self.found));
            }
            if turn == 0 {
                self.first(moving, &mut best, realize, meter);
            }
            let found = &mut self.found;
            let until = (1.0 - meter.part()) / f64::from(TURNS.get() - turn);
            let share = DESCENT.get() * until / found.len().max(1) as f64;
            for candidate in found.iter_mut() {
                moving.descend(candidate, aim, share, meter);
            }
            *found = fastest_of(std::mem::take(found));
            if turn + 1 == TURNS.get()
                && let Some(fastest) = found.first_mut()
            {
                moving.recompute_instead(fastest, aim, share, meter);
            }
            let effort = meter.round(meter.effort().work, ADDRESSES.get());
            let realized = found.first().map(|it| best.offer(it, self.budget, realize, &effort));
            let missing = realized.unwrap_or(Bytes::ZERO);
            if missing > Bytes::ZERO
                && let Some(plan) = found.first()
                && let Some(plan) = moving.within_a_step(plan, aim, meter)
            {
                best.offer(&plan, self.budget, realize, &effort);
            }
            if found.is_empty() && aim == self.budget || best.is_least() || meter.is_over() {
                break;
            }
            self.target.learn(missing);
        }
        best.made()
    }

    /// The first result: of the fastest sequence that gets simple addresses, with moves for ever
    /// less than the budget until it does.
    fn first<R: Realize>(
        &self,
        moving: &Sequences<'_>,
        best: &mut Best<R::Made>,
        realize: &mut R,
        meter: &mut Meter<'_>,
    ) {
        for candidate in &self.found {
            let (mut moved, mut slack) = (Some(candidate.clone()), Bytes::ZERO);
            for _ in 0..FIRST_TRIES.get() {
                let Some(plan) = moved else { break };
                let missing = best.offer(&plan, self.budget, realize, &meter.round(0, 1.0));
                if missing == Bytes::ZERO {
                    break;
                }
                let more = Bytes(missing.0 / FIRST_MORE.get());
                slack = (missing + more).max(slack + slack);
                let aim = self.budget.saturating_sub(slack);
                moved = moving.within(&[plan], aim, meter).pop();
            }
        }
    }
}

/// The fastest result so far.
struct Best<M> {
    known: Option<(f64, M)>,
    /// No result takes less time.
    least: f64,
}

impl<M> Best<M> {
    fn is_least(&self) -> bool {
        self.known.as_ref().is_some_and(|&(seconds, _)| seconds <= self.least)
    }

    /// Realizes a plan if it is faster; returns how many bytes were missing.
    fn offer<R: Realize<Made = M>>(
        &mut self,
        plan: &Plan,
        budget: Bytes,
        realize: &mut R,
        effort: &Effort<'_>,
    ) -> Bytes {
        let seconds = plan.seconds.0;
        if self.known.as_ref().is_some_and(|(best, _)| seconds >= *best) {
            return Bytes::ZERO;
        }
        match realize.realize(plan, budget, effort) {
            Ok(made) => {
                self.known = Some((seconds, made));
                Bytes::ZERO
            }
            Err(missing) => missing,
        }
    }

    fn made(self) -> Option<M> {
        self.known.map(|(_, made)| made)
    }
}
