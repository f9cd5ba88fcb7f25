//! Plans as graphs. Invariant: what a rewritten graph computes is judged by symbolic execution,
//! which shares no code with the rewriting, and what it holds by the bytes of its own nodes.
//!
//! Tier: quick with a part of the cases, 2 s; full with all of them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tightfit::analysis::Sequence;
use tightfit::effort::Effort;
use tightfit::graph::{self, Graph, Phase};
use tightfit::id::{StorageId, ValueId};
use tightfit::plan::{Instance, Planner, RewriteError, base_order, plan, rewrite, simulate};
use tightfit::profile::Profile;
use tightfit::tensor::Argument;
use tightfit::units::Bytes;
use tightfit::{FitError, Goal, Request};

use crate::fixtures::{corpus, generator};

/// Every value as a term over placeholders; equal terms have equal numbers.
#[derive(Default)]
struct Terms {
    known: BTreeMap<String, usize>,
}

impl Terms {
    fn number(&mut self, term: String) -> usize {
        let next = self.known.len();
        *self.known.entry(term).or_insert(next)
    }

    /// The terms of the outputs, and those left in each persistent placeholder.
    fn of(&mut self, graph: &Graph) -> (Vec<usize>, BTreeMap<String, usize>) {
        let mut value: BTreeMap<ValueId, usize> = BTreeMap::new();
        let mut contents: BTreeMap<StorageId, usize> = BTreeMap::new();
        for node in graph.nodes().values() {
            fn argument(argument: &Argument, value: &BTreeMap<ValueId, usize>) -> String {
                match argument {
                    Argument::Value(id) => format!("v{}", value[id]),
                    Argument::List(list) => {
                        list.iter().map(|item| argument_text(item, value)).collect()
                    }
                    other => format!("{other:?};"),
                }
            }
            fn argument_text(item: &Argument, value: &BTreeMap<ValueId, usize>) -> String {
                format!("[{}]", argument(item, value))
            }
            let mut call = match node.phase.is_placeholder() {
                true => node.name.clone(),
                false => format!("{} {:?} ", node.op, node.seed_slot),
            };
            node.args.iter().for_each(|item| call += &argument_text(item, &value));
            node.kwargs.iter().for_each(|(key, item)| {
                call += key;
                call += &argument_text(item, &value);
            });
            node.inputs.iter().for_each(|input| call += &format!(" {}", value[input]));
            for (position, output) in node.outputs.iter().enumerate() {
                let Some(output) = *output else { continue };
                let tensor = &graph.values()[output].tensor;
                let made = self.number(format!("{call} -> {position} {tensor:?}"));
                value.insert(output, made);
                if node.mutates || node.phase.is_placeholder() {
                    contents.insert(graph.values()[output].storage, made);
                }
            }
        }
        let left = graph.placeholder_storages().filter_map(|(placeholder, storage)| {
            let node = &graph.nodes()[placeholder];
            node.phase.is_persistent().then(|| (node.name.clone(), contents[&storage]))
        });
        (graph.outputs().iter().map(|output| value[output]).collect(), left.collect())
    }
}

