//! Failures as Python exceptions. Invariant: every exception is one of `tightfit.errors`, and its
//! class says what the program says with its exit code.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tightfit::exit::{Exit, Refusal};
use tightfit::schedule::PlanFileError;
use tightfit::units::Bytes;
use tightfit_cli::failure::Failure;

/// The exception for a failure.
pub fn exception(py: Python<'_>, failure: &Failure) -> PyErr {
    let message = failure.to_string();
    let refused = failure.refusal().and_then(|refusal| refused(py, &message, refusal));
    if let Some(refused) = refused {
        return refused.unwrap_or_else(|failed| failed);
    }
    let is_plan = failure.causes().any(|cause| cause.is::<PlanFileError>());
    let class = match failure.exit() {
        Exit::Violation => "PlanError",
        Exit::Content if is_plan => "PlanError",
        Exit::Content | Exit::File => "GraphFileError",
        Exit::Usage | Exit::Budget => "OptionError",
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

/// The refusal of a budget, if a plan is known that needs more.
fn refused(py: Python<'_>, message: &str, refusal: Refusal) -> Option<PyResult<PyErr>> {
    let alive = refusal.alive?;
    let made = || {
        let data = PyDict::new(py);
        data.set_item("budget", refusal.budget.0)?;
        data.set_item("needed", refusal.needed.unwrap_or(Bytes::ZERO).0)?;
        data.set_item("smallest", refusal.reached.unwrap_or(Bytes::ZERO).0)?;
        data.set_item("binding", refusal.node.or(refusal.module))?;
        let live = alive.into_iter().map(|alive| (alive.name, alive.bytes.0));
        data.set_item("live", live.collect::<Vec<_>>())?;
        let class = py.import("tightfit.errors")?.getattr("InfeasibleBudget")?;
        Ok(PyErr::from_value(class.call((message,), Some(&data))?))
    };
    Some(made())
}

fn raise(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let made = || py.import("tightfit.errors")?.getattr(class)?.call1((message,));
    made().map_or_else(|failed| failed, PyErr::from_value)
}
