//! A planner that ran out of time. Invariant: it proves nothing, and says so; proofs are in
//! `infeasible`.

use std::fmt;

use crate::plan::{Plan, PlanError, Planner};
use crate::units::Bytes;

/// What a planner had tried when its time was up; none of it fits.
#[derive(Clone, Debug)]
pub struct NotFound {
    /// The budget that was requested.
    pub budget: Bytes,
    /// Plans that it had simulated.
    pub tried: usize,
    /// The one with the smallest peak; the given order if none is lower.
    pub plan: Plan,
    /// That peak.
    pub reached: Bytes,
}

impl NotFound {
    /// `plan` is the lowest that its planner had when its time was up.
    pub(super) fn error(budget: Bytes, (tried, plan): (usize, Plan)) -> PlanError {
        let reached = plan.peak;
        PlanError::NotFound(Box::new(NotFound { budget, tried, plan, reached }))
    }
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotFound { budget, tried, plan, reached } = self;
        write!(
            f,
            "`{}` found no plan that fits {budget} ({} bytes) before its time was up, which does \
             not prove that there is none; plans tried: {tried}, of which the lowest takes \
             {reached} ({} bytes); give it more time (a longer --deadline), or choose another \
             planner",
            plan.planner.name(),
            budget.0,
            reached.0
        )?;
        if plan.planner == Planner::Auto { Ok(()) } else { f.write_str(", such as `auto`") }
    }
}
