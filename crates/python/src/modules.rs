//! Planning by whole modules, for Python: `modules`, `sac`, `shard`, `stages`. Invariant: each
//! answers with the document that the program prints, made by the same function.

use pyo3::prelude::*;
use tightfit::graph;
use tightfit::machine::Link;
use tightfit::plan::SolverLimits;
use tightfit::plan::modules::{ShardTask, ShardVariant};
use tightfit::units::{Bytes, Seconds};
use tightfit_cli::batches::Batches;
use tightfit_cli::clock::wall;
use tightfit_cli::failure::Result;
use tightfit_cli::input::{self, OnMachine, Statistics};
use tightfit_cli::values;
use tightfit_cli::verbs::{
    modules as statistics, sac as checkpointing, shard as sharding, stages as pipelines,
};

use crate::attend::attended;
use crate::errors;
use crate::given::{BudgetText, Document, Quantity, Whole, parsed, threads};
use crate::graph::GivenGraph;

/// The most time that the solver takes if none is given: the program's own default.
const DEADLINE: Seconds = Seconds(10.0);

fn read(given: GivenGraph, on: &OnMachine) -> Result<Statistics> {
    match given {
        GivenGraph::Unread(Document::Path(path)) => input::modules(&path, on),
        GivenGraph::Unread(Document::Bytes(text)) if Statistics::stand_in(&text) => {
            Statistics::read(text)
        }
        GivenGraph::Unread(Document::Bytes(bytes)) => {
            Statistics::of(&graph::read(&bytes)?, on.machine(false)?)
        }
        GivenGraph::Read(subject) => Statistics::of(&subject.graph, subject.machine(on)?),
    }
}

fn limits(
    py: Python<'_>,
    gap: Option<Quantity>,
    deadline: Option<Quantity>,
) -> PyResult<SolverLimits> {
    let gap = gap.map(|Quantity(text)| parsed(py, "gap", &text, values::share)).transpose()?;
    let deadline = deadline.map(|Quantity(text)| parsed(py, "deadline", &text, values::duration));
    let seconds = Some(deadline.transpose()?.unwrap_or(DEADLINE));
    Ok(SolverLimits { gap: gap.unwrap_or(0.0), seconds })
}

/// Statistics of the modules of a step.
#[pyfunction]
#[pyo3(signature = (graph, *, machine = None, threads = None, ancestors = false))]
pub fn modules(
    py: Python<'_>,
    graph: GivenGraph,
    machine: Option<String>,
    threads: Option<Whole>,
    ancestors: bool,
) -> PyResult<String> {
    let on = OnMachine::named(machine, self::threads(py, threads)?);
    attended(py, |_| Ok(statistics::document(&read(graph, &on)?, ancestors).to_string()))
}

/// Which modules to checkpoint under a budget, and how much each discards.
#[pyfunction]
#[pyo3(signature = (
    graph, budget, *, world_size = None, units = None, sharded = None, gap = None,
    deadline = None, machine = None, threads = None
))]
#[expect(clippy::too_many_arguments, reason = "Python names each of them")]
pub fn sac(
    py: Python<'_>,
    graph: GivenGraph,
    budget: BudgetText,
    world_size: Option<Whole>,
    units: Option<Vec<String>>,
    sharded: Option<Vec<String>>,
    gap: Option<Quantity>,
    deadline: Option<Quantity>,
    machine: Option<String>,
    threads: Option<Whole>,
) -> PyResult<String> {
    let on = OnMachine::named(machine, self::threads(py, threads)?);
    let limits = limits(py, gap, deadline)?;
    let world_size = world_size.map_or(Ok(1), |number| number.small(py, "world_size"))?;
    attended(py, |stop| {
        let task = checkpointing::Task {
            budget: budget.0.parse()?,
            world_size,
            units: units.as_deref(),
            sharded: sharded.as_deref().unwrap_or_default(),
            limits,
        };
        let statistics = read(graph, &on)?;
        let answer = checkpointing::answer(&statistics.info, &task, &|| stop.read(wall))?;
        Ok(answer.document(&statistics)?.to_string())
    })
}

