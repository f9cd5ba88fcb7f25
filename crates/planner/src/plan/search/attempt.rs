//! What one call to the search works with: its budget, what fits into it, random numbers, effort.
//! Invariant: the work of a part under other limits counts for the whole.

use fastrand::Rng;

use crate::effort::{Effort, Meter};
use crate::id::NodeId;
use crate::plan::quantity::{ByteCount, Picoseconds};

/// A plan within the budget.
pub struct Runner {
    /// Time of recomputation.
    pub extra: Picoseconds,
    /// Its sequence of runs.
    pub runs: Vec<NodeId>,
}

/// A search for one budget.
pub struct Attempt<'e> {
    /// The budget.
    pub limit: ByteCount,
    /// Plans that fit, no two of the same time.
    pub found: Vec<Runner>,
    /// For every random choice.
    pub random: Rng,
    /// What is left of the effort.
    pub meter: Meter<'e>,
}

impl<'e> Attempt<'e> {
    /// Nothing was found yet, and nothing of the effort is spent.
    pub fn new(limit: ByteCount, effort: &'e Effort<'_>) -> Attempt<'e> {
        Attempt {
            limit,
            found: Vec::new(),
            random: Rng::with_seed(effort.seed),
            meter: Meter::new(effort),
        }
    }

    /// Does something under another limit of effort, and counts what it took.
    pub fn under(&mut self, meter: Meter<'e>, act: impl FnOnce(&mut Attempt<'e>)) {
        let usual = std::mem::replace(&mut self.meter, meter);
        act(self);
        let spent = self.meter.spent() - usual.spent();
        self.meter = usual;
        self.meter.spend(spent);
    }

    /// Notes a plan, unless one of the same time is known.
    pub fn push(&mut self, extra: Picoseconds, runs: Vec<NodeId>) {
        if self.found.iter().all(|other| other.extra != extra) {
            self.found.push(Runner { extra, runs });
        }
    }

    /// The least time of recomputation.
    pub fn best(&self) -> Option<Picoseconds> {
        self.found.iter().map(|found| found.extra).min()
    }
}
