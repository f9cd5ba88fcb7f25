//! What a second capture of a step shows. Invariant: what is recorded of it makes of the first one,
//! at the size of the second, just that.

use thiserror::Error;

use crate::exit::coded;
use crate::graph::{Dimension, Graph, Recapture, SeenNumber};
use crate::sizes::compare::{Difference, difference};
use crate::sizes::varying::numbers;
use crate::sizes::{SizeError, Sizes};

/// Why a second capture is not what follows from the first one.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum Unlike {
    /// It is not known what follows.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// Something else follows.
    #[error("{0}")]
    Differs(Difference),
}

coded!(Usage: Unlike);

/// Whether a second capture may tell what a step is at another size along a dimension: if it is not
/// known what one of its calls does along that, none can.
pub fn may_be_seen(graph: &Graph, dimension: Dimension) -> bool {
    match Sizes::by(graph, dimension, None) {
        Ok(_) => true,
        Err(error) => matches!(
            error,
            SizeError::Counted { .. }
                | SizeError::Ends { .. }
                | SizeError::Limited { .. }
                | SizeError::LookUp { .. }
                | SizeError::Made { .. }
        ),
    }
}

/// What to record of a second capture at another size along a dimension, of which multiples of
/// `grid` are alike.
///
/// # Errors
/// [`Unlike`] if it is not what follows from the first one.
pub fn seen(
    graph: &Graph,
    other: &Graph,
    dimension: Dimension,
    grid: u64,
) -> Result<Recapture, Unlike> {
    let (now, size) = (super::size(graph, dimension)?, super::size(other, dimension)?);
    let all = Recapture {
        size: Some(size),
        grid,
        difference: None,
        between: Some((now.min(size), now.max(size))),
        below: None,
        above: None,
        numbers: numbers(graph, other).map_err(Unlike::Differs)?,
    };
    let sizes = Sizes::by(graph, dimension, Some(&all))?;
    if let Some(found) = difference(&sizes.at(size)?, other) {
        return Err(Unlike::Differs(found));
    }
    let varying = &sizes.changes.varying;
    let is_needed = |number: &SeenNumber| {
        let node = graph.node_named(&number.node);
        node.is_some_and(|node| varying[node].iter().any(|it| it.is_of(number)))
    };
    let needed = all.numbers.iter().filter(|number| is_needed(number)).cloned().collect();
    Ok(Recapture { numbers: needed, ..all })
}
