//! What a plan saves and what it pays. Invariant: savings are counted at one node, where the
//! unplanned step peaks; seconds are those of the recomputations in the checked timeline, each
//! counted once.

use std::collections::BTreeMap;

use tightfit::id::{NodeId, StorageId};
use tightfit::timeline::again;
use tightfit::units::{Bytes, Seconds};

use crate::course::{Course, Residency};

/// What happens to the tensors of one node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saving {
    /// The node that makes them.
    pub node: NodeId,
    /// Bytes of its tensors: those that are gone at the peak, or all if none is.
    pub bytes: Bytes,
    /// Bytes held at the unplanned peak, and not at the same node under the plan.
    pub saved: Bytes,
    /// How often the node runs again.
    pub recomputed: u32,
    /// Seconds of these runs.
    pub seconds: Seconds,
}

/// Nodes whose tensors are gone where the unplanned step peaks, or that run again; the largest
/// savings first.
pub fn savings(unplanned: &Course<'_>, planned: &Course<'_>) -> Vec<Saving> {
    let mut rows: BTreeMap<NodeId, Saving> = BTreeMap::new();
    let nothing = |node| Saving {
        node,
        bytes: Bytes::ZERO,
        saved: Bytes::ZERO,
        recomputed: 0,
        seconds: Seconds(0.0),
    };
    for (node, again) in again(&planned.calls) {
        rows.insert(
            node,
            Saving { recomputed: again.times, seconds: again.seconds, ..nothing(node) },
        );
    }
    let tensors = |course: &Course<'_>, call: usize| -> Vec<(StorageId, Residency)> {
        let mut alive: Vec<_> = course
            .alive(call)
            .into_iter()
            .filter_map(|held| Some((held.storage?, *held)))
            .collect();
        alive.sort_by_key(|(storage, _)| *storage);
        alive
    };
    let peak = unplanned.calls.get(unplanned.at).map(|call| call.node);
    if let Some(there) = peak.and_then(|node| planned.first_call(node)) {
        let kept = tensors(planned, there);
        for (storage, held) in tensors(unplanned, unplanned.at) {
            if kept.binary_search_by_key(&storage, |(storage, _)| *storage).is_err() {
                rows.entry(held.node).or_insert(nothing(held.node)).saved += held.bytes;
            }
        }
    }
    for row in rows.values_mut() {
        let all = planned
            .graph
            .fresh(row.node)
            .iter()
            .map(|&storage| planned.graph.storages()[storage])
            .sum();
        row.bytes = if row.saved > Bytes::ZERO { row.saved } else { all };
    }
    let mut rows: Vec<Saving> = rows.into_values().collect();
    rows.sort_by(|a, b| {
        b.saved.cmp(&a.saved).then(b.seconds.0.total_cmp(&a.seconds.0)).then(b.bytes.cmp(&a.bytes))
    });
    rows
}