/// Which modules gather their parameters by themselves if a model is sharded over devices.
#[pyfunction]
#[pyo3(signature = (
    graph, budget, *, world_size, bandwidth, latency, variant = "ours", units = None,
    checkpoint = false, host_bandwidth = None, host_latency = None, gap = None, deadline = None,
    machine = None, threads = None
))]
#[expect(clippy::too_many_arguments, reason = "Python names each of them")]
pub fn shard(
    py: Python<'_>,
    graph: GivenGraph,
    budget: BudgetText,
    world_size: Whole,
    bandwidth: Quantity,
    latency: Quantity,
    variant: &str,
    units: Option<Vec<String>>,
    checkpoint: bool,
    host_bandwidth: Option<Quantity>,
    host_latency: Option<Quantity>,
    gap: Option<Quantity>,
    deadline: Option<Quantity>,
    machine: Option<String>,
    threads: Option<Whole>,
) -> PyResult<String> {
    let on = OnMachine::named(machine, self::threads(py, threads)?);
    let link =
        |names: [&str; 2], bandwidth: Quantity, latency: Option<Quantity>| -> PyResult<Link> {
            let latency =
                latency.map(|Quantity(text)| parsed(py, names[1], &text, values::duration));
            let bandwidth = parsed(py, names[0], &bandwidth.0, values::bandwidth)?;
            Ok(Link { latency: latency.transpose()?.unwrap_or_default(), bandwidth })
        };
    if host_latency.is_some() && host_bandwidth.is_none() {
        return Err(errors::option(py, "host_latency goes with host_bandwidth"));
    }
    let to_host = |bandwidth| link(["host_bandwidth", "host_latency"], bandwidth, host_latency);
    let collective = link(["bandwidth", "latency"], bandwidth, Some(latency))?;
    let rest = ShardTask {
        budget: Bytes::ZERO,
        world_size: world_size.small(py, "world_size")?,
        all_gather: collective,
        reduce_scatter: collective,
        variant: match variant {
            "ours" => ShardVariant::Ours,
            "published" => ShardVariant::Published,
            _ => return Err(errors::option(py, "variant is \"ours\" or \"published\"")),
        },
        units: None,
        checkpointing: checkpoint,
        host: host_bandwidth.map(to_host).transpose()?,
        limits: limits(py, gap, deadline)?,
    };
    attended(py, |stop| {
        let task = sharding::Task { budget: budget.0.parse()?, units: units.as_deref(), rest };
        let statistics = read(graph, &on)?;
        let answer = sharding::answer(&statistics.info, &task, &|| stop.read(wall))?;
        Ok(answer.document(&statistics)?.to_string())
    })
}

/// Where to cut a model into the stages of a pipeline, in which order its ranks perform what, and
/// what they recompute, as PyTorch runs it.
#[pyfunction]
#[pyo3(signature = (
    graph, budget, *, devices, microbatches, bandwidth = None, latency = None, state = None,
    schedule = None, cut = Vec::new(), machine = None, threads = None
))]
#[expect(clippy::too_many_arguments, reason = "Python names each of them")]
pub fn stages(
    py: Python<'_>,
    graph: GivenGraph,
    budget: BudgetText,
    devices: Whole,
    microbatches: Whole,
    bandwidth: Option<Quantity>,
    latency: Option<Quantity>,
    state: Option<f64>,
    schedule: Option<String>,
    cut: Vec<String>,
    machine: Option<String>,
    threads: Option<Whole>,
) -> PyResult<String> {
    let on = OnMachine::named(machine, self::threads(py, threads)?);
    let latency =
        latency.map(|Quantity(text)| parsed(py, "latency", &text, values::duration)).transpose()?;
    let bandwidth =
        bandwidth.map(|Quantity(text)| parsed(py, "bandwidth", &text, values::bandwidth));
    let link = bandwidth.transpose()?.map(|bandwidth| (bandwidth, latency.unwrap_or_default()));
    let devices = devices.small(py, "devices")?;
    let micro_batches = microbatches.small(py, "microbatches")?;
    if devices == 0 || micro_batches == 0 {
        return Err(errors::option(py, "devices and microbatches are at least 1"));
    }
    let schedule =
        schedule.map(|name| parsed(py, "schedule", &name, pipelines::schedule)).transpose()?;
    let state =
        state.map(|bytes| parsed(py, "state", &bytes.to_string(), pipelines::state)).transpose()?;
    attended(py, |stop| {
        let task = pipelines::answer::Task {
            devices,
            budget: budget.0.parse()?,
            batches: Batches::of_micro_batches(micro_batches),
            link,
            state,
            schedule,
            cut,
            at_modules: true,
            search: None,
        };
        let subject = graph.read()?;
        let machine = subject.machine(&on)?;
        let answer = pipelines::answer::answer(&subject.graph, &machine, &task, &|| {
            stop.read(wall).0.is_infinite()
        })?;
        Ok(answer.for_torch().to_string())
    })
}
