//! Capuchin's choice as published: it sums predicted savings until they cover the need. Invariant:
//! the arithmetic is that of the corrected rule in `msps`; only the stopping rule is the published
//! one, so the resulting peak may differ from the prediction, and a larger need may lead to a
//! higher peak. A plan whose simulated peak exceeds the budget is refused, whatever was predicted.
//! Kept for comparison; `capuchin` is the default.

use cranelift_entity::SecondaryMap;

use crate::analysis::held;
use crate::effort::Meter;
use crate::graph::Graph;
use crate::id::NodeId;
use crate::plan::published::capuchin::msps::{Candidates, Choosing, Chosen};
use crate::plan::rematerialize::{Readers, Retention, Retentions};
use crate::plan::{Infeasible, Instance, NotFound, Plan, PlanError, Planner, Prediction};
use crate::profile::Profile;
use crate::units::Bytes;

/// The outcome for a chosen node once all choices are made.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// The node.
    pub node: NodeId,
    /// Candidates that it is made from.
    pub activation_sources: Vec<NodeId>,
    /// Placeholders that it is made from.
    pub parameter_sources: Vec<NodeId>,
    /// Chosen nodes that are made again on the way to it, transitively.
    pub intermediates: Vec<NodeId>,
    /// What its recomputation yields: itself, and its intermediates if it is the earliest to run.
    pub outputs: Vec<NodeId>,
    /// No earlier recomputation yields it.
    pub is_top: bool,
}

/// Chooses by highest MSPS until the predicted savings cover the excess of the peak of `order` over
/// the budget.
pub fn capuchin_published(
    instance: Instance<'_>,
    budget: Bytes,
    meter: &mut Meter<'_>,
) -> Result<Plan, PlanError> {
    let order = instance.order;
    let unplanned = instance.peak(order);
    let need = unplanned.saturating_sub(budget);
    let mut savings = PredictedSavings::new(instance, meter);
    while savings.sum() < need {
        if savings.choose(meter).is_none() {
            break;
        }
    }
    if savings.sum() < need && meter.is_late() {
        let lowest = instance.unplanned(Planner::CapuchinPublished);
        return Err(NotFound::error(budget, (1, lowest)));
    }
    let plan = instance.plan(Planner::CapuchinPublished, savings.runs());
    if savings.sum() >= need && plan.peak <= budget {
        return Ok(plan);
    }
    let simulated = plan.peak;
    let (reached, runs) = savings.least_met(unplanned, meter);
    let plan = instance.plan(Planner::CapuchinPublished, runs);
    let prediction = Prediction {
        need,
        choices: savings.candidates.chosen.len(),
        predicted: unplanned.saturating_sub(savings.sum()),
        simulated,
    };
    let proof = Infeasible::new(instance, budget, plan);
    Err(PlanError::Infeasible(Box::new(Infeasible {
        reached,
        prediction: Some(prediction),
        ..proof
    })))
}

/// The choices so far, and their predicted savings.
pub(super) struct PredictedSavings<'a> {
    graph: &'a Graph,
    profile: &'a Profile,
    order: &'a [NodeId],
    readers: Readers,
    candidates: Candidates<'a>,
    /// The prediction after each number of choices, from zero on.
    sums: Vec<Bytes>,
}

