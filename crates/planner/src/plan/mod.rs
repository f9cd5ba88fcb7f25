//! Plans: which nodes run, in which order, how often. Invariant: every plan that leaves this module
//! is closed over its inputs (each read finds its value) and its peak, re-simulated, is at most the
//! budget it was made for.
//!
//! A pass is a plain function from graph, profile and budget to a [`Plan`] or to an [`Infeasible`]
//! that explains why there is none.

mod checkpoint;
mod exact;
mod infeasible;
mod instance;
mod max_tree;
mod milp;
pub mod modules;
mod not_found;
pub mod offload;
mod order;
pub mod published;
mod quantity;
mod realize;
mod rematerialize;
mod rewrite;
mod rounds;
mod search;
mod spread;

use thiserror::Error;

pub use checkpoint::checkpoint;
pub use exact::exact;
use infeasible::needed_by_any;
pub use infeasible::{Binding, Infeasible, LiveTensor, Prediction, live_tensors, needed};
pub use instance::{Instance, Plan, Simulation, simulate};
pub use milp::{SOLVER, SolverLimits};
pub use not_found::NotFound;
pub use order::base_order;
pub use realize::{Realize, Unplaced};
pub use rematerialize::{Retention, Retentions, once_more, rematerialize};
pub use rewrite::{RewriteError, Rewritten, RewrittenMove, rewrite};
pub use rounds::{Improvement, InRounds, Rounds, fastest, fastest_from_scratch};
pub use search::{
    Answer, BoundOrder, Search, lower_bound, lower_bound_with_moves, lowest_of_peers, relieved,
};
pub use spread::spread;

use crate::analysis::modules::ModuleInfoError;
use crate::effort::{Effort, Meter};
use crate::exit::{Coded, Exit, Refusal};
use crate::plan::offload::Offloading;
use crate::plan::published::capuchin::{capuchin, capuchin_published, capuchin_swap};
use crate::plan::published::{chen, dtr, knapsack, rotor, sac, xla};
use crate::units::Bytes;

/// The planners, by the name that a user gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Planner {
    /// Recomputes nothing.
    None,
    /// √n segments: Chen et al. 2016.
    Chen,
    /// Greedy by bytes saved per second, the peak re-simulated after every choice: Peng et al.
    /// 2020, corrected.
    Capuchin,
    /// The largest outputs first, instruction by instruction: OpenXLA's HloRematerialization.
    Xla,
    /// Online eviction by cost, bytes and staleness: Kirisame et al. 2021.
    Dtr,
    /// What is worth most to save, within a capacity: torch.compile's activation memory budget.
    Knapsack,
    /// Optimal persistent schedules of a chain of units: Beaumont et al. 2019.
    Rotor,
    /// Modules and operators under them as PyTorch's `sac_milp` and its policy choose them. No
    /// other planner uses it.
    Sac,
    /// The optimum of a mixed integer program, for small steps: after Jain et al. 2020.
    Exact,
    /// The budget planner: searches, takes the plan of another if that is faster, and proves how
    /// far it is from optimal.
    Auto,
    /// Greedy by bytes saved per second until the predicted savings suffice: Peng et al. 2020, as
    /// published. A variant of `Capuchin`, to compare with; no other planner uses it.
    CapuchinPublished,
    /// Swaps what free time hides, and then recomputes: Peng et al. 2020, if the machine has a tier
    /// below the device. A variant of `Capuchin`, to compare with.
    CapuchinSwap,
    /// Recomputes the forward passes of all micro-batches: what pipelines call checkpointing
    /// `always`. To compare with.
    CheckpointAlways,
    /// The same except for the last micro-batch: `except_last`. `never` is `None`. To compare with.
    CheckpointExceptLast,
    /// Moves what it holds and recomputes nothing, if the machine has a tier below the device. To
    /// compare with.
    Offload,
}

