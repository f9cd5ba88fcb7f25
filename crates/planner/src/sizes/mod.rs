//! The same step at another size: another batch, or another length of its samples. Invariant: which
//! dimensions grow follows from the batch's placeholders by the axes of each call, never from
//! extents that are alike; a step of which that is not known is refused, and the node is named. Of
//! other numbers, some are recognised or refused, and the rest stay (`counts`, `limited`).

mod certain;
mod changes;
mod compare;
mod counts;
mod error;
mod follow;
mod groups;
mod layout;
mod limited;
mod rewrite;
mod search;

pub use compare::{Difference, difference};
pub use error::SizeError;
pub use search::{Range, Trial, largest};

use crate::graph::{Graph, Phase};
use crate::id::ValueId;
use crate::sizes::changes::Changes;

/// The least size: PyTorch captures another graph for one.
pub const LEAST: u64 = 2;

/// The dimension of the batch along which a step is to have another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Samples: the first dimension of the batch's tensors.
    Batch,
    /// What each sample consists of, such as words: the second one.
    Length,
}

impl Dimension {
    /// Its index among the dimensions of the batch's tensors.
    pub fn index(self) -> usize {
        self as usize
    }

    /// What its size is called.
    pub fn name(self) -> &'static str {
        match self {
            Dimension::Batch => "batch",
            Dimension::Length => "length",
        }
    }
}

/// A step whose size may be another one.
pub struct Sizes<'a> {
    graph: &'a Graph,
    dimension: Dimension,
    size: u64,
    changes: Changes,
}

impl<'a> Sizes<'a> {
    /// Follows a dimension of the batch through all calls of a step.
    ///
    /// # Errors
    /// [`SizeError`] if the step has no such dimension, or if it is not known how a call depends on
    /// it.
    pub fn along(graph: &'a Graph, dimension: Dimension) -> Result<Sizes<'a>, SizeError> {
        let size = size(graph, dimension)?;
        let changes = Changes::of(graph, dimension, size)?;
        Ok(Sizes { graph, dimension, size, changes })
    }

    /// The size that the step has.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The dimension along which it varies.
    pub fn dimension(&self) -> Dimension {
        self.dimension
    }

    /// The step at another size. Its calls have no measured seconds if their tensors are others.
    ///
    /// # Errors
    /// [`SizeError`] if the size is too small or too large, or if it is not known what the step
    /// would be.
    pub fn at(&self, size: u64) -> Result<Graph, SizeError> {
        if size < LEAST {
            return Err(SizeError::Small { dimension: self.dimension.name(), size });
        }
        rewrite::rewritten(self.graph, &self.changes, self.size, size)
    }
}

/// The extent of the first input that has such a dimension.
fn size(graph: &Graph, dimension: Dimension) -> Result<u64, SizeError> {
    let inputs = graph.nodes().values().filter(|node| node.phase == Phase::Input);
    let extent =
        |&value: &ValueId| graph.values()[value].tensor.shape.get(dimension.index()).copied();
    match inputs.flat_map(|node| node.outputs.iter().flatten()).find_map(extent) {
        None => Err(SizeError::NoDimension { dimension: dimension.name() }),
        Some(size) if size < LEAST => Err(SizeError::Small { dimension: dimension.name(), size }),
        Some(size) => Ok(size),
    }
}
