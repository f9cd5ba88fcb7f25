//! The same graph under other names. Invariant: nothing but names differs.

use tightfit::graph::{Graph, GraphBuilder, NodeSpec, ValueSpec};

/// The same graph with other names for nodes and parameters, and one more level of modules.
pub fn renamed(graph: &Graph) -> Graph {
    let mut builder = GraphBuilder::new("renamed");
    for (id, module) in graph.modules().iter().skip(1) {
        assert_eq!(builder.module(format!("wrapped.{module}")), id);
    }
    for &bytes in graph.storages().values() {
        builder.storage(bytes);
    }
    let count = graph.nodes().len();
    for (i, node) in graph.nodes().values().enumerate() {
        // Names that sort the other way round.
        let mut spec = NodeSpec::new(format!("n{:05}", count - i), node.op.clone(), node.phase);
        spec.module = node.module;
        spec.parameter = node.parameter.as_ref().map(|_| format!("p{:05}", count - i));
        spec.inputs = node.inputs.clone();
        spec.args = node.args.clone();
        spec.kwargs = node.kwargs.clone();
        (spec.flops, spec.bytes_read, spec.bytes_written) =
            (node.flops, node.bytes_read, node.bytes_written);
        (spec.workspace, spec.seconds) = (node.workspace, node.seconds);
        (spec.random, spec.seed_slot, spec.mutates) = (node.random, node.seed_slot, node.mutates);
        let outputs: Vec<Option<ValueSpec>> = node
            .outputs
            .iter()
            .map(|output| {
                output.map(|value| {
                    let value = &graph.values()[value];
                    ValueSpec {
                        shape: value.tensor.shape.clone(),
                        dtype: value.tensor.dtype,
                        storage: value.storage,
                        contiguous: value.tensor.contiguous,
                        strides: value.tensor.strides.clone(),
                        offset: value.tensor.offset,
                    }
                })
            })
            .collect();
        builder.node(spec, &outputs);
    }
    for &value in graph.outputs() {
        builder.output(value);
    }
    builder.build().unwrap()
}
