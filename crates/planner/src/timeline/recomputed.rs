//! What a legal schedule computes again, node by node. Invariant: every recomputation is counted
//! once, and bytes count as saved only where no call between the last use before a recomputation
//! and that recomputation finds them held.

use std::collections::BTreeMap;

use cranelift_entity::SecondaryMap;

use crate::id::{DEVICE, NodeId, StorageId};
use crate::timeline::{CallInTime, Timeline};
use crate::units::{Bytes, Seconds};

/// How often a node runs again, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Again {
    /// The number of recomputations.
    pub times: u32,
    /// Their seconds together.
    pub seconds: Seconds,
}

/// A node that runs again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recomputed {
    /// The node.
    pub node: NodeId,
    /// How often, and for how long.
    pub again: Again,
    /// Bytes of its tensors that are not held between their last use before a recomputation and
    /// that recomputation; of several recomputations the most.
    pub saved: Bytes,
}

/// The nodes that run again among `calls`.
pub fn again(calls: &[CallInTime]) -> BTreeMap<NodeId, Again> {
    let mut found: BTreeMap<NodeId, Again> = BTreeMap::new();
    for call in calls.iter().filter(|call| call.recomputed) {
        let again = found.entry(call.node).or_default();
        again.times += 1;
        again.seconds = again.seconds + call.seconds;
    }
    found
}

impl Timeline {
    /// The nodes that run again; the largest savings first, among equal ones the quickest.
    pub fn recomputed(&self) -> Vec<Recomputed> {
        let saved = self.saved();
        let row = |(node, again)| Recomputed { node, again, saved: saved[node] };
        let mut rows: Vec<Recomputed> = again(&self.calls).into_iter().map(row).collect();
        rows.sort_by(|a, b| {
            let quickest = || a.again.seconds.0.total_cmp(&b.again.seconds.0);
            b.saved.cmp(&a.saved).then_with(quickest).then(a.node.cmp(&b.node))
        });
        rows
    }

    /// For each node the most bytes that are absent right before one of its recomputations.
    fn saved(&self) -> SecondaryMap<NodeId, Bytes> {
        // The call before which the newest copy of each storage went.
        let mut went: SecondaryMap<StorageId, Option<u32>> = SecondaryMap::new();
        let mut absent: BTreeMap<u32, Bytes> = BTreeMap::new();
        for held in self.residencies.iter().filter(|held| held.tier == DEVICE) {
            let Some(storage) = held.storage else { continue };
            let made_again = self
                .calls
                .get(held.first as usize)
                .is_some_and(|call| call.recomputed && call.node == held.node);
            if made_again && went[storage].is_some_and(|went| went < held.first) {
                *absent.entry(held.first).or_default() += held.bytes;
            }
            went[storage] = held.end;
        }
        let mut saved: SecondaryMap<NodeId, Bytes> = SecondaryMap::new();
        for (call, bytes) in absent {
            let node = self.calls[call as usize].node;
            saved[node] = saved[node].max(bytes);
        }
        saved
    }
}
