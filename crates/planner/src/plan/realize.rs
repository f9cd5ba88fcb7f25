//! What plans are made for: addresses in a slab, or only a limit on the bytes that they hold.
//! Invariant: what is made of a plan fits the budget that it was made for.

use crate::effort::{Effort, Meter};
use crate::plan::search::Search;
use crate::plan::{Infeasible, Plan};
use crate::units::Bytes;

/// Turns plans into results.
pub trait Realize {
    /// The result of a plan that fits.
    type Made;
    /// Why not even the smallest plan fits.
    type Refusal;
    /// Whether a plan may take more bytes than it holds.
    const MAY_MISS: bool;

    /// The result of a plan that holds no more than `budget`, within the effort. The error is how
    /// many bytes it takes beyond those that it holds.
    fn realize(
        &mut self,
        plan: &Plan,
        budget: Bytes,
        effort: &Effort<'_>,
    ) -> Result<Self::Made, Bytes>;

    /// The smallest plan and its result, with the remaining effort.
    ///
    /// # Errors
    /// If no result fits the budget.
    fn smallest(
        &mut self,
        search: &mut Search<'_>,
        budget: Bytes,
        meter: &Meter<'_>,
    ) -> Result<(Plan, Self::Made), Self::Refusal>;
}

/// Plans for runtimes whose allocator places tensors: one that holds no more than its budget fits.
pub struct Unplaced;

impl Realize for Unplaced {
    type Made = Plan;
    type Refusal = Box<Infeasible>;
    const MAY_MISS: bool = false;

    fn realize(&mut self, plan: &Plan, _: Bytes, _: &Effort<'_>) -> Result<Plan, Bytes> {
        Ok(plan.clone())
    }

    fn smallest(
        &mut self,
        search: &mut Search<'_>,
        budget: Bytes,
        meter: &Meter<'_>,
    ) -> Result<(Plan, Plan), Box<Infeasible>> {
        let plan = search.lowest(&meter.round(meter.effort().work, 1.0));
        if plan.peak <= budget {
            return Ok((plan.clone(), plan));
        }
        let proof = Infeasible::new(search.instance(), budget, plan);
        Err(Box::new(Infeasible { needed: proof.needed.max(search.least_budget()), ..proof }))
    }
}
