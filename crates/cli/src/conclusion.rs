//! How a run of the program ends. Invariant: every failure is one clear message on standard error
//! and an exit code of its own.

use serde_json::Value;
use tightfit::exit::Exit;

use crate::exit_code::ExitCode;
use crate::failure::Result;
use crate::failure::{self, Failure};
use crate::output::Unprinted;
use crate::{interrupt, output};

/// Says why it failed, if it did, and returns its exit code; as JSON too, if that is requested.
pub fn conclude(result: Result<ExitCode>, json: bool) -> ExitCode {
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
pub fn refuse(error: &Failure, more: Option<Value>) -> ExitCode {
    let (mut code, mut said) = (ExitCode::from(error.exit()), error.to_string());
    let is_interrupted = error.exit() == Exit::NotFound && interrupt::raised();
    if is_interrupted {
        code = interrupt::code();
        said = format!("interrupted before a plan was found; {said}");
    }
    let unprinted = error.bare::<Unprinted>();
    // A run that ended at a loss that is not finite has said so in its answer.
    if unprinted.is_none()
        && error.exit() != Exit::NotFinite
        && let Some(more) = more
    {
        let mut document = failure::document(code, &said);
        if let Value::Object(document) = &mut document {
            if is_interrupted {
                document.insert("interrupted".to_string(), Value::Bool(true));
            }
            document.extend(
                error.refusal().map(|refusal| failure::members(&refusal)).unwrap_or_default(),
            );
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
    interrupted(code, json, "interrupted before the first step; nothing was saved")
}

/// Says what an interruption came before, and returns the exit code.
pub fn interrupted(code: ExitCode, json: bool, said: &str) -> ExitCode {
    if json {
        let mut document = failure::document(code, said);
        document["interrupted"] = Value::Bool(true);
        let _ = say!("{document}").and_then(|()| output::flush());
    }
    note!("{said}");
    code
}
