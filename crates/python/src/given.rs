//! Values from Python: whole numbers, times, budgets, documents. Invariant: whatever object is
//! given, the answer is a value in its range, a `TypeError`, or an error that says what to write.

use std::path::PathBuf;

use pyo3::exceptions::{PyOverflowError, PyRecursionError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyString};
use tightfit_cli::values;

use crate::errors;

/// A whole number that is not negative.
pub struct Whole(pub u64);

impl FromPyObject<'_, '_> for Whole {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Whole> {
        let py = object.py();
        if object.is_instance_of::<PyBool>() {
            return Err(PyTypeError::new_err("expected a whole number, not a bool"));
        }
        match object.extract::<u64>() {
            Ok(number) => Ok(Whole(number)),
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => {
                Err(errors::option(py, "a whole number from 0 to 2**64 - 1 is expected here"))
            }
            Err(error) => Err(error),
        }
    }
}

impl Whole {
    /// The number, if it fits into 32 bits.
    pub fn small(&self, py: Python<'_>, name: &str) -> PyResult<u32> {
        let refused = |_| errors::option(py, &format!("{name}={} is too large", self.0));
        u32::try_from(self.0).map_err(refused)
    }
}

/// Worker threads of a processor.
pub fn threads(py: Python<'_>, asked: Option<Whole>) -> PyResult<Option<u32>> {
    let Some(Whole(number)) = asked else { return Ok(None) };
    let most = values::MOST_THREADS;
    let known = u32::try_from(number).ok().filter(|&known| (1..=most).contains(&known.into()));
    let refused = || errors::option(py, &format!("threads lie between 1 and {most}"));
    known.map(Some).ok_or_else(refused)
}

/// The value of an option, parsed as on the command line.
pub fn parsed<T>(
    py: Python<'_>,
    name: &str,
    text: &str,
    parse: fn(&str) -> Result<T, String>,
) -> PyResult<T> {
    parse(text).map_err(|advice| errors::option(py, &format!("{name}={text}: {advice}")))
}

/// Bytes of a size, read as on the command line.
#[pyfunction]
pub fn size(py: Python<'_>, text: &str) -> PyResult<u64> {
    let refused = |error: values::NotASize| errors::option(py, &error.to_string());
    values::size(text).map(|bytes| bytes.0).map_err(refused)
}

/// Seconds of a deadline, from a number or as on the command line.
#[pyfunction]
pub fn seconds(py: Python<'_>, deadline: Quantity) -> PyResult<f64> {
    parsed(py, "deadline", &deadline.0, values::deadline).map(|seconds| seconds.0)
}

/// A quantity as the command line has it, from text or a number: bytes from an `int`, seconds from
/// an `int` or a `float`.
pub struct Quantity(pub String);

/// A budget, as the command line has it.
pub struct BudgetText(pub String);

impl FromPyObject<'_, '_> for Quantity {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Quantity> {
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Quantity(text.to_str()?.to_string()));
        }
        if object.is_instance_of::<PyBool>() {
            return Err(PyTypeError::new_err("expected a number or text, not a bool"));
        }
        match object.extract::<f64>() {
            Ok(number) => Ok(Quantity(number.to_string())),
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
                Err(errors::option(object.py(), "this number is too large"))
            }
            Err(error) => Err(error),
        }
    }
}

impl FromPyObject<'_, '_> for BudgetText {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<BudgetText> {
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(BudgetText(text.to_str()?.to_string()));
        }
        let py = object.py();
        let index = py.import("operator")?.getattr("index")?;
        match index.call1((object,)) {
            Ok(bytes) if !object.is_instance_of::<PyBool>() => {
                Ok(BudgetText(bytes.str()?.to_str()?.to_string()))
            }
            _ => Err(PyTypeError::new_err(format!(
                "a budget is an int of bytes, or text: \"6GiB\", \"2.5GB\", \"60%\" or \"min\"; \
                 not {}",
                object.get_type().name()?
            ))),
        }
    }
}

/// A file, or the content of one.
pub enum Document {
    /// The path of the file.
    Path(PathBuf),
    /// The bytes of a file, either JSON or JSON in gzip.
    Bytes(Vec<u8>),
}

impl FromPyObject<'_, '_> for Document {
    type Error = PyErr;

    /// Bytes are a file's content; so are a dict, and text that opens with a brace. Other text and
    /// `os.PathLike` objects are paths.
    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Document> {
        let py = object.py();
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Document::Bytes(bytes.as_bytes().to_vec()));
        }
        if object.is_instance_of::<PyDict>() {
            let text = py.import("json")?.getattr("dumps")?.call1((object,)).map_err(|error| {
                match error.is_instance_of::<PyRecursionError>(py) {
                    true => errors::option(py, "this dict is nested too deep for JSON"),
                    false => error,
                }
            })?;
            return Ok(Document::Bytes(text.cast::<PyString>()?.to_str()?.as_bytes().to_vec()));
        }
        if let Ok(text) = object.cast::<PyString>() {
            let text = text.to_str()?;
            if text.trim_start().starts_with('{') {
                return Ok(Document::Bytes(text.as_bytes().to_vec()));
            }
        }
        if let Ok(path) = object.extract::<PathBuf>() {
            return Ok(Document::Path(path));
        }
        Err(PyTypeError::new_err(format!(
            "expected a path, the bytes of a file, or its JSON as a dict; not {}",
            object.get_type().name()?
        )))
    }
}