/// Checks everything that a rewritten graph promises. Returns how many nodes it recomputes.
fn keeps_its_promises(
    graph: &Graph,
    profile: &Profile,
    profile_of: impl Fn(&Graph) -> Profile,
    runs: &[tightfit::id::NodeId],
) -> Result<usize, TestCaseError> {
    let rewritten = match rewrite(graph, profile, &Sequence::from(runs)) {
        Ok(rewritten) => rewritten.graph,
        // An output of a computing node that lies in an input: no real operator has that.
        Err(RewriteError::Shown { shows, .. }) => {
            let shows = graph.node_named(&shows).unwrap();
            prop_assert!(!graph.fresh(shows).is_empty() && !graph.is_view(shows));
            return Ok(0);
        }
        Err(error) => panic!("{error}"),
    };
    let mut terms = Terms::default();
    prop_assert_eq!(terms.of(graph), terms.of(&rewritten));

    let planned = simulate(graph, profile, &Sequence::from(runs));
    let order = rewritten.compute_nodes();
    let own = simulate(&rewritten, &profile_of(&rewritten), &Sequence::from(&order));
    prop_assert_eq!(&own.curve, &planned.curve);
    prop_assert_eq!(own.seconds, planned.seconds);

    let again = order.iter().filter(|&&node| rewritten.nodes()[node].recomputes.is_some()).count();
    prop_assert_eq!(again, runs.len() - graph.compute_nodes().len());
    for (&node, &run) in order.iter().zip(runs) {
        let (own, original) = (&rewritten.nodes()[node], &graph.nodes()[run]);
        match own.recomputes {
            None => prop_assert_eq!(&own.name, &original.name),
            Some(first) => prop_assert_eq!(&rewritten.nodes()[first].name, &original.name),
        }
    }
    let text = graph::write(&rewritten).to_string();
    prop_assert_eq!(&graph::read(text.as_bytes()).unwrap(), &rewritten);
    // Rewriting a second time changes nothing.
    let sequence = Sequence::from(&order);
    let twice = rewrite(&rewritten, &profile_of(&rewritten), &sequence).unwrap().graph;
    prop_assert_eq!(terms.of(graph), terms.of(&twice));
    prop_assert_eq!(twice.nodes().len(), rewritten.nodes().len());
    Ok(again)
}

proptest! {
    #![proptest_config(tightfit_testing::config(25))]

    #[test]
    fn a_rewritten_graph_is_the_plan(graph in generator::graphs(24)) {
        for (at, profile) in generator::profiles(&graph).into_iter().enumerate() {
            let profile_of =
                |rewritten: &Graph| generator::profiles(rewritten).into_iter().nth(at).unwrap();
            let order = base_order(&graph, &profile);
            let instance = Instance::new(&graph, &profile, &order);
            keeps_its_promises(&graph, &profile, profile_of, &graph.compute_nodes())?;
            let peak = simulate(&graph, &profile, &Sequence::from(&order)).curve.peak.0 as f64;
            for planner in [Planner::Chen, Planner::Capuchin, Planner::Xla, Planner::Dtr] {
                for share in [0.9, 0.7, 0.0] {
                    let budget = Bytes((share * peak) as u64);
                    let plan = match plan(instance, budget, planner) {
                        Ok(plan) => plan,
                        Err(tightfit::plan::PlanError::Infeasible(proof)) => proof.plan,
                        Err(error) => panic!("{error}"),
                    };
                    keeps_its_promises(&graph, &profile, profile_of, &plan.runs())?;
                }
            }
            for share in [0.85, 0.7] {
                let request = Request {
                    goal: Goal::Within(Bytes((share * peak) as u64)),
                    effort: Effort::work(1, 3_000),
                    ..Request::default()
                };
                match tightfit::fit(&graph, &profile, &request) {
                    Ok(fitted) => {
                        let runs = fitted.schedule().runs();
                        keeps_its_promises(&graph, &profile, profile_of, &runs)?;
                    }
                    Err(FitError::Plan(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

#[test]
fn graphs_of_real_models() {
    let names = corpus::GRAPHS.into_iter().filter(|name| !name.contains("medium"));
    let steps = ["gpt-nano-dropout", "mlp-digits"].map(corpus::step);
    let mut recomputed = 0;
    for graph in names.map(corpus::graph).chain(steps) {
        let profile = corpus::profile(&graph);
        let (peak, fixed) = (
            simulate(&graph, &profile, &Sequence::from(&graph.compute_nodes())).curve.peak.0,
            graph.static_bytes().0,
        );
        let request = Request {
            goal: Goal::Within(Bytes(fixed + (peak - fixed) * 6 / 10)),
            effort: Effort::work(1, 100_000),
            ..Request::default()
        };
        let fitted = tightfit::fit(&graph, &profile, &request).unwrap();
        let runs = fitted.schedule().runs();
        recomputed += keeps_its_promises(&graph, &profile, corpus::profile, &runs).unwrap();
        let rewritten = rewrite(&graph, &profile, &Sequence::from(&runs)).unwrap().graph;
        let phase = |phase| rewritten.nodes().values().filter(|node| node.phase == phase).count();
        assert!(phase(Phase::Backward) > 0 && rewritten.modules() == graph.modules());
    }
    assert!(recomputed > 500, "{recomputed}");
}
