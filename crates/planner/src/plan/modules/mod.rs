//! Plans by module: which modules recompute, and which gather their parameters by themselves.
//! Invariant: the solver chooses modules; bytes, peak and seconds follow by plain sums.

mod candidate;
mod checkpointing;
mod infeasible;
mod memory;
mod policy;
mod sharding;

pub use checkpointing::{CheckpointedUnit, SelectivePlan, SelectiveTask, selective};
pub use infeasible::{ModuleInfeasible, ModulePlanError};
pub use policy::{OperatorPolicy, PolicyError, policy};
pub use sharding::{ShardPlan, ShardTask, ShardUnit, ShardVariant, shard};
