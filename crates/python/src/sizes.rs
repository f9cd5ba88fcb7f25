//! The search for the largest size that fits, for Python. Invariant: only choosing the next size
//! happens here, which takes no time; trying it is Python's.

use pyo3::prelude::*;
use tightfit::sizes::{Range, Trial, largest};
use tightfit::units::Bytes;

use crate::errors;

/// The largest size that fits into `room` bytes, beginning with `given`.
#[pyfunction]
#[pyo3(signature = (given, attempt, *, least, most, grid, room))]
pub fn largest_size(
    py: Python<'_>,
    given: u64,
    attempt: &Bound<'_, PyAny>,
    least: u64,
    most: u64,
    grid: u64,
    room: u64,
) -> PyResult<Option<u64>> {
    let range = Range { least, most, grid: grid.max(1) };
    largest(given, range, Bytes(room), |size, is_patient| {
        let found = attempt.call1((size, is_patient))?;
        let (said, bytes): (String, Option<u64>) = found.extract()?;
        match said.as_str() {
            "fits" => Ok(Trial::Fits(bytes.map(Bytes))),
            "exceeds" => Ok(Trial::Exceeds(bytes.map(Bytes))),
            "open" => Ok(Trial::Open(bytes.map(Bytes))),
            "barred" => Ok(Trial::Barred),
            "unknown" => Ok(Trial::Unknown),
            other => Err(errors::option(py, &format!("`{other}` is nothing that a size can be"))),
        }
    })
}
