//! Selective activation checkpointing (SAC) as a mixed integer program: its variables, its rows and
//! its objective. Invariant: every row is stated here, those that sharding shares included.
//!
//! For each candidate: y says whether it is checkpointed, d how many bytes it discards.
//!
//! - d ≤ D·y for each piece of its tradeoff curve: only what is checkpointed discards;
//! - Σ y ≤ 1 over those that contain a module: units do not nest;
//! - held bytes − what modules before have discarded ≤ limit, for each backward pass that binds;
//! - objective: least seconds of recomputation within a budget, or else the lowest limit.
//!
//! After `torch.distributed._tools.sac_ilp` of PyTorch; `doc/theory/selective.md` lists departures.

use good_lp::{Expression, Variable, constraint};

use crate::analysis::modules::{ModuleIndex, ModuleInfo, ModuleStats};
use crate::effort::Meter;
use crate::plan::milp::{Goal, Milp, MilpAnswer, Scale};
use crate::plan::modules::ModulePlanError;
use crate::plan::modules::candidate::{CheckpointCandidate, Piece};
use crate::plan::modules::memory::MemoryRow;
use crate::units::Bytes;

/// The modules that the solver chooses, and how far above the optimum they may be.
pub type Chosen<'a> = (Vec<&'a CheckpointCandidate>, Option<f64>);

/// The solver's choice; `None` if none fits.
pub fn solve<'a>(
    info: &ModuleInfo,
    candidates: &'a [CheckpointCandidate],
    goal: Goal,
    persistent: &impl Fn(&ModuleStats) -> Bytes,
    (gap, meter): (f64, &Meter<'_>),
) -> Result<Option<Chosen<'a>>, ModulePlanError> {
    let scale = Scale::of(info);
    let mut milp = Milp::new();
    let limit: Expression = match goal {
        Goal::Fastest(budget) => scale.bytes(budget).into(),
        Goal::Lowest => milp.within(0.0, 1.0).into(),
    };
    let rows =
        MemoryRow::binding(info, candidates, &[], |module| persistent(&info.modules()[module]));
    let last = rows.iter().map(|row| row.position).max().unwrap_or_default();
    let checkpointing = Checkpointing::new(&mut milp, info, candidates, last, goal, &scale);
    for row in rows {
        let held = scale.bytes(row.bytes) - checkpointing.discarded_before(row.position);
        milp.row(constraint!(held <= limit.clone()));
    }
    milp.objective = match goal {
        Goal::Fastest(_) => checkpointing.seconds() * (1.0 / scale.seconds),
        Goal::Lowest => limit,
    };
    let answer =
        milp.solve(goal.gap(gap), meter).map_err(|reason| ModulePlanError::Unsolved { reason })?;
    Ok(answer.map(|answer| (checkpointing.chosen(&answer), answer.gap)))
}

/// The part of a program that decides which modules are checkpointed and how much each discards.
pub struct Checkpointing<'a> {
    units: Vec<CheckpointingUnit<'a>>,
    /// Bytes per unit of the scale.
    bytes: f64,
}

struct CheckpointingUnit<'a> {
    candidate: &'a CheckpointCandidate,
    /// y: whether it is checkpointed.
    chosen: Variable,
    /// d: what it discards, in units of the scale, with the seconds of each.
    discards: Vec<(Variable, f64)>,
}

impl<'a> Checkpointing<'a> {
    /// Variables for each candidate that ends before `last`.
    pub fn new(
        milp: &mut Milp,
        info: &ModuleInfo,
        candidates: &'a [CheckpointCandidate],
        last: usize,
        goal: Goal,
        scale: &Scale,
    ) -> Checkpointing<'a> {
        let mut units: Vec<CheckpointingUnit> = Vec::new();
        for candidate in candidates.iter().filter(|candidate| candidate.position < last) {
            let chosen = milp.binary();
            let discards = match goal {
                // d ≤ D·y for each piece: a fraction of a unit takes that fraction of its seconds.
                Goal::Fastest(_) => candidate
                    .pieces
                    .iter()
                    .map(|&Piece { bytes, rate }| {
                        let most = bytes / scale.bytes;
                        let piece = milp.within(0.0, most);
                        milp.row(constraint!(piece <= most * chosen));
                        (piece, rate * scale.bytes)
                    })
                    .collect(),
                // Discarding everything never gives a higher peak.
                Goal::Lowest => Vec::new(),
            };
            units.push(CheckpointingUnit { candidate, chosen, discards });
        }
        // No unit contains another: at most one on the path from any of them to the root.
        for lowest in &units {
            let module = lowest.candidate.module;
            let contains = |other: &CheckpointingUnit| {
                other.candidate.module != module && info.contains(module, other.candidate.module)
            };
            if !units.iter().any(contains) {
                let above =
                    units.iter().filter(|unit| info.contains(unit.candidate.module, module));
                let together: Expression = above.map(|unit| unit.chosen).sum();
                milp.row(constraint!(together <= 1.0));
            }
        }
        Checkpointing { units, bytes: scale.bytes }
    }

    /// What modules that end before a place of the forward post-order discard.
    pub fn discarded_before(&self, position: usize) -> Expression {
        let before = self.units.iter().filter(|unit| unit.candidate.position < position);
        let mut sum = Expression::from(0.0);
        for unit in before {
            if unit.discards.is_empty() {
                sum += unit.candidate.most.0 as f64 / self.bytes * unit.chosen;
            }
            unit.discards.iter().for_each(|&(piece, _)| sum += piece);
        }
        sum
    }

    /// The seconds of all recomputation.
    pub fn seconds(&self) -> Expression {
        let mut sum = Expression::from(0.0);
        for unit in &self.units {
            sum += unit.candidate.fixed * unit.chosen;
            unit.discards.iter().for_each(|&(piece, seconds)| sum += seconds * piece);
        }
        sum
    }

    /// Modules that may be checkpointed, with their variables.
    pub fn variables(&self) -> impl Iterator<Item = (ModuleIndex, Variable)> {
        self.units.iter().map(|unit| (unit.candidate.module, unit.chosen))
    }

    /// The modules that an answer checkpoints.
    pub fn chosen(&self, answer: &MilpAnswer) -> Vec<&'a CheckpointCandidate> {
        self.units
            .iter()
            .filter(|unit| answer.is_one(unit.chosen))
            .map(|unit| unit.candidate)
            .collect()
    }
}
