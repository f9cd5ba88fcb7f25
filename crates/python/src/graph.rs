//! Graphs for Python. Invariant: a graph is read and verified once; every object made from it
//! shares the same tables, so nothing is read again for a second plan.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use tightfit::graph::{self, Graph};
use tightfit::machine::Machine;
use tightfit::sizes::{Dimension, SizeError, Unlike, difference, may_be_seen, seen};
use tightfit::split::{FINE, NotParts, Parts, split_at};
use tightfit_cli::batches::Batches;
use tightfit_cli::failure::Result;
use tightfit_cli::input::{self, OnMachine};

use crate::attend::attended;
use crate::errors;
use crate::given::{Document, Whole, parsed, threads};

/// A training step as one graph of operator calls, verified when it was read.
#[pyclass(frozen, name = "Graph", module = "tightfit")]
#[derive(Clone)]
pub struct Subject {
    /// The graph.
    pub graph: Arc<Graph>,
    /// The step's folder, if it is a step that can be trained.
    pub folder: Option<PathBuf>,
    /// The size of its batch, where that is not the captured one.
    pub batches: Batches,
}

#[pymethods]
impl Subject {
    /// The name of the graph.
    #[getter]
    fn name(&self) -> &str {
        self.graph.name()
    }

    /// How many nodes compute: all but parameters, state, batch and views.
    #[getter]
    fn nodes(&self) -> usize {
        self.graph.compute_nodes().len()
    }

    /// Bytes of parameters, optimizer state and batch.
    #[getter]
    fn static_bytes(&self) -> u64 {
        self.graph.static_bytes().0
    }

    /// Bytes that the step takes as captured, with nothing recomputed.
    #[pyo3(signature = (machine = None, *, threads = None))]
    fn unplanned_peak(
        &self,
        py: Python<'_>,
        machine: Option<String>,
        threads: Option<Whole>,
    ) -> PyResult<u64> {
        let on = OnMachine::named(machine, self::threads(py, threads)?);
        attended(py, |_| {
            let machine = self.machine(&on)?;
            let profile = input::profile(&self.graph, &machine);
            let unplanned = tightfit::unplanned(&self.graph, &profile)?;
            Ok(unplanned.timeline().peak.0)
        })
    }

    /// The same step with a batch of another size.
    #[pyo3(signature = (*, batch = None, length = None))]
    fn at(&self, py: Python<'_>, batch: Option<Whole>, length: Option<Whole>) -> PyResult<Subject> {
        let number = |given: Option<Whole>| given.map(|given| given.0);
        let asked = Batches::of_size(number(batch), number(length));
        let found = attended(py, |_| {
            let graph = asked.resized(&self.graph)?;
            let batches = self.batches.then(asked);
            Ok(Subject { graph: Arc::new(graph), folder: self.folder.clone(), batches })
        })?;
        for unseen in asked.unseen(&self.graph) {
            let text = CString::new(unseen.to_string())?;
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 1)?;
        }
        Ok(found)
    }

    /// Whether a second capture may tell what the step is at another size of the batch along a
    /// dimension.
    fn may_be_seen(&self, along: Along) -> bool {
        may_be_seen(&self.graph, along.0)
    }

    /// What to record of a second capture at another size along a dimension, as text of JSON;
    /// `None` if a table ends before that size. An error says what of it does not follow from this
    /// one.
    fn seen(
        &self,
        py: Python<'_>,
        other: &Subject,
        along: Along,
        grid: u64,
    ) -> PyResult<Option<String>> {
        attended(py, |_| match seen(&self.graph, &other.graph, along.0, grid) {
            Ok(found) => Ok(Some(graph::write_recapture(&found).to_string())),
            Err(Unlike::Size(SizeError::Rows { .. })) => Ok(None),
            Err(error) => Err(error.into()),
        })
    }

    /// The first difference from another graph, in words; `None` if both are planned alike.
    fn difference(&self, other: &Subject) -> Option<String> {
        Some(difference(&self.graph, &other.graph)?.to_string())
    }

    fn __repr__(&self) -> String {
        let (name, nodes) = (self.graph.name(), self.graph.compute_nodes().len());
        format!("<tightfit.Graph {name:?}: {nodes} nodes, {} static>", self.graph.static_bytes())
    }
}

impl Subject {
    /// The machine that it is planned for.
    pub fn machine(&self, on: &OnMachine) -> Result<Machine> {
        on.machine(self.folder.is_some())
    }
}

/// A dimension of the batch, by name.
struct Along(Dimension);

impl FromPyObject<'_, '_> for Along {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Along> {
        let name: String = given.extract()?;
        let found = Dimension::ALL.into_iter().find(|dimension| dimension.name() == name);
        let unknown =
            || errors::option(given.py(), &format!("`{name}` is no dimension of a batch"));
        found.map(Along).ok_or_else(unknown)
    }
}

/// A graph, or where to read one.
pub enum GivenGraph {
    /// It was read before.
    Read(Subject),
    /// It is to be read.
    Unread(Document),
}

impl FromPyObject<'_, '_> for GivenGraph {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<GivenGraph> {
        match object.cast::<Subject>() {
            Ok(subject) => Ok(GivenGraph::Read(subject.get().clone())),
            Err(_) => Ok(GivenGraph::Unread(object.extract()?)),
        }
    }
}

impl GivenGraph {
    /// The graph.
    pub fn read(self) -> Result<Subject> {
        let (graph, folder) = match self {
            GivenGraph::Read(subject) => return Ok(subject),
            GivenGraph::Unread(Document::Bytes(bytes)) => (graph::read(&bytes)?, None),
            GivenGraph::Unread(Document::Path(path)) => {
                let (graph, is_step) = input::graph(&path)?;
                (graph, is_step.then_some(path))
            }
        };
        Ok(Subject { graph: Arc::new(graph), folder, batches: Batches::default() })
    }
}

/// Reads a graph, and verifies it.
#[pyfunction]
pub fn read_graph(py: Python<'_>, source: GivenGraph) -> PyResult<Subject> {
    attended(py, |_| source.read())
}

/// The parts of a step, as they are written on the command line, verified.
#[pyfunction]
pub fn parts(py: Python<'_>, text: &str) -> PyResult<String> {
    given_parts(py, text).map(|parts| parts.to_string())
}

fn given_parts(py: Python<'_>, text: &str) -> PyResult<Parts> {
    let parse = |text: &str| text.parse().map_err(|error: NotParts| error.to_string());
    parsed(py, "split", text, parse)
}

/// The step in parts, as PyTorch computes them, as text of JSON.
#[pyfunction]
pub fn split_graph(py: Python<'_>, graph: GivenGraph, parts: &str) -> PyResult<String> {
    let parts = given_parts(py, parts)?;
    attended(py, |_| {
        let divided = split_at(&graph.read()?.graph, parts, FINE)?;
        Ok(graph::write(&divided).to_string())
    })
}
