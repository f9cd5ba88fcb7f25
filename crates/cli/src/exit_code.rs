//! The program's exit codes. Invariant: whatever a script would tell apart has a code of its own;
//! `exit` says which failure has which, and `--help` lists them.

/// The arguments make no sense.
pub const USAGE: u8 = 2;
/// It is proven that no plan fits.
pub const INFEASIBLE: u8 = 3;
/// No plan was found; there may be one.
pub const NOT_FOUND: u8 = 10;
/// A loss is not finite.
pub const NOT_FINITE: u8 = 11;
/// Another rank failed, or does not answer.
pub const OTHER_RANK: u8 = 12;

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
    [INFEASIBLE, NOT_FOUND].into_iter().any(|lacked| code == Some(lacked.into()))
}
