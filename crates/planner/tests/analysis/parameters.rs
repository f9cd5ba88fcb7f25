//! Which module owns which parameters. Invariant: owners are derived from paths and readers, node
//! by node.
//!
//! Tier: quick, since it takes less than a second.

use tightfit::analysis::modules::{measure, parameters};
use tightfit::analysis::{dataflow, passes};
use tightfit::graph::Phase;
use tightfit::id::NodeId;
use tightfit::units::Bytes;

use crate::fixtures::corpus::{self, GRAPHS, profile, step};
use crate::fixtures::oracle::passes::below;

#[test]
fn on_planning_graphs_parameters_belong_to_those_who_read_them() {
    for name in GRAPHS {
        let graph = corpus::graph(name);
        let flow = dataflow(&graph, &profile(&graph));
        let owners = parameters(&graph, &flow);
        let pass = passes(&graph, &graph.compute_nodes());
        let updates_buffer = |node: NodeId| {
            let persistent = |id: NodeId| graph.nodes()[id].phase.is_persistent();
            graph.mutated(node).iter().any(|&s| graph.producer(s).is_some_and(persistent))
        };
        let mut placed = 0;
        for (id, node) in graph.nodes() {
            if !matches!(node.phase, Phase::Parameter | Phase::Buffer) {
                assert_eq!(owners.module[id], flow.tree.of(node.module), "{name} {}", node.name);
                continue;
            }
            let readers = graph.compute_nodes().into_iter().filter(|&reader| {
                pass[reader].is_forward()
                    && !updates_buffer(reader)
                    && graph.reads(reader).iter().any(|s| graph.fresh(id).contains(s))
            });
            let readers: Vec<&str> = readers.map(|reader| graph.module_of(reader)).collect();
            let contains_all = |path: &str| readers.iter().all(|reader| below(reader, path));
            let owner = owners.module[id];
            let path = &flow.tree.branches()[owner].path;
            assert!(contains_all(path), "{name} {}: `{path}` of {readers:?}", node.name);
            if readers.is_empty() {
                assert_eq!(path, "", "{name} {}", node.name);
                continue;
            }
            let children =
                flow.tree.branches().values().filter(|branch| branch.parent == Some(owner));
            assert!(
                children.clone().all(|child| !contains_all(&child.path)),
                "{name} {}: `{path}` is not the lowest",
                node.name
            );
            placed += usize::from(!path.is_empty());
        }
        let all = graph.nodes().values().filter(|node| node.phase == Phase::Parameter).count();
        assert!(placed >= all, "{name}: {placed} of {all} parameters have a module");
    }
}

#[test]
fn what_a_file_says_of_a_parameter_stands() {
    let graph = step("gpt-nano");
    let flow = dataflow(&graph, &profile(&graph));
    let owners = parameters(&graph, &flow);
    for (id, node) in graph.nodes().iter().filter(|(_, node)| node.phase == Phase::Parameter) {
        let (module, _) = node.parameter.as_deref().unwrap().rsplit_once('.').unwrap();
        assert_eq!(flow.tree.branches()[owners.module[id]].path, module);
    }
}

#[test]
fn all_parameters_are_the_models_and_statistics_say_the_same() {
    for graph in GRAPHS.map(corpus::graph).into_iter().chain([step("gpt-nano"), step("mlp-digits")])
    {
        let flow = dataflow(&graph, &profile(&graph));
        let owners = parameters(&graph, &flow);
        let of = |(id, _): (NodeId, _)| -> Bytes {
            graph.fresh(id).iter().map(|&storage| graph.storages()[storage]).sum()
        };
        let all: Bytes =
            graph.nodes().iter().filter(|(_, node)| node.phase == Phase::Parameter).map(of).sum();
        assert_eq!(owners.bytes[flow.tree.root()], all, "{}", graph.name());
        let info = measure(&graph, &profile(&graph)).unwrap();
        let called = flow.tree.branches().iter().filter(|(_, branch)| branch.is_called);
        let called: Vec<_> = called.map(|(module, _)| module).collect();
        assert_eq!(called.len(), info.modules().len(), "{}", graph.name());
        for (module, stats) in called.into_iter().zip(info.modules().values()) {
            assert_eq!(owners.bytes[module], stats.parameters, "{} {}", graph.name(), stats.name);
        }
    }
}
