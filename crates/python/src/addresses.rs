//! The allocators of this process for Python. Invariant: what is laid out here is checked by
//! `tightfit_replay`, which knows nothing of the planner; and no allocator's lock is held while
//! Python objects are created.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tightfit::effort::Effort;
use tightfit::goal::Goal;
use tightfit::schedule::{Lifetime, Shelf, pack};
use tightfit::units::Bytes;
use tightfit_cli::clock::wall;
use tightfit_cli::failure::{Failure, Result};
use tightfit_replay::process::{self, Device, Memory, this_thread};
use tightfit_replay::{ALIGNMENT, Allocator, Offset, ReplayError, Settled, Size, Stream};

use crate::attend::attended;
use crate::errors;

/// The recorded allocations of a step.
#[pyclass(frozen, module = "tightfit._native")]
pub struct Trace(tightfit_replay::Trace);

#[pymethods]
impl Trace {
    /// How many passes the step had.
    #[getter]
    fn passes(&self) -> usize {
        self.0.passes()
    }

    /// How many allocations it made.
    #[getter]
    fn allocations(&self) -> usize {
        self.0.allocations()
    }
}

/// Where each allocation of a step lies, checked.
#[pyclass(frozen, module = "tightfit._native")]
pub struct Placement(Arc<tightfit_replay::Placement>);

#[pymethods]
impl Placement {
    /// Bytes of the slab that it needs.
    #[getter]
    fn slab(&self) -> usize {
        self.0.slab().0
    }

    /// How many allocations lie in it.
    #[getter]
    fn placed(&self) -> usize {
        self.0.placed()
    }

    /// The most bytes that the step takes outside the slab.
    #[getter]
    fn beside(&self) -> usize {
        self.0.settled().beside().0
    }

    /// For each pass the most bytes that it takes outside the slab, above those that are there when
    /// it begins.
    #[getter]
    fn rises(&self) -> Vec<usize> {
        self.0.settled().rises().iter().map(|size| size.0).collect()
    }

    /// The most bytes that the step takes without a slab.
    #[getter]
    fn peak(&self) -> usize {
        self.0.settled().peak().0
    }
}

/// Lays out two recordings of a step; `None` if they do not agree.
#[pyfunction]
pub fn lay_out(py: Python<'_>, first: &Trace, second: &Trace) -> PyResult<Option<Placement>> {
    let Some(settled) = Settled::of(&first.0, &second.0) else { return Ok(None) };
    attended(py, |stop| {
        let lifetimes = settled
            .intervals()
            .map(|(first, last, size)| {
                let bytes = Bytes(u64::try_from(size.0)?);
                Ok(Lifetime { first: u32::try_from(first)?, last: u32::try_from(last)?, bytes })
            })
            .collect::<Result<Vec<Lifetime>>>()?;
        let fixed = vec![None; lifetimes.len()];
        let goal = Goal::Smallest;
        let shelf = Shelf {
            fixed: &fixed,
            floor: 0,
            alignment: ALIGNMENT as u64,
            goal,
            enough: Bytes::ZERO,
        };
        let clock = || stop.read(wall);
        let packing = pack(&lifetimes, &shelf, &Effort { clock: &clock, ..Effort::default() });
        let offsets = packing
            .addresses
            .iter()
            .map(|&address| Ok(Offset(usize::try_from(address)?)))
            .collect::<Result<Vec<Offset>>>()?;
        let slab = Size(usize::try_from(packing.end.0)?);
        let placement =
            tightfit_replay::Placement::checked(settled, &offsets, slab).map_err(Failure::other)?;
        Ok(Some(Placement(Arc::new(placement))))
    })
}

/// The allocator of one device, in its current state; `device` is the number of a CUDA device, or
/// -1 for the memory of this computer.
#[pyclass(frozen, module = "tightfit._native")]
pub struct Addresses {
    device: Device,
}

impl Addresses {
    fn with<T>(&self, work: impl FnOnce(&mut Allocator<Memory>) -> T) -> T {
        process::with(self.device, work)
    }

    fn tried(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Allocator<Memory>) -> Result<(), ReplayError>,
    ) -> PyResult<()> {
        let failed = |error: ReplayError| errors::allocation(py, &error.to_string());
        self.with(work).map_err(failed)
    }
}

#[pymethods]
impl Addresses {
    #[new]
    fn new(py: Python<'_>, device: i32) -> PyResult<Addresses> {
        if !process::throws() {
            let advice = "planned addresses need the C++ standard library of GNU, by which a step \
                          is stopped; leave addresses=True out";
            return Err(errors::compilation(py, advice));
        }
        Ok(Addresses { device: Device(device) })
    }

    /// Begins a step that is to be recorded.
    fn record(&self) {
        self.with(Allocator::record);
    }

    /// Begins a step that is to be replayed.
    fn replay(&self, py: Python<'_>, placement: &Placement) -> PyResult<()> {
        self.tried(py, |allocator| allocator.replay(Arc::clone(&placement.0)))
    }

    /// Ends the step that was begun; returns its recording.
    fn leave(&self) -> Option<Trace> {
        self.with(Allocator::leave).map(Trace)
    }

    /// Begins a pass of the step on the calling thread and on this stream.
    fn open(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        self.tried(py, |allocator| allocator.open(this_thread(), Stream(stream)))
    }

    /// Ends the pass.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.tried(py, Allocator::close)
    }

    /// Gives the step up; returns why it was stopped, if the allocator stopped it.
    fn stop(&self) -> Option<String> {
        self.with(Allocator::stop).map(|error| error.to_string())
    }

    /// Makes the slab as large as this, or frees it.
    fn reserve(&self, py: Python<'_>, size: usize) -> PyResult<()> {
        self.tried(py, |allocator| allocator.reserve(Size(size)))
    }

    /// Resets the peak to what is reserved now.
    fn reset_peak(&self) {
        self.with(Allocator::reset_peak);
    }

    /// What is reserved, and counts of what was done so far.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (reserved, slab, held, counters) = self.with(|allocator| {
            (allocator.reserved(), allocator.slab(), allocator.held(), allocator.counters())
        });
        let found = PyDict::new(py);
        found.set_item("reserved", reserved.0)?;
        found.set_item("peak", counters.peak.0)?;
        found.set_item("slab", slab.0)?;
        found.set_item("held", held.0)?;
        found.set_item("placed", counters.placed)?;
        found.set_item("passed_on", counters.passed_on)?;
        found.set_item("strays", counters.strays)?;
        Ok(found)
    }
}
