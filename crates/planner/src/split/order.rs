//! The order in which a step with parts in chunks is written. Invariant: what a call reads is there
//! by then, in the version that it read; calls that keep their order still do; and apart from that,
//! calls are in the order of the step, with each side of a part in place of its last call.

use std::collections::BTreeSet;

use cranelift_entity::SecondaryMap;

use crate::graph::Graph;
use crate::id::{NodeId, StorageId};

/// Why there is no such order: a side of this part would be before and after this call.
#[derive(Debug, PartialEq)]
pub struct Cycle {
    pub part: usize,
    pub node: NodeId,
}

/// The order of all calls. Those of a side, which is of some part, come together, and are
/// represented by the last one of them.
pub fn order(graph: &Graph, sides: &[(usize, &[NodeId])]) -> Result<Vec<NodeId>, Cycle> {
    let mut last_of: SecondaryMap<NodeId, Option<NodeId>> = SecondaryMap::new();
    for (_, side) in sides {
        side.iter().for_each(|&id| last_of[id] = side.last().copied());
    }
    let item = |id: NodeId| last_of[id].unwrap_or(id);
    let mut followers: SecondaryMap<NodeId, Vec<NodeId>> = SecondaryMap::new();
    let mut waits_for: SecondaryMap<NodeId, usize> = SecondaryMap::new();
    each_dependence(graph, |before, after| {
        let (before, after) = (item(before), item(after));
        if before != after {
            followers[before].push(after);
            waits_for[after] += 1;
        }
    });
    let mut waiting: BTreeSet<NodeId> = graph.nodes().keys().map(item).collect();
    let is_ready = |id: &NodeId| waits_for[*id] == 0;
    let mut ready: BTreeSet<NodeId> = waiting.iter().copied().filter(is_ready).collect();
    let mut order = Vec::with_capacity(waiting.len());
    while let Some(next) = ready.pop_first() {
        waiting.remove(&next);
        order.push(next);
        for &follower in &followers[next] {
            waits_for[follower] -= 1;
            if waits_for[follower] == 0 {
                ready.insert(follower);
            }
        }
    }
    let is_waiting =
        |(_, side): &&(usize, &[NodeId])| side.last().is_some_and(|it| waiting.contains(it));
    match sides.iter().rev().find(is_waiting) {
        None => Ok(order),
        Some(&(part, _)) => {
            let keeps_place =
                |id: &&NodeId| graph.nodes()[**id].mutates || graph.nodes()[**id].stream;
            let node = waiting.iter().find(keeps_place).or(waiting.first());
            Err(Cycle { part, node: *node.expect("a side waits") })
        }
    }
}

/// Calls `found` for each two calls of which one has to come after the other: it reads what that
/// makes, changes what that reads, or both keep their order.
fn each_dependence(graph: &Graph, mut found: impl FnMut(NodeId, NodeId)) {
    let mut readers: SecondaryMap<StorageId, Vec<NodeId>> = SecondaryMap::new();
    let mut stream = None;
    for (id, node) in graph.nodes() {
        for &input in &node.inputs {
            let value = &graph.values()[input];
            found(value.producer, id);
            readers[value.storage].push(id);
        }
        for &storage in graph.mutated(id) {
            let before = std::mem::take(&mut readers[storage]).into_iter();
            before.filter(|&before| before != id).for_each(|before| found(before, id));
        }
        if node.stream
            && let Some(before) = stream.replace(id)
        {
            found(before, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use cranelift_entity::EntityRef;

    use super::*;
    use crate::graph::{GraphBuilder, NodeSpec, Phase, ValueSpec};
    use crate::id::ValueId;
    use crate::tensor::DType;
    use crate::units::Bytes;

    /// A graph of calls that read what those of these numbers made; one with a mark changes the
    /// first of these.
    fn graph(calls: &[(&[usize], bool)]) -> Graph {
        let mut builder = GraphBuilder::new("calls");
        let mut made = Vec::new();
        for (number, &(reads, mutates)) in calls.iter().enumerate() {
            let storage = match (mutates, reads) {
                (true, &[changed, ..]) => made[changed],
                _ => (builder.storage(Bytes(4)), number),
            };
            let inputs = reads.iter().map(|&read| ValueId::new(made[read].1)).collect();
            let spec = NodeSpec {
                inputs,
                mutates,
                ..NodeSpec::new(format!("call{number}"), "test.call", Phase::Forward)
            };
            builder.node(spec, &[Some(ValueSpec::contiguous(&[1], DType::F32, storage.0))]);
            made.push((storage.0, number));
        }
        builder.build().unwrap()
    }

    /// The order with each side in place of its last call.
    fn ordered(
        calls: &[(&[usize], bool)],
        sides: &[&[usize]],
    ) -> Result<Vec<usize>, (usize, usize)> {
        let ids = |side: &&[usize]| side.iter().map(|&id| NodeId::new(id)).collect::<Vec<_>>();
        let sides: Vec<Vec<NodeId>> = sides.iter().map(ids).collect();
        let sides: Vec<(usize, &[NodeId])> =
            sides.iter().enumerate().map(|(part, side)| (part, &side[..])).collect();
        match order(&graph(calls), &sides) {
            Ok(order) => Ok(order.into_iter().map(EntityRef::index).collect()),
            Err(Cycle { part, node }) => Err((part, node.index())),
        }
    }

    #[test]
    fn calls_come_before_a_side_unless_they_follow_from_it() {
        let calls: &[(&[usize], bool)] = &[
            (&[], false),
            (&[0], false),
            (&[0], false),
            (&[1], false),
            (&[1], false),
            (&[3], false),
        ];
        assert_eq!(ordered(calls, &[]), Ok(vec![0, 1, 2, 3, 4, 5]));
        assert_eq!(ordered(calls, &[&[1, 4]]), Ok(vec![0, 2, 4, 3, 5]));
        assert_eq!(ordered(calls, &[&[1, 4], &[2, 5]]), Ok(vec![0, 4, 3, 5]));
    }

    #[test]
    fn what_is_changed_is_read_before_and_after_as_in_the_step() {
        // Call 2 changes what call 1 and call 3 read.
        let calls: &[(&[usize], bool)] =
            &[(&[], false), (&[0], false), (&[0], true), (&[2], false), (&[1], false)];
        assert_eq!(ordered(calls, &[&[1, 4]]), Ok(vec![0, 4, 2, 3]));
        assert_eq!(ordered(calls, &[&[3, 4]]), Ok(vec![0, 1, 2, 4]));
        assert_eq!(ordered(calls, &[&[1, 3]]), Err((0, 2)));
        assert_eq!(ordered(calls, &[&[0, 1], &[3, 4]]), Ok(vec![1, 2, 4]));
    }

    #[test]
    fn of_two_parts_that_need_each_other_the_last_one_is_refused() {
        let calls: &[(&[usize], bool)] =
            &[(&[], false), (&[0], false), (&[0], false), (&[1], false), (&[2], false)];
        assert_eq!(ordered(calls, &[&[1, 4], &[2, 3]]), Err((1, 3)));
        assert_eq!(ordered(calls, &[&[1, 3], &[2, 4]]), Ok(vec![0, 3, 4]));
    }
}
