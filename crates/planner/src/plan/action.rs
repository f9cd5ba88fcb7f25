//! What a plan does. Invariant: a plan is a sequence; what it does a second time stands in it a
//! second time, and there is no other notion of recomputation.

use crate::id::NodeId;
use crate::plan::Planner;

/// One step of a plan. So far plans only run nodes; moving what they hold will be further actions,
/// which every reader of plans then has to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Runs a node; if it ran before, recomputes it.
    Run(NodeId),
}

/// What a planner decided: a sequence of actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The planner that made it; never `auto`.
    pub planner: Planner,
    /// What is done, in order.
    pub actions: Vec<Action>,
}

impl Plan {
    /// The plan that runs these nodes in this order and does nothing else.
    pub fn of_runs(planner: Planner, runs: Vec<NodeId>) -> Plan {
        Plan { planner, actions: runs.into_iter().map(Action::Run).collect() }
    }

    /// The nodes that it runs, in order.
    pub fn runs(&self) -> Vec<NodeId> {
        let run = |action: &Action| match action {
            Action::Run(node) => *node,
        };
        self.actions.iter().map(run).collect()
    }
}
