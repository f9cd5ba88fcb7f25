//! Exit codes. Invariant: a code depends on what went wrong, not on which verb met it.

use tightfit::FitError;
use tightfit::analysis::modules::{ModuleInfoError, OperatorStatsError};
use tightfit::check::Violation;
use tightfit::machine::MachineError;
use tightfit::pipeline::{CutError, PipelineError, Unsuited};
use tightfit::plan::PlanError;
use tightfit::plan::modules::ModulePlanError;
use tightfit::reading::excess;
use tightfit::schedule::PlanFileError;
use tightfit_engine::step::data::DataError;
use tightfit_engine::step::{DivisionError, OtherBatch, StepFileError};
use tightfit_engine::transport::LinkError;
#[cfg(feature = "mpi")]
use tightfit_engine::transport::mpi::JobError;
use tightfit_engine::weights::WeightsError;
use tightfit_engine::{
    BudgetError, CompileError, FittingError, SessionError, SlabError, StepError, TierError,
};
use tightfit_report::TraceError;

use crate::exit_code::{INFEASIBLE, NOT_FINITE, NOT_FOUND, OTHER_RANK};
use crate::output::Unprinted;
use crate::places::Replaced;
use crate::table::UnknownColumn;
use crate::tier::NotATier;
use crate::train::{
    Contradiction, LossNotFinite, NotASchedule, OtherSeed, RanksRefused, TooManySteps,
};
use crate::values::{
    BelowReserve, HasTimes, NoDataSheet, NoPoints, NoRanks, NoStages, NoVariants, NotASize,
    OtherStages, Outside, UnknownModule,
};
use crate::verbs::analyze::Refused;

/// Part of `--help`.
pub const HELP: &str = "\
Exit codes:
  0    done
  1    something else failed: the message says what
  2    wrong usage
  3    infeasible: it is proven that no plan fits the budget
  4    a file is missing or cannot be read or written, standard output included
  5    a file is not what it should be: damaged, or another graph, step, plan,
       trace or weights file
  6    the engine cannot execute the graph: an unknown operator, or a
       planning-only graph
  7    the data does not suit the step
  8    the budget makes no sense: zero, unreadable, or more than this machine's
       memory
  9    a schedule breaks a rule of the checker
  10   no plan within the budget was found, which does not prove that there is
       none
  11   a loss is NaN or infinite: nothing was saved after it
  12   one of several ranks failed, or was not heard of in time
  129  ended early by SIGHUP; the output says what was saved, and where
  130  ended early by Ctrl-C; the output says what was saved, and where
  143  ended early by SIGTERM; the output says what was saved, and where";

/// The exit code for a failure.
pub fn code(error: &anyhow::Error) -> u8 {
    error.chain().find_map(of).unwrap_or(1)
}

/// The exit code of a refused budget.
fn refusal(is_proven: bool) -> u8 {
    if is_proven { INFEASIBLE } else { NOT_FOUND }
}

