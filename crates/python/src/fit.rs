//! `fit` for Python: a step fitted into a budget. Invariant: the answer for a graph and a budget is
//! that of `tightfit plan`, from the same functions.

use std::collections::HashSet;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use tightfit::effort::Effort;
use tightfit::graph::Graph;
use tightfit::id::NodeId;
use tightfit::plan::Planner;
use tightfit::profile::Profile;
use tightfit::schedule;
use tightfit::units::{Bytes, Seconds};
use tightfit_cli::calls::{self, Costs};
use tightfit_cli::effort::Limits;
use tightfit_cli::figures::Figures;
use tightfit_cli::input::OnTiers;
use tightfit_cli::planners;
use tightfit_cli::source::Source;
use tightfit_cli::values;
use tightfit_cli::verbs::plan;
use tightfit_engine::{Budget, FitTask, FittedGraph, fit_graph};

use crate::attend::attended;
use crate::given::{BudgetText, Quantity, Whole, parsed, threads};
use crate::graph::GivenGraph;

/// The seed of a search for which none is given: the program's own.
const SEED: u64 = 1;

/// How to search for a plan.
#[derive(Clone, Copy)]
pub struct Search {
    /// The planner.
    pub planner: Planner,
    pub limits: Limits,
    pub seed: u64,
}

impl Search {
    /// The search with the options that Python gives.
    pub fn given(
        py: Python<'_>,
        planner: &str,
        deadline: Option<Quantity>,
        iterations: Option<Whole>,
        seed: Option<Whole>,
    ) -> PyResult<Search> {
        let deadline =
            deadline.map(|Quantity(text)| parsed(py, "deadline", &text, values::duration));
        let limits = Limits {
            deadline: deadline.transpose()?,
            iterations: iterations.map(|Whole(number)| number),
        };
        let seed = seed.map_or(SEED, |Whole(number)| number);
        Ok(Search { planner: parsed(py, "planner", planner, planners::named)?, limits, seed })
    }

    /// The clock of its deadline.
    pub fn clock(self) -> &'static (dyn Fn() -> Seconds + Sync) {
        self.limits.clock(self.planner)
    }

    /// Its effort, on a clock that ends it.
    pub fn effort(self, clock: &(dyn Fn() -> Seconds + Sync)) -> Effort<'_> {
        self.limits.timed(self.planner, self.seed, clock)
    }
}

/// The name of the planner called `name`; refuses unknown names, and lists the known ones.
#[pyfunction]
pub fn planner(py: Python<'_>, name: &str) -> PyResult<&'static str> {
    Ok(parsed(py, "planner", name, planners::named)?.name())
}

/// A step's schedule within a budget, checked, and what it costs.
#[pyclass(frozen, module = "tightfit")]
pub struct Fitted {
    step: Arc<Graph>,
    profile: Profile,
    asked: Planner,
    planned: FittedGraph,
    /// The machine that it is planned for.
    #[pyo3(get)]
    machine: String,
    /// The whole budget in bytes.
    #[pyo3(get)]
    budget: u64,
    /// The part of the budget that is not the slab's: what the engine's process takes itself, and
    /// what its matrix products pack.
    #[pyo3(get)]
    reserve: u64,
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
    /// How much more time it takes than the step as captured, as a share of that.
    #[pyo3(get)]
    overhead: f64,
    /// The time that no schedule within the budget beats; absent if nothing is proven.
    #[pyo3(get)]
    bound_seconds: Option<f64>,
    /// Which schedules the bound covers: those in any order, or those in the order as given.
    #[pyo3(get)]
    bound_order: Option<&'static str>,
    /// How much it may lose to the best schedule, as a share of the time as captured.
    #[pyo3(get)]
    gap: Option<f64>,
    runs: PyOnceLock<Py<PyTuple>>,
    recomputed: PyOnceLock<Py<PyTuple>>,
}

#[pymethods]
impl Fitted {
    /// The graph's name.
    #[getter]
    fn graph(&self) -> &str {
        self.step.name()
    }

    /// The planner that found the schedule.
    #[getter]
    fn planner(&self) -> &str {
        &self.planned.fitted.schedule().planner
    }

    /// Bytes of the slab in which every buffer has its address.
    #[getter]
    fn slab(&self) -> u64 {
        self.planned.fitted.schedule().slab.0
    }

    /// Names of nodes in the order in which they run; one that occurs again is recomputed.
    #[getter]
    fn runs(&self, py: Python<'_>) -> PyResult<Py<PyTuple>> {
        self.names(py, &self.runs, |runs| runs)
    }

    /// Names of the nodes that run again, in the order in which they do.
    #[getter]
    fn recomputed(&self, py: Python<'_>) -> PyResult<Py<PyTuple>> {
        self.names(py, &self.recomputed, |mut runs| {
            let mut seen = HashSet::new();
            runs.retain(|&node| !seen.insert(node));
            runs
        })
    }

    /// What runs again and what is swapped, with its cost and its saving, and with Capuchin its
    /// candidates and choices: as the program's `plan --explain --json` prints them.
    fn explain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let document = attended(py, |_| {
            let found = plan::explained(&self.step, &self.profile, self.asked, &self.planned)?;
            Ok(found.to_string())
        })?;
        py.import("json")?.call_method1("loads", (document,))
    }

    /// The schedule as a document: tightfit-plan/1.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        attended(py, |_| Ok(self.document()))
    }

    fn __repr__(&self) -> String {
        format!(
            "<tightfit.Fitted {:?}: peak {} of {} bytes, {:+.2} % time>",
            self.step.name(),
            self.peak,
            self.budget,
            self.overhead * 100.0 + 0.0,
        )
    }
}

