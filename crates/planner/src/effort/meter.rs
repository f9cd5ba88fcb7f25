//! How much of an effort is left. Invariant: with a limit of work and a clock that stands still,
//! what it answers depends on the work alone.

use crate::effort::Effort;
use crate::units::Seconds;

/// Counts work and asks the clock.
#[derive(Clone)]
pub struct Meter<'a> {
    effort: &'a Effort<'a>,
    start: Seconds,
    spent: u64,
    limit: u64,
    deadline: f64,
    is_patient: bool,
}

impl<'a> Meter<'a> {
    /// Starts now.
    pub fn new(effort: &'a Effort<'a>) -> Meter<'a> {
        Meter {
            effort,
            start: (effort.clock)(),
            spent: 0,
            limit: effort.work,
            deadline: effort.deadline.0,
            is_patient: false,
        }
    }

    /// The same, ending at a part of the effort.
    pub fn until(&self, share: f64) -> Meter<'a> {
        Meter {
            limit: (self.effort.work as f64 * share) as u64,
            deadline: self.effort.deadline.0 * share,
            ..self.clone()
        }
    }

    /// The same, ending when half of what is left is spent.
    pub fn half(&self) -> Meter<'a> {
        let elapsed = self.elapsed().0;
        let deadline = if self.deadline.is_finite() {
            elapsed + (self.deadline - elapsed).max(0.0) / 2.0
        } else {
            self.deadline
        };
        Meter {
            limit: self.spent + self.limit.saturating_sub(self.spent) / 2,
            deadline,
            ..self.clone()
        }
    }

    /// The same, ending after so much more work at the latest.
    pub fn leg(&self, work: u64) -> Meter<'a> {
        Meter { limit: self.limit.min(self.spent.saturating_add(work)), ..self.clone() }
    }

    /// So much more work, whatever the limits and the time: for a first plan, without which there
    /// is no answer.
    pub fn patient(&self, work: u64) -> Meter<'a> {
        Meter { limit: self.spent.saturating_add(work), is_patient: true, ..self.clone() }
    }

    /// It ends at a time, not only after so much work.
    pub fn has_deadline(&self) -> bool {
        self.effort.deadline.0.is_finite()
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
        self.spent >= self.limit || !self.is_patient && self.elapsed().0 >= self.deadline
    }

    /// The work that is left: until the limit or, at the rate so far, until the deadline.
    pub fn left(&self) -> u64 {
        let elapsed = self.elapsed().0;
        let by_time = if self.deadline.is_finite() && elapsed > 0.0 {
            (self.spent as f64 * (self.deadline / elapsed)) as u64
        } else {
            u64::MAX
        };
        self.limit.min(by_time).saturating_sub(self.spent)
    }
}
