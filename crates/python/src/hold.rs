//! `hold` for Python: a step that PyTorch executes, held within a budget. Invariant: the graph that
//! comes back holds, node by node, what the checked plan holds.

use std::collections::BTreeSet;

use pyo3::prelude::*;
use serde_json::Value;
use tightfit::analysis::{Motion, Move, Sequence, held};
use tightfit::graph::{self, Graph};
use tightfit::id::{StorageId, TierId};
use tightfit::machine::{Link, Machine, Tier};
use tightfit::plan::{self, rewrite};
use tightfit::profile::Profile;
use tightfit::units::{Bytes, Seconds};
use tightfit::{Goal, Held, HoldRequest};
use tightfit_cli::failure::{Context, Result};
use tightfit_cli::verbs::plan::swapped_json;

use crate::attend::attended;
use crate::fit::Search;
use crate::given::{Quantity, Whole};
use crate::graph::GivenGraph;

/// A step whose bytes held stay within a budget, checked, and what it costs.
#[pyclass(frozen, name = "Held", module = "tightfit")]
pub struct HeldStep {
    /// The budget in bytes; without one, the bytes that it holds.
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
    /// The time that no plan within the budget beats; absent if nothing is proven.
    #[pyo3(get)]
    bound_seconds: Option<f64>,
    /// How many nodes run again, counting repetitions.
    #[pyo3(get)]
    recomputed: usize,
    /// The plan as a graph, tightfit-graph/1: nodes in the plan's order, with what runs again as
    /// nodes of their own.
    #[pyo3(get)]
    document: String,
    /// What moves, in order: the node of the document before which it moves, or the number of
    /// nodes; its storage in the document; the storage of the given graph that the tier holds a
    /// copy of; and `offload`, `release` or `prefetch`.
    #[pyo3(get)]
    moves: Vec<(usize, usize, usize, &'static str)>,
    /// The most bytes of the tier that are needed at once.
    #[pyo3(get)]
    below: u64,
    /// What is away when, and in which free time, as a document.
    #[pyo3(get)]
    swapped: String,
}

/// A tier below the device, as Python gives it: its bytes, bytes per second there and back, and
/// additional seconds for each transfer.
pub type GivenTier = (u64, f64, f64, f64);

const MOTIONS: [Motion; 3] = [Motion::Offload, Motion::Release, Motion::Prefetch];

fn motion(motion: Motion) -> &'static str {
    match motion {
        Motion::Offload => "offload",
        Motion::Release => "release",
        Motion::Prefetch => "prefetch",
    }
}

impl HeldStep {
    fn of(graph: &Graph, profile: &Profile, held: &Held) -> Result<HeldStep> {
        let program = graph.compute_nodes();
        let unplanned = plan::simulate(graph, profile, &(&program).into());
        let rewritten = rewrite(graph, profile, held.sequence())?;
        let moves = rewritten.moves.iter().map(|next| {
            let [before, storage, original] =
                [next.before.as_u32(), next.storage.as_u32(), next.original.as_u32()]
                    .map(|number| number as usize);
            (before, storage, original, motion(next.motion))
        });
        let below = held.schedule().below[TierId::from_u32(1)];
        let swapped = held.timeline().swapped(graph, held.schedule());
        let swapped: Value = swapped_json(graph, &swapped).into();
        Ok(HeldStep {
            budget: held.budget().0,
            peak: held.timeline().peak.0,
            seconds: held.timeline().seconds.0,
            unplanned_peak: unplanned.curve.peak.0,
            unplanned_seconds: unplanned.seconds.0,
            bound_seconds: held.bound().map(|bound| bound.seconds.0),
            recomputed: held.sequence().runs().len() - program.len(),
            document: graph::write(&rewritten.graph).to_string(),
            moves: moves.collect(),
            below: below.0,
            swapped: swapped.to_string(),
        })
    }
}

/// Plans a step so that it holds no more bytes than the budget, or as few as possible without one,
/// wherever tensors are placed. With a tier, the storages in `movable` may be away there.
#[pyfunction]
#[pyo3(signature = (
    graph, budget, *, machine = "a100-80gb", planner = "auto", deadline = None, iterations = None,
    seed = None, tier = None, movable = Vec::new()
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
    tier: Option<GivenTier>,
    movable: Vec<usize>,
) -> PyResult<HeldStep> {
    let search = Search::given(py, planner, deadline, iterations, seed)?;
    let goal = budget.map_or(Goal::Smallest, |Whole(bytes)| Goal::Within(Bytes(bytes)));
    attended(py, |stop| {
        let graph = graph.read()?.graph;
        let mut machine = Machine::preset(machine)?;
        if let Some((capacity, out, back, latency)) = tier {
            let [out, back] = [out, back].map(|bandwidth| {
                let bandwidth = if bandwidth.is_finite() { bandwidth.max(1.0) } else { 1.0 };
                Link { latency: Seconds(latency.clamp(0.0, 1.0)), bandwidth }
            });
            let name = "host".to_string();
            let below = Tier { name, capacity: Some(Bytes(capacity)), block: Bytes(1) };
            machine.hierarchy.add(below, out, back);
        }
        let profile = Profile::new(&graph, &machine);
        let clock = || stop.read(search.clock());
        let effort = search.effort(&clock);
        let numbers: BTreeSet<usize> = movable.into_iter().collect();
        let numbered = graph.storages().keys().enumerate();
        let movable: BTreeSet<StorageId> = numbered
            .filter(|(number, _)| numbers.contains(number))
            .map(|(_, storage)| storage)
            .collect();
        let may_move = |storage| movable.contains(&storage);
        let planner = search.planner;
        let request = HoldRequest { goal, planner, may_move: Some(&may_move), effort };
        HeldStep::of(&graph, &profile, &tightfit::hold(&graph, &profile, &request)?)
    })
}

/// The most bytes that a graph holds if its nodes run as they stand, with the given moves between
/// them; and only what the graph says is overwritten.
#[pyfunction]
pub fn peak_with_moves(
    py: Python<'_>,
    graph: GivenGraph,
    moves: Vec<(usize, usize, usize, String)>,
    machine: &str,
) -> PyResult<u64> {
    attended(py, |_| {
        let graph = graph.read()?.graph;
        let profile = Profile::new(&graph, &Machine::preset(machine)?);
        let runs = graph.compute_nodes();
        let moves = moves.iter().map(|(before, storage, _, name)| {
            let motion = MOTIONS.into_iter().find(|&known| motion(known) == name);
            let motion = motion.with_context(|| format!("there is no motion `{name}`"))?;
            let storage = graph.storages().keys().nth(*storage);
            let storage = storage.context("a move names no storage of the graph")?;
            let before = runs.partition_point(|node| (node.as_u32() as usize) < *before) as u32;
            Ok(Move { before, storage, motion })
        });
        let moves = moves.collect::<Result<Vec<Move>>>()?;
        Ok(held(&graph, &profile, &Sequence::with_moves(&runs, &moves)).peak.0)
    })
}