impl Planner {
    /// Every planner with its name; of Capuchin, which has two variants, the default.
    pub const ALL: [(Planner, &'static str); 10] = [
        (Planner::None, "none"),
        (Planner::Chen, "chen"),
        (Planner::Capuchin, "capuchin"),
        (Planner::Xla, "xla"),
        (Planner::Dtr, "dtr"),
        (Planner::Knapsack, "knapsack"),
        (Planner::Rotor, "rotor"),
        (Planner::Sac, "sac"),
        (Planner::Exact, "exact"),
        (Planner::Auto, "auto"),
    ];

    /// Those to compare with, which no other planner uses.
    pub const TO_COMPARE: [(Planner, &'static str); 5] = [
        (Planner::CapuchinPublished, "capuchin-published"),
        (Planner::CapuchinSwap, "capuchin-swap"),
        (Planner::Offload, "offload"),
        (Planner::CheckpointAlways, "checkpoint-always"),
        (Planner::CheckpointExceptLast, "checkpoint-except-last"),
    ];

    /// The planner called `name`.
    pub fn from_name(name: &str) -> Option<Planner> {
        let mut known = Self::ALL.iter().chain(&Self::TO_COMPARE);
        known.find(|(_, n)| *n == name).map(|(planner, _)| *planner)
    }

    /// The work that may be done before a deadline counts, if each rule has a floor of `of_a_rule`.
    pub fn floor(self, of_a_rule: u64) -> u64 {
        match self {
            Planner::Auto => of_a_rule.saturating_mul(search::FLOORS),
            _ => of_a_rule,
        }
    }

    /// Whether its plans move what they hold, if the machine has a tier below the device.
    pub fn moves(self) -> bool {
        matches!(self, Planner::Auto | Planner::CapuchinSwap | Planner::Offload)
    }

    /// The name that a user gives.
    pub fn name(self) -> &'static str {
        let mut known = Self::ALL.iter().chain(&Self::TO_COMPARE);
        known.find(|(planner, _)| *planner == self).map_or("", |(_, name)| name)
    }
}

/// Why there is no plan.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The planner has no plan within the budget, and says why.
    #[error("{0}")]
    Infeasible(Box<Infeasible>),
    /// The planner's time was up before it had a plan within the budget, which proves nothing.
    #[error("{0}")]
    NotFound(Box<NotFound>),
    /// The step has more nodes than the planner takes.
    #[error(
        "{nodes} nodes run in this step, and this planner takes {most} at most; choose another \
         planner, such as `auto`"
    )]
    TooLarge {
        /// The number of nodes that run in the step.
        nodes: usize,
        /// The largest number of nodes that the planner takes.
        most: usize,
    },
    /// The step has no module other than the model itself, and the planner decides about modules.
    #[error(
        "the graph names no modules below the model itself, and this planner decides about those; \
         export a model whose layers are modules, or choose another planner, such as `auto`"
    )]
    NoModules,
    /// The step has no statistics of modules, and the planner decides by those.
    #[error("{0}; this planner decides by modules: choose another one, such as `auto`")]
    ModuleStatistics(#[source] ModuleInfoError),
    /// The solver ended without an answer, which proves nothing.
    #[error(
        "the solver found no plan: {reason}; give it more time, or choose another planner, such \
         as `auto`"
    )]
    Unsolved {
        /// The reason that the solver gives.
        reason: String,
    },
}

impl Coded for PlanError {
    fn exit(&self) -> Exit {
        match self {
            PlanError::Infeasible(proof) => Exit::of_refusal(proof.is_proven()),
            PlanError::NotFound(_) | PlanError::Unsolved { .. } => Exit::NotFound,
            PlanError::TooLarge { .. } | PlanError::NoModules | PlanError::ModuleStatistics(_) => {
                Exit::Usage
            }
        }
    }

    fn refusal(&self) -> Option<Refusal> {
        match self {
            PlanError::Infeasible(proof) => Some(proof.refusal()),
            PlanError::NotFound(found) => {
                let reached = Some(found.reached);
                Some(Refusal { reached, ..Refusal::of(found.budget, false) })
            }
            _ => None,
        }
    }
}

