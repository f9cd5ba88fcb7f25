//! What a graph costs on a machine: seconds and workspace per node. Invariant: placeholders and
//! views cost nothing.

mod measured;
mod roofline;

use cranelift_entity::SecondaryMap;

pub use measured::{CallSeconds, CallSecondsError, Signature};
pub use roofline::roofline;

use crate::graph::Graph;
use crate::id::NodeId;
use crate::machine::{Hierarchy, Machine, Workspaces};
use crate::units::{Bytes, Seconds};

/// Costs of every node on one machine.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The run time of each node.
    pub seconds: SecondaryMap<NodeId, Seconds>,
    /// The transient bytes of each node beyond inputs and outputs.
    pub workspace: SecondaryMap<NodeId, Bytes>,
    /// Whether operators may write their output over a dying input of the same layout.
    pub in_place: bool,
    /// The memories of the machine and the lanes between them.
    pub hierarchy: Hierarchy,
}

impl Profile {
    /// Measured seconds where the graph has them, else the machine's roofline; workspaces of the
    /// operator table where the machine runs the engine, else the graph's.
    pub fn new(graph: &Graph, machine: &Machine) -> Profile {
        let rules = machine.runtime.rules();
        let mut profile = Profile {
            seconds: SecondaryMap::new(),
            workspace: SecondaryMap::new(),
            in_place: rules.in_place,
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

    /// As [`Profile::new`], but where the machine runs the engine, calls that were measured on it
    /// take what they took.
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

    /// Seconds of a sequence of runs.
    pub fn total(&self, runs: &[NodeId]) -> Seconds {
        runs.iter().map(|&node| self.seconds[node]).sum()
    }
}
