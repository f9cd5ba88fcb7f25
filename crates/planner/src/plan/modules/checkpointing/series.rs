//! Selective checkpointing within one budget after another. Invariant: the solver is asked once,
//! for the lowest peak; within a budget the search decides, and if it has no answer, the modules
//! with the lowest peak are used. So every call ends.

use crate::analysis::modules::{ModuleIndex, ModuleInfo, ModuleStats};
use crate::effort::Meter;
use crate::plan::milp::{Goal, within_tolerance};
use crate::plan::modules::ModulePlanError;
use crate::plan::modules::candidate::{
    CheckpointCandidate, CheckpointedUnit, candidates, fill, units,
};
use crate::plan::modules::checkpointing::labels::cheapest;
use crate::plan::modules::checkpointing::milp::solve;
use crate::plan::modules::memory::{MemoryRow, binding};
use crate::units::Bytes;

/// The modules of one model on one device, to be planned for several budgets.
pub struct SelectiveSeries<'a> {
    info: &'a ModuleInfo,
    candidates: Vec<CheckpointCandidate>,
    rows: Vec<MemoryRow>,
    /// The modules with the lowest peak.
    lowest: Vec<ModuleIndex>,
    least: Bytes,
}

impl<'a> SelectiveSeries<'a> {
    /// Finds the lowest peak.
    ///
    /// # Errors
    /// [`ModulePlanError::Unsolved`] if the solver does not find it in time.
    pub fn new(
        info: &'a ModuleInfo,
        meter: &Meter<'_>,
    ) -> Result<SelectiveSeries<'a>, ModulePlanError> {
        let candidates = candidates(info, |_| true);
        let rows = MemoryRow::binding(info, &candidates, &[], |module| persistent(info, module));
        let of =
            |stats: &ModuleStats| info.modules()[info.root()].parameters + stats.total_gradients;
        let lowest = match candidates.is_empty() {
            true => Vec::new(),
            false => {
                let solved = solve(info, &candidates, Goal::Lowest, &of, (0.0, meter))?;
                solved.map_or(Vec::new(), |(chosen, _)| chosen)
            }
        };
        let all: Vec<(ModuleIndex, Bytes)> =
            lowest.iter().map(|unit| (unit.module, unit.most)).collect();
        let (least, _) = binding(info, &all, |module| persistent(info, module));
        let lowest = all.iter().map(|&(module, _)| module).collect();
        Ok(SelectiveSeries { info, candidates, rows, lowest, least })
    }

    /// The lowest peak that any choice of modules reaches, according to the statistics.
    pub fn least(&self) -> Bytes {
        self.least
    }

    /// The modules that recompute least within a budget of at least [`Self::least`].
    pub fn within(&self, budget: Bytes, meter: &mut Meter<'_>) -> Vec<CheckpointedUnit> {
        let SelectiveSeries { info, candidates, rows, lowest, .. } = self;
        let of = |module| persistent(info, module);
        let filled = |chosen: &[&CheckpointCandidate], target| fill(info, chosen, of, target);
        let optimum = within_tolerance(budget, |target| {
            let chosen = cheapest(info, candidates, rows, target, meter);
            Ok::<_, ModulePlanError>(chosen.map(|chosen| {
                let discards = filled(&chosen, target);
                let (peak, _) = binding(info, &discards, of);
                (discards, peak)
            }))
        });
        let discards = optimum.ok().flatten().unwrap_or_else(|| {
            let lowest = candidates.iter().filter(|unit| lowest.contains(&unit.module));
            filled(&lowest.collect::<Vec<_>>(), budget)
        });
        units(info, &discards)
    }
}

/// Bytes held during a module's backward pass in addition to activations.
fn persistent(info: &ModuleInfo, module: ModuleIndex) -> Bytes {
    info.modules()[info.root()].parameters + info.modules()[module].total_gradients
}
