//! Modules that are never called have no statistics, so no plan names one. Invariant: which modules
//! are called is derived here from the names alone, without asking the code.
//!
//! Tier: quick with a part of the cases, 8 s; full with all of them.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tightfit::analysis::modules::{ModuleInfo, measure};
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::machine::Link;
use tightfit::plan::SolverLimits;
use tightfit::plan::modules::{
    ModulePlanError, SelectiveTask, ShardTask, ShardVariant, selective, shard,
};
use tightfit::tensor::{Argument, DType};
use tightfit::units::{Bytes, Seconds};
use tightfit_testing::first;

use crate::fixtures::corpus::{self, GRAPHS, profile};

/// A model: its modules except the root, each below the root or below an earlier one, and the nodes
/// that run in each.
#[derive(Clone, Debug)]
struct Recipe {
    /// Index of the parent, 0 for the root; a path component; whether it is called.
    modules: Vec<(usize, &'static str, bool)>,
    /// Index of the module, 0 for the root, and bytes of the output.
    nodes: Vec<(usize, u64)>,
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let component = prop::sample::select(vec!["layers", "mlp", "0", "1", "10", "h"]);
    let module = (0usize..100, component, prop::bool::weighted(0.6));
    let node = (0usize..100, 1u64..1000);
    (prop::collection::vec(module, 1..12), prop::collection::vec(node, 1..16)).prop_map(
        |(mut modules, nodes)| {
            for (at, module) in modules.iter_mut().enumerate() {
                module.0 %= at + 1;
            }
            Recipe { modules, nodes }
        },
    )
}

impl Recipe {
    /// The path of each module, the root's first, and the set of those that are called.
    fn paths(&self) -> (Vec<String>, BTreeSet<String>) {
        let mut paths = vec![String::new()];
        let mut called = BTreeMap::from([(String::new(), true)]);
        for &(above, component, is_called) in &self.modules {
            let path = format!("{}.{component}", paths[above]).trim_matches('.').to_string();
            // The same path twice is the same module.
            *called.entry(path.clone()).or_default() |= is_called;
            paths.push(path);
        }
        let called = called.into_iter().filter(|&(_, called)| called);
        (paths, called.map(|(path, _)| path).collect())
    }

