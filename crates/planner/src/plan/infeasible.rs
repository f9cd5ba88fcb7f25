//! A budget refused, with a proof that a person can read. Invariant: `needed` is a true lower bound
//! for every schedule, `reached` bytes suffice for `plan`, which exists.

use std::fmt;

use crate::analysis::liveness;
use crate::graph::Graph;
use crate::id::NodeId;
use crate::plan::{Plan, simulate};
use crate::profile::Profile;
use crate::units::Bytes;

/// A tensor alive at some node.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveTensor {
    /// The node that produced it.
    pub name: String,
    /// Its module.
    pub module: String,
    /// Its phase, as tightfit-graph/1 calls it.
    pub phase: &'static str,
    /// Its bytes.
    pub bytes: Bytes,
}

/// Why a budget cannot be met.
#[derive(Clone, Debug)]
pub struct Infeasible {
    /// The budget that was asked for.
    pub budget: Bytes,
    /// No schedule whatever needs less: at least the persistent bytes and the largest working set
    /// of one node.
    pub needed: Bytes,
    /// The smallest budget known to be feasible: the peak of `plan`, or its slab where addresses
    /// were asked for too.
    pub reached: Bytes,
    /// The plan with the smallest peak that the planner knows.
    pub plan: Plan,
    /// The node where that plan peaks.
    pub binding: NodeId,
    /// Its name.
    pub binding_name: String,
    /// Its module.
    pub binding_module: String,
    /// What is alive there, largest first.
    pub live: Vec<LiveTensor>,
}

impl Infeasible {
    /// Explains that `plan`, the lowest one known, exceeds `budget`.
    pub fn new(graph: &Graph, profile: &Profile, budget: Bytes, plan: Plan) -> Infeasible {
        let curve = simulate(graph, profile, &plan.runs()).curve;
        let binding = plan.runs().get(curve.at).copied();
        Infeasible {
            budget,
            needed: needed(graph, profile),
            reached: curve.peak,
            binding: binding.unwrap_or(NodeId::from_u32(0)),
            binding_name: binding.map_or(String::new(), |node| graph.nodes()[node].name.clone()),
            binding_module: binding.map_or(String::new(), |node| graph.module_of(node).to_string()),
            live: live_tensors(graph, profile, &plan.runs(), curve.at),
            plan,
        }
    }
}

/// A module as a sentence names it.
fn place(module: &str) -> String {
    if module.is_empty() { "the root module".to_string() } else { format!("module `{module}`") }
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let claim =
            if self.budget < self.needed { "no plan fits" } else { "no plan was found that fits" };
        writeln!(
            f,
            "{claim} {} ({} bytes); the smallest budget known to be feasible is {} ({} bytes), \
             and no schedule needs less than {}",
            self.budget, self.budget.0, self.reached, self.reached.0, self.needed
        )?;
        writeln!(
            f,
            "it binds at node `{}` ({}), where these are alive:",
            self.binding_name,
            place(&self.binding_module)
        )?;
        for tensor in self.live.iter().take(10) {
            writeln!(
                f,
                "  {:>10}  {} ({}, {})",
                tensor.bytes.to_string(),
                tensor.name,
                tensor.phase,
                place(&tensor.module)
            )?;
        }
        if self.live.len() > 10 {
            let rest: Bytes = self.live[10..].iter().map(|tensor| tensor.bytes).sum();
            writeln!(f, "  {:>10}  in {} smaller ones", rest.to_string(), self.live.len() - 10)?;
        }
        Ok(())
    }
}

/// A lower bound for every schedule in every order: persistent bytes and one node's own storages
/// and workspace.
///
/// An output written over an input needs no bytes of its own, so where the machine reuses memory
/// only the larger of inputs and outputs counts.
fn needed(graph: &Graph, profile: &Profile) -> Bytes {
    let persistent = |storage| {
        graph.producer(storage).is_some_and(|node| graph.nodes()[node].phase.is_persistent())
    };
    let resting: Bytes =
        graph.storages().keys().filter(|&s| persistent(s)).map(|s| graph.storages()[s]).sum();
    let bytes = |storages: &[_]| -> Bytes {
        storages.iter().filter(|&&s| !persistent(s)).map(|&s| graph.storages()[s]).sum()
    };
    let own = graph.compute_nodes().into_iter().map(|node| {
        let (reads, fresh) = (bytes(graph.reads(node)), bytes(graph.fresh(node)));
        let touched = if profile.in_place { reads.max(fresh) } else { reads + fresh };
        touched + profile.workspace[node]
    });
    resting + own.max().unwrap_or(Bytes::ZERO)
}

/// Everything alive at one position of a sequence, largest first; what a node writes in place is
/// counted once.
pub fn live_tensors(
    graph: &Graph,
    profile: &Profile,
    runs: &[NodeId],
    at: usize,
) -> Vec<LiveTensor> {
    let lives = liveness(graph, profile, runs);
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