impl Fitted {
    /// The schedule as a document: tightfit-plan/1.
    pub fn document(&self) -> String {
        schedule::write(&self.step, self.planned.fitted.schedule()).to_string()
    }

    fn names(
        &self,
        py: Python<'_>,
        kept: &PyOnceLock<Py<PyTuple>>,
        choose: fn(Vec<NodeId>) -> Vec<NodeId>,
    ) -> PyResult<Py<PyTuple>> {
        let made = kept.get_or_try_init(py, || -> PyResult<_> {
            let runs = choose(self.planned.fitted.schedule().runs());
            let name = |&node: &NodeId| self.step.nodes()[node].name.as_str();
            Ok(PyTuple::new(py, runs.iter().map(name).collect::<Vec<_>>())?.unbind())
        })?;
        Ok(made.clone_ref(py))
    }

    fn of(
        (step, profile): (Arc<Graph>, Profile),
        machine: String,
        asked: Planner,
        planned: FittedGraph,
    ) -> Fitted {
        let FittedGraph { fitted, budget, reserve, unplanned, .. } = &planned;
        let unplanned = unplanned.timeline();
        let bound = fitted.bound();
        let Figures { overhead, gap, .. } = Figures::of(fitted, unplanned.seconds);
        Fitted {
            step,
            profile,
            asked,
            machine,
            budget: budget.0,
            reserve: reserve.total().0,
            peak: fitted.timeline().peak.0,
            seconds: fitted.timeline().seconds.0,
            unplanned_peak: unplanned.peak.0,
            unplanned_seconds: unplanned.seconds.0,
            overhead,
            bound_seconds: bound.map(|bound| bound.seconds.0),
            bound_order: bound.map(|bound| bound.class.order.name()),
            gap,
            planned,
            runs: PyOnceLock::new(),
            recomputed: PyOnceLock::new(),
        }
    }
}

/// Fits a step into a budget of bytes.
#[pyfunction]
#[pyo3(signature = (
    graph, budget, *, machine = None, threads = None, planner = "auto", deadline = None,
    iterations = None, seed = None, roofline = false, tier = None
))]
#[expect(clippy::too_many_arguments, reason = "Python names each of them")]
pub fn fit(
    py: Python<'_>,
    graph: GivenGraph,
    budget: BudgetText,
    machine: Option<String>,
    threads: Option<Whole>,
    planner: &str,
    deadline: Option<Quantity>,
    iterations: Option<Whole>,
    seed: Option<Whole>,
    roofline: bool,
    tier: Option<String>,
) -> PyResult<Fitted> {
    let on = OnTiers::named(machine, self::threads(py, threads)?, tier);
    let search = Search::given(py, planner, deadline, iterations, seed)?;
    attended(py, |stop| {
        let asked: Budget = budget.0.parse()?;
        let subject = graph.read()?;
        let machine = on.machine(subject.folder.is_some())?;
        let profile = match &subject.folder {
            Some(folder) => {
                let tried = calls::Subject {
                    folder,
                    source: &Source::default(),
                    budget: &budget.0,
                    planner: search.planner,
                    tier: on.tier(),
                    batches: subject.batches,
                };
                let seconds = calls::of_step(&subject.graph, &machine, Costs { roofline }, &tried);
                Profile::measured(&subject.graph, &machine, &seconds)
            }
            None => Profile::new(&subject.graph, &machine),
        };
        let clock = || stop.read(search.clock());
        let effort = search.effort(&clock);
        let task = FitTask {
            machine: &machine,
            budget: asked,
            beside: Bytes::ZERO,
            planner: search.planner,
            effort,
        };
        let planned = fit_graph(&subject.graph, &profile, &task)?;
        Ok(Fitted::of((subject.graph, profile), machine.name, search.planner, planned))
    })
}
