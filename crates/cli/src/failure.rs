//! A failure in words, and for programs. Invariant: if a verb was asked for JSON, a failure is one
//! object on standard output, its last line, as well as the sentences on standard error; a figure
//! that is not known is absent.

use serde_json::{Map, Value, json};
use tightfit::FitError;
use tightfit::plan::modules::ModulePlanError;
use tightfit::plan::{Infeasible, LiveTensor, PlanError};
use tightfit::units::Bytes;
use tightfit_engine::{FittingError, PlacementError};

use crate::exit_code::ExitCode;
use crate::values::{BelowReserve, NoRanks, NoStages};

/// The value of its member `format`.
const FORMAT: &str = "tightfit-failure/1";

/// The object of any failure: its exit code, and its message.
pub fn document(code: ExitCode, said: &str) -> Value {
    json!({ "format": FORMAT, "exit_code": u8::from(code), "error": said })
}

/// What is known about a refused budget, with `feasible` false; `None` for other failures.
pub fn refusal(error: &anyhow::Error) -> Option<Map<String, Value>> {
    error.chain().find_map(|cause| {
        if let Some(FittingError::Fit(error)) = cause.downcast_ref() {
            return of_fit(error);
        }
        if let Some(FittingError::Placement(error)) = cause.downcast_ref() {
            return of_placement(error);
        }
        if let Some(error) = cause.downcast_ref::<FitError>() {
            return of_fit(error);
        }
        if let Some(error) = cause.downcast_ref::<PlanError>() {
            return of_plan(error);
        }
        if let Some(ModulePlanError::Infeasible(proof)) = cause.downcast_ref() {
            let held =
                proof.held.iter().map(|&(kind, bytes)| json!({ "name": kind, "bytes": bytes }));
            let needed = proof.proven.then_some(proof.least);
            let mut refusal = refused(proof.budget, proof.proven, needed, Some(proof.least));
            refusal.insert("module".to_string(), json!(proof.module));
            refusal.insert("alive".to_string(), held.collect());
            return Some(refusal);
        }
        if let Some(BelowReserve { budget, .. }) = cause.downcast_ref() {
            return Some(refused(*budget, true, None, None));
        }
        if let Some(NoStages { budget, .. }) = cause.downcast_ref() {
            return Some(refused(*budget, false, None, None));
        }
        if let Some(NoRanks { budget, .. }) = cause.downcast_ref() {
            return Some(refused(*budget, false, None, None));
        }
        None
    })
}

/// The members of every refusal.
fn refused(
    budget: Bytes,
    is_proven: bool,
    needed: Option<Bytes>,
    reached: Option<Bytes>,
) -> Map<String, Value> {
    let mut refusal = Map::new();
    refusal.insert("feasible".to_string(), json!(false));
    refusal.insert("proven".to_string(), json!(is_proven));
    refusal.insert("budget_bytes".to_string(), json!(budget));
    for (name, bytes) in [("needed_bytes", needed), ("reached_bytes", reached)] {
        if let Some(bytes) = bytes {
            refusal.insert(name.to_string(), json!(bytes));
        }
    }
    refusal
}

fn of_fit(error: &FitError) -> Option<Map<String, Value>> {
    match error {
        FitError::Plan(error) => of_plan(error),
        _ => None,
    }
}

fn of_plan(error: &PlanError) -> Option<Map<String, Value>> {
    match error {
        PlanError::Infeasible(proof) => Some(of_proof(proof)),
        PlanError::NotFound(found) => Some(refused(found.budget, false, None, Some(found.reached))),
        _ => None,
    }
}

/// What is known about a budget that is too small.
pub fn of_proof(proof: &Infeasible) -> Map<String, Value> {
    let (needed, reached) = (Some(proof.needed), Some(proof.reached));
    let mut refusal = refused(proof.budget, proof.is_proven(), needed, reached);
    refusal.insert("peak_bytes".to_string(), json!(proof.peak));
    if let Some(binding) = &proof.binding {
        refusal.insert("node".to_string(), json!(binding.name));
        refusal.insert("module".to_string(), json!(binding.module));
    }
    let alive = |tensor: &LiveTensor| {
        json!({
            "name": tensor.name,
            "module": tensor.module,
            "phase": tensor.phase,
            "bytes": tensor.bytes,
        })
    };
    refusal.insert("alive".to_string(), proof.live.iter().map(alive).collect());
    refusal
}

fn of_placement(error: &PlacementError) -> Option<Map<String, Value>> {
    match *error {
        PlacementError::Whole { budget, reached, is_proven, .. }
        | PlacementError::Region { budget, reached, is_proven, .. } => {
            let needed = is_proven.then_some(reached);
            Some(refused(budget, is_proven, needed, Some(reached)))
        }
        _ => None,
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
