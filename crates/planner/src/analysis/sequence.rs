//! What a step does, in order. Invariant: what is done a second time is in a sequence a second
//! time, and there is no other notion of recomputation; code that reads a sequence matches every
//! kind of action, without a wildcard.
//!
//! A storage that is offloaded stays on the device until it is released; one that is released
//! without having been offloaded is already in the tier below at this very version. What is kept
//! from step to step may be away when the sequence begins: then its first move is a prefetch.

use crate::id::{NodeId, StorageId};

/// One action of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Runs a node; if it ran before, recomputes it.
    Run(NodeId),
    /// Moves a storage between the device and the tier below.
    Move(StorageId, Motion),
}

/// What a move does to a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Motion {
    /// Begins to copy it into the tier below; it stays on the device.
    Offload,
    /// Waits until the tier below has it, and frees its memory on the device.
    Release,
    /// Allocates memory on the device for it, and begins to bring it back; the next run that reads
    /// it waits for it.
    Prefetch,
}

/// A move by its position among the runs of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The position of the run before which it happens; the number of runs for moves after the last
    /// one.
    pub before: u32,
    /// The storage that moves.
    pub storage: StorageId,
    /// What the move does.
    pub motion: Motion,
}

/// Actions in the order in which they happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sequence {
    actions: Vec<Action>,
}

impl Sequence {
    /// These runs in this order, with `moves`, in increasing order, between them.
    pub fn with_moves(runs: &[NodeId], moves: &[Move]) -> Sequence {
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
        Sequence { actions }
    }

    /// All of its actions.
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    /// The nodes that it runs, in order.
    pub fn runs(&self) -> Vec<NodeId> {
        let run = |action: &Action| match action {
            Action::Run(node) => Some(*node),
            Action::Move(..) => None,
        };
        self.actions.iter().filter_map(run).collect()
    }

    /// Its moves, in order.
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

    /// Whether it moves anything.
    pub fn has_moves(&self) -> bool {
        self.actions.iter().any(|action| match action {
            Action::Run(_) => false,
            Action::Move(..) => true,
        })
    }
}

impl From<&[NodeId]> for Sequence {
    fn from(runs: &[NodeId]) -> Sequence {
        Sequence { actions: runs.iter().copied().map(Action::Run).collect() }
    }
}

impl From<&Vec<NodeId>> for Sequence {
    fn from(runs: &Vec<NodeId>) -> Sequence {
        runs[..].into()
    }
}

impl From<Vec<NodeId>> for Sequence {
    fn from(runs: Vec<NodeId>) -> Sequence {
        runs[..].into()
    }
}
