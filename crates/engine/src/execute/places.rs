//! Where a compiled graph's tensors lie in the slab. Invariant: every place is read off the checked
//! schedule, so it is inside the slab and holds what it is said to hold: inputs before a step,
//! outputs after it.

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::ThreadPool;
use tightfit::check::Checked;
use tightfit::graph::Graph;
use tightfit::id::{BufferId, DEVICE, MicroBatchId, NodeId, ValueId};
use tightfit::pipeline::name_of;
use tightfit::tensor::DType;

use crate::execute::admission::placeholders_are_whole;
use crate::execute::binding::address;
use crate::execute::error::CompileError;
use crate::execute::executable::Executable;
use crate::execute::region::Region;
use crate::memory::slab::Slab;
use crate::step::data::Halves;
use crate::step::{self, Part};

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
    /// Whether its elements were brought into the order of their indices since the last step.
    pub(super) settled: bool,
}

impl Located {
    /// Its size in bytes, as contiguous elements.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.dtype.size()
    }

    /// Whether its elements lie one after another, in the order of their indices.
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
    /// The part of the step that it executes.
    pub part: Part,
    pub outputs: Vec<Located>,
}

/// Where a micro-batch goes: a rank of a pipeline may read half of it, or none.
#[derive(Clone, Copy)]
pub(super) struct Batch {
    pub rows: usize,
    pub input: Option<Span>,
    pub target: Option<Span>,
}

impl Compiled {
    /// An output of the step, by its number there, if this graph makes it.
    pub fn output(&self, number: usize) -> Option<&Located> {
        self.outputs.get(self.part.place_of(number)?)
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
    (part, pool): (&Part, &Arc<ThreadPool>),
) -> Result<Compiled, CompileError> {
    placeholders_are_whole(graph)?;
    let mut executable = Executable::compile_around(graph, checked, region, pool)?;
    if let Some(share) = &part.share {
        executable.share(share.rank, share.ranks);
    }
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
    let half = |name, number| step::input(graph, &name_of(name, number)).map(span).transpose();
    let batches = (0..part.micro_batches).map(MicroBatchId::from_u32).map(|number| {
        let (input, target) = (half("input", number)?, half("target", number)?);
        Ok(Batch { rows: part.rows, input, target })
    });
    Ok(Compiled {
        executable,
        batches: batches.collect::<Result<_, CompileError>>()?,
        part: part.clone(),
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

/// The buffer of an output of the graph at the end of the step: on the device, where its storage
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

/// Input and target of a micro-batch in the slab, to be written; each only if it is there.
pub(super) fn halves(slab: &mut Slab, Batch { rows, input, target }: Batch) -> Halves<'_> {
    const NOTHING: Span = Span { address: 0, bytes: 0 };
    let (first, second) = (input.unwrap_or(NOTHING), target.unwrap_or(NOTHING));
    let (first, second) =
        slab.write_both((first.address, first.bytes), (second.address, second.bytes));
    Halves { rows, input: input.map(|_| first), target: target.map(|_| second) }
}

/// The loss that the last step left, if this graph makes it.
pub(super) fn loss_of(slab: &Slab, compiled: &Compiled) -> Option<f32> {
    let loss = compiled.output(0)?;
    let bytes = slab.read(loss.address, 4).try_into().expect("a loss has four bytes");
    Some(f32::from_ne_bytes(bytes))
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
