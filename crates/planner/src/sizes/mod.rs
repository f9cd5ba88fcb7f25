//! The same step at another size: another batch, or another length of its samples. Invariant: which
//! dimensions grow follows from the batch's placeholders by the axes of each call, never from
//! extents that are alike; a step of which that is not known is refused, and the node is named.
//! Which other numbers follow from the size, a second capture shows (`varying`); without one, some
//! are recognised or refused, and the rest stay (`counts`, `limited`).

mod certain;
mod changes;
mod compare;
mod counts;
mod elements;
mod error;
mod follow;
mod form;
mod groups;
mod layout;
mod limited;
mod rewrite;
mod search;
mod seen;
mod varying;

pub use crate::graph::{Dimension, LEAST};
pub use compare::{Difference, difference};
pub use error::SizeError;
pub use search::{Range, Trial, largest};
pub use seen::{Unlike, may_be_seen, seen};

use crate::graph::{Graph, Phase, Recapture};
use crate::id::ValueId;
use crate::sizes::changes::Changes;

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
    /// [`SizeError`] if the step has no such dimension, if it is not known how a call depends on
    /// it, or if a second capture showed that more does.
    pub fn along(graph: &'a Graph, dimension: Dimension) -> Result<Sizes<'a>, SizeError> {
        Sizes::by(graph, dimension, graph.recapture(dimension))
    }

    /// The same, by what a second capture showed, if there is one.
    fn by(
        graph: &'a Graph,
        dimension: Dimension,
        seen: Option<&Recapture>,
    ) -> Result<Sizes<'a>, SizeError> {
        let size = size(graph, dimension)?;
        let changes = Changes::of(graph, dimension, size, seen)?;
        if let Some(Recapture { size: None, difference, .. }) = seen {
            let (dimension, why) = (dimension.name(), difference.clone().unwrap_or_default());
            return Err(SizeError::Differs { dimension, why });
        }
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

    /// Sizes are multiples of this.
    pub fn grid(&self) -> u64 {
        self.graph.recapture(self.dimension).map_or(1, |seen| seen.grid)
    }

    /// Why the step is not known at a size, if what was seen at others says so.
    fn outside(&self, seen: &Recapture, size: u64) -> Option<SizeError> {
        let (least, most) = seen.between?;
        let why = match size {
            _ if size < least => seen.below.clone()?,
            _ if size > most => seen.above.clone()?,
            _ => return None,
        };
        let dimension = self.dimension.name();
        Some(SizeError::Outside { dimension, size, least, most, why })
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
        let seen = self.graph.recapture(self.dimension);
        if let Some(seen) = seen.filter(|_| !size.is_multiple_of(self.grid())) {
            let (dimension, grid) = (self.dimension.name(), seen.grid);
            let why = seen.difference.clone().unwrap_or_default();
            return Err(SizeError::Multiple { dimension, size, grid, why });
        }
        if let Some(error) = seen.and_then(|seen| self.outside(seen, size)) {
            return Err(error);
        }
        rewrite::rewritten(self.graph, &self.changes, self.size, size)
    }
}

/// A step at other sizes along several dimensions.
///
/// # Errors
/// [`SizeError`] if it is not known what the step would be, or if it depends on which is changed
/// first.
pub fn resized(graph: &Graph, sizes: &[(Dimension, u64)]) -> Result<Graph, SizeError> {
    let found = one_by_one(graph, sizes)?;
    if sizes.len() > 1 {
        let reversed: Vec<(Dimension, u64)> = sizes.iter().rev().copied().collect();
        if let Some(difference) = difference(&found, &one_by_one(graph, &reversed)?) {
            return Err(SizeError::Order { difference });
        }
    }
    Ok(found)
}

fn one_by_one(graph: &Graph, sizes: &[(Dimension, u64)]) -> Result<Graph, SizeError> {
    let mut found = graph.clone();
    for &(dimension, size) in sizes {
        found = Sizes::along(&found, dimension)?.at(size)?;
    }
    Ok(found)
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
