//! One plan out of several. Invariant: a refusal reports the lowest plan of a family that does not
//! depend on the budget, so any budget that a proof calls feasible is met when it is requested.

use crate::effort::Meter;
use crate::id::NodeId;
use crate::plan::{Instance, NotFound, Plan, PlanError, Planner, none};
use crate::units::Bytes;

/// The fastest of `family` that fits; so more memory is never slower. Its members are made and
/// tried one after the other while there is time.
pub(super) fn fastest(
    instance: Instance<'_>,
    budget: Bytes,
    planner: Planner,
    mut make: impl FnMut(usize, &mut Meter<'_>) -> Option<Vec<NodeId>>,
    meter: &mut Meter<'_>,
) -> Result<Plan, PlanError> {
    let mut best: Option<Plan> = None;
    let mut lowest: Option<Plan> = None;
    let mut tried = 0;
    let is_complete = loop {
        if tried > 0 && meter.is_late() {
            break false;
        }
        let Some(runs) = make(tried, meter) else { break true };
        tried += 1;
        meter.spend(2 * runs.len() as u64);
        let plan = instance.plan(planner, runs);
        let figures = |plan: &Plan| (plan.peak, plan.seconds);
        if lowest.as_ref().is_none_or(|lowest| figures(&plan) < figures(lowest)) {
            lowest = Some(plan.clone());
        }
        let is_faster = |best: &Plan| plan.seconds < best.seconds;
        if plan.peak <= budget && best.as_ref().is_none_or(is_faster) {
            best = Some(plan);
        }
    };
    if let Some(plan) = best {
        return Ok(plan);
    }
    let plan = lowest.unwrap_or_else(|| instance.unplanned(planner));
    if !is_complete {
        return Err(NotFound::error(budget, (tried, plan)));
    }
    Err(PlanError::infeasible(instance, budget, plan))
}

/// Shares of the peak beyond the static bytes that are tried as limits if a rule exceeds its own.
const RETREATS: [u64; 8] = [95, 80, 65, 50, 35, 20, 10, 0];

/// The plan that a rule makes of `order`; the rule observes a limit as it goes along, and may miss
/// it. If it does, the fastest plan that it makes for one of a few fixed limits, if that fits.
pub(super) fn heeding(
    instance: Instance<'_>,
    budget: Bytes,
    planner: Planner,
    rule: impl Fn(Bytes, &mut Meter<'_>) -> Vec<NodeId>,
    meter: &mut Meter<'_>,
) -> Result<Plan, PlanError> {
    let Instance { graph, order, .. } = instance;
    if let Ok(plan) = none(instance, budget) {
        return Ok(Plan { planner, ..plan });
    }
    let plan = instance.plan(planner, rule(budget, meter));
    if plan.peak <= budget {
        return Ok(plan);
    }
    let resting = graph.static_bytes();
    let beyond = instance.peak(order).saturating_sub(resting);
    let member = |number: usize, meter: &mut Meter<'_>| match number.checked_sub(1) {
        None => Some(order.to_vec()),
        Some(retreat) => {
            let percent = RETREATS.get(retreat)?;
            Some(rule(resting + Bytes(beyond.0 / 100 * percent), meter))
        }
    };
    fastest(instance, budget, planner, member, meter)
}
