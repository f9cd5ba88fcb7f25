//! Offloading. Invariant: whatever the graph, the lanes and the budget, a choice within the budget
//! becomes a legal schedule with the stated bytes and seconds.
//!
//! Tier: quick with a part of the cases, 1 s; full with all of them.

use proptest::prelude::*;
use tightfit::analysis::{Motion, Move, Sequence};
use tightfit::check::Checked;
use tightfit::effort::{Effort, Meter};
use tightfit::graph::Graph;
use tightfit::id::NodeId;
use tightfit::machine::Machine;
use tightfit::plan::offload::Offloading;
use tightfit::plan::{self, Instance, Planner};
use tightfit::profile::Profile;
use tightfit::schedule::{Lowering, lower};
use tightfit::timeline::Swapped;
use tightfit::units::Bytes;
use tightfit::{Goal, Request, fit, frontier};

use crate::fixtures::generator;
use crate::fixtures::moves::{host, with_host};

/// Bytes a second: from lanes that hide nothing to lanes that hide everything.
const BANDWIDTHS: [f64; 3] = [1e5, 1e6, 1e8];

fn holds(graph: &Graph, machine: &Machine, bandwidth: f64, part: f64) -> Result<(), TestCaseError> {
    let machine = with_host(machine.clone(), bandwidth, 1);
    let profile = Profile::new(graph, &machine);
    let order = plan::base_order(graph, &profile);
    let instance = Instance::new(graph, &profile, &order);
    let route = machine.hierarchy.route(Bytes(1 << 20)).unwrap();
    let offloading = Offloading::new(graph, &profile, &order, route);
    let simulated = plan::simulate(graph, &profile, &Sequence::from(&order));
    let least = offloading.least();
    prop_assert!(least <= simulated.curve.peak);
    let between = (simulated.curve.peak - least).0 as f64 * part;
    let budget = least + Bytes(between as u64);
    let effort = Effort::work(1, 2_000);
    let found = offloading.within(budget, 1, &mut Meter::new(&effort));
    let found = found.ok_or_else(|| TestCaseError::fail("nothing is found"))?;
    let again = offloading.within(budget, 1, &mut Meter::new(&effort));
    prop_assert_eq!(Some(&found), again.as_ref());
    prop_assert!(found.seconds.0 >= simulated.seconds.0 * (1.0 - 1e-9));
    if budget > Bytes::ZERO {
        let below =
            offloading.within(Bytes(least.0.saturating_sub(1)), 1, &mut Meter::new(&effort));
        prop_assert!(least == Bytes::ZERO || below.is_none());
    }
    let schedule = lower(graph, &profile, &found, &Lowering::to(Goal::Smallest));
    let checked = Checked::new(graph, &profile, schedule);
    let checked = checked.map_err(|violation| TestCaseError::fail(violation.to_string()))?;
    lists_what_is_swapped(graph, &profile, &checked, &found.sequence.moves())?;
    let timeline = checked.timeline();
    prop_assert!(timeline.peak <= found.peak && found.peak <= budget);
    let off = (timeline.seconds.0 - found.seconds.0).abs();
    prop_assert!(off <= 1e-9 * found.seconds.0, "{:?} {:?}", timeline.seconds, found.seconds);
    // Nothing that fits is faster than the proven bound.
    let effort = Effort::work(u64::MAX, 0);
    let least = plan::lower_bound_with_moves(instance, found.peak, &effort);
    let most = timeline.seconds.0 * (1.0 + 1e-9);
    prop_assert!(least.0 <= most, "{least:?} {:?}", timeline.seconds);
    Ok(())
}

/// Checks for a row for each prefetch, with the accesses around it as in the order of the step.
fn lists_what_is_swapped(
    graph: &Graph,
    profile: &Profile,
    checked: &Checked,
    moves: &[Move],
) -> Result<(), TestCaseError> {
    let order = plan::base_order(graph, profile);
    let (schedule, timeline) = (checked.schedule(), checked.timeline());
    let rows = timeline.swapped(graph, schedule);
    let prefetches: Vec<&Move> =
        moves.iter().filter(|next| next.motion == Motion::Prefetch).collect();
    prop_assert_eq!(rows.len(), prefetches.len());
    let bytes: Bytes = rows.iter().map(|row| row.bytes).sum();
    prop_assert_eq!(bytes, schedule.moved()[1]);
    prop_assert!(rows.is_sorted_by(|a, b| a.free().0 >= b.free().0));
    let is_accessed = |node: NodeId, storage| {
        graph.reads(node).contains(&storage) || graph.fresh(node).contains(&storage)
    };
    for next in prefetches {
        let (before, behind) = order.split_at(next.before as usize);
        let access = |nodes: &[NodeId]| {
            let mut nodes = nodes.iter().copied();
            nodes.find(|&node| is_accessed(node, next.storage))
        };
        let backwards = |nodes: &[NodeId]| access(&nodes.iter().rev().copied().collect::<Vec<_>>());
        let returns = graph.is_persistent(next.storage);
        let last = backwards(before).or_else(|| backwards(behind).filter(|_| returns));
        let first = access(behind).or_else(|| access(before).filter(|_| returns));
        let fits = |row: &&Swapped| {
            row.storage == next.storage && row.last_access == last && row.next_access == first
        };
        let row = rows.iter().find(fits);
        prop_assert!(row.is_some(), "{next:?}: {last:?}, {first:?}, {rows:#?}");
        let row = row.unwrap();
        prop_assert_eq!(row.in_trigger, before.last().copied());
        if let (Some(last), Some(first)) = (last, first) {
            let call = |node| timeline.calls.iter().find(|call| call.node == node).unwrap();
            let (since, until) = (call(last).start + call(last).seconds, call(first).start);
            let crosses = order.iter().position(|&node| node == last)
                >= order.iter().position(|&node| node == first);
            let idle = until.0 - since.0 + if crosses { timeline.seconds.0 } else { 0.0 };
            prop_assert!((row.idle.0 - idle).abs() <= 1e-9 * timeline.seconds.0);
        }
    }
    Ok(())
}

