//! Plans by module: which modules recompute, and which gather their parameters by themselves.
//! Invariant: the solver chooses modules; bytes, peak and seconds follow by plain sums.

mod candidate;
mod checkpointing;
mod infeasible;
mod memory;
mod policy;
mod sharding;

use thiserror::Error;

use crate::exit::{Coded, Exit, Refusal};

pub use candidate::CheckpointedUnit;
pub(super) use checkpointing::SelectiveSeries;
pub use checkpointing::{SelectivePlan, SelectiveTask, selective, selective_on};
pub use infeasible::ModuleInfeasible;
pub use policy::{OperatorPolicy, PolicyError, policy};
pub use sharding::{ShardPlan, ShardTask, ShardUnit, ShardVariant, shard, shard_on};

/// Why there is no plan of modules.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ModulePlanError {
    /// No choice of modules fits into the budget.
    #[error("{0}")]
    Infeasible(Box<ModuleInfeasible>),
    /// The solver ended without an answer, which proves nothing.
    #[error("the solver found no plan: {reason}; give it more time, or accept a larger gap")]
    Unsolved {
        /// The solver's reason.
        reason: String,
    },
    /// The modules are to be sharded over no devices.
    #[error("a world size of 0 is no device; give 1 or more")]
    WorldSize,
    /// A link between devices has an impossible bandwidth or latency.
    #[error(
        "the bandwidth of {link} is {bytes_per_second} bytes/s and its latency {latency} s; give \
         a bandwidth above 0 and a latency of 0 or more"
    )]
    Link {
        /// The name of the link.
        link: &'static str,
        /// The bandwidth that was given, in bytes per second.
        bytes_per_second: f64,
        /// The latency that was given, in seconds.
        latency: f64,
    },
    /// Of two modules that are to be sharded by themselves, one contains the other.
    #[error(
        "units `{upper}` and `{lower}` cannot both be sharded: one contains the other; name one \
         of them"
    )]
    Nested {
        /// The fully qualified name of the module that contains the other.
        upper: String,
        /// The fully qualified name of the module inside.
        lower: String,
    },
}

impl Coded for ModulePlanError {
    fn exit(&self) -> Exit {
        match self {
            ModulePlanError::Infeasible(proof) => Exit::of_refusal(proof.proven),
            ModulePlanError::Unsolved { .. } => Exit::NotFound,
            ModulePlanError::WorldSize
            | ModulePlanError::Link { .. }
            | ModulePlanError::Nested { .. } => Exit::Usage,
        }
    }

    fn refusal(&self) -> Option<Refusal> {
        match self {
            ModulePlanError::Infeasible(proof) => Some(proof.refusal()),
            _ => None,
        }
    }
}

/// If the solver gave up there is no answer, but a plan that is known already may do.
fn answered<T>(solved: Result<Option<T>, ModulePlanError>) -> Result<Option<T>, ModulePlanError> {
    match solved {
        Err(ModulePlanError::Unsolved { .. }) => Ok(None),
        solved => solved,
    }
}
