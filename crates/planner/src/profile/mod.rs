//! What a graph costs on a machine: seconds and workspace per node. Invariant: placeholders and
//! views cost nothing.

mod measured;
mod roofline;

use cranelift_entity::SecondaryMap;

pub use measured::{CallSeconds, CallSecondsError, Signature};
pub use roofline::roofline;

use crate::graph::{Graph, NodeId};
use crate::machine::Machine;
use crate::units::{Bytes, Seconds};

/// Costs of every node on one machine.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Run time.
    pub seconds: SecondaryMap<NodeId, Seconds>,
    /// Transient bytes beyond inputs and outputs.
    pub workspace: SecondaryMap<NodeId, Bytes>,
    /// Operators may write their output over a dying input of the same layout.
    pub in_place: bool,
}

impl Profile {
    /// Measured seconds where the graph has them, else the machine's roofline; workspaces of the
    /// operator table where the machine runs the engine, else the graph's.
    pub fn new(graph: &Graph, machine: &Machine) -> Profile {
        let mut profile = Profile {
            seconds: SecondaryMap::new(),
            workspace: SecondaryMap::new(),
            in_place: machine.engine,
        };
        for node in graph.program() {
            profile.seconds[node] =
                graph.nodes()[node].seconds.unwrap_or_else(|| roofline(graph, machine, node));
            profile.workspace[node] = match graph.nodes()[node].operator {
                Some(operator) if machine.engine => {
                    operator.workspace(graph, node, machine.threads)
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
        if machine.engine {
            for node in graph.program() {
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
