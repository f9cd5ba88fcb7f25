//! The states of a stateful tensor and its transitions. Invariant: [`LEGAL`] is the only table of
//! transitions; code that changes a state calls [`transition`].
//!
//! Source: Fang et al., "PatrickStar: Parallel Training of Pre-trained Models via Chunk-based
//! Dynamic Memory Management", IEEE TPDS 34(1), 2023, and ColossalAI's `StatefulTensor`.

use std::fmt;

use thiserror::Error;

/// What a tensor is used for at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TensorState {
    /// It has no bytes.
    Free,
    /// It is kept, and lies in any tier that has space.
    #[default]
    Hold,
    /// It is kept, and the forward pass has computed with it.
    HoldAfterForward,
    /// It is kept, and the backward pass has computed with it.
    HoldAfterBackward,
    /// It is computed with, and stays where it is until that ends.
    Compute,
}

/// The part of the step that computes with a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The forward pass and the loss.
    Forward,
    /// The backward pass.
    Backward,
    /// The update of the parameters.
    Optimizer,
}

/// A change of state that the table does not have.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a tensor that is {from} cannot become {to}: it has no bytes; give it some first")]
pub struct IllegalTransition {
    /// What the tensor is.
    pub from: TensorState,
    /// What it was to become.
    pub to: TensorState,
}

/// Whether a tensor may change from the row's state to the column's, both in the order of
/// [`TensorState::ALL`]. A free tensor stays free until it is given bytes; one that has bytes may
/// become anything, and gives them up by becoming free.
pub const LEGAL: [[bool; 5]; 5] = [
    [true, false, false, false, false],
    [true, true, true, true, true],
    [true, true, true, true, true],
    [true, true, true, true, true],
    [true, true, true, true, true],
];

/// The new state, if the table has the transition.
///
/// # Errors
/// The transition, if it is illegal.
pub fn transition(from: TensorState, to: TensorState) -> Result<TensorState, IllegalTransition> {
    if LEGAL[from.index()][to.index()] { Ok(to) } else { Err(IllegalTransition { from, to }) }
}

impl TensorState {
    /// All states, in the order of the table.
    pub const ALL: [TensorState; 5] = [
        TensorState::Free,
        TensorState::Hold,
        TensorState::HoldAfterForward,
        TensorState::HoldAfterBackward,
        TensorState::Compute,
    ];

    /// The state of a tensor once a phase has computed with it.
    pub fn after(phase: Phase) -> TensorState {
        match phase {
            Phase::Forward => TensorState::HoldAfterForward,
            Phase::Backward => TensorState::HoldAfterBackward,
            Phase::Optimizer => TensorState::Hold,
        }
    }

    /// Whether the tensor has bytes and may be evicted.
    pub fn is_hold(self) -> bool {
        match self {
            TensorState::Hold | TensorState::HoldAfterForward | TensorState::HoldAfterBackward => {
                true
            }
            TensorState::Free | TensorState::Compute => false,
        }
    }

    /// The row and the column in tables of states.
    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// In the notation of the sources.
impl fmt::Display for TensorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TensorState::Free => "FREE",
            TensorState::Hold => "HOLD",
            TensorState::HoldAfterForward => "HOLD_AFTER_FWD",
            TensorState::HoldAfterBackward => "HOLD_AFTER_BWD",
            TensorState::Compute => "COMPUTE",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_free_is_restricted() {
        for (row, from) in TensorState::ALL.into_iter().enumerate() {
            assert_eq!(from.index(), row);
            for to in TensorState::ALL {
                let legal = from != TensorState::Free || to == TensorState::Free;
                assert_eq!(transition(from, to).is_ok(), legal, "{from} to {to}");
            }
        }
    }

    #[test]
    fn an_illegal_transition_says_what_to_do() {
        let error = transition(TensorState::Free, TensorState::Hold).unwrap_err();
        let words = "a tensor that is FREE cannot become HOLD: it has no bytes; give it some first";
        assert_eq!(error.to_string(), words);
    }
}
