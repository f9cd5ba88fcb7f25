//! The program's exit codes. Invariant: whatever a script would tell apart has a code of its own;
//! every error says which is its own, and `--help` lists them.

use tightfit::exit::Exit;

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

/// The run ended early because a signal asked it to: shells count these from 128.
pub fn asked_by(signal: i32) -> ExitCode {
    ExitCode(u8::try_from(128 + signal).unwrap_or(1))
}

/// The program's exit code. Unlike the one of the standard library, it can be read, so that a
/// program which is not the whole process can be asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode(u8);

impl ExitCode {
    /// Everything requested was done.
    pub const SUCCESS: ExitCode = ExitCode(0);
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode(exit as u8)
    }
}

impl From<u8> for ExitCode {
    fn from(code: u8) -> ExitCode {
        ExitCode(code)
    }
}

impl From<ExitCode> for u8 {
    fn from(code: ExitCode) -> u8 {
        code.0
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> std::process::ExitCode {
        code.0.into()
    }
}

/// Whether a process that ended with this code, if it ended by itself, lacked memory for a plan.
pub fn lacked_memory(code: Option<i32>) -> bool {
    [Exit::Infeasible, Exit::NotFound].into_iter().any(|lacked| code == Some(lacked as i32))
}

#[cfg(test)]
mod tests {
    use tightfit::FitError;
    use tightfit::exit::Coded;
    use tightfit::plan::PlanError;
    use tightfit_engine::{BudgetError, FittingError, SessionError, StepError, TierError};

    use crate::failure::Failure;

    fn code(error: impl Coded + Send + Sync + 'static) -> u8 {
        Failure::from(error).context("while planning").exit() as u8
    }

    #[test]
    fn a_planner_that_does_not_answer_proves_nothing() {
        let large = || PlanError::TooLarge { nodes: 81, most: 80 };
        let unsolved = || PlanError::Unsolved { reason: "time was up".to_string() };
        for (error, expected) in [(large(), 2), (unsolved(), 10)] {
            assert_eq!(code(error), expected);
        }
        for (error, expected) in [(large(), 2), (unsolved(), 10)] {
            assert_eq!(code(FitError::from(error)), expected);
        }
        for (error, expected) in [(large(), 2), (unsolved(), 10)] {
            assert_eq!(code(FittingError::from(FitError::from(error))), expected);
        }
        assert_eq!(code(FittingError::from(BudgetError::Zero)), 8);
    }

    #[test]
    fn a_tier_that_fails() {
        let at_start = || SessionError::Tier(TierError::Failed);
        let in_step = || SessionError::Step { step: 3, error: StepError::Tier(TierError::Failed) };
        assert_eq!([at_start(), in_step()].map(code), [4, 4]);
        let damaged = TierError::Damaged { folder: "tier".into(), at: 0, bytes: 4096 };
        let error = StepError::Tier(damaged);
        assert_eq!(code(SessionError::Step { step: 3, error }), 5);
        assert_eq!(code(SessionError::NoTier), 2);
    }
}
