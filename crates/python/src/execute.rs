//! Whether the engine can execute a graph, asked before anyone relies on it. Invariant: the judge
//! is the engine's own compiler, given the step as captured; nothing is executed for it.

use std::sync::Arc;

use pyo3::prelude::*;
use rayon::ThreadPoolBuilder;
use tightfit::machine::Machine;
use tightfit::profile::Profile;
use tightfit_cli::failure::Failure;
use tightfit_engine::{CompileError, Executable};

use crate::attend::attended;
use crate::graph::GivenGraph;

/// What keeps the engine from executing a graph: operators that it lacks, or one node and what is
/// wrong with it.
type Obstacle = (Vec<String>, Option<String>, String);

/// What keeps the engine from executing a graph; `None` if it can.
#[pyfunction]
pub fn obstacle(py: Python<'_>, graph: GivenGraph) -> PyResult<Option<Obstacle>> {
    attended(py, |_| {
        let graph = graph.read()?.graph;
        let profile = Profile::new(&graph, &Machine::unmeasured_cpu(1));
        let unplanned = tightfit::unplanned(&graph, &profile)?;
        let pool = ThreadPoolBuilder::new().num_threads(1).build().map_err(Failure::other)?;
        let compiled = Executable::compile(&graph, unplanned.checked(), &Arc::new(pool));
        Ok(compiled.err().map(|error| described(&error)))
    })
}

fn described(error: &CompileError) -> Obstacle {
    let said = error.to_string();
    match error {
        CompileError::UnknownOperators { operators } => {
            (operators.iter().map(|operator| operator.op.clone()).collect(), None, said)
        }
        CompileError::Kernel { node, reason, .. } => {
            (Vec::new(), Some(node.clone()), reason.to_string())
        }
        CompileError::Unsuited { node, reason, .. } => {
            (Vec::new(), Some(node.clone()), reason.to_string())
        }
        CompileError::NotExecutable { node, what } => {
            (Vec::new(), Some(node.clone()), what.clone())
        }
        // Any other error is reported in its own words.
        _ => (Vec::new(), None, said),
    }
}
