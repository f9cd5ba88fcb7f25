//! What one call to the search works with: its budget, the plans that fit into it, random numbers
//! and effort. Invariant: work that a part does under limits of its own counts as the whole call's.

use fastrand::Rng;

use crate::effort::{Effort, Meter};
use crate::id::NodeId;
use crate::plan::quantity::{ByteCount, Picoseconds};

/// A plan within the budget; the fastest take part in the race.
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
    /// Plans that fit, no two with the same time.
    pub found: Vec<Runner>,
    /// The source of every random choice.
    pub random: Rng,
    /// What is left of the effort.
    pub meter: Meter<'e>,
}

impl<'e> Attempt<'e> {
    /// An attempt with no plan found and no effort spent.
    pub fn new(limit: ByteCount, effort: &'e Effort<'_>) -> Attempt<'e> {
        Attempt {
            limit,
            found: Vec::new(),
            random: Rng::with_seed(effort.seed),
            meter: Meter::new(effort),
        }
    }

    /// Calls `act` under the limits of another meter, which continues this one's count, and counts
    /// its work here, too.
    pub fn under(&mut self, meter: Meter<'e>, act: impl FnOnce(&mut Attempt<'e>)) {
        let usual = std::mem::replace(&mut self.meter, meter);
        act(self);
        let spent = self.meter.spent() - usual.spent();
        self.meter = usual;
        self.meter.spend(spent);
    }

    /// Adds a plan, unless one with the same time is known.
    pub fn push(&mut self, extra: Picoseconds, runs: Vec<NodeId>) {
        if self.found.iter().all(|other| other.extra != extra) {
            self.found.push(Runner { extra, runs });
        }
    }

    /// The least time of recomputation among the plans found.
    pub fn best(&self) -> Option<Picoseconds> {
        self.found.iter().map(|found| found.extra).min()
    }
}
