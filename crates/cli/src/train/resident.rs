//! How much memory a process held. Invariant: a user who exceeds a budget is told so, and whether
//! planning took the most.

use serde::{Deserialize, Serialize};
use tightfit::units::Bytes;
use tightfit_engine::process;

/// The most bytes that were resident.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Resident {
    /// Before the first step.
    pub planning: Option<Bytes>,
    /// At any time so far.
    pub largest: Option<Bytes>,
}

impl Resident {
    /// Measures this process, which has run no step yet.
    pub fn before_steps() -> Resident {
        let largest = process::peak_resident();
        Resident { planning: largest, largest }
    }

    /// Measures the same process later.
    pub fn now(self) -> Resident {
        Resident { largest: process::peak_resident(), ..self }
    }

    /// Says by how much it exceeded a budget.
    pub fn note_excess(self, process: &str, budget: Bytes) {
        let over = |peak: Bytes| peak.0.checked_sub(budget.0).filter(|&over| over > 0).map(Bytes);
        match self.largest.and_then(over) {
            Some(over) if self.planning == self.largest => note!(
                "note: while it planned, {process} took {over} more than its budget, which is for \
                 the steps; those took no more than planning did"
            ),
            Some(over) => note!(
                "note: {process} took {over} more than its budget, beyond what was taken off for it"
            ),
            None => {}
        }
    }
}
