//! What verbs that plan modules have in common: modules by name, a budget, limits of the solver.
//! Invariant: a share is one of the baseline peak, that of one device without checkpointing and
//! without sharding.

use clap::Args;
use tightfit::analysis::modules::{ModuleIndex, ModuleInfo};
use tightfit::plan::SolverLimits;
use tightfit::plan::modules::ModulePlanError;
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{Budget, BudgetError, Reserve};

use crate::failure::Result;
use crate::values::{UnknownModule, duration, share};

/// What the peaks of planned modules count, and what they leave out.
pub const COUNTED: &str = "\
both peaks count parameters, gradients and activations; batch, buffers and optimizer state come on \
top";

/// Limits of the solver.
#[derive(Args, Clone, Copy)]
pub struct Solver {
    /// Stop when no plan can be better by more than this share, such as 1% or 0.01; without one,
    /// when none is better or the time is over
    #[arg(
        long,
        value_name = "SHARE",
        default_value = "0",
        value_parser = share,
        allow_hyphen_values = true
    )]
    gap: f64,
    /// Let the solver take no longer than this, for all programs of the plan together
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "10s",
        value_parser = duration,
        allow_hyphen_values = true
    )]
    deadline: Seconds,
}

impl Solver {
    /// How long it takes at most.
    pub fn most(self) -> Seconds {
        self.deadline
    }

    /// The limits, as planners take them.
    pub fn limits(self) -> SolverLimits {
        SolverLimits { gap: self.gap, seconds: Some(self.deadline) }
    }

    /// How good a plan with this gap is, in words.
    pub fn quality(self, gap: Option<f64>) -> String {
        match gap {
            Some(0.0) => "optimal".to_string(),
            Some(gap) => {
                let over = if gap > self.gap { " (a longer --deadline may do better)" } else { "" };
                format!("within {:.2} % of the optimum{over}", gap * 100.0)
            }
            None => "the best that was found in time".to_string(),
        }
    }
}

/// The modules with these names.
pub fn named(info: &ModuleInfo, names: &[String]) -> Result<Vec<ModuleIndex>, UnknownModule> {
    names
        .iter()
        .map(|name| info.find(name).ok_or_else(|| UnknownModule { name: name.clone() }))
        .collect()
}

/// A clock; if it jumps to infinity, planning ends.
pub type Clock<'a> = &'a (dyn Fn() -> Seconds + Sync);

/// Plans within a budget, or within the smallest that can be met, in the time of `limits` in total.
pub fn within<P>(
    info: &ModuleInfo,
    budget: Budget,
    (limits, clock): (SolverLimits, Clock<'_>),
    plan: impl Fn(Bytes, SolverLimits) -> Result<P, ModulePlanError>,
) -> Result<(Bytes, P)> {
    let start = clock();
    // Plans in a share of the time that is left.
    let plan = |budget, share: f64| {
        let left = |seconds: Seconds| seconds.0 - (clock().0 - start.0);
        let left = |seconds| Seconds((left(seconds) * share).max(0.0));
        plan(budget, SolverLimits { seconds: limits.seconds.map(left), ..limits })
    };
    match budget.bytes(info.baseline_peak(), Reserve::default()) {
        Some(Bytes::ZERO) => Err(BudgetError::Zero.into()),
        Some(bytes) => Ok((bytes, plan(bytes, 1.0)?)),
        None => match plan(Bytes::ZERO, 0.5) {
            Err(ModulePlanError::Infeasible(proof)) => Ok((proof.least, plan(proof.least, 1.0)?)),
            other => Ok((Bytes::ZERO, other?)),
        },
    }
}
