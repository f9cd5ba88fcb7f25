//! How the program starts itself again, for what is measured in a process of its own. Invariant:
//! the program that is started is this one, in whatever form it runs: the file itself, or a Python
//! interpreter that has it as a module.

use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::sync::OnceLock;

static WORDS: OnceLock<Vec<OsString>> = OnceLock::new();

/// From now on the program is started by these words, followed by its arguments; only the first
/// call has an effect.
pub fn starts_by(words: Vec<OsString>) {
    let _ = WORDS.set(words);
}

/// A command that starts the program, without arguments yet.
pub fn command() -> io::Result<Command> {
    match WORDS.get().and_then(|words| words.split_first()) {
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest);
            Ok(command)
        }
        None => Ok(Command::new(std::env::current_exe()?)),
    }
}
