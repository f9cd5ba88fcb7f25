//! A refused budget, as data. Invariant: `needed` is a true lower bound for every schedule, and
//! `reached` bytes suffice for `plan`, which exists. `words` renders the data in sentences.

mod words;

use cranelift_entity::SecondaryMap;

use crate::analysis::{Sequence, liveness};
use crate::exit::{Alive, Refusal};
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::plan::{Instance, Plan, Planner};
use crate::profile::Profile;
use crate::units::Bytes;

/// A tensor that is alive at some node, or the workspace of that node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveTensor {
    /// Its name in the model, or else the name of the node that produced it.
    pub name: String,
    /// The fully qualified name of that node's module; empty for the root.
    pub module: String,
    /// The phase of that node, as tightfit-graph/1 calls it; `workspace` for a workspace.
    pub phase: &'static str,
    /// The size of its storage.
    pub bytes: Bytes,
}

/// Why a budget cannot be met: the witness for a reader, and the figures for a program.
///
/// If `budget < needed`, no schedule of any planner fits. Otherwise none was found, and a budget of
/// `reached` is one that the same planner meets; if it relies on predictions, addresses that pack
/// badly may need a little more. `Display` says all of it in sentences.
#[derive(Clone, Debug)]
pub struct Infeasible {
    /// The budget that was requested.
    pub budget: Bytes,
    /// No schedule at all needs less: at least the persistent bytes and the largest working set of
    /// one node.
    pub needed: Bytes,
    /// The smallest budget known to be feasible: the peak of `plan`, or its slab if addresses were
    /// requested too.
    pub reached: Bytes,
    /// The plan with the smallest peak that the planner knows.
    pub plan: Plan,
    /// That peak; if the budget is at least this, addresses are what does not fit.
    pub peak: Bytes,
    /// The node where that plan peaks; absent if the plan runs nothing, because then the
    /// placeholders alone exceed the budget.
    pub binding: Option<Binding>,
    /// What is alive where the plan peaks, largest first.
    pub live: Vec<LiveTensor>,
    /// What the planner predicted, if it relies on predictions and not on simulated peaks.
    pub prediction: Option<Prediction>,
}

/// What a planner predicted of its plan for a refused budget, and the simulated outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// Bytes that the plan had to save.
    pub need: Bytes,
    /// How many activations were chosen.
    pub choices: usize,
    /// The peak as predicted; more than the budget if no candidates were left.
    pub predicted: Bytes,
    /// The peak of the same plan, simulated.
    pub simulated: Bytes,
}

/// The node at which a plan holds the most bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// The fully qualified name of its module; empty for the root.
    pub module: String,
}

impl Infeasible {
    /// The figures for a program.
    pub fn refusal(&self) -> Refusal {
        let alive = |tensor: &LiveTensor| Alive {
            name: tensor.name.clone(),
            made: Some((tensor.module.clone(), tensor.phase)),
            bytes: tensor.bytes,
        };
        let binding = self.binding.as_ref();
        Refusal {
            needed: Some(self.needed),
            reached: Some(self.reached),
            peak: Some(self.peak),
            node: binding.map(|binding| binding.name.clone()),
            module: binding.map(|binding| binding.module.clone()),
            alive: Some(self.live.iter().map(alive).collect()),
            ..Refusal::of(self.budget, self.is_proven())
        }
    }

    /// Explains that `plan`, the lowest one known, exceeds `budget`.
    pub fn new(instance: Instance<'_>, budget: Bytes, plan: Plan) -> Infeasible {
        let Instance { graph, profile, .. } = instance;
        let curve = instance.simulate(&plan.sequence).curve;
        let binding = plan.runs().get(curve.at).map(|&node| Binding {
            node,
            name: graph.nodes()[node].name.clone(),
            module: graph.module_of(node).to_string(),
        });
        let live = live_tensors(graph, profile, &plan.sequence, curve.at);
        // Of any planner's schedules, with moves if the machine has a tier.
        let needed = needed_by_any(graph, profile, profile.hierarchy.main_route().is_some());
        let peak = curve.peak;
        let reached = peak;
        Infeasible { budget, needed, reached, plan, peak, binding, live, prediction: None }
    }

