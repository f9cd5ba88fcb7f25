//! One plan out of several. Invariant: what is refused is refused with the lowest plan of a family
//! that does not depend on the budget, so whatever a proof says is feasible, is found when it is
//! asked for.

use crate::graph::Graph;
use crate::id::NodeId;
use crate::plan::{Infeasible, Plan, PlanError, Planner, none, simulate};
use crate::profile::Profile;
use crate::units::Bytes;

/// The fastest of `family` that fits; so more memory is never slower.
pub(super) fn fastest(
    graph: &Graph,
    profile: &Profile,
    budget: Bytes,
    planner: Planner,
    mut family: Vec<Vec<NodeId>>,
) -> Result<Plan, PlanError> {
    family.sort_by(|a, b| profile.total(a).0.total_cmp(&profile.total(b).0));
    family.dedup();
    let mut lowest: Option<(Bytes, Vec<NodeId>)> = None;
    for runs in family {
        let peak = simulate(graph, profile, &runs).curve.peak;
        if peak <= budget {
            return Ok(Plan::of_runs(planner, runs));
        }
        if lowest.as_ref().is_none_or(|(least, _)| peak < *least) {
            lowest = Some((peak, runs));
        }
    }
    let plan = Plan::of_runs(planner, lowest.map_or(Vec::new(), |(_, runs)| runs));
    Err(PlanError::Infeasible(Box::new(Infeasible::new(graph, profile, budget, plan))))
}

/// Shares of the peak beyond the static bytes that a rule is tried with where it exceeds its limit.
const RETREATS: [u64; 8] = [95, 80, 65, 50, 35, 20, 10, 0];

/// What a rule makes of `order` that heeds a limit as it goes along, and may miss it. Where it
/// does, the fastest plan that it makes for one of a few fixed limits, if that fits.
pub(super) fn heeding(
    graph: &Graph,
    profile: &Profile,
    order: &[NodeId],
    budget: Bytes,
    planner: Planner,
    rule: impl Fn(Bytes) -> Vec<NodeId>,
) -> Result<Plan, PlanError> {
    if let Ok(plan) = none(graph, profile, order, budget) {
        return Ok(Plan { planner, ..plan });
    }
    let runs = rule(budget);
    if simulate(graph, profile, &runs).curve.peak <= budget {
        return Ok(Plan::of_runs(planner, runs));
    }
    let resting = graph.static_bytes();
    let beyond = simulate(graph, profile, order).curve.peak.saturating_sub(resting);
    let limits = RETREATS.iter().map(|percent| resting + Bytes(beyond.0 / 100 * percent));
    let family = std::iter::once(order.to_vec()).chain(limits.map(rule)).collect();
    fastest(graph, profile, budget, planner, family)
}