fn of(error: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(error) = error.downcast_ref::<FittingError>() {
        // What it wraps is not in the chain: it speaks with the wrapped one's voice.
        return match error {
            FittingError::Budget(error) => of(error),
            FittingError::Fit(error) => of(error),
            FittingError::Unplanned(error) => of(error),
            FittingError::Placement(error) => error.is_proven().map(refusal),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<FitError>() {
        return match error {
            FitError::Plan(error) => of(error),
            FitError::Violation(error) => of(error),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<PlanError>() {
        return match error {
            PlanError::Infeasible(proof) => Some(refusal(proof.is_proven())),
            PlanError::NotFound(_) | PlanError::Unsolved { .. } => Some(NOT_FOUND),
            PlanError::TooLarge { .. } | PlanError::NoModules | PlanError::ModuleStatistics(_) => {
                Some(2)
            }
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<ModulePlanError>() {
        return match error {
            ModulePlanError::Infeasible(proof) => Some(refusal(proof.proven)),
            ModulePlanError::Unsolved { .. } => Some(NOT_FOUND),
            ModulePlanError::WorldSize
            | ModulePlanError::Link { .. }
            | ModulePlanError::Nested { .. } => Some(2),
            _ => None,
        };
    }
    if error.is::<Unprinted>() {
        return Some(4);
    }
    #[cfg(feature = "mpi")]
    if let Some(error) = error.downcast_ref::<JobError>() {
        let is_usage = !matches!(error, JobError::Absent { .. });
        return Some(if is_usage { crate::exit_code::USAGE } else { OTHER_RANK });
    }
    if error.is::<LinkError>() {
        return Some(OTHER_RANK);
    }
    if error.is::<LossNotFinite>() {
        return Some(NOT_FINITE);
    }
    if error.is::<UnknownModule>()
        || error.is::<TooManySteps>()
        || error.is::<UnknownColumn>()
        || error.is::<NoPoints>()
        || error.is::<NoVariants>()
        || error.is::<OtherSeed>()
        || error.is::<Outside>()
        || error.is::<NoDataSheet>()
        || error.is::<HasTimes>()
        || error.is::<Replaced>()
        || error.is::<NotASize>()
        || error.is::<NotATier>()
        || error.is::<Contradiction>()
        || error.is::<CutError>()
        || error.is::<OtherStages>()
        || error.is::<PipelineError>()
        || error.is::<DivisionError>()
        || error.is::<Unsuited>()
        || error.is::<RanksRefused>()
    {
        return Some(2);
    }
    if let Some(error) = error.downcast_ref::<Refused>() {
        return match error {
            Refused::Module { .. } => Some(2),
            Refused::Smallest => Some(8),
        };
    }
    if error.is::<NoStages>() || error.is::<NoRanks>() {
        return Some(NOT_FOUND);
    }
    if error.is::<ModuleInfoError>() || error.is::<OperatorStatsError>() {
        return Some(5);
    }
    if let Some(error) = error.downcast_ref::<StepFileError>() {
        return Some(match error {
            StepFileError::Read { .. } | StepFileError::NoStep { .. } => 4,
            _ => 5,
        });
    }
    if let Some(error) = error.downcast_ref::<WeightsError>() {
        return Some(match error {
            WeightsError::Io { error, .. } => {
                let tier = error.get_ref().and_then(|inner| inner.downcast_ref::<TierError>());
                tier.map_or(Some(4), |tier| of(tier)).unwrap_or(4)
            }
            WeightsError::Link(_) | WeightsError::OtherRank(_) => OTHER_RANK,
            _ => 5,
        });
    }
    if let Some(error) = error.downcast_ref::<NotASchedule>() {
        return Some(match error {
            NotASchedule::Unread { .. } => 4,
            NotASchedule::Csv { .. } => 5,
            NotASchedule::Unknown { .. } | NotASchedule::Other { .. } => 2,
        });
    }
    if error.is::<OtherBatch>() {
        return Some(7);
    }
    if let Some(error) = error.downcast_ref::<DataError>() {
        return Some(if matches!(error, DataError::Read { .. }) { 4 } else { 7 });
    }
    if let Some(error) = error.downcast_ref::<SessionError>() {
        return match error {
            SessionError::Compile(error) => of(error),
            SessionError::Slab(error) => of(error),
            SessionError::Data(error) => of(error),
            SessionError::Tier(error) => of(error),
            SessionError::NoTier => Some(2),
            SessionError::Step { error: StepError::Tier(error), .. } => of(error),
            SessionError::Step { error: StepError::Link(_), .. } => Some(OTHER_RANK),
            // Defects, as far as anybody knows.
            SessionError::Step {
                error: StepError::Residency(_) | StepError::Absent { .. },
                ..
            } => None,
            SessionError::Step { .. } => Some(7),
            SessionError::Initialise(_) => Some(5),
            SessionError::InitialValues { .. } => Some(4),
            SessionError::NoMoreSteps => Some(2),
            SessionError::Link(_) | SessionError::OtherRank(_) => Some(OTHER_RANK),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<CompileError>() {
        return match error {
            CompileError::Violation(_) | CompileError::Conditions { .. } => Some(9),
            CompileError::UnknownOperators { .. }
            | CompileError::Kernel { .. }
            | CompileError::Unsuited { .. }
            | CompileError::NotExecutable { .. }
            | CompileError::EndsPlaced { .. } => Some(6),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<TierError>() {
        return match error {
            TierError::Memory(error) => of(error),
            TierError::Damaged { .. } => Some(5),
            _ => Some(4),
        };
    }
    if error.is::<PlanFileError>() || error.is::<TraceError>() || error.is::<serde_json::Error>() {
        return Some(5);
    }
    if error.is::<BelowReserve>() {
        return Some(INFEASIBLE);
    }
    if error.is::<BudgetError>() || error.is::<SlabError>() {
        return Some(8);
    }
    if error.is::<Violation>() {
        return Some(9);
    }
    if error.is::<MachineError>() {
        return Some(2);
    }
    if let Some(error) = error.downcast_ref::<std::io::Error>() {
        // A file that is too long was read well enough.
        return Some(if excess(error).is_some() { 5 } else { 4 });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planner_that_does_not_answer_proves_nothing() {
        let large = || PlanError::TooLarge { nodes: 81, most: 80 };
        let unsolved = || PlanError::Unsolved { reason: "time was up".to_string() };
        for (error, expected) in [(large(), 2), (unsolved(), 10)] {
            assert_eq!(code(&error.into()), expected);
        }
        for (error, expected) in [(large(), 2), (unsolved(), 10)] {
            assert_eq!(code(&FitError::from(error).into()), expected);
        }
        for (error, expected) in [(large(), 2), (unsolved(), 10)] {
            let error = FittingError::from(FitError::from(error));
            assert_eq!(code(&anyhow::Error::from(error).context("while planning")), expected);
        }
        assert_eq!(code(&FittingError::from(BudgetError::Zero).into()), 8);
    }

    #[test]
    fn a_tier_that_fails() {
        let at_start = || SessionError::Tier(TierError::Failed);
        let in_step = || SessionError::Step { step: 3, error: StepError::Tier(TierError::Failed) };
        assert_eq!([at_start(), in_step()].map(|error| code(&error.into())), [4, 4]);
        let damaged = TierError::Damaged { folder: "tier".into(), at: 0, bytes: 4096 };
        let error = StepError::Tier(damaged);
        assert_eq!(code(&SessionError::Step { step: 3, error }.into()), 5);
        assert_eq!(code(&SessionError::NoTier.into()), 2);
    }
}
