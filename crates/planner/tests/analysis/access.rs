//! Capuchin's profile: lives, idle seconds, swapping, the peak interval. Invariant: the oracle
//! evaluates the definitions for each node and each run, and shares no code with the analysis.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.

use proptest::prelude::*;
use tightfit::analysis::{MemoryCurve, PeakInterval, Sequence, access_profile, held, passes};
use tightfit::graph::{Graph, Phase};
use tightfit::id::{NodeId, StorageId};
use tightfit::machine::{Hierarchy, Lane, Link, Tier};
use tightfit::profile::Profile;
use tightfit::units::{Bytes, Seconds};

use crate::fixtures::corpus::{self, GRAPHS, profile};
use crate::fixtures::generator;
use crate::fixtures::generator::dag::{self, Freedoms};
use crate::fixtures::oracle::passes::phases;

/// The device, a host and a disk; the disk's lanes are slow.
fn tiers() -> Hierarchy {
    let mut hierarchy = Hierarchy::default();
    let device = hierarchy.tiers.keys().next().unwrap();
    for (name, bandwidth, latency) in [("disk", 1e6, 1e-3), ("host", 4e6, 1e-6)] {
        let tier =
            hierarchy.tiers.push(Tier { name: name.to_string(), capacity: None, block: Bytes(1) });
        for (from, to) in [(device, tier), (tier, device)] {
            let link = Link { latency: Seconds(latency), bandwidth };
            hierarchy.lanes.push(Lane { from, to, link });
        }
    }
    hierarchy
}

fn agrees_with_the_oracle(graph: &Graph, profile: &Profile, name: &str) {
    let profile = profile.clone().without_reuse();
    let profile = Profile { hierarchy: tiers(), ..profile };
    let order = graph.compute_nodes();
    let curve = held(graph, &profile, &Sequence::from(&order));
    let budget = Bytes(curve.peak.0 / 2);
    let rows = access_profile(graph, &profile, &order, &curve, Some(budget));
    let pass = phases(graph);
    let is_forward =
        |node: NodeId| matches!(pass[node.as_u32() as usize], Phase::Forward | Phase::Loss);
    let of = |value| graph.values()[value].storage;
    let end = |rank: usize| order[..=rank].iter().map(|&node| profile.seconds[node].0).sum::<f64>();
    let rank_of = |node: NodeId| order.iter().position(|&other| other == node);
    for (id, node) in graph.nodes() {
        let row = &rows[id];
        let read: Vec<StorageId> = node.inputs.iter().map(|&value| of(value)).collect();
        let made: Vec<StorageId> = graph
            .storages()
            .keys()
            .filter(|storage| {
                let shown = node.outputs.iter().flatten().any(|&value| of(value) == *storage);
                shown && !read.contains(storage)
            })
            .collect();
        assert_eq!(row.rank.map(|rank| rank as usize), rank_of(id), "{name} `{}`", node.name);
        let bytes: Bytes = made.iter().map(|&storage| graph.storages()[storage]).sum();
        assert_eq!(row.output, bytes, "{name} `{}`", node.name);
        let readers: Vec<usize> = (0..order.len())
            .filter(|&rank| {
                let mut inputs = graph.nodes()[order[rank]].inputs.iter();
                inputs.any(|&value| made.contains(&of(value)))
            })
            .collect();

        let outlives = made.iter().any(|&storage| {
            node.phase.is_persistent() || graph.outputs().iter().any(|&value| of(value) == storage)
        });
        let last = match outlives {
            true => order.len().saturating_sub(1),
            false => readers.last().copied().or(rank_of(id)).unwrap_or(0),
        };
        let life =
            row.life.map(|life| (life.birth.map(|birth| birth as usize), life.death as usize));
        assert_eq!(
            life,
            (!made.is_empty()).then_some((rank_of(id), last)),
            "{name} `{}`",
            node.name
        );

        let behind = readers.iter().copied().find(|&rank| !is_forward(order[rank]));
        let accesses = readers.iter().copied().chain(rank_of(id));
        let before = accesses
            .filter(|&rank| is_forward(order[rank]) && behind.is_some_and(|behind| rank < behind))
            .max();
        let idle = behind
            .zip(before)
            .map(|(behind, before)| end(behind) - profile.seconds[order[behind]].0 - end(before));
        let is_close = match (row.idle, idle) {
            (Some(found), Some(right)) => (found.0 - right).abs() < 1e-9,
            (found, right) => found.is_none() && right.is_none(),
        };
        assert!(is_close, "{name} `{}`: {:?} {idle:?}", node.name, row.idle);

        let both_ways = 2.0 * (1e-6 + bytes.0 as f64 / 4e6);
        let swap = (bytes > Bytes::ZERO).then_some(both_ways);
        assert_eq!(row.swap.is_some(), swap.is_some(), "{name} `{}`", node.name);
        assert!((row.swap.unwrap_or_default().0 - swap.unwrap_or_default()).abs() < 1e-12);
        assert_eq!(
            row.in_peak_interval,
            rank_of(id).is_some_and(|rank| curve.held[rank] > budget),
            "{name} `{}`",
            node.name
        );
    }
}

