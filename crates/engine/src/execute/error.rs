//! Why a schedule cannot be executed, why a run cannot go on, and why a step of it failed.
//! Invariant: a message names the node, the instruction or the operators, and what to do about them
//! if something can be done.

use std::io;
use std::path::PathBuf;

use thiserror::Error;
use tightfit::check::{Conditions, Violation};
use tightfit::exit::{Coded, Exit};
use tightfit::id::{RankId, TransferId};
use tightfit::machine::{Reuse, Runtime};
use tightfit::operator::Unsuited;

use crate::kernels::KernelError;
use crate::memory::slab::SlabError;
use crate::memory::tier::{BLOCK, TierError};
use crate::residency::ResidencyError;
use crate::step::data::DataError;
use crate::transport::LinkError;

/// Why a schedule cannot be executed here.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The checker refused the schedule, or it belongs to another graph.
    #[error("the schedule is wrong and was not executed: {0}")]
    Violation(#[from] Violation),
    /// The schedule was checked for other kernels than the engine's, or for another number of
    /// threads.
    #[error(
        "the schedule was checked for {}, and would run on {threads} of the engine's threads: plan \
         it, or check it, for these",
        conditions(*checked)
    )]
    Conditions {
        /// What it was checked for.
        checked: Conditions,
        /// The threads that would execute it.
        threads: usize,
    },
    /// The graph calls operators that have no kernel.
    #[error(
        "{} not implemented by the engine: {}; such a graph can be planned, but not trained",
        if operators.len() == 1 { "1 operator is" } else { "some operators are" },
        list(operators)
    )]
    UnknownOperators {
        /// The operators, with their first nodes.
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
    /// A node whose strides, element types or places in memory no kernel supports.
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
    /// A tensor lies in the bytes of another one that is placed at run time.
    #[error("node `{node}`: what it computes with lies among the parameters and is none of them")]
    AmongPlaced {
        /// The node's name.
        node: String,
    },
    /// An input or an output of the graph is a tensor that is placed at run time.
    #[error(
        "node `{node}` makes an input or an output of the graph that lies in a parameter or in \
         state: between two steps it is not known where these are, unless they are planned"
    )]
    EndsPlaced {
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

impl Coded for CompileError {
    fn exit(&self) -> Exit {
        match self {
            CompileError::Violation(_) | CompileError::Conditions { .. } => Exit::Violation,
            _ => Exit::NotExecutable,
        }
    }
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

/// What a schedule was checked for, in words.
fn conditions(checked: Conditions) -> String {
    let threads = checked.threads;
    match (checked.runtime, checked.reuse) {
        (Runtime::Recorded, _) => "kernels that the graph speaks of".to_string(),
        (Runtime::Engine, Reuse::OfGraph) => {
            "outputs over inputs as the graph says, not as the engine's kernels can".to_string()
        }
        (Runtime::Engine, _) if threads == 1 => "1 thread".to_string(),
        (Runtime::Engine, _) => format!("{threads} threads"),
    }
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
    /// The tier failed, or the bytes read back from it differ from those written.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// The residency manager has no space for what a call computes with.
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
    /// What should have come from another rank did not, or another rank failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The schedule sends or receives, and the run has no other ranks.
    #[error("the schedule sends tensors to other ranks, and this run has none")]
    NoLink,
    /// The data does not suit the model.
    #[error("the batch holds an index outside its table, or a class that the model does not have")]
    Index,
}

impl Coded for StepError {
    fn exit(&self) -> Exit {
        match self {
            StepError::Tier(error) => error.exit(),
            StepError::Link(_) => Exit::OtherRank,
            // Defects, as far as is known.
            StepError::Residency(_) | StepError::Absent { .. } => Exit::Other,
            StepError::NoLanes | StepError::NoLink | StepError::Index => Exit::Data,
        }
    }
}

/// Why a run cannot start or go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// A schedule cannot be executed here.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The system refused the slab's memory.
    #[error(transparent)]
    Slab(#[from] SlabError),
    /// The tier cannot be made, or failed.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// The schedule moves tensors to a tier, and none was named.
    #[error("the schedule moves tensors to a tier below the slab: name a folder for it")]
    NoTier,
    /// Tensors cannot be placed in such a region.
    #[error(transparent)]
    Residency(#[from] ResidencyError),
    /// There is no plan of moves that another one could replace.
    #[error("tensors are placed while the run goes on: there is no plan of their moves to replace")]
    Placed,
    /// The schedule moves tensors that are to be placed at run time.
    #[error("the schedule moves tensors by itself: plan it without a tier")]
    MovesByItself,
    /// The system refused the threads of the lanes.
    #[error("the lanes' threads could not be started: {0}")]
    Lanes(io::Error),
    /// The system refused the worker threads.
    #[error("the worker threads could not be started: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    /// A parameter's first values are not of its type, or their file is damaged.
    #[error("a parameter could not be initialised: {0}")]
    Initialise(String),
    /// The file of a parameter's first values cannot be read.
    #[error("a parameter could not be initialised: {}: {error}", path.display())]
    InitialValues {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The evaluation's schedule was made for another layout than the training's.
    #[error(
        "`{name}` lies elsewhere in the evaluation's schedule than in the training's; plan the \
         evaluation with the residents of the training"
    )]
    Moved {
        /// The parameter, buffer or state.
        name: String,
    },
    /// A batch could not be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Another rank failed, or no longer responds.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Another rank could not go on between two steps.
    #[error(transparent)]
    OtherRank(#[from] OtherRank),
    /// The step numbers are exhausted.
    #[error("the run has done {} steps, and there are no numbers for more", u32::MAX)]
    NoMoreSteps,
    /// A step failed.
    #[error("step {step}: {error}")]
    Step {
        /// Number of the step, from 1.
        step: u32,
        /// Why it failed.
        error: StepError,
    },
}

impl Coded for SessionError {
    fn exit(&self) -> Exit {
        match self {
            SessionError::Compile(error) => error.exit(),
            SessionError::Slab(error) => error.exit(),
            SessionError::Data(error) => error.exit(),
            SessionError::Tier(error) => error.exit(),
            SessionError::Step { error, .. } => error.exit(),
            SessionError::Link(_) | SessionError::OtherRank(_) => Exit::OtherRank,
            SessionError::NoTier | SessionError::NoMoreSteps => Exit::Usage,
            SessionError::Initialise(_) => Exit::Content,
            SessionError::InitialValues { .. } => Exit::File,
            SessionError::Residency(_)
            | SessionError::Placed
            | SessionError::MovesByItself
            | SessionError::Lanes(_)
            | SessionError::Threads(_)
            | SessionError::Moved { .. } => Exit::Other,
        }
    }
}

/// Another rank of a pipeline could not go on between two steps.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{rank}: {cause}")]
pub struct OtherRank {
    /// The rank.
    pub rank: RankId,
    /// Why it could not.
    pub cause: String,
}

impl StepError {
    /// Whether no further step can follow.
    pub(super) fn is_fatal(&self) -> bool {
        match self {
            StepError::Tier(_)
            | StepError::Residency(_)
            | StepError::Absent { .. }
            | StepError::Link(_) => true,
            StepError::NoLanes | StepError::NoLink | StepError::Index => false,
        }
    }
}

/// As an I/O error; an error of the tier stays an error of the tier.
impl From<StepError> for io::Error {
    fn from(error: StepError) -> io::Error {
        match error {
            StepError::Tier(error) => io::Error::other(error),
            error => io::Error::other(error),
        }
    }
}

/// Recovers the tier's error, which passed through a stream of bytes.
pub(super) fn of_tier(error: io::Error) -> SessionError {
    SessionError::Tier(error.downcast().unwrap_or(TierError::Failed))
}
