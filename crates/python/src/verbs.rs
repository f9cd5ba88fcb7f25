//! The program's other verbs about steps, for Python: `analyze`, `check`, `pareto`, `report`.
//! Invariant: each answers with the document that the program prints, made by the same function.

use std::path::PathBuf;

use pyo3::prelude::*;
use tightfit::graph::Graph;
use tightfit::split::Parts;
use tightfit::units::Seconds;
use tightfit_cli::batches::Batches;
use tightfit_cli::input::{self, OnMachine};
use tightfit_cli::verbs::report::Shown;
use tightfit_cli::verbs::{
    analyze as analysis, check as checking, pareto as frontier_verb, report as reporting,
};
use tightfit_cli::{frontier, output, values};
use tightfit_engine::Budget;

use crate::attend::attended;
use crate::fit::Search;
use crate::given::{BudgetText, Quantity, Whole, parsed, threads};
use crate::graph::GivenGraph;
use crate::plan::GivenPlan;

/// What a step holds as captured, and where its bytes come from.
#[pyfunction]
#[pyo3(signature = (
    graph, budget = None, *, module = None, depth = None, machine = None, threads = None
))]
pub fn analyze(
    py: Python<'_>,
    graph: GivenGraph,
    budget: Option<BudgetText>,
    module: Option<String>,
    depth: Option<Whole>,
    machine: Option<String>,
    threads: Option<Whole>,
) -> PyResult<String> {
    let on = OnMachine::named(machine, self::threads(py, threads)?);
    let depth = depth.map_or(2, |Whole(number)| usize::try_from(number).unwrap_or(usize::MAX));
    attended(py, |_| {
        let budget: Option<Budget> = budget.map(|BudgetText(text)| text.parse()).transpose()?;
        let subject = graph.read()?;
        let machine = subject.machine(&on)?;
        let document =
            analysis::document(subject.graph, machine, budget, module.as_deref(), depth)?;
        Ok(document.to_string())
    })
}

/// Holds a plan to the rules, within a budget or the one that it was made for.
#[pyfunction]
#[pyo3(signature = (graph, plan, budget = None, *, machine = None, threads = None))]
pub fn check(
    py: Python<'_>,
    graph: GivenGraph,
    plan: GivenPlan,
    budget: Option<BudgetText>,
    machine: Option<String>,
    threads: Option<Whole>,
) -> PyResult<String> {
    let on = OnMachine::named(machine, self::threads(py, threads)?);
    attended(py, |_| {
        let budget: Option<Budget> = budget.map(|BudgetText(text)| text.parse()).transpose()?;
        let subject = graph.read()?;
        let machine = subject.machine(&on)?;
        let schedule = plan.read(&subject.graph)?;
        let legal = checking::judge((&subject.graph, &subject.graph), &machine, &schedule, budget)?;
        Ok(legal.document(&subject.graph, &schedule).to_string())
    })
}

/// What each of several budgets costs.
#[pyfunction]
#[pyo3(signature = (
    graph, *, points = None, machine = None, threads = None, planner = "auto",
    deadline = None, iterations = None, seed = None
))]
#[expect(clippy::too_many_arguments, reason = "Python names each of them")]
pub fn pareto(
    py: Python<'_>,
    graph: GivenGraph,
    points: Option<Whole>,
    machine: Option<String>,
    threads: Option<Whole>,
    planner: &str,
    deadline: Option<Quantity>,
    iterations: Option<Whole>,
    seed: Option<Whole>,
) -> PyResult<String> {
    let on = OnMachine::named(machine, self::threads(py, threads)?);
    let search = Search::given(py, planner, deadline, iterations, seed)?;
    let points = points.map_or(12, |Whole(number)| number);
    let points = parsed(py, "points", &points.to_string(), values::frontier)?;
    attended(py, |stop| {
        let subject = graph.read()?;
        let (graph, machine) = (&subject.graph, &subject.machine(&on)?);
        let unplanned = tightfit::unplanned(graph, &input::profile(graph, machine))?;
        let clock = || stop.read(search.clock());
        let search = of_each(search, &clock);
        let points = frontier::frontier((graph, as_it_is()), machine, &unplanned, search, points)?;
        Ok(frontier_verb::document(&points).to_string())
    })
}

/// Writes a page that shows where the bytes and the seconds go.
#[pyfunction]
#[pyo3(signature = (
    graph, out, *, plan = None, points = None, machine = None, threads = None,
    planner = "auto", deadline = None, iterations = None, seed = None
))]
#[expect(clippy::too_many_arguments, reason = "Python names each of them")]
pub fn report(
    py: Python<'_>,
    graph: GivenGraph,
    out: PathBuf,
    plan: Option<GivenPlan>,
    points: Option<Whole>,
    machine: Option<String>,
    threads: Option<Whole>,
    planner: &str,
    deadline: Option<Quantity>,
    iterations: Option<Whole>,
    seed: Option<Whole>,
) -> PyResult<()> {
    let on = OnMachine::named(machine, self::threads(py, threads)?);
    let search = Search::given(py, planner, deadline, iterations, seed)?;
    let points = points.map_or(8, |Whole(number)| number);
    let points = parsed(py, "points", &points.to_string(), values::points)?;
    attended(py, |stop| {
        output::writable(&out)?;
        let subject = graph.read()?;
        let (graph, machine) = (&subject.graph, &subject.machine(&on)?);
        let plan = plan.map(|plan| plan.read(graph)).transpose()?;
        let clock = || stop.read(search.clock());
        let search = of_each(search, &clock);
        let shown =
            |schedule| Shown { name: "Planned".to_string(), graph: Graph::clone(graph), schedule };
        let text = reporting::text(reporting::Task {
            graph,
            batches: (graph, as_it_is()),
            machine,
            plans: plan.into_iter().map(shown).collect(),
            measured: None,
            svg: None,
            points,
            search,
        })?;
        output::write_whole(&out, text.as_bytes())
    })
}

/// One batch, none of it in chunks: plans are for the graph that is given.
fn as_it_is() -> Batches {
    Batches::default().in_parts(Parts::WHOLE)
}

fn of_each<'a>(search: Search, clock: &'a (dyn Fn() -> Seconds + Sync)) -> frontier::Search<'a> {
    frontier::Search { planner: search.planner, effort: search.effort(clock) }
}
