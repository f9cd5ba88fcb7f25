//! `--dump`: writes what a step computed, for comparison with other programs. Invariant: gradients
//! are the very values that the optimizer nodes read, never recomputed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use tightfit::graph::{Graph, GraphBuilder, Phase};
use tightfit::id::ValueId;
use tightfit::tensor::DType;
use tightfit::units::Bytes;
use tightfit_engine::data::{Halves, MicroBatch};
use tightfit_engine::weights::{Bytes as Tensor, Elements, write_tensors};
use tightfit_engine::{Dataset, Session, Step, step};

use crate::failure::Result;

/// The name of the parameter that each optimizer node updates, and the gradient that it reads.
fn gradients(graph: &Graph) -> Vec<(String, ValueId)> {
    let updates = graph.nodes().values().filter(|node| node.phase == Phase::Optimizer);
    updates
        .filter_map(|node| {
            let parameter = graph.values()[*node.inputs.first()?].producer;
            Some((graph.nodes()[parameter].parameter.clone()?, *node.inputs.get(1)?))
        })
        .collect()
}

/// The graph with every gradient as an additional output.
pub fn with_gradients(graph: &Graph) -> Result<Graph> {
    let mut builder = GraphBuilder::from_graph(graph);
    for (_, gradient) in gradients(graph) {
        builder.output(gradient);
    }
    Ok(builder.build()?)
}

/// The memory that a dump needs: the batch, and one bit per element of the largest gradient, to put
/// it into row-major order in place.
pub fn scratch(graph: &Graph) -> Bytes {
    let elements = |(_, value): (String, ValueId)| graph.values()[value].tensor.elements();
    let bits = gradients(graph).into_iter().map(elements).max().unwrap_or(0);
    let batch = ["input", "target"].into_iter().flat_map(|name| step::inputs(graph, name));
    batch
        .fold(Bytes(bits.div_ceil(8)), |sum, (_, value)| sum + graph.values()[value].tensor.bytes())
}

/// Writes the last step's batch, gradients and updated weights; only the weights if this run has
/// done no step.
pub fn write(
    path: &Path,
    step: &Step,
    session: &mut Session,
    data: &mut Dataset,
    stepped: bool,
) -> Result<()> {
    let graph = &step.training;
    let mut tensors: Vec<(String, Tensor)> = Vec::new();
    let shape = |value: ValueId| {
        graph.values()[value].tensor.shape.iter().map(|&x| x as usize).collect::<Vec<_>>()
    };
    if let (Some((_, input)), Some((_, target)), Some(last)) = (
        step::input(graph, "input"),
        step::input(graph, "target"),
        session.next_step.checked_sub(1).filter(|_| stepped),
    ) {
        // A batch depends only on seed and step, so it is drawn again, this time with the rows of
        // all micro-batches in one.
        let count = step::inputs(graph, "input").len();
        let bytes =
            |value: ValueId| vec![0; count * graph.values()[value].tensor.bytes().0 as usize];
        let (mut x, mut y) = (bytes(input), bytes(target));
        let rows = count * graph.values()[input].tensor.shape.first().map_or(1, |&x| x as usize);
        let halves = &mut Halves { rows, input: Some(&mut x), target: Some(&mut y) };
        data.training_batch(session.seed, last, MicroBatch::WHOLE, halves)?;
        for (name, value, data) in [("batch.input", input, x), ("batch.target", target, y)] {
            let mut shape = shape(value);
            shape.iter_mut().take(1).for_each(|rows| *rows *= count);
            let dtype = graph.values()[value].tensor.dtype;
            let data = Elements::Held(Cow::Owned(data));
            tensors.push((name.to_string(), Tensor { dtype, shape, data }));
        }
        let outputs = gradients(graph);
        let first = graph.outputs().len() - outputs.len();
        session.settle_outputs(first);
        for (index, (name, value)) in outputs.into_iter().enumerate() {
            if let Some(data) = session.training_output(first + index) {
                tensors.push((
                    format!("gradient.{name}"),
                    Tensor { dtype: DType::F32, shape: shape(value), data: Elements::Held(data) },
                ));
            }
        }
    }
    for (name, resident) in session.residents() {
        let data = Elements::Kept(session, resident);
        tensors.push((
            format!("updated.{name}"),
            Tensor { dtype: resident.dtype, shape: resident.shape.clone(), data },
        ));
    }
    Ok(write_tensors(path, &tensors, &BTreeMap::new())?)
}