#[test]
fn lives_and_idle_seconds_of_a_real_model() {
    // The capture of MobileNet has 21 backward nodes that run in the forward pass.
    let graph = corpus::graph("mobilenet_v3_large_b64");
    let (order, profile) = (graph.compute_nodes(), profile(&graph));
    let pass = passes(&graph, &order);
    let nodes = graph.nodes();
    let moved: Vec<NodeId> = nodes.keys().filter(|&id| nodes[id].phase != pass[id]).collect();
    assert_eq!(moved.len(), 21);
    let curve = held(&graph, &profile, &Sequence::from(&order));
    let rows = access_profile(&graph, &profile, &order, &curve, None);
    for copy in moved {
        // Their outputs wait for the backward pass; their inputs do not.
        assert!(rows[copy].idle > Some(Seconds(0.0)), "{}", nodes[copy].name);
    }
    assert!(rows.values().all(|row| row.swap.is_none()), "no lane leads out of the device");
    let marked = rows.values().filter(|row| row.in_peak_interval);
    assert!(marked.clone().count() > 0 && marked.clone().all(|row| row.active == curve.peak));
}

#[test]
fn steps_equal_their_definition() {
    for name in ["gpt-nano-dropout", "mlp-digits"] {
        let graph = corpus::step(name);
        agrees_with_the_oracle(&graph, &profile(&graph), name);
    }
}

#[test]
fn peak_intervals_are_where_the_budget_is_exceeded() {
    let curve = |held: &[u64]| {
        let held: Vec<Bytes> = held.iter().map(|&bytes| Bytes(bytes)).collect();
        let peak = held.iter().copied().max().unwrap_or_default();
        let at = held.iter().position(|&bytes| bytes == peak).unwrap_or(0);
        MemoryCurve { held, peak, at }
    };
    let interval = |first, last, at, held| PeakInterval { first, last, at, held: Bytes(held) };
    let steep = curve(&[3, 5, 9, 9, 4, 6, 2, 7]);
    assert_eq!(
        steep.above(Bytes(4)),
        [interval(1, 3, 2, 9), interval(5, 5, 5, 6), interval(7, 7, 7, 7)]
    );
    assert_eq!(steep.above(Bytes(8)), [interval(2, 3, 2, 9)]);
    assert_eq!(steep.above(Bytes(9)), []);
    assert_eq!(steep.above(Bytes::ZERO), [interval(0, 7, 2, 9)]);
    assert_eq!(curve(&[]).above(Bytes::ZERO), []);
}

#[test]
fn intervals_hold_what_the_rows_mark() {
    for name in GRAPHS {
        let graph = corpus::graph(name);
        let (order, profile) = (graph.compute_nodes(), profile(&graph));
        let curve = held(&graph, &profile, &Sequence::from(&order));
        let budget = Bytes(curve.peak.0 / 10 * 7);
        let rows = access_profile(&graph, &profile, &order, &curve, Some(budget));
        let intervals = curve.above(budget);
        for (rank, &node) in (0..).zip(&order) {
            let over = intervals.iter().filter(|over| over.first <= rank && rank <= over.last);
            assert_eq!(over.count(), usize::from(rows[node].in_peak_interval), "{name} {rank}");
        }
        assert_eq!(intervals.iter().map(|over| over.held).max(), Some(curve.peak), "{name}");
    }
}

proptest! {
    #![proptest_config(tightfit_testing::config(200))]

    #[test]
    fn random_steps_equal_their_definition(recipe in generator::recipes(20)) {
        let graph = recipe.graph();
        for profile in generator::profiles(&graph) {
            agrees_with_the_oracle(&graph, &profile, "random");
        }
    }

    #[test]
    fn random_graphs_equal_their_definition(seed in any::<u64>(), writes: bool, uneven: bool) {
        let graph = dag::graph(seed, 30, Freedoms { writes, uneven });
        for profile in generator::profiles(&graph) {
            agrees_with_the_oracle(&graph, &profile, "random");
        }
    }
}
