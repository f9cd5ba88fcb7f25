//! How a run of the program ends. Invariant: every failure is one clear message on standard error
//! and an exit code of its own.

use serde_json::Value;

use crate::exit;
use crate::exit_code::{self, ExitCode};
use crate::failure::{self, message};
use crate::output::Unprinted;
use crate::train::LossNotFinite;
use crate::{interrupt, output};

/// Says why it failed, if it did, and returns its exit code; as JSON too, if that is requested.
pub fn conclude(result: anyhow::Result<ExitCode>, json: bool) -> ExitCode {
    // What is still buffered may fail to be written, too.
    match result.and_then(|code| Ok(output::flush().map(|()| code)?)) {
        Ok(code) => code,
        Err(error) => {
            let more = json.then(Value::default);
            refuse(&error, more)
        }
    }
}

/// Says why a verb failed, and returns its exit code. If there is `more`, the failure is printed as
/// JSON too, with the members of `more`.
pub fn refuse(error: &anyhow::Error, more: Option<Value>) -> ExitCode {
    let (mut code, mut said) = (ExitCode::from(exit::code(error)), message(error));
    let is_interrupted = exit::code(error) == exit_code::NOT_FOUND && interrupt::raised();
    if is_interrupted {
        code = interrupt::code();
        said = format!("interrupted before a plan was found; {said}");
    }
    let unprinted = error.chain().next().and_then(|error| error.downcast_ref::<Unprinted>());
    // A run that ended at a loss that is not finite has said so in its answer.
    if unprinted.is_none()
        && !error.is::<LossNotFinite>()
        && let Some(more) = more
    {
        let mut document = failure::document(code, &said);
        if let Value::Object(document) = &mut document {
            if is_interrupted {
                document.insert("interrupted".to_string(), Value::Bool(true));
            }
            document.extend(failure::refusal(error).unwrap_or_default());
            document.extend(more.as_object().cloned().unwrap_or_default());
        }
        // Standard error gets the same message.
        let _ = say!("{document}").and_then(|()| output::flush());
    }
    // If its reader has gone (`| head`), nothing is lost that anyone still waits for.
    if !unprinted.is_some_and(Unprinted::is_unread) {
        note!("error: {said}");
    }
    code
}

/// Says that a run was interrupted before it did anything, and returns the exit code.
pub fn interrupted_at_once(code: ExitCode, json: bool) -> ExitCode {
    const SAID: &str = "interrupted before the first step; nothing was saved";
    if json {
        let mut document = failure::document(code, SAID);
        document["interrupted"] = Value::Bool(true);
        let _ = say!("{document}").and_then(|()| output::flush());
    }
    note!("{SAID}");
    code
}