impl PlanError {
    /// A budget that is too small for `plan`, the lowest one known.
    pub(crate) fn infeasible(instance: Instance<'_>, budget: Bytes, plan: Plan) -> PlanError {
        PlanError::Infeasible(Box::new(Infeasible::new(instance, budget, plan)))
    }
}

/// Plans the sequence `order` under a budget with one planner, however long it takes; the budget
/// planner with the default effort.
pub fn plan(instance: Instance<'_>, budget: Bytes, planner: Planner) -> Result<Plan, PlanError> {
    let effort = Effort::default();
    plan_within(instance, budget, planner, &mut Meter::new(&effort))
}

/// The same within the time of `meter`.
///
/// A rule ends by itself, so its work is counted, but has no limit. If its time is up before that,
/// it answers with the best plan so far that fits, or with [`PlanError::NotFound`].
pub fn plan_within(
    instance: Instance<'_>,
    budget: Bytes,
    planner: Planner,
    meter: &mut Meter<'_>,
) -> Result<Plan, PlanError> {
    match planner {
        Planner::None => none(instance, budget),
        Planner::Chen => chen(instance, budget, meter),
        Planner::Capuchin => capuchin(instance, budget, meter),
        Planner::Xla => xla(instance, budget, meter),
        Planner::Dtr => dtr(instance, budget, meter),
        Planner::Knapsack => knapsack(instance, budget, meter),
        Planner::Rotor => rotor(instance, budget, meter),
        Planner::Sac => sac(instance, budget, meter),
        Planner::Exact => exact(instance, budget, meter),
        Planner::Auto => auto(instance, budget, &meter.rest_until(1.0)),
        Planner::CapuchinPublished => capuchin_published(instance, budget, meter),
        Planner::CapuchinSwap => capuchin_swap(instance, budget, meter),
        Planner::CheckpointAlways | Planner::CheckpointExceptLast => {
            checkpoint(instance, (budget, planner), meter)
        }
        Planner::Offload => offload_only(instance, budget, meter),
    }
}

/// Moves what is held and recomputes nothing.
pub fn offload_only(
    instance: Instance<'_>,
    budget: Bytes,
    meter: &mut Meter<'_>,
) -> Result<Plan, PlanError> {
    let Instance { graph, profile, order } = instance;
    let Some(route) = profile.hierarchy.main_route() else {
        return instance.within(budget, instance.unplanned(Planner::Offload));
    };
    let offloading = Offloading::new(graph, profile, order, route);
    let seed = meter.effort().seed;
    match offloading.within(budget, seed, meter) {
        Some(found) => Ok(found),
        None => {
            let lowest = offloading.smallest(meter);
            let lowest = lowest.unwrap_or_else(|| instance.unplanned(Planner::Offload));
            Err(PlanError::infeasible(instance, budget, lowest))
        }
    }
}

/// Recomputes nothing: feasible if the peak of `order` fits.
pub fn none(instance: Instance<'_>, budget: Bytes) -> Result<Plan, PlanError> {
    instance.within(budget, instance.unplanned(Planner::None))
}

/// The budget planner, for one budget; [`Search`] continues from one to the next.
fn auto(instance: Instance<'_>, budget: Bytes, effort: &Effort<'_>) -> Result<Plan, PlanError> {
    let mut search = Search::new(instance);
    fastest(&mut search, budget, effort).map_err(PlanError::Infeasible)
}

/// The plan with the smallest peak that a planner reaches within the time of `meter`, whatever it
/// costs; an error if it does not plan such steps, or its solver has no answer.
pub fn smallest(
    instance: Instance<'_>,
    planner: Planner,
    meter: &mut Meter<'_>,
) -> Result<Plan, PlanError> {
    match plan_within(instance, Bytes::ZERO, planner, meter) {
        Ok(plan) => Ok(plan),
        Err(PlanError::Infeasible(proof)) => Ok(proof.plan),
        Err(PlanError::NotFound(ended)) => Ok(ended.plan),
        Err(
            error @ (PlanError::TooLarge { .. }
            | PlanError::NoModules
            | PlanError::ModuleStatistics(_)
            | PlanError::Unsolved { .. }),
        ) => Err(error),
    }
}
