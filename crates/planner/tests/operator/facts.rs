//! Shapes, element types, places and operations that the table derives, compared with those that
//! PyTorch recorded. Invariant: every call of an operator of the table in the whole corpus is
//! compared.
//!
//! Tier: quick, since it takes less than a second.

use std::collections::BTreeSet;

use tightfit::graph::{self, Graph};
use tightfit::id::{NodeId, SecondaryMap, StageId, ValueId};
use tightfit::operator::{Kind, Operator, TypedCall, Types, Unsuited};
use tightfit::pipeline::{Division, Leeway, PipelineSchedule, ranks};
use tightfit::sharded::{Reductions, Sharding, shard};
use tightfit::tensor::{Argument, DType, TensorType};

use crate::fixtures::corpus;

/// The calls of a graph whose operators are in the table.
fn known(graph: &Graph) -> impl Iterator<Item = (NodeId, Operator)> + '_ {
    graph.nodes().iter().filter_map(|(id, node)| Some((id, node.operator?)))
}

fn steps() -> Vec<Graph> {
    ["gpt-nano", "gpt-nano-dropout", "gpt-small", "mlp-digits"].map(corpus::step).to_vec()
}

/// One graph for each operator, with all of its golden cases.
fn goldens() -> Vec<Graph> {
    let mut paths: Vec<_> =
        std::fs::read_dir(corpus::path("kernels")).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths.iter().map(|path| graph::read(&std::fs::read(path).unwrap()).unwrap()).collect()
}

#[test]
fn planning_graphs_have_the_shapes_that_the_table_derives() {
    for name in corpus::GRAPHS {
        let graph = corpus::graph(name);
        for (id, operator) in known(&graph) {
            let call = graph.call(id);
            let derived = (operator.row().outputs)(&call)
                .unwrap_or_else(|error| panic!("{name}: `{}`: {error}", graph.nodes()[id].name));
            for (output, derived) in call.outputs.iter().zip(&derived) {
                let Some(output) = output else { continue };
                let found = graph.type_of(*output);
                let node = &graph.nodes()[id].name;
                assert_eq!((&found.shape, found.dtype), (&derived.shape, derived.dtype), "{node}");
            }
        }
    }
}

#[test]
fn calls_that_pytorch_recorded_conform() {
    let mut seen = BTreeSet::new();
    for graph in steps().iter().chain(&goldens()) {
        for (id, operator) in known(graph) {
            let conforms = operator.conform(&graph.call(id));
            let node = &graph.nodes()[id];
            assert_eq!(conforms, Ok(()), "{}: `{}` ({})", graph.name(), node.name, node.op);
            seen.insert(operator.name());
        }
    }
    // PyTorch records no communication between ranks; a divided step has all of it.
    let step = corpus::step("mlp-digits");
    let forward = step.nodes().keys().filter(|&id| step.nodes()[id].phase.is_forward());
    let mut of_forward = SecondaryMap::with_default(StageId::from_u32(0));
    forward.skip(20).for_each(|id| of_forward[id] = StageId::from_u32(1));
    let division = Division::new(&step, &of_forward).unwrap();
    let ranks = ranks(
        &division,
        &PipelineSchedule::GPipe.rows(2, 2).unwrap(),
        Leeway { ahead: 1, behind: 2 },
    )
    .unwrap();
    let sharded = shard(&step, Sharding { ranks: 2, reductions: Reductions::Once }).unwrap();
    for graph in ranks.graphs.values().chain([&sharded.graph]) {
        for (id, operator) in known(graph) {
            assert_eq!(operator.conform(&graph.call(id)), Ok(()), "{}", graph.nodes()[id].name);
            seen.insert(operator.name());
        }
    }
    let missing: Vec<_> = Operator::ALL
        .iter()
        .map(|operator| operator.name())
        .filter(|name| !seen.contains(name))
        .collect();
    assert_eq!(missing, [""; 0], "operators without a recorded call");
}

#[test]
fn operations_are_those_that_pytorch_counted() {
    for graph in steps() {
        for (id, operator) in known(&graph) {
            let flops = (operator.row().cost.flops)(&graph.call(id));
            let node = &graph.nodes()[id];
            assert_eq!(flops, node.flops, "{}: `{}`", graph.name(), node.name);
        }
    }
}

