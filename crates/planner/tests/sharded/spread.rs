//! More time for collectives: the same runs, each kind in the same order, gathers no later and runs
//! that wait for gradients no earlier than before, and at most the same number of bytes.
//!
//! Tier: quick, since it takes less than a second.

use std::collections::BTreeMap;

use tightfit::analysis::Sequence;
use tightfit::effort::{Effort, Meter};
use tightfit::graph::Graph;
use tightfit::id::{NodeId, ValueId};
use tightfit::operator::Operator;
use tightfit::plan::{Instance, Planner, base_order, plan_within, simulate, spread};
use tightfit::sharded::Sharded;
use tightfit::units::Bytes;

use crate::fixtures::corpus::profile;
use crate::sharded::shard::{REDUCTIONS, shared};

/// The role of a node with respect to collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Gathers,
    /// It needs an exchanged gradient, or something made from one.
    Waits,
    Other,
}

fn kinds(graph: &Graph) -> BTreeMap<NodeId, Kind> {
    let mut kinds: BTreeMap<NodeId, Kind> = BTreeMap::new();
    for (id, node) in graph.nodes() {
        let waits = |&value: &ValueId| kinds[&graph.values()[value].producer] == Kind::Waits;
        let kind = match node.operator {
            Some(Operator::AllGather) => Kind::Gathers,
            Some(Operator::MeanPieces) => Kind::Waits,
            _ if node.inputs.iter().any(waits) => Kind::Waits,
            _ => Kind::Other,
        };
        kinds.insert(id, kind);
    }
    kinds
}

/// The runs of a kind, each with the number of other runs before it.
fn of_kind(runs: &[NodeId], kinds: &BTreeMap<NodeId, Kind>, kind: Kind) -> Vec<(NodeId, usize)> {
    let (mut others, mut found) = (0, Vec::new());
    for &node in runs {
        if kinds[&node] == kind {
            found.push((node, others));
        }
        others += usize::from(kinds[&node] == Kind::Other);
    }
    found
}

#[test]
fn collectives_have_room_where_there_is_some() {
    let (mut earlier, mut later) = (0, 0);
    for reductions in REDUCTIONS {
        let (_, Sharded { graph, .. }) = shared(reductions);
        let (profile, kinds) = (profile(&graph), kinds(&graph));
        let order = base_order(&graph, &profile);
        let instance = Instance::new(&graph, &profile, &order);
        let peak = simulate(&graph, &profile, &Sequence::from(&order)).curve.peak;
        for percent in [120, 80, 60, 50] {
            let budget = Bytes(peak.0 * percent / 100);
            let effort = Effort::work(1, 5_000);
            let mut meter = Meter::new(&effort);
            let found = plan_within(instance, budget, Planner::Auto, &mut meter);
            let before = found.unwrap();
            let after = spread(instance, &before, budget).runs();
            assert!(simulate(&graph, &profile, &Sequence::from(&after)).curve.peak <= budget);
            let before = before.runs();
            let of = |runs: &[NodeId], kind| of_kind(runs, &kinds, kind);
            assert_eq!(of(&before, Kind::Other), of(&after, Kind::Other));
            // Gathers may overtake each other; runs that wait may not.
            let (mut was, mut is) = (of(&before, Kind::Gathers), of(&after, Kind::Gathers));
            was.sort();
            is.sort();
            assert_eq!(was.len(), is.len());
            for (was, is) in was.into_iter().zip(is) {
                assert!(was.0 == is.0 && is.1 <= was.1, "{was:?}, then {is:?}");
                earlier += usize::from(is.1 < was.1);
            }
            let (was, is) = (of(&before, Kind::Waits), of(&after, Kind::Waits));
            assert_eq!(was.len(), is.len());
            for (was, is) in was.into_iter().zip(is) {
                assert!(was.0 == is.0 && is.1 >= was.1, "{was:?}, then {is:?}");
                later += usize::from(is.1 > was.1);
            }
        }
    }
    assert!(earlier > 20 && later > 20, "{earlier} earlier, {later} later");
}

/// With no memory to spare nothing moves, nor does anything in a step without other ranks.
#[test]
fn without_room_or_ranks_a_plan_stays_as_it_is() {
    let (whole, Sharded { graph, .. }) = shared(REDUCTIONS[0]);
    for (graph, budget) in [(&graph, Bytes(1)), (&whole, Bytes::LIMIT)] {
        let profile = profile(graph);
        let order = base_order(graph, &profile);
        let instance = Instance::new(graph, &profile, &order);
        let found = instance.unplanned(Planner::None);
        assert_eq!(spread(instance, &found, budget), found);
    }
}