/// A tier that is too small for everything that could be away.
fn is_within_the_tier(graph: &Graph, machine: &Machine, part: f64) -> Result<(), TestCaseError> {
    let mut machine = with_host(machine.clone(), 1e6, 64);
    let capacity = graph.storages().values().copied().sum::<Bytes>().0 as f64 * part;
    let capacity = Bytes(capacity as u64);
    machine.hierarchy.tiers[host()].capacity = Some(capacity);
    let profile = Profile::new(graph, &machine);
    let order = plan::base_order(graph, &profile);
    let route = machine.hierarchy.main_route().unwrap();
    let effort = Effort::work(1, 0);
    let offloading = Offloading::new(graph, &profile, &order, route);
    let Some(found) = offloading.smallest(&Meter::new(&effort)) else {
        return Ok(());
    };
    let schedule = lower(graph, &profile, &found, &Lowering::to(Goal::Smallest));
    prop_assert!(schedule.below[host()] <= capacity);
    let checked = Checked::new(graph, &profile, schedule);
    checked.map(|_| ()).map_err(|violation| TestCaseError::fail(violation.to_string()))
}

/// Measured rates differ from run to run; the smallest slab does not, and is met when it is
/// requested.
fn is_the_same_whatever_the_rates(graph: &Graph, machine: &Machine) -> Result<(), TestCaseError> {
    let effort = Effort::work(1, 2_000);
    let smallest = BANDWIDTHS.map(|bandwidth| {
        let machine = with_host(machine.clone(), bandwidth, 1);
        let profile = Profile::new(graph, &machine);
        let smallest = fit(graph, &profile, &Request { effort, ..Request::default() }).unwrap();
        let schedule = smallest.schedule();
        let slab = schedule.budget;
        assert!(schedule.slab <= slab);
        let again = Request { effort, ..Request::within(slab) };
        (slab, fit(graph, &profile, &again).map(|fitted| fitted.schedule().slab <= slab).ok())
    });
    let [(slab, _), ..] = smallest;
    prop_assert_eq!(smallest, [(slab, Some(true)); 3]);
    Ok(())
}

/// What no schedule beats with more memory, none beats with less.
fn has_rising_bounds(graph: &Graph, machine: &Machine, rate: f64) -> Result<(), TestCaseError> {
    let profile = Profile::new(graph, &with_host(machine.clone(), rate, 1));
    let request = Request { effort: Effort::work(1, 200), ..Request::default() };
    let least = fit(graph, &profile, &request).unwrap().schedule().slab.0;
    let most = tightfit::unplanned(graph, &profile).unwrap().schedule().slab.0.max(least);
    let budgets = [0, 1, 2, 3].map(|third| Bytes(least + (most - least) / 3 * third));
    let points = frontier(graph, &profile, &budgets, None, &request);
    let fitted: Vec<_> = points.iter().filter_map(|point| point.result.as_ref().ok()).collect();
    prop_assert!(!fitted.is_empty());
    let bounds: Vec<f64> = fitted.iter().map(|fitted| fitted.bound().unwrap().seconds.0).collect();
    prop_assert!(bounds.is_sorted_by(|less, more| less >= more), "{bounds:?}");
    for (fitted, bound) in fitted.iter().zip(bounds) {
        let seconds = fitted.timeline().seconds.0;
        prop_assert!(bound <= seconds * (1.0 + 1e-9), "{bound} {seconds}");
    }
    Ok(())
}

/// A planner that moves nothing proves nothing of a budget that moves meet.
fn refuses_without_a_false_proof(graph: &Graph, machine: &Machine) -> Result<(), TestCaseError> {
    let machine = with_host(machine.clone(), 1e8, 1);
    let profile = Profile::new(graph, &machine);
    let effort = Effort::work(1, 2_000);
    let smallest = fit(graph, &profile, &Request { effort, ..Request::default() });
    let budget = smallest.map_err(|error| TestCaseError::fail(error.to_string()))?.schedule().slab;
    for planner in [Planner::None, Planner::Capuchin, Planner::Chen, Planner::Xla, Planner::Dtr] {
        let request = Request { planner, effort, ..Request::within(budget) };
        if let Err(error) = fit(graph, &profile, &request)
            && let Some(refusal) = error.infeasible()
        {
            prop_assert!(!refusal.is_proven(), "{planner:?}: {refusal}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(tightfit_testing::config(16))]

    #[test]
    fn a_refusal_beside_a_tier_is_true(graph in generator::graphs(16)) {
        for machine in generator::machines() {
            refuses_without_a_false_proof(&graph, &machine)?;
        }
    }

    #[test]
    fn a_bound_is_one_for_less_memory_too(graph in generator::graphs(16)) {
        for machine in generator::machines() {
            for rate in BANDWIDTHS {
                has_rising_bounds(&graph, &machine, rate)?;
            }
        }
    }

    #[test]
    fn the_smallest_slab_is_found_again(graph in generator::graphs(16)) {
        for machine in generator::machines() {
            is_the_same_whatever_the_rates(&graph, &machine)?;
        }
    }

    #[test]
    fn what_is_chosen_fits(graph in generator::graphs(16), part in 0.0..1.0f64) {
        for machine in generator::machines() {
            for bandwidth in BANDWIDTHS {
                holds(&graph, &machine, bandwidth, part)?;
                holds(&graph, &machine, bandwidth, 0.0)?;
            }
            is_within_the_tier(&graph, &machine, part / 2.0)?;
        }
    }
}