    /// A chain of nodes, each of which saves its output for the backward pass.
    fn graph(&self) -> Graph {
        let (paths, called) = self.paths();
        let mut builder = GraphBuilder::new("model");
        let modules: Vec<_> = called.iter().map(|path| builder.module(path.as_str())).collect();
        let uncalled = paths.iter().filter(|path| !called.contains(*path)).cloned();
        let uncalled: BTreeSet<String> = uncalled.collect();
        builder.uncalled(uncalled.into_iter().collect());
        let value = |builder: &mut GraphBuilder, bytes: u64| {
            Some(ValueSpec::contiguous(&[bytes], DType::U8, builder.storage(Bytes(bytes))))
        };
        let spec = value(&mut builder, 8);
        let mut last = builder.node(NodeSpec::new("x", "placeholder", Phase::Input), &[spec])[0];
        let mut made = vec![];
        for (index, &(module, bytes)) in self.nodes.iter().enumerate() {
            let mut spec = NodeSpec::new(format!("forward_{index}"), "op", Phase::Forward);
            spec.module = modules[module % modules.len()];
            (spec.inputs, spec.args) = (vec![last], vec![Argument::Value(last)]);
            spec.seconds = Some(Seconds(bytes as f64 * 1e-6));
            let output = value(&mut builder, bytes);
            last = builder.node(spec, &[output])[0];
            made.push((modules[module % modules.len()], last));
        }
        for (index, (module, saved)) in made.into_iter().enumerate().rev() {
            let mut spec = NodeSpec::new(format!("backward_{index}"), "op", Phase::Backward);
            spec.module = module;
            spec.inputs = if last == saved { vec![saved] } else { vec![saved, last] };
            spec.seconds = Some(Seconds(1e-3));
            let output = value(&mut builder, 8);
            last = builder.node(spec, &[output])[0];
        }
        builder.output(last);
        builder.build().unwrap()
    }
}

/// Checks that plans may name exactly the modules that are called; each is attached to the nearest
/// of them above.
fn only_called(info: &ModuleInfo, root: &str, called: &BTreeSet<String>) {
    let name = |path: &str| format!("{root}.{path}").trim_matches('.').to_string();
    let expected: BTreeSet<String> = called.iter().map(|path| name(path)).collect();
    let names: BTreeSet<String> = info.modules().values().map(|stats| stats.name.clone()).collect();
    assert_eq!(names, expected);
    for (module, stats) in info.modules() {
        let above = stats.name.rmatch_indices('.').map(|(at, _)| &stats.name[..at]);
        let nearest = above.into_iter().find(|above| expected.contains(*above));
        let parent = info.parent(module).map(|parent| info.modules()[parent].name.as_str());
        assert_eq!(parent, nearest, "{}", stats.name);
    }
}

/// Every unit that `sac` and `shard` choose at some budgets.
fn chosen(info: &ModuleInfo, shares: &[f64]) -> Vec<String> {
    let limits = SolverLimits { gap: 0.02, seconds: None };
    let name = |module| info.modules()[module].name.clone();
    let mut chosen = vec![];
    for share in shares {
        let budget = Bytes((info.baseline_peak().0 as f64 * share) as u64);
        let task = SelectiveTask { budget, world_size: 1, allowed: None, sharded: vec![], limits };
        match selective(info, &task) {
            Ok(plan) => chosen.extend(plan.units.iter().map(|unit| name(unit.module))),
            Err(ModulePlanError::Infeasible(proof)) => chosen.push(proof.module.clone()),
            Err(other) => panic!("{other}"),
        }
        let link = Link { latency: Seconds(1e-5), bandwidth: 1e11 };
        let task = ShardTask {
            budget,
            world_size: 4,
            all_gather: link,
            reduce_scatter: link,
            variant: ShardVariant::Ours,
            units: None,
            checkpointing: true,
            host: None,
            limits: SolverLimits { gap: 0.1, ..limits },
        };
        match shard(info, &task) {
            Ok(plan) => {
                chosen.extend(plan.units.iter().map(|unit| name(unit.module)));
                chosen.extend(plan.checkpointed.iter().map(|unit| name(unit.module)));
            }
            Err(ModulePlanError::Infeasible(proof)) => chosen.push(proof.module.clone()),
            Err(other) => panic!("{other}"),
        }
    }
    chosen
}

proptest! {
    #![proptest_config(tightfit_testing::config(200))]

    #[test]
    fn plans_name_modules_that_are_called(recipe in recipes()) {
        let (graph, (_, called)) = (recipe.graph(), recipe.paths());
        let info = measure(&graph, &profile(&graph)).unwrap();
        only_called(&info, "model", &called);
        for unit in chosen(&info, &[0.3, 0.6, 0.9]) {
            let path = unit.trim_start_matches("model").trim_start_matches('.');
            prop_assert!(called.contains(path), "{}", unit);
        }
        // And what is written reads back the same.
        let written = info.to_json();
        prop_assert_eq!(ModuleInfo::from_json(written.as_bytes()).unwrap().to_json(), written);
    }
}

#[test]
fn lists_of_layers_in_the_seven_graphs_are_no_modules() {
    for name in first(2, &GRAPHS) {
        let graph = corpus::graph(name);
        assert_eq!(graph.uncalled(), None, "{name}: the rule for graphs that do not say");
        let named: BTreeSet<&str> = graph.modules().values().map(String::as_str).collect();
        let mut called: BTreeSet<String> = BTreeSet::from([String::new()]);
        let mut lists = 0;
        for path in &named {
            called.insert(path.to_string());
            for above in path.match_indices('.').map(|(at, _)| &path[..at]) {
                let below = |other: &&&str| other.starts_with(&format!("{above}."));
                let numbered = named.iter().filter(below).all(|other| {
                    let child = other[above.len() + 1..].split('.').next().unwrap();
                    child.bytes().all(|byte| byte.is_ascii_digit())
                });
                if named.contains(above) || !numbered {
                    called.insert(above.to_string());
                } else {
                    lists += 1;
                }
            }
        }
        assert!(lists > 0, "{name}: every one of them has a list");
        let info = measure(&graph, &profile(&graph)).unwrap();
        only_called(&info, name, &called);
        for unit in chosen(&info, &[0.65]) {
            assert!(called.contains(unit[name.len()..].trim_start_matches('.')), "{unit}");
        }
    }
}
