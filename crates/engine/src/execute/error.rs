//! Why a schedule cannot be executed, and why a step of it failed. Invariant: a message names the
//! node, the instruction or the operators, and what to do about them where something can be done.

use std::io;

use thiserror::Error;
use tightfit::check::Violation;
use tightfit::id::TransferId;
use tightfit::operator::Unsuited;

use crate::kernels::KernelError;
use crate::memory::tier::{BLOCK, TierError};
use crate::residency::ResidencyError;

/// Why a schedule cannot be executed here.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The checker refused the schedule, or it is one of another graph.
    #[error("the schedule is wrong and was not executed: {0}")]
    Violation(#[from] Violation),
    /// The graph calls operators that have no kernel.
    #[error(
        "{} not implemented by the engine: {}; such a graph can be planned, but not trained",
        if operators.len() == 1 { "1 operator is" } else { "some operators are" },
        list(operators)
    )]
    UnknownOperators {
        /// These, with their first nodes.
        operators: Vec<UnknownOperator>,
    },
    /// A kernel cannot compute the node.
    #[error("node `{node}` ({op}): {reason}")]
    Kernel {
        /// The node's name.
        node: String,
        /// Its operator.
        op: String,
        /// Why its kernel cannot.
        reason: KernelError,
    },
    /// A call is not one that its row of the operator table describes.
    #[error("node `{node}` ({op}): {reason}")]
    Unsuited {
        /// The node's name.
        node: String,
        /// Its operator.
        op: String,
        /// What does not suit the row.
        reason: Unsuited,
    },
    /// A node whose strides, element types or places in memory suit no kernel at all.
    #[error("node `{node}`: {what}; this graph is for planning only")]
    NotExecutable {
        /// The node's name.
        node: String,
        /// What keeps it from being executed.
        what: String,
    },
    /// The schedule uses several tiers below the device.
    #[error("the schedule uses several tiers below the slab; the engine has one, a file")]
    Tiers,
    /// A tensor lies in the bytes of another one that is placed while the run goes on.
    #[error("node `{node}`: what it computes with lies among the parameters and is none of them")]
    AmongPlaced {
        /// The node's name.
        node: String,
    },
    /// A transfer is not one between slab and file.
    #[error(
        "{transfer} does not move whole blocks of {} bytes between the slab and a buffer of the \
         same size below it", BLOCK.0
    )]
    Transfer {
        /// The transfer.
        transfer: TransferId,
    },
}

/// An operator without a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownOperator {
    /// Its name.
    pub op: String,
    /// How many nodes call it.
    pub count: usize,
    /// The first of them.
    pub first: String,
}

/// Unknown operators in words.
fn list(operators: &[UnknownOperator]) -> String {
    let times =
        |count: usize| if count == 1 { "once".to_string() } else { format!("{count} times") };
    let each = operators
        .iter()
        .map(|o| format!("{} ({}, first in node `{}`)", o.op, times(o.count), o.first));
    each.collect::<Vec<_>>().join(", ")
}

/// Why a step failed. Parameters and state may have been updated in part.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StepError {
    /// The tier failed, or what came back from it is not what was written there.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// The manager of residency has no room for what a call computes with.
    #[error(transparent)]
    Residency(#[from] ResidencyError),
    /// A tensor that a call computes with is not in the slab: a defect of this program.
    #[error(
        "what node `{node}` computes with is not in the slab; this is a defect, please report it"
    )]
    Absent {
        /// The node's name.
        node: String,
    },
    /// The schedule moves something, and the run has no tier.
    #[error("the schedule moves tensors to a tier, and this run has none")]
    NoLanes,
    /// The data does not suit the model.
    #[error("the batch holds an index outside its table, or a class that the model does not have")]
    Index,
}

/// As an error of reading and writing; the tier's own stays one of the tier.
impl From<StepError> for io::Error {
    fn from(error: StepError) -> io::Error {
        match error {
            StepError::Tier(error) => io::Error::other(error),
            error => io::Error::other(error),
        }
    }
}
