//! Capuchin: drop the activation that saves the most bytes per second of recomputation, until the
//! peak fits. Invariant: the peak is re-simulated after every choice, and a choice that does not
//! lower the bytes where the peak binds is not kept; so the peak never rises, and it is the
//! simulated one, never a sum of predicted savings.
//!
//! Source: Peng et al., "Capuchin", ASPLOS 2020, section 5.3 (recomputation). Departures: see
//! `doc/theory/capuchin.md`.

mod msps;
pub mod published;

use crate::analysis::{MemoryCurve, liveness, memory_curve};
use crate::graph::Graph;
use crate::id::NodeId;
use crate::plan::published::capuchin::msps::Candidates;
use crate::plan::rematerialize::{Readers, Retention, Retentions};
use crate::plan::{Infeasible, Plan, PlanError, Planner, simulate};
use crate::profile::Profile;
use crate::units::Bytes;

/// The greedy planner with the simulated peak as its judge.
pub fn capuchin(
    graph: &Graph,
    profile: &Profile,
    order: &[NodeId],
    budget: Bytes,
) -> Result<Plan, PlanError> {
    let mut candidates = Candidates::new(graph, profile, order);
    let readers = Readers::new(graph, order);
    let mut retentions = Retentions::new();
    let mut runs = order.to_vec();
    loop {
        let lives = liveness(graph, profile, &runs);
        let curve = memory_curve(graph, profile, &runs, &lives);
        if curve.peak <= budget {
            return Ok(Plan::of_runs(Planner::Capuchin, runs));
        }
        // Only what is alive where the peak binds, and is not read there, can lower it.
        let mut idle: Vec<NodeId> = Vec::new();
        for life in lives.intervals.values() {
            let spans = life.born.is_some_and(|born| (born as usize) < curve.at)
                && curve.at < life.dies as usize;
            let read =
                runs.get(curve.at).is_some_and(|&node| graph.reads(node).contains(&life.storage));
            if let Some(node) = graph.producer(life.storage).filter(|_| spans && !read) {
                idle.push(node);
            }
        }
        idle.sort_unstable();
        idle.dedup();
        idle.retain(|&node| candidates.is_open(node));
        candidates.by_msps(&mut idle);
        let better = idle.into_iter().find_map(|node| {
            lower(graph, profile, (order, &readers), &mut retentions, node, &runs, &curve)
                .map(|runs| (node, runs))
        });
        match better {
            Some((node, lowered)) => {
                candidates.choose(node);
                runs = lowered;
            }
            None => {
                let plan = Plan::of_runs(Planner::Capuchin, runs);
                return Err(PlanError::Infeasible(Box::new(Infeasible::new(
                    graph, profile, budget, plan,
                ))));
            }
        }
    }
}

/// Drops one more node and returns the sequence, if that lowers the bytes where the peak binds
/// without raising the peak anywhere else; otherwise the decision is taken back.
fn lower(
    graph: &Graph,
    profile: &Profile,
    (order, readers): (&[NodeId], &Readers),
    retentions: &mut Retentions,
    node: NodeId,
    before: &[NodeId],
    curve: &MemoryCurve,
) -> Option<Vec<NodeId>> {
    for retention in [Retention::Recompute, Retention::RecomputeEachUse] {
        retentions[node] = retention;
        let runs = readers.rematerialize(graph, order, retentions);
        let after = simulate(graph, profile, &runs).curve;
        let relieved = || {
            held_at(&after, &runs, before[curve.at], before, curve.at)
                .is_some_and(|held| held < curve.held[curve.at])
        };
        if after.peak < curve.peak || (after.peak == curve.peak && relieved()) {
            return Some(runs);
        }
    }
    retentions[node] = Retention::Save;
    None
}

/// Bytes held in `runs` while the same run of `node` executes that stands at `at` in `before`.
fn held_at(
    curve: &MemoryCurve,
    runs: &[NodeId],
    node: NodeId,
    before: &[NodeId],
    at: usize,
) -> Option<Bytes> {
    // Runs are matched from the end: what is dropped later only adds runs before an access.
    let later = before[at..].iter().filter(|&&other| other == node).count();
    let position =
        runs.iter().enumerate().rev().filter(|(_, other)| **other == node).nth(later - 1)?.0;
    Some(curve.held[position])
}
