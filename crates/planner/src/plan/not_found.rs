//! A search that ended without a plan. Invariant: it proves nothing, and says so; what is proven
//! stands in `infeasible`.

use std::fmt;

use crate::plan::Planner;
use crate::units::Bytes;

/// What a planner had tried when its time was up, none of which fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFound {
    /// The planner.
    pub planner: Planner,
    /// The budget that it was asked for.
    pub budget: Bytes,
    /// Plans that it simulated.
    pub tried: usize,
    /// The smallest peak among them; absent where it simulated none.
    pub reached: Option<Bytes>,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotFound { planner, budget, tried, reached } = self;
        write!(
            f,
            "`{}` found no plan that fits {budget} ({} bytes) before its time was up, which does \
             not prove that there is none; ",
            planner.name(),
            budget.0
        )?;
        match reached {
            Some(reached) => write!(
                f,
                "plans tried: {tried}, of which the lowest takes {reached} ({} bytes); ",
                reached.0
            )?,
            None => write!(f, "it had tried none; ")?,
        }
        f.write_str("give it more time (a longer --deadline), or choose another planner")?;
        if *planner == Planner::Auto { Ok(()) } else { f.write_str(", such as `auto`") }
    }
}
