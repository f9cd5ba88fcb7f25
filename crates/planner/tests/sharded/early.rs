//! Gathers that begin early: the same runs, in the same order but for gathers, which come no later
//! than before, and as many bytes at most.

use tightfit::effort::{Effort, Meter};
use tightfit::graph::Graph;
use tightfit::id::NodeId;
use tightfit::operator::Operator;
use tightfit::plan::{Plan, Planner, base_order, gather_early, plan_within, simulate};
use tightfit::sharded::Sharded;
use tightfit::units::Bytes;

use crate::corpus::profile;
use crate::shard::{REDUCTIONS, shared};

fn gathers(graph: &Graph, node: NodeId) -> bool {
    graph.nodes()[node].operator == Some(Operator::AllGather)
}

#[test]
fn gathers_begin_early_where_there_is_room() {
    let mut earlier = 0;
    for reductions in REDUCTIONS {
        let (_, Sharded { graph, .. }) = shared(reductions, false);
        let profile = profile(&graph);
        let order = base_order(&graph, &profile);
        let peak = simulate(&graph, &profile, &order).curve.peak;
        for percent in [120, 80, 60, 50] {
            let budget = Bytes(peak.0 * percent / 100);
            let effort = Effort::work(1, 5_000);
            let mut meter = Meter::new(&effort);
            let found = plan_within(&graph, &profile, &order, budget, Planner::Auto, &mut meter);
            let found = found.unwrap();
            let early = gather_early(&graph, &profile, &found, budget);
            let (before, after) = (found.runs(), early.runs());
            assert!(simulate(&graph, &profile, &after).curve.peak <= budget);
            let others = |runs: &[NodeId]| -> Vec<NodeId> {
                runs.iter().copied().filter(|&node| !gathers(&graph, node)).collect()
            };
            assert_eq!(others(&before), others(&after));
            // The calls before each gather, by its node and how often it ran before.
            let places = |runs: &[NodeId]| {
                let mut calls = 0;
                let mut places: Vec<(NodeId, usize)> = Vec::new();
                for &node in runs {
                    match gathers(&graph, node) {
                        true => places.push((node, calls)),
                        false => calls += 1,
                    }
                }
                places.sort();
                places
            };
            let (before, after) = (places(&before), places(&after));
            assert_eq!(before.len(), after.len());
            for ((node, was), (same, is)) in before.into_iter().zip(after) {
                assert!(node == same && is <= was, "{node}: {was}, then {is}");
                earlier += usize::from(is < was);
            }
        }
    }
    assert!(earlier > 20, "{earlier}");
}

/// With no room at all nothing moves, and neither does anything in a step that nobody shares.
#[test]
fn without_room_or_ranks_a_plan_stays_as_it_is() {
    let (whole, Sharded { graph, .. }) = shared(REDUCTIONS[0], false);
    for (graph, budget) in [(&graph, Bytes(1)), (&whole, Bytes::LIMIT)] {
        let profile = profile(graph);
        let found = Plan::of_runs(Planner::None, base_order(graph, &profile));
        assert_eq!(gather_early(graph, &profile, &found, budget), found);
    }
}
