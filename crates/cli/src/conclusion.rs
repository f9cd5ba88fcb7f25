//! How a run of the program ends. Invariant: every failure is one clear message on standard error
//! and an exit code of its own.

use crate::exit::{self, ExitCode};
use crate::output::Unprinted;
use crate::{interrupt, output};

/// Says why it failed, if it did, and answers its exit code.
pub fn conclude(result: anyhow::Result<ExitCode>) -> ExitCode {
    // What is still held back may find no place either.
    match result.and_then(|code| Ok(output::flush().map(|()| code)?)) {
        Ok(code) => code,
        Err(error) if exit::code(&error) == exit::NOT_FOUND && interrupt::raised() => {
            note!("error: interrupted before a plan was found; {}", message(&error));
            interrupt::code()
        }
        Err(error) => {
            // Nothing is lost that anybody still waits for (`| head`).
            let outermost = error.chain().next().and_then(|error| error.downcast_ref());
            if !outermost.is_some_and(Unprinted::is_unread) {
                note!("error: {}", message(&error));
            }
            exit::code(&error).into()
        }
    }
}

/// The error and its causes; a cause that the error cites is not said again.
pub fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !message.contains(&cause) {
            let colon = if message.is_empty() { "" } else { ": " };
            message = message + colon + cause.trim_end();
        }
    }
    message
}