    /// Whether no schedule at all fits the budget; otherwise none was found.
    pub fn is_proven(&self) -> bool {
        self.budget < self.needed
    }
}

/// A lower bound for every schedule of a planner, in every order.
pub fn needed(graph: &Graph, profile: &Profile, planner: Planner) -> Bytes {
    needed_by_any(graph, profile, planner.moves() && profile.hierarchy.main_route().is_some())
}

/// A lower bound for every schedule in every order: the largest of what one node touches, what
/// is there when a step begins and some node reads, and what stays when it ends. If tensors may
/// move, persistent ones count only where a node touches them, and nothing at the beginning.
///
/// An output written over an input needs no bytes of its own, so if the machine reuses memory only
/// the larger of inputs and outputs counts.
pub fn needed_by_any(graph: &Graph, profile: &Profile, may_move: bool) -> Bytes {
    let total = |of: &dyn Fn(StorageId) -> bool| -> Bytes {
        graph.storages().keys().filter(|&s| of(s)).map(|s| graph.storages()[s]).sum()
    };
    let is_resting = |storage| !may_move && graph.is_persistent(storage);
    let bytes = |storages: &[_]| -> Bytes {
        storages.iter().filter(|&&s| !is_resting(s)).map(|&s| graph.storages()[s]).sum()
    };
    let nodes = graph.compute_nodes();
    let own = nodes.iter().map(|&node| {
        let (reads, fresh) = (bytes(graph.reads(node)), bytes(graph.fresh(node)));
        let touched = if profile.reuse.is_any() { reads.max(fresh) } else { reads + fresh };
        touched + profile.workspace[node]
    });
    let during = total(&is_resting) + own.max().unwrap_or(Bytes::ZERO);
    let mut is_read: SecondaryMap<StorageId, bool> = SecondaryMap::new();
    nodes.iter().flat_map(|&node| graph.reads(node)).for_each(|&read| is_read[read] = true);
    let is_given =
        |storage| graph.producer(storage).is_some_and(|node| !graph.runs(node)) && is_read[storage];
    let first = total(&|storage| !may_move && (is_given(storage) || is_resting(storage)));
    let last =
        total(&|storage| graph.is_kept(storage) && !(may_move && graph.is_persistent(storage)));
    during.max(first).max(last)
}

/// Everything alive at one run of a sequence, largest first; what a node writes in place is
/// counted once.
pub fn live_tensors(
    graph: &Graph,
    profile: &Profile,
    sequence: &Sequence,
    at: usize,
) -> Vec<LiveTensor> {
    let runs = sequence.runs();
    let lives = liveness(graph, profile, sequence);
    let here = at as u32;
    let alive = lives.intervals.values().filter(|life| {
        life.born.is_none_or(|born| born <= here)
            && here <= life.dies
            && (life.in_place_of.is_none() || life.born != Some(here))
    });
    let mut tensors: Vec<LiveTensor> = alive
        .filter_map(|life| {
            let node = graph.producer(life.storage)?;
            Some(LiveTensor {
                name: graph.nodes()[node]
                    .parameter
                    .clone()
                    .unwrap_or_else(|| graph.nodes()[node].name.clone()),
                module: graph.module_of(node).to_string(),
                phase: graph.nodes()[node].phase.name(),
                bytes: graph.storages()[life.storage],
            })
        })
        .filter(|tensor| tensor.bytes > Bytes::ZERO)
        .collect();
    let workspace = runs.get(at).map_or(Bytes::ZERO, |&node| profile.workspace[node]);
    if let (Some(&node), true) = (runs.get(at), workspace > Bytes::ZERO) {
        tensors.push(LiveTensor {
            name: format!("{} (workspace)", graph.nodes()[node].name),
            module: graph.module_of(node).to_string(),
            phase: "workspace",
            bytes: workspace,
        });
    }
    tensors.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    tensors
}
