//! The graph of a rank: what it keeps, gathers and exchanges; and what is refused.
//!
//! Tier: quick, since it takes less than a second.

use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::operator::Operator;
use tightfit::pipeline::accumulate;
use tightfit::sharded::{Reductions, Sharded, Sharding, ShardingError, shard};
use tightfit::tensor::{Argument, DType};
use tightfit::units::Bytes;

use crate::fixtures::corpus::{graph, step};

pub const REDUCTIONS: [Reductions; 2] = [Reductions::Once, Reductions::EachMicroBatch];

/// A step of two micro-batches, as shared by three ranks: no size is a multiple of three.
pub fn shared(reductions: Reductions) -> (Graph, Sharded) {
    let whole = accumulate(&step("gpt-nano"), 2).unwrap();
    let sharded = shard(&whole, Sharding { ranks: 3, reductions }).unwrap();
    (whole, sharded)
}

#[test]
fn a_rank_keeps_its_share_and_gathers_each_parameter_once() {
    for reductions in REDUCTIONS {
        let (whole, Sharded { graph, collectives, shapes }) = shared(reductions);
        let of = |graph: &Graph, phase| -> Vec<u64> {
            let nodes = graph.nodes().values().filter(|node| node.phase == phase);
            let bytes = nodes.map(|node| node.outputs[0].unwrap());
            bytes.map(|value| graph.values()[value].tensor.elements()).collect()
        };
        for phase in [Phase::Parameter, Phase::State] {
            let shares: Vec<u64> =
                of(&whole, phase).iter().map(|elements| elements.div_ceil(3)).collect();
            assert_eq!(of(&graph, phase), shares);
        }
        let parameters = of(&whole, Phase::Parameter).len();
        assert_eq!(shapes.len(), parameters + of(&whole, Phase::State).len());
        let count = |operator| collectives.iter().filter(|it| it.operator == operator).count();
        let exchanges = if reductions == Reductions::Once { 1 } else { 2 };
        assert_eq!(count(Operator::AllGather), parameters);
        assert_eq!(count(Operator::AllToAll), parameters * exchanges);
        // Each has messages of its own, numbered by its position.
        let calls = graph.nodes().values();
        let mut first: Vec<i64> = calls
            .filter(|node| node.operator.is_some_and(Operator::is_collective))
            .map(|node| match node.args.last() {
                Some(&Argument::Int(message)) => message,
                other => panic!("{other:?}"),
            })
            .collect();
        first.sort_unstable();
        assert!(first.iter().copied().eq((0..).map(|index| 6 * index).take(first.len())));
        assert_eq!(first.len(), collectives.len());
    }
}

/// Gradients summed before the exchange are exchanged once; those exchanged first are summed in
/// shards.
#[test]
fn sums_over_micro_batches_are_of_what_is_held_between_them() {
    let sums = |reductions| {
        let (_, Sharded { graph, .. }) = shared(reductions);
        let sums = graph
            .nodes()
            .values()
            .filter(|node| node.phase == Phase::Backward && node.name.ends_with("_sum#1"));
        let of = sums.map(|node| graph.values()[node.outputs[0].unwrap()].tensor.elements());
        let mut of: Vec<u64> = of.collect();
        of.sort_unstable();
        of
    };
    let whole = step("gpt-nano");
    let parameters = whole.nodes().values().filter(|node| node.phase == Phase::Parameter);
    let elements =
        parameters.map(|node| whole.values()[node.outputs[0].unwrap()].tensor.elements());
    let mut elements: Vec<u64> = elements.collect();
    elements.sort_unstable();
    assert_eq!(sums(Reductions::Once), elements);
    let shares: Vec<u64> = elements.iter().map(|elements| elements.div_ceil(3)).collect();
    assert_eq!(sums(Reductions::EachMicroBatch), shares);
}

fn refused(graph: &Graph) -> ShardingError {
    shard(graph, Sharding { ranks: 2, reductions: Reductions::Once }).unwrap_err()
}

/// Statistics of a batch are those of all ranks together, which are not implemented.
#[test]
fn batch_normalization_is_refused_by_name() {
    let error = refused(&graph("resnet50_b32"));
    assert!(matches!(error, ShardingError::Statistic { .. }), "{error}");
    assert!(error.to_string().contains("deferred or synchronised batch normalization"), "{error}");
}

/// A step with one update, in which `op` updates a parameter by a gradient.
fn updated(op: &str, dtype: DType) -> Graph {
    let mut builder = GraphBuilder::new("updated");
    let mut tensor = |name: &str, phase| {
        let storage = builder.storage(Bytes(8 * dtype.size()));
        let spec = ValueSpec::contiguous(&[8], dtype, storage);
        let placeholder = NodeSpec {
            parameter: (phase == Phase::Parameter).then(|| name.to_string()),
            ..NodeSpec::new(name, "placeholder", phase)
        };
        (builder.node(placeholder, &[Some(spec.clone())])[0], spec)
    };
    let ((weight, spec), (batch, _)) =
        (tensor("weight", Phase::Parameter), tensor("batch", Phase::Input));
    let update = NodeSpec {
        inputs: vec![weight, batch],
        args: vec![Argument::Value(weight), Argument::Value(batch)],
        kwargs: vec![("weight_decay".to_string(), Argument::Float(0.0))],
        mutates: true,
        ..NodeSpec::new("update", op, Phase::Optimizer)
    };
    builder.node(update, &[Some(spec)]);
    builder.build().unwrap()
}

#[test]
fn updates_that_shards_do_not_suffice_for_are_refused() {
    let error = refused(&updated("library.orthogonalize", DType::F32));
    let expected = "`update` (library.orthogonalize) updates parameters otherwise than element by \
                    element, as far as is known: it cannot compute on shards";
    assert_eq!(error.to_string(), expected);
    let error = refused(&updated("library.sgd", DType::Bf16));
    let expected = "`weight` is updated, and is no contiguous tensor of type f32, so it has no \
                    shards";
    assert_eq!(error.to_string(), expected);
}
