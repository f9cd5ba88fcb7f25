//! Capuchin's choice as published: it sums predicted savings until they cover the need. Invariant:
//! the arithmetic is that of the corrected rule in `msps`; only the stopping rule is the
//! published one, so the peak that results may differ from what was predicted, and asking for more
//! may peak higher. Kept to compare with; `capuchin` is the default.

use crate::graph::Graph;
use crate::id::NodeId;
use crate::plan::published::capuchin::msps::Candidates;
use crate::plan::rematerialize::{Retention, Retentions, rematerialize};
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// One candidate's figures.
#[derive(Clone, Debug, PartialEq)]
pub struct TableRow {
    /// The candidate.
    pub node: NodeId,
    /// Candidates that it is made from, in program order.
    pub activation_sources: Vec<NodeId>,
    /// Placeholders that it is made from, in program order.
    pub parameter_sources: Vec<NodeId>,
    /// What else runs again with it, in program order.
    pub other_sources: Vec<NodeId>,
    /// Seconds of all its executions.
    pub execution_time: Seconds,
    /// Bytes per second.
    pub msps: f64,
    /// Last forward node that reads it.
    pub last_forward_access: NodeId,
    /// First backward node that reads it.
    pub first_backward_access: NodeId,
}

/// The figures of all open candidates, in program order.
pub type Table = Vec<TableRow>;

/// One choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The candidate with the highest MSPS.
    pub node: NodeId,
    /// Its MSPS.
    pub msps: f64,
    /// Seconds of all its executions.
    pub execution_time: Seconds,
    /// How often it runs again.
    pub executions: usize,
    /// Bytes still to be saved, as predicted.
    pub remaining: Bytes,
    /// The table after the choice.
    pub table: Table,
}

/// What becomes of a chosen node once all choices are made.
#[derive(Clone, Debug, PartialEq)]
pub struct Final {
    /// The node.
    pub node: NodeId,
    /// What it is made from.
    pub activation_sources: Vec<NodeId>,
    /// Placeholders that it is made from.
    pub parameter_sources: Vec<NodeId>,
    /// Chosen nodes that are made again on the way to it, transitively.
    pub intermediates: Vec<NodeId>,
    /// What its recomputation yields: itself, and its intermediates where it is the earliest to
    /// run.
    pub outputs: Vec<NodeId>,
    /// No earlier recomputation yields it.
    pub is_top: bool,
}

/// The whole run.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// The table before the first choice.
    pub initial: Table,
    /// The choices.
    pub trace: Vec<Choice>,
    /// The chosen nodes' ends, in the order of the choices.
    pub ends: Vec<Final>,
    /// The predicted savings cover the need.
    pub feasible: bool,
    /// The rewritten sequence.
    pub runs: Vec<NodeId>,
}

/// Chooses by highest MSPS until the predicted savings cover `need`.
pub fn published(graph: &Graph, profile: &Profile, order: &[NodeId], need: Bytes) -> Published {
    let mut candidates = Candidates::new(graph, profile, order);
    let initial = table(&candidates);
    let mut remaining = need;
    let mut trace = Vec::new();
    while remaining > Bytes::ZERO {
        let mut open: Vec<NodeId> =
            candidates.open.iter().copied().filter(|&node| candidates.is_open(node)).collect();
        candidates.by_msps(&mut open);
        let Some(&node) = open.first() else { break };
        let (msps, execution_time, executions) =
            (candidates.msps(node), candidates.execution_time(node), candidates.executions(node));
        candidates.choose(node);
        remaining = remaining.saturating_sub(candidates.candidate(node).bytes);
        trace.push(Choice {
            node,
            msps,
            execution_time,
            executions,
            remaining,
            table: table(&candidates),
        });
    }
    let mut retentions = Retentions::new();
    for &node in &candidates.chosen {
        retentions[node] = Retention::Recompute;
    }
    Published {
        initial,
        trace,
        ends: ends(&candidates, order),
        feasible: remaining == Bytes::ZERO,
        runs: rematerialize(graph, order, &retentions),
    }
}

fn table(candidates: &Candidates) -> Table {
    let open = candidates.open.iter().copied().filter(|&node| candidates.is_open(node));
    open.map(|node| {
        let candidate = candidates.candidate(node);
        TableRow {
            node,
            activation_sources: candidate.activation_sources.iter().copied().collect(),
            parameter_sources: candidate.parameter_sources.iter().copied().collect(),
            other_sources: candidate.other_sources.iter().copied().collect(),
            execution_time: candidates.execution_time(node),
            msps: candidates.msps(node),
            last_forward_access: candidate.last_forward_access,
            first_backward_access: candidate.first_backward_access,
        }
    })
    .collect()
}

/// Merges nested recomputations into the one that runs earliest.
fn ends(candidates: &Candidates, order: &[NodeId]) -> Vec<Final> {
    let position = |node: NodeId| order.iter().position(|&other| other == node);
    let mut by_access = candidates.chosen.clone();
    by_access
        .sort_by_key(|&node| (position(candidates.candidate(node).first_backward_access), node));
    let intermediates = |node: NodeId| -> Vec<NodeId> {
        candidates
            .candidate(node)
            .other_sources
            .iter()
            .copied()
            .filter(|other| candidates.chosen.contains(other))
            .collect()
    };
    let mut yielded: Vec<NodeId> = Vec::new();
    let mut tops: Vec<NodeId> = Vec::new();
    for &node in &by_access {
        if !yielded.contains(&node) {
            tops.push(node);
            yielded.push(node);
            yielded.extend(intermediates(node));
        }
    }
    let end = |&node: &NodeId| {
        let candidate = candidates.candidate(node);
        let is_top = tops.contains(&node);
        let inner = intermediates(node);
        Final {
            node,
            activation_sources: candidate.activation_sources.iter().copied().collect(),
            parameter_sources: candidate.parameter_sources.iter().copied().collect(),
            outputs: std::iter::once(node)
                .chain(inner.iter().copied().filter(|_| is_top))
                .collect(),
            intermediates: inner,
            is_top,
        }
    };
    candidates.chosen.iter().map(end).collect()
}
