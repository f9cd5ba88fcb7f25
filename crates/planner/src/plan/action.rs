//! What a plan does. Invariant: a plan is a sequence; what it does a second time stands in it a
//! second time, and there is no other notion of recomputation.

use crate::analysis::{Motion, Move};
use crate::id::{NodeId, StorageId};
use crate::plan::Planner;

/// One step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Runs a node; if it ran before, recomputes it.
    Run(NodeId),
    /// Moves a storage between the device and the tier below.
    Move(StorageId, Motion),
}

/// What a planner decided: a sequence of actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The planner that made it.
    pub planner: Planner,
    /// What is done, in order.
    pub actions: Vec<Action>,
}

impl Plan {
    /// The plan that runs these nodes in this order and does nothing else.
    pub fn of_runs(planner: Planner, runs: Vec<NodeId>) -> Plan {
        Plan { planner, actions: runs.into_iter().map(Action::Run).collect() }
    }

    /// The plan that runs these nodes in this order, with `moves`, in rising order, between them.
    pub fn with_moves(planner: Planner, runs: &[NodeId], moves: &[Move]) -> Plan {
        let mut actions = Vec::with_capacity(runs.len() + moves.len());
        let mut moves = moves.iter().peekable();
        let action = |next: &Move| Action::Move(next.storage, next.motion);
        for (position, &node) in (0..).zip(runs) {
            while let Some(next) = moves.next_if(|next| next.before <= position) {
                actions.push(action(next));
            }
            actions.push(Action::Run(node));
        }
        actions.extend(moves.map(action));
        Plan { planner, actions }
    }

    /// The nodes that it runs, in order.
    pub fn runs(&self) -> Vec<NodeId> {
        let run = |action: &Action| match action {
            Action::Run(node) => Some(*node),
            Action::Move(..) => None,
        };
        self.actions.iter().filter_map(run).collect()
    }

    /// What it moves, in order.
    pub fn moves(&self) -> Vec<Move> {
        let (mut before, mut moves) = (0, Vec::new());
        for action in &self.actions {
            match *action {
                Action::Run(_) => before += 1,
                Action::Move(storage, motion) => moves.push(Move { before, storage, motion }),
            }
        }
        moves
    }
}
