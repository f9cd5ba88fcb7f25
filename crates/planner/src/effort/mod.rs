//! How hard a planner looks for something better. Invariant: the planners know no clock of their
//! own; with a limit of work and no deadline the same seed gives the same plan, byte for byte, on
//! every machine.

pub(crate) mod meter;

use crate::units::Seconds;

/// Limits of one search.
#[derive(Clone, Copy)]
pub struct Effort<'a> {
    /// Seeds every random choice.
    pub seed: u64,
    /// Elementary steps of search after which it stops, whatever the time.
    pub work: u64,
    /// Time since the search began after which it stops.
    pub deadline: Seconds,
    /// The time, from any fixed origin. A clock that jumps to infinity ends the search: so does an
    /// interruption.
    pub clock: &'a (dyn Fn() -> Seconds + Sync),
}

impl Effort<'static> {
    /// As much work as given, however long it takes.
    pub const fn work(seed: u64, work: u64) -> Effort<'static> {
        Effort { seed, work, deadline: Seconds(f64::INFINITY), clock: &|| Seconds(0.0) }
    }
}

/// Enough for a good plan of a graph of a few thousand nodes, and deterministic.
impl Default for Effort<'static> {
    fn default() -> Self {
        Effort::work(1, 1_000_000)
    }
}

impl<'a> Effort<'a> {
    /// The same effort until a share of the deadline, when `passed` has passed since it began; and
    /// a share of its work, which counts anew.
    pub fn part(&self, share: f64, passed: Seconds) -> Effort<'a> {
        let deadline = Seconds((self.deadline.0 * share - passed.0).max(0.0));
        Effort { deadline, work: (self.work as f64 * share) as u64, ..*self }
    }
}
