//! Failures as Python exceptions. Invariant: every exception is one of `tightfit.errors`, and its
//! class says what the program says with its exit code.

use anyhow::Error;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tightfit::graph::ReadError;
use tightfit::plan::modules::{ModuleInfeasible, ModulePlanError};
use tightfit::plan::{Infeasible, PlanError};
use tightfit::schedule::PlanFileError;
use tightfit::units::Bytes;
use tightfit::{FitError, check::Violation};
use tightfit_engine::FittingError;

/// The exception for a failure.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let message = tightfit_cli::message(error);
    if let Some(proof) = error.chain().find_map(infeasible) {
        return refused(py, &message, proof).unwrap_or_else(|failed| failed);
    }
    if error.chain().any(|cause| cause.is::<PlanFileError>() || cause.is::<Violation>()) {
        return raise(py, "PlanError", &message);
    }
    if error.chain().any(|cause| cause.is::<ReadError>()) {
        return raise(py, "GraphFileError", &message);
    }
    let class = match tightfit_cli::exit::code(error) {
        2 | 8 => "OptionError",
        4 | 5 => "GraphFileError",
        _ => "TightfitError",
    };
    raise(py, class, &message)
}

/// An option that makes no sense.
pub fn option(py: Python<'_>, message: &str) -> PyErr {
    raise(py, "OptionError", message)
}

/// A step that requests other memory than it did when it was recorded.
pub fn allocation(py: Python<'_>, message: &str) -> PyErr {
    raise(py, "AllocationError", message)
}

/// A model that cannot be compiled as requested.
pub fn compilation(py: Python<'_>, message: &str) -> PyErr {
    raise(py, "CompileError", message)
}

/// A panic: a mistake in this package, whatever the input was.
pub fn of_panic(py: Python<'_>, said: &str) -> PyErr {
    raise(py, "TightfitError", &format!("tightfit made a mistake; please report this: {said}"))
}

/// The refusal of a budget.
enum Proof<'a> {
    Step(&'a Infeasible),
    Modules(&'a ModuleInfeasible),
}

fn infeasible<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<Proof<'a>> {
    // The error inside `FittingError` is not in the chain, since `FittingError` shows its message.
    if let Some(FittingError::Fit(error)) = error.downcast_ref() {
        return error.infeasible().map(Proof::Step);
    }
    if let Some(error) = error.downcast_ref::<FitError>() {
        return error.infeasible().map(Proof::Step);
    }
    if let Some(PlanError::Infeasible(proof)) = error.downcast_ref() {
        return Some(Proof::Step(proof));
    }
    match error.downcast_ref() {
        Some(ModulePlanError::Infeasible(proof)) => Some(Proof::Modules(proof)),
        _ => None,
    }
}

fn refused(py: Python<'_>, message: &str, proof: Proof<'_>) -> PyResult<PyErr> {
    let data = PyDict::new(py);
    let live: Vec<(&str, u64)> = match proof {
        Proof::Step(proof) => {
            data.set_item("budget", proof.budget.0)?;
            data.set_item("needed", proof.needed.0)?;
            data.set_item("smallest", proof.reached.0)?;
            data.set_item("binding", proof.binding.as_ref().map(|binding| &binding.name))?;
            proof.live.iter().map(|tensor| (tensor.name.as_str(), tensor.bytes.0)).collect()
        }
        Proof::Modules(proof) => {
            let needed = if proof.proven { proof.least } else { Bytes::ZERO };
            data.set_item("budget", proof.budget.0)?;
            data.set_item("needed", needed.0)?;
            data.set_item("smallest", proof.least.0)?;
            data.set_item("binding", &proof.module)?;
            proof.held.iter().map(|&(kind, bytes)| (kind, bytes.0)).collect()
        }
    };
    data.set_item("live", live)?;
    let class = py.import("tightfit.errors")?.getattr("InfeasibleBudget")?;
    Ok(PyErr::from_value(class.call((message,), Some(&data))?))
}

fn raise(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let made = || py.import("tightfit.errors")?.getattr(class)?.call1((message,));
    made().map_or_else(|failed| failed, PyErr::from_value)
}
