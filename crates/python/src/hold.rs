//! `hold` for Python: a step that PyTorch executes, held within a budget. Invariant: the graph that
//! comes back holds, node by node, what the checked plan holds.

use pyo3::prelude::*;
use tightfit::graph::{self, Graph};
use tightfit::machine::Machine;
use tightfit::plan::rewrite;
use tightfit::profile::Profile;
use tightfit::units::Bytes;
use tightfit::{Goal, Held};

use crate::attend::attended;
use crate::fit::Search;
use crate::given::{Quantity, Whole};
use crate::graph::GivenGraph;

/// A step whose bytes held stay within a budget, checked, and what it costs.
#[pyclass(frozen, name = "Held", module = "tightfit")]
pub struct HeldStep {
    /// The budget in bytes; what it holds where as little as possible was asked for.
    #[pyo3(get)]
    budget: u64,
    /// The most bytes held at any time.
    #[pyo3(get)]
    peak: u64,
    /// Predicted time of the step.
    #[pyo3(get)]
    seconds: f64,
    /// The most bytes held by the step as captured.
    #[pyo3(get)]
    unplanned_peak: u64,
    /// Predicted time of the step as captured.
    #[pyo3(get)]
    unplanned_seconds: f64,
    /// The time that no plan within the budget beats; absent where nothing is proven.
    #[pyo3(get)]
    bound_seconds: Option<f64>,
    /// How many nodes run again, counting repetitions.
    #[pyo3(get)]
    recomputed: usize,
    /// The plan as a graph, tightfit-graph/1: nodes in the plan's order, with what runs again as
    /// nodes of their own.
    #[pyo3(get)]
    document: String,
}

impl HeldStep {
    fn of(graph: &Graph, profile: &Profile, held: &Held) -> anyhow::Result<HeldStep> {
        let runs = held.runs();
        let first = graph.compute_nodes().len();
        let unplanned = tightfit::plan::simulate(graph, profile, &graph.compute_nodes());
        let document = graph::write(&rewrite(graph, profile, &runs)?).to_string();
        Ok(HeldStep {
            budget: held.budget().0,
            peak: held.timeline().peak.0,
            seconds: held.timeline().seconds.0,
            unplanned_peak: unplanned.curve.peak.0,
            unplanned_seconds: unplanned.seconds.0,
            bound_seconds: held.bound().map(|bound| bound.seconds.0),
            recomputed: runs.len() - first,
            document,
        })
    }
}

/// Plans a step so that it holds no more bytes than the budget, or as few as possible without one,
/// wherever tensors are placed.
#[pyfunction]
#[pyo3(signature = (
    graph, budget, *, machine = "a100-80gb", planner = "auto", deadline = None, iterations = None,
    seed = None
))]
#[expect(clippy::too_many_arguments, reason = "Python names each of them")]
pub fn hold(
    py: Python<'_>,
    graph: GivenGraph,
    budget: Option<Whole>,
    machine: &str,
    planner: &str,
    deadline: Option<Quantity>,
    iterations: Option<Whole>,
    seed: Option<Whole>,
) -> PyResult<HeldStep> {
    let search = Search::given(py, planner, deadline, iterations, seed)?;
    let goal = budget.map_or(Goal::Smallest, |Whole(bytes)| Goal::Within(Bytes(bytes)));
    attended(py, |stop| {
        let graph = graph.read()?.graph;
        let profile = Profile::new(&graph, &Machine::preset(machine)?);
        let clock = || stop.clock();
        let effort = search.limits.timed(search.planner, search.seed, &clock);
        let held = tightfit::hold(&graph, &profile, goal, search.planner, &effort)?;
        HeldStep::of(&graph, &profile, &held)
    })
}
