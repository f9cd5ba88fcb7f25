//! A failure in words, and for programs. Invariant: if a verb was asked for JSON, a failure is one
//! object on standard output, its last line, as well as the sentences on standard error; a figure
//! that is not known is absent.

use std::error::Error;
use std::{fmt, iter};

use serde_json::{Map, Value, json};
use tightfit::exit::{Alive, Coded, Exit, Refusal, coded};

use crate::exit_code::ExitCode;

/// The value of its member `format`.
const FORMAT: &str = "tightfit-failure/1";

/// The outcome of what a verb does.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a verb failed: an error, and what was being done.
#[derive(Debug)]
pub struct Failure {
    cause: Box<dyn Coded + Send + Sync>,
    /// What was being done, the innermost first.
    context: Vec<String>,
}

impl<E: Coded + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure { cause: Box::new(error), context: Vec::new() }
    }
}

/// A failure that has only a message.
#[derive(Debug)]
struct Other(String);

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Other {}

coded!(Other: Other);

impl Failure {
    /// One that only has a message: it has no exit code of its own.
    pub fn other(said: impl fmt::Display) -> Failure {
        Other(said.to_string()).into()
    }

    /// The same, and what was being done.
    pub fn context(mut self, said: impl fmt::Display) -> Failure {
        self.context.push(said.to_string());
        self
    }

    /// How the program ends.
    pub fn exit(&self) -> Exit {
        self.cause.exit()
    }

    /// What is known about the budget, if that is what was refused.
    pub fn refusal(&self) -> Option<Refusal> {
        self.cause.refusal()
    }

    /// The error, if it is of this type.
    pub fn cause<E: Error + 'static>(&self) -> Option<&E> {
        let cause: &(dyn Error + 'static) = &*self.cause;
        cause.downcast_ref()
    }

    /// The same, if it is not known what was being done.
    pub fn bare<E: Error + 'static>(&self) -> Option<&E> {
        self.cause().filter(|_| self.context.is_empty())
    }

    /// The error and the errors below it.
    pub fn causes(&self) -> impl Iterator<Item = &(dyn Error + 'static)> {
        let cause: &(dyn Error + 'static) = &*self.cause;
        iter::successors(Some(cause), |&error| error.source())
    }
}

/// What was being done, then the errors; one that was cited before is not said again.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut message = String::new();
        let context = self.context.iter().rev().cloned();
        for said in context.chain(self.causes().map(ToString::to_string)) {
            if !message.contains(&said) {
                let colon = if message.is_empty() { "" } else { ": " };
                message = message + colon + said.trim_end();
            }
        }
        f.write_str(&message)
    }
}

/// Says what was being done when something failed.
pub trait Context<T> {
    /// Adds what was being done.
    fn context(self, said: impl fmt::Display) -> Result<T>;

    /// The same, said only after a failure.
    fn with_context<S: fmt::Display>(self, said: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<Failure>> Context<T> for Result<T, E> {
    fn context(self, said: impl fmt::Display) -> Result<T> {
        self.map_err(|error| error.into().context(said))
    }

    fn with_context<S: fmt::Display>(self, said: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| error.into().context(said()))
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, said: impl fmt::Display) -> Result<T> {
        self.ok_or_else(|| Failure::other(said))
    }

    fn with_context<S: fmt::Display>(self, said: impl FnOnce() -> S) -> Result<T> {
        self.ok_or_else(|| Failure::other(said()))
    }
}

/// The object of any failure: its exit code, and its message.
pub fn document(code: ExitCode, said: &str) -> Value {
    json!({ "format": FORMAT, "exit_code": u8::from(code), "error": said })
}

/// The members of a refused budget.
pub fn members(refusal: &Refusal) -> Map<String, Value> {
    let mut members = Map::new();
    members.insert("feasible".to_string(), json!(false));
    members.insert("proven".to_string(), json!(refusal.is_proven));
    members.insert("budget_bytes".to_string(), json!(refusal.budget));
    let mut known = |name: &str, value: Option<Value>| {
        members.extend(value.map(|value| (name.to_string(), value)));
    };
    known("needed_bytes", refusal.needed.map(|bytes| json!(bytes)));
    known("reached_bytes", refusal.reached.map(|bytes| json!(bytes)));
    known("peak_bytes", refusal.peak.map(|bytes| json!(bytes)));
    known("node", refusal.node.as_ref().map(|name| json!(name)));
    known("module", refusal.module.as_ref().map(|name| json!(name)));
    let alive = |Alive { name, made, bytes }: &Alive| match made {
        Some((module, phase)) => {
            json!({ "name": name, "module": module, "phase": phase, "bytes": bytes })
        }
        None => json!({ "name": name, "bytes": bytes }),
    };
    known("alive", refusal.alive.as_ref().map(|all| all.iter().map(alive).collect()));
    members
}
