//! Plans that Python gives. Invariant: whatever is given, it is read as the plan of one graph, so
//! that no id of another graph is looked up in it.

use pyo3::prelude::*;
use tightfit::graph::Graph;
use tightfit::schedule::{self, Schedule};
use tightfit_cli::failure::{Context, Result};
use tightfit_cli::input;

use crate::fit::Fitted;
use crate::given::Document;

/// A plan, or where to read one.
pub enum GivenPlan {
    /// It was made here.
    Fitted(Py<Fitted>),
    /// It is to be read.
    Unread(Document),
}

impl FromPyObject<'_, '_> for GivenPlan {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<GivenPlan> {
        match object.cast::<Fitted>() {
            Ok(fitted) => Ok(GivenPlan::Fitted(fitted.to_owned().unbind())),
            Err(_) => Ok(GivenPlan::Unread(object.extract()?)),
        }
    }
}

impl GivenPlan {
    /// The plan, for `graph`.
    pub fn read(&self, graph: &Graph) -> Result<Schedule> {
        match self {
            GivenPlan::Fitted(fitted) => {
                Ok(schedule::read(graph, fitted.get().document().as_bytes())?)
            }
            GivenPlan::Unread(Document::Bytes(bytes)) => {
                schedule::read(graph, bytes).context("the plan")
            }
            GivenPlan::Unread(Document::Path(path)) => input::plan(path, graph),
        }
    }
}
