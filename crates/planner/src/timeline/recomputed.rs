//! What a legal schedule computes again, node by node. Invariant: every recomputation is counted
//! once, and bytes count as saved only if the step as captured holds them and no call between the
//! last use before a recomputation and that recomputation does.

use std::collections::BTreeMap;

use cranelift_entity::SecondaryMap;

use crate::id::{DEVICE, NodeId, StorageId};
use crate::timeline::{CallInTime, Residency, Timeline};
use crate::units::{Bytes, Seconds};

/// The number of times a node runs again, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Again {
    /// The number of recomputations.
    pub times: u32,
    /// The total of their seconds.
    pub seconds: Seconds,
}

/// A node that runs again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recomputed {
    /// The node.
    pub node: NodeId,
    /// The number of times, and for how long.
    pub again: Again,
    /// Bytes of its tensors that are not held between their last use before a recomputation and
    /// that recomputation; for several recomputations, the most.
    pub absent: Bytes,
    /// Those of them that the step as captured holds there, because it reads them later. A
    /// temporary that runs again as the source of something else saves nothing by itself.
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
    /// The nodes that run again, compared with the same step as captured; the largest savings
    /// first, among equal ones the quickest.
    pub fn recomputed(&self, unplanned: &Timeline) -> Vec<Recomputed> {
        let gaps = self.gaps(unplanned);
        let row = |(node, again)| {
            let Gap { absent, saved } = gaps[node];
            Recomputed { node, again, absent, saved }
        };
        let mut rows: Vec<Recomputed> = again(&self.calls).into_iter().map(row).collect();
        rows.sort_by(|a, b| {
            let quickest = || a.again.seconds.0.total_cmp(&b.again.seconds.0);
            b.saved.cmp(&a.saved).then_with(quickest).then(a.node.cmp(&b.node))
        });
        rows
    }

    /// For each node the bytes that are absent right before its recomputations.
    fn gaps(&self, unplanned: &Timeline) -> SecondaryMap<NodeId, Gap> {
        let mut first_run: SecondaryMap<NodeId, u32> = SecondaryMap::new();
        for (at, call) in self.calls.iter().enumerate().filter(|(_, call)| !call.recomputed) {
            first_run[call.node] = at as u32;
        }
        // The call here until which the step as captured holds each storage; absent: to the end.
        let mut needed: SecondaryMap<StorageId, Option<u32>> = SecondaryMap::new();
        for (storage, held) in unplanned.on_device() {
            let last = held.end.and_then(|end| unplanned.calls.get((end as usize).checked_sub(1)?));
            needed[storage] = last.map(|call| first_run[call.node]);
        }
        // The call before which the newest copy of each storage was freed.
        let mut went: SecondaryMap<StorageId, Option<u32>> = SecondaryMap::new();
        let mut before: BTreeMap<u32, Gap> = BTreeMap::new();
        for (storage, held) in self.on_device() {
            let made_again = self
                .calls
                .get(held.first as usize)
                .is_some_and(|call| call.recomputed && call.node == held.node);
            if made_again && went[storage].is_some_and(|went| went < held.first) {
                let gap = before.entry(held.first).or_default();
                gap.absent += held.bytes;
                if needed[storage].is_none_or(|needed| held.first <= needed) {
                    gap.saved += held.bytes;
                }
            }
            went[storage] = held.end;
        }
        let mut gaps: SecondaryMap<NodeId, Gap> = SecondaryMap::new();
        for (call, Gap { absent, saved }) in before {
            let gap = &mut gaps[self.calls[call as usize].node];
            (gap.absent, gap.saved) = (gap.absent.max(absent), gap.saved.max(saved));
        }
        gaps
    }

    /// Storages on the device, in the order in which they appear there.
    fn on_device(&self) -> impl Iterator<Item = (StorageId, &Residency)> {
        let there = self.residencies.iter().filter(|held| held.tier == DEVICE);
        there.filter_map(|held| Some((held.storage?, held)))
    }
}

/// Bytes that are not held between a last use and the recomputation after it.
#[derive(Clone, Copy, Default)]
struct Gap {
    absent: Bytes,
    /// The part of them that the step as captured holds there.
    saved: Bytes,
}
