//! Where a compiled graph's tensors lie in the slab. Invariant: every place is read off the checked
//! schedule, so it is inside the slab and holds what it is said to hold: inputs before a step,
//! outputs after it.

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::ThreadPool;
use tightfit::check::Checked;
use tightfit::graph::Graph;
use tightfit::id::{BufferId, DEVICE, NodeId, ValueId};
use tightfit::tensor::DType;

use crate::execute::admission::placeholders_are_whole;
use crate::execute::error::CompileError;
use crate::execute::executable::{Executable, address};
use crate::execute::region::Region;
use crate::memory::slab::Slab;
use crate::step;

/// A value at an address.
#[derive(Clone, Debug, PartialEq)]
pub struct Located {
    /// First byte of its first element in the slab.
    pub address: u64,
    /// Extent of each dimension.
    pub shape: Vec<u64>,
    /// Steps of each dimension, in elements.
    pub strides: Vec<u64>,
    /// Element type.
    pub dtype: DType,
    /// Its elements were brought into the order of their indices since the last step.
    pub(super) settled: bool,
}

impl Located {
    /// Its size in bytes, as contiguous elements.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.dtype.size()
    }

    /// Its elements lie one behind the other, in the order of their indices.
    pub fn is_contiguous(&self) -> bool {
        let mut next = 1;
        self.settled
            || self.bytes() == 0
            || self.shape.iter().zip(&self.strides).rev().all(|(&extent, &stride)| {
                let expected = next;
                next *= extent;
                extent == 1 || stride == expected
            })
    }
}

/// One compiled graph with the places that a run reads and writes.
pub(super) struct Compiled {
    pub executable: Executable,
    /// Where each micro-batch goes.
    pub batches: Vec<Batch>,
    /// Rows of a batch.
    pub rows: usize,
    pub outputs: Vec<Located>,
}

/// Where a micro-batch goes.
#[derive(Clone, Copy)]
pub(super) struct Batch {
    pub input: Span,
    pub target: Span,
}

impl Compiled {
    /// Where the first micro-batch goes: all of them have as many rows.
    pub fn batch(&self) -> Batch {
        self.batches[0]
    }
}

/// Bytes of the slab.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub address: u64,
    pub bytes: u64,
}

/// Compiles a graph of a step and finds its places.
pub(super) fn compile(
    graph: &Graph,
    checked: &Checked,
    region: Option<&Region>,
    pool: &Arc<ThreadPool>,
) -> Result<Compiled, CompileError> {
    placeholders_are_whole(graph)?;
    let executable = Executable::compile_around(graph, checked, region, pool)?;
    let schedule = checked.schedule();
    let at = |buffer: BufferId, value: ValueId| {
        let producer = graph.values()[value].producer;
        let placed = || CompileError::EndsPlaced { node: graph.nodes()[producer].name.clone() };
        address((schedule, region), buffer).ok_or_else(placed)
    };
    let buffers: BTreeMap<NodeId, BufferId> = schedule.placeholders.iter().copied().collect();
    let span = |(node, value): (NodeId, ValueId)| {
        let address = at(buffers[&node], value)?;
        Ok::<_, CompileError>(Span { address, bytes: graph.values()[value].tensor.bytes().0 })
    };
    let pairs = step::inputs(graph, "input").into_iter().zip(step::inputs(graph, "target"));
    let batches = pairs
        .map(|(input, target)| Ok(Batch { input: span(input)?, target: span(target)? }))
        .collect::<Result<Vec<_>, CompileError>>()?;
    assert!(!batches.is_empty(), "a step's graphs have both inputs");
    let rows = step::input(graph, "input")
        .and_then(|(_, value)| graph.values()[value].tensor.shape.first().copied())
        .unwrap_or(1);
    Ok(Compiled {
        executable,
        batches,
        rows: rows as usize,
        outputs: graph
            .outputs()
            .iter()
            .map(|&value| {
                let address = at(buffer_of(graph, checked, value), value)?;
                Ok(locate(graph, address, value))
            })
            .collect::<Result<_, CompileError>>()?,
    })
}

/// Where an output of the graph lies at the end of the step: on the device, where its storage
/// stays.
fn buffer_of(graph: &Graph, checked: &Checked, output: ValueId) -> BufferId {
    let storage = graph.values()[output].storage;
    let mut residencies = checked.timeline().residencies.iter();
    let residency = residencies
        .find(|held| held.end.is_none() && held.tier == DEVICE && held.storage == Some(storage))
        .expect("the checker found every output in place");
    residency.buffer
}

/// An output in the storage at an address.
fn locate(graph: &Graph, address: u64, output: ValueId) -> Located {
    let value = &graph.values()[output];
    Located {
        address: address + value.tensor.offset * value.tensor.dtype.size(),
        shape: value.tensor.shape.clone(),
        strides: value.tensor.strides_or_contiguous(),
        dtype: value.tensor.dtype,
        settled: false,
    }
}

/// Input and target of a micro-batch in the slab, to be written.
pub(super) fn pair(slab: &mut Slab, Batch { input, target }: Batch) -> (&mut [u8], &mut [u8]) {
    slab.write_both((input.address, input.bytes), (target.address, target.bytes))
}

/// The loss that the last step left.
pub(super) fn loss_of(slab: &Slab, compiled: &Compiled) -> f32 {
    f32::from_ne_bytes(
        slab.read(compiled.outputs[0].address, 4).try_into().expect("a loss has four bytes"),
    )
}

/// Offsets of all elements in logical order, in bytes from the first.
pub(super) fn offsets(located: &Located) -> impl Iterator<Item = u64> + '_ {
    let count: u64 = located.shape.iter().product();
    (0..count).map(|mut index| {
        let mut offset = 0;
        for (extent, stride) in located.shape.iter().zip(&located.strides).rev() {
            offset += index % extent * stride;
            index /= extent;
        }
        offset * located.dtype.size()
    })
}