impl<'a> PredictedSavings<'a> {
    pub fn new(instance: Instance<'a>, meter: &mut Meter<'_>) -> PredictedSavings<'a> {
        let Instance { graph, profile, order } = instance;
        meter.spend(4 * order.len() as u64);
        PredictedSavings {
            graph,
            profile,
            order,
            readers: Readers::new(graph, order),
            candidates: Candidates::new(instance, meter),
            sums: vec![Bytes::ZERO],
        }
    }

    /// The bytes of all chosen candidates.
    fn sum(&self) -> Bytes {
        self.sums[self.candidates.chosen.len()]
    }

    fn runs_after(&self, choices: usize) -> Vec<NodeId> {
        let mut retentions = Retentions::new();
        for &node in &self.candidates.chosen[..choices] {
            retentions[node] = Retention::Recompute;
        }
        self.readers.rematerialize(self.graph, self.order, &retentions)
    }

    /// The smallest budget that stops the rule after at most the number of choices made, and that
    /// the resulting plan meets; if time is up, the budget that needs no choices.
    fn least_met(&self, unplanned: Bytes, meter: &mut Meter<'_>) -> (Bytes, Vec<NodeId>) {
        for choices in (1..=self.candidates.chosen.len()).rev() {
            if meter.is_late() {
                break;
            }
            // The budgets that stop the rule here: below the first, from the second on.
            let [ceiling, floor] =
                [choices - 1, choices].map(|at| unplanned.saturating_sub(self.sums[at]));
            if floor < ceiling {
                let runs = self.runs_after(choices);
                meter.spend(2 * runs.len() as u64);
                let met = held(self.graph, self.profile, &(&runs).into()).peak.max(floor);
                if met < ceiling {
                    return (met, runs);
                }
            }
        }
        (unplanned, self.order.to_vec())
    }

    /// Merges nested recomputations into the one that runs earliest.
    pub fn ends(&self) -> Vec<End> {
        let candidates = &self.candidates;
        let mut position: SecondaryMap<NodeId, u32> = SecondaryMap::new();
        for (at, &node) in self.order.iter().enumerate() {
            position[node] = at as u32;
        }
        let is_chosen = |node| candidates.table[node].as_ref().is_some_and(|found| found.chosen);
        let intermediates = |node: NodeId| -> Vec<NodeId> {
            let others = &candidates.candidate(node).other_sources;
            others.iter().copied().filter(|&other| is_chosen(other)).collect()
        };
        let mut by_access = candidates.chosen.clone();
        by_access.sort_by_key(|&node| {
            (position[candidates.candidate(node).first_backward_access], node)
        });
        let mut is_yielded: SecondaryMap<NodeId, bool> = SecondaryMap::new();
        let mut is_top: SecondaryMap<NodeId, bool> = SecondaryMap::new();
        for &node in &by_access {
            if !is_yielded[node] {
                is_top[node] = true;
                is_yielded[node] = true;
                intermediates(node).into_iter().for_each(|inner| is_yielded[inner] = true);
            }
        }
        let end = |&node: &NodeId| {
            let candidate = candidates.candidate(node);
            let inner = intermediates(node);
            End {
                node,
                activation_sources: candidate.activation_sources.iter().copied().collect(),
                parameter_sources: candidate.parameter_sources.iter().copied().collect(),
                outputs: std::iter::once(node)
                    .chain(inner.iter().copied().filter(|_| is_top[node]))
                    .collect(),
                intermediates: inner,
                is_top: is_top[node],
            }
        };
        candidates.chosen.iter().map(end).collect()
    }
}

impl Choosing for PredictedSavings<'_> {
    fn candidates(&self) -> &Candidates<'_> {
        &self.candidates
    }

    /// The candidate with the highest MSPS.
    fn choose(&mut self, meter: &mut Meter<'_>) -> Option<Chosen> {
        if meter.is_late() {
            return None;
        }
        let sum = self.sum();
        let candidates = &mut self.candidates;
        let mut open: Vec<NodeId> =
            candidates.open.iter().copied().filter(|&node| candidates.is_open(node)).collect();
        meter.spend((candidates.open.len() / 16) as u64);
        candidates.by_msps(&mut open, meter);
        let node = *open.first()?;
        let (figures, bytes) = (candidates.figures(node), candidates.candidate(node).bytes);
        let changed = candidates.choose(node, meter);
        self.sums.push(sum + bytes);
        Some(Chosen { node, figures, retention: Retention::Recompute, changed })
    }

    fn runs(&self) -> Vec<NodeId> {
        self.runs_after(self.candidates.chosen.len())
    }
}
