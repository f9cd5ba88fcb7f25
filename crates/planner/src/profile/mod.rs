//! What a graph costs on a machine: seconds and workspace per node. Invariant: placeholders and
//! views cost nothing.

mod measured;
mod roofline;

use cranelift_entity::SecondaryMap;

pub use measured::{CallSeconds, CallSecondsError, Signature};
pub use roofline::roofline;

use crate::graph::Graph;
use crate::id::{NodeId, ValueId};
use crate::machine::{Hierarchy, Machine, Reuse, Runtime, Workspaces};
use crate::tensor::Argument;
use crate::units::{Bytes, Seconds};

/// Costs of every node on one machine.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The run time of each node.
    pub seconds: SecondaryMap<NodeId, Seconds>,
    /// The transient bytes of each node beyond inputs and outputs.
    pub workspace: SecondaryMap<NodeId, Bytes>,
    /// Which dying inputs of the same layout the first output of a call may overwrite.
    pub reuse: Reuse,
    /// The runtime that the workspaces are for.
    pub runtime: Runtime,
    /// The number of threads that the workspaces are for.
    pub threads: u32,
    /// Bytes of the runtime's tables for each call that computes a node again.
    pub repeated: Bytes,
    /// The memories of the machine and the lanes between them.
    pub hierarchy: Hierarchy,
}

impl Profile {
    /// Measured seconds if the graph has them, else the machine's roofline; workspaces of the
    /// operator table if the machine runs the engine, else the graph's.
    pub fn new(graph: &Graph, machine: &Machine) -> Profile {
        let rules = machine.runtime.rules();
        let mut profile = Profile {
            seconds: SecondaryMap::new(),
            workspace: SecondaryMap::new(),
            reuse: reuse(graph, rules.reuse),
            runtime: machine.runtime,
            threads: machine.threads,
            repeated: rules.repeated,
            hierarchy: machine.hierarchy.clone(),
        };
        for node in graph.compute_nodes() {
            profile.seconds[node] =
                graph.nodes()[node].seconds.unwrap_or_else(|| roofline(graph, machine, node));
            profile.workspace[node] = match graph.nodes()[node].operator {
                Some(operator) if rules.workspaces == Workspaces::OfTable => {
                    (operator.row().cost.workspace)(&graph.call(node), machine.threads)
                }
                _ => graph.nodes()[node].workspace,
            };
        }
        profile
    }

    /// As [`Profile::new`], but if the machine runs the engine, calls that were measured on it take
    /// their measured time.
    pub fn measured(graph: &Graph, machine: &Machine, table: &CallSeconds) -> Profile {
        let mut profile = Profile::new(graph, machine);
        if machine.runtime.rules().runs_here {
            for node in graph.compute_nodes() {
                if let Some(seconds) = table.get(&Signature::of(graph, node)) {
                    profile.seconds[node] = seconds;
                }
            }
        }
        profile
    }

    /// The same costs if every output has memory of its own, as in an unplanned step.
    pub fn without_reuse(self) -> Profile {
        Profile { reuse: Reuse::Nothing, ..self }
    }

    /// Bytes of the slab that a sequence of runs leaves to the runtime's tables: the memory that
    /// the runtime takes anyway suffices for each node, and for half as many repeated calls and a
    /// few more.
    pub fn left_to_tables(&self, graph: &Graph, runs: usize) -> Bytes {
        const FEW: usize = 256;
        let nodes = graph.compute_nodes().len();
        let beyond = runs.saturating_sub(nodes + nodes / 2 + FEW);
        Bytes(beyond as u64 * self.repeated.0)
    }

    /// Seconds of a sequence of runs.
    pub fn total(&self, runs: &[NodeId]) -> Seconds {
        runs.iter().map(|&node| self.seconds[node]).sum()
    }

    /// Inputs of a node that its first output may take over if they die with it, the preferred one
    /// first: they have its layout, and no other input sees the same storage differently.
    pub fn overwritable(&self, graph: &Graph, node: NodeId) -> Vec<ValueId> {
        let call = &graph.nodes()[node];
        let named: Vec<ValueId> = match (self.reuse, call.operator) {
            (Reuse::Nothing, _) | (Reuse::OfTable, None) => Vec::new(),
            (Reuse::OfTable, Some(operator)) => {
                let argument = |&position: &usize| match call.args.get(position) {
                    Some(Argument::Value(value)) => Some(*value),
                    _ => None,
                };
                operator.row().in_place.iter().filter_map(argument).collect()
            }
            (Reuse::OfGraph, _) => call.overwrites.clone(),
        };
        named.into_iter().filter(|&input| graph.has_layout_of_output(node, input)).collect()
    }
}

/// A graph's reuse counts only if it says anything about it: if not, no reuse is looked for.
fn reuse(graph: &Graph, rule: Reuse) -> Reuse {
    match rule {
        Reuse::OfGraph if graph.nodes().values().all(|node| node.overwrites.is_empty()) => {
            Reuse::Nothing
        }
        rule => rule,
    }
}
