//! How much of an effort is left. Invariant: with a limit of work and a clock that stands still, what it answers
//! depends on the work alone.

use crate::plan::Effort;
use crate::units::Seconds;

/// Counts work and asks the clock.
#[derive(Clone)]
pub struct Meter<'a> {
    effort: &'a Effort<'a>,
    start: Seconds,
    spent: u64,
    /// The search may take this part of the deadline.
    share: f64,
}

impl<'a> Meter<'a> {
    /// Starts now.
    pub fn new(effort: &'a Effort<'a>) -> Meter<'a> {
        Meter { effort, start: (effort.clock)(), spent: 0, share: 1.0 }
    }

    /// The same, ending at a part of the deadline and of the work.
    pub fn until(&self, share: f64) -> Meter<'a> {
        Meter { share, ..self.clone() }
    }

    /// Books work.
    pub fn spend(&mut self, work: u64) {
        self.spent += work;
    }

    /// Work done so far.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Time since the start; endless after an interruption, be it one before the start.
    pub fn elapsed(&self) -> Seconds {
        let now = (self.effort.clock)();
        if now.0.is_infinite() { now } else { Seconds(now.0 - self.start.0) }
    }

    /// Nothing is left.
    pub fn is_over(&self) -> bool {
        self.spent as f64 >= self.effort.work as f64 * self.share || self.elapsed().0 >= self.effort.deadline.0 * self.share
    }

    /// The work that is left: until the limit or, at the rate so far, until the deadline.
    pub fn left(&self) -> u64 {
        let by_limit = (self.effort.work as f64 * self.share) as u64;
        let elapsed = self.elapsed().0;
        let by_time = if self.effort.deadline.0.is_finite() && elapsed > 0.0 {
            (self.spent as f64 * (self.effort.deadline.0 * self.share / elapsed)) as u64
        } else {
            u64::MAX
        };
        by_limit.min(by_time).saturating_sub(self.spent)
    }
}
