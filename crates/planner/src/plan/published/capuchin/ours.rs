//! Capuchin: drop the activation that saves the most bytes per second of recomputation, until the
//! peak fits. Invariant: the peak is re-simulated after every choice, and a choice that does not
//! lower the bytes where the peak binds is not kept; so the peak never rises, and it is the
//! simulated one, never a sum of predicted savings. What is swapped is not chosen, and is not held
//! while it is away.

use cranelift_entity::SecondaryMap;

use crate::analysis::{Liveness, MemoryCurve, Sequence, held, liveness, memory_curve};
use crate::effort::Meter;
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::machine::Route;
use crate::plan::offload::Offloading;
use crate::plan::published::capuchin::msps::{Candidates, Choosing, Chosen};
use crate::plan::rematerialize::{Readers, Retention, Retentions};
use crate::plan::{Instance, NotFound, Plan, PlanError, Planner};
use crate::profile::Profile;
use crate::units::Bytes;

/// The greedy planner with the simulated peak as its judge.
pub fn capuchin(
    instance: Instance<'_>,
    budget: Bytes,
    meter: &mut Meter<'_>,
) -> Result<Plan, PlanError> {
    let mut greedy = Greedy::new(instance, meter);
    while greedy.curve.peak > budget {
        if greedy.choose(meter).is_none() {
            let plan = instance.plan(Planner::Capuchin, greedy.runs);
            if meter.is_late() {
                return Err(NotFound::error(budget, (greedy.tried, plan)));
            }
            return Err(PlanError::infeasible(instance, budget, plan));
        }
    }
    Ok(instance.plan(Planner::Capuchin, greedy.runs))
}

/// The choices so far, and the sequence that they make.
pub(super) struct Greedy<'a> {
    graph: &'a Graph,
    profile: &'a Profile,
    order: &'a [NodeId],
    readers: Readers,
    candidates: Candidates<'a>,
    retentions: Retentions,
    /// What is swapped, and over which lanes; absent if nothing is.
    swapped: Option<(Route, SecondaryMap<StorageId, bool>)>,
    runs: Vec<NodeId>,
    lives: Liveness,
    pub curve: MemoryCurve,
    /// Sequences that were simulated.
    pub tried: usize,
}

impl<'a> Greedy<'a> {
    pub fn new(instance: Instance<'a>, meter: &mut Meter<'_>) -> Greedy<'a> {
        let Instance { graph, profile, order } = instance;
        meter.spend(4 * order.len() as u64);
        let lives = liveness(graph, profile, &order.into());
        Greedy {
            graph,
            profile,
            order,
            readers: Readers::new(graph, order),
            candidates: Candidates::new(instance, meter),
            retentions: Retentions::new(),
            swapped: None,
            runs: order.to_vec(),
            curve: memory_curve(graph, profile, &order.into(), &lives),
            lives,
            tried: 1,
        }
    }

    /// Swaps the outputs of a node from now on.
    pub fn swap(&mut self, node: NodeId, route: Route, meter: &mut Meter<'_>) {
        let (_, swapped) = self.swapped.get_or_insert_with(|| (route, SecondaryMap::new()));
        self.graph.fresh(node).iter().for_each(|&storage| swapped[storage] = true);
        self.weigh(meter);
    }

    pub fn is_swapped(&self, storage: StorageId) -> bool {
        self.swapped.as_ref().is_some_and(|(_, swapped)| swapped[storage])
    }

    /// Whether the outputs of a node are swapped.
    fn leaves(&self, node: NodeId) -> bool {
        self.graph.fresh(node).iter().any(|&storage| self.is_swapped(storage))
    }

    /// Computes the sequence's lives and bytes again.
    fn weigh(&mut self, meter: &mut Meter<'_>) {
        meter.spend(2 * self.runs.len() as u64);
        let Greedy { graph, profile, ref runs, .. } = *self;
        let sequence = self.swapping(runs);
        self.lives = liveness(graph, profile, &sequence);
        self.curve = memory_curve(graph, profile, &sequence, &self.lives);
    }

    /// Runs, and between them the moves of what is swapped, as if lanes took no time.
    fn swapping(&self, runs: &[NodeId]) -> Sequence {
        let &Greedy { graph, profile, ref swapped, .. } = self;
        let Some((route, swapped)) = swapped else { return runs.into() };
        let offloading = Offloading::new(graph, profile, runs, *route);
        offloading.at_once(&|storage| swapped[storage])
    }

    /// Open candidates by falling MSPS that are alive where the peak binds, and are not read there:
    /// only they can lower it.
    fn idle(&self, meter: &mut Meter<'_>) -> Vec<NodeId> {
        let Greedy { graph, runs, curve, candidates, .. } = self;
        let mut idle: Vec<NodeId> = Vec::new();
        for life in self.lives.intervals.values() {
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
        idle.retain(|&node| candidates.is_open(node) && !self.leaves(node));
        meter.spend(runs.len() as u64);
        candidates.by_msps(&mut idle, meter);
        idle
    }

    /// Drops one more node and returns the sequence, if that lowers the bytes where the peak binds
    /// without raising the peak anywhere else; otherwise the decision is reverted.
    fn lowered_by(&mut self, node: NodeId, meter: &mut Meter<'_>) -> Option<Vec<NodeId>> {
        for retention in [Retention::Recompute, Retention::RecomputeEachUse] {
            self.retentions[node] = retention;
            let runs = self.readers.rematerialize(self.graph, self.order, &self.retentions);
            self.tried += 1;
            meter.spend(2 * runs.len() as u64);
            let after = held(self.graph, self.profile, &self.swapping(&runs));
            let (before, curve) = (&self.runs, &self.curve);
            let relieved = || {
                held_at(&after, &runs, before[curve.at], before, curve.at)
                    .is_some_and(|held| held < curve.held[curve.at])
            };
            if after.peak < curve.peak || (after.peak == curve.peak && relieved()) {
                return Some(runs);
            }
        }
        self.retentions[node] = Retention::Save;
        None
    }
}

impl Choosing for Greedy<'_> {
    fn candidates(&self) -> &Candidates<'_> {
        &self.candidates
    }

    /// The first candidate that lowers the bytes where the peak binds.
    fn choose(&mut self, meter: &mut Meter<'_>) -> Option<Chosen> {
        let mut found = None;
        for node in self.idle(meter) {
            if found.is_some() || meter.is_late() {
                break;
            }
            found = self.lowered_by(node, meter).map(|runs| (node, runs));
        }
        let (node, runs) = found?;
        let figures = self.candidates.figures(node);
        let changed = self.candidates.choose(node, meter);
        self.runs = runs;
        self.weigh(meter);
        Some(Chosen { node, figures, retention: self.retentions[node], changed })
    }

    fn runs(&self) -> Vec<NodeId> {
        self.runs.clone()
    }
}

/// Bytes held in `runs` during the run of `node` that corresponds to position `at` of `before`.
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