#[test]
fn views_are_views_and_mutations_mutate() {
    for graph in steps() {
        for (id, operator) in known(&graph) {
            let node = &graph.nodes()[id];
            let kind = operator.row().kind;
            assert_eq!(kind == Kind::View, graph.is_view(id), "`{}`", node.name);
            assert_eq!(
                matches!(kind, Kind::Mutating | Kind::Update),
                node.mutates,
                "`{}`",
                node.name
            );
            assert_eq!(kind == Kind::Random, node.random, "`{}`", node.name);
        }
    }
}

/// A graph's types, except for one value.
struct Damaged<'a> {
    graph: &'a Graph,
    value: ValueId,
    damaged: TensorType,
}

impl Types for Damaged<'_> {
    fn type_of(&self, value: ValueId) -> &TensorType {
        if value == self.value { &self.damaged } else { self.graph.type_of(value) }
    }
}

#[test]
fn an_output_of_another_shape_or_type_is_refused() {
    for graph in goldens() {
        for (id, operator) in known(&graph) {
            let call = graph.call(id);
            for &value in call.outputs.iter().flatten() {
                if graph.mutated(id).contains(&graph.values()[value].storage) {
                    continue; // the new version of an input has the input's type
                }
                let recorded = graph.type_of(value);
                let other = if recorded.dtype == DType::I64 { DType::Bool } else { DType::I64 };
                let wider = [recorded.shape.as_slice(), &[2]].concat();
                let damages = [
                    TensorType { dtype: other, ..recorded.clone() },
                    TensorType::contiguous(&wider, recorded.dtype),
                ];
                for damaged in damages {
                    let types = Damaged { graph: &graph, value, damaged };
                    let refused = operator.conform(&TypedCall { types: &types, ..call });
                    let is_refused = matches!(refused, Err(Unsuited::Output { .. }));
                    assert!(is_refused, "`{}`: {refused:?}", graph.nodes()[id].name);
                }
            }
        }
    }
}

#[test]
fn a_factor_that_is_no_finite_number_is_refused() {
    let mut calls = 0;
    for graph in goldens() {
        for (id, operator) in known(&graph).filter(|&(_, operator)| operator == Operator::Addmm) {
            for name in ["alpha", "beta"] {
                for number in ["inf", "-inf", "nan"] {
                    let kwargs = [(name.to_string(), Argument::Text(number.to_string()))];
                    let call = TypedCall { kwargs: &kwargs, ..graph.call(id) };
                    let refused = operator.conform(&call);
                    assert!(matches!(refused, Err(Unsuited::Keyword { .. })), "{refused:?}");
                    calls += 1;
                }
            }
        }
    }
    assert!(calls > 0);
}

/// Shape and type of the first output of a call of constants alone.
fn made(operator: Operator, args: &[Argument], dtype: Option<&str>) -> Option<(Vec<u64>, DType)> {
    struct NoTensors;
    impl Types for NoTensors {
        fn type_of(&self, _: ValueId) -> &TensorType {
            unreachable!("constants mention no tensor")
        }
    }
    let kwargs: Vec<(String, Argument)> =
        dtype.map(|d| ("dtype".to_string(), Argument::Text(d.to_string()))).into_iter().collect();
    let call = TypedCall { args, kwargs: &kwargs, outputs: &[None], types: &NoTensors };
    let output = (operator.row().outputs)(&call).ok()?.remove(0);
    Some((output.shape, output.dtype))
}

/// As PyTorch counts them.
#[test]
fn ranges() {
    use Argument::{Float, Int};
    let range = |args: &[Argument], dtype| made(Operator::ArangeStartStep, args, dtype);
    let whole = Some("torch.int64");
    let large = (1i64 << 53) + 1;
    let count = |n: u64, dtype| Some((vec![n], dtype));
    assert_eq!(range(&[Int(0), Int(10), Int(3)], None), count(4, DType::I64));
    assert_eq!(range(&[Int(10), Int(0), Int(-3)], None), count(4, DType::I64));
    assert_eq!(range(&[Int(3), Int(3)], None), count(0, DType::I64));
    assert_eq!(range(&[Int(1 << 62), Int((1 << 62) + 3)], None), count(3, DType::I64));
    assert_eq!(range(&[Int(large), Int(large + 2)], None), count(2, DType::I64));
    assert_eq!(range(&[Float(0.2), Float(3.5)], whole), count(3, DType::I64));
    assert_eq!(range(&[Int(0), Int(10), Float(0.5)], whole), None);
    assert_eq!(range(&[Float(0.0), Float(1.0), Float(0.25)], None), count(4, DType::F32));
}
