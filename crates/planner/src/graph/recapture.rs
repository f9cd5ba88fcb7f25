//! What capturing a step once more, at another size, showed. Invariant: it says something only of
//! the dimension along which the size was another one.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;

use cranelift_entity::PrimaryMap;
use serde::Deserialize;
use thiserror::Error;

use crate::graph::limits::MOST_NAMES;
use crate::graph::node::Node;
use crate::graph::raw::Name;
use crate::id::NodeId;
use crate::reading::AtMost;
use crate::tensor::{Argument, placed};

/// The least size: PyTorch captures another graph for one.
pub const LEAST: u64 = 2;

/// The dimension of the batch along which a step may have another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Samples: the first dimension of the batch's tensors.
    Batch,
    /// What each sample consists of, such as words: the second one.
    Length,
}

impl Dimension {
    /// All of them.
    pub const ALL: [Dimension; 2] = [Dimension::Batch, Dimension::Length];

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

/// What a second capture of a step, at another size, says of what follows from the first.
#[derive(Clone, Debug, PartialEq)]
pub struct Recapture {
    /// The size at which what follows from the first capture is what the second one shows; `None`
    /// if there is none among those that were tried.
    pub size: Option<u64>,
    /// Sizes of which that can be concluded: multiples of this.
    pub grid: u64,
    /// What was different at a size that is no such multiple, or why there was nothing to compare.
    pub difference: Option<String>,
    /// The smallest and the largest size of which all this was seen, that of the graph among them.
    pub between: Option<(u64, u64)>,
    /// What was different at a smaller size.
    pub below: Option<String>,
    /// What was different at a larger one.
    pub above: Option<String>,
    /// Numbers among the arguments of calls that are others there; not those that are extents along
    /// an axis that grows, which follow from the calls.
    pub numbers: Vec<SeenNumber>,
}

/// A rule that the description of a second capture breaks.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum RecaptureError {
    /// It has no size, and nothing says why.
    #[error("a second capture has neither a size nor a difference that says why there is none")]
    NoSize,
    /// It has a size for which PyTorch captures another graph.
    #[error("a second capture has size {size}; the least is {LEAST}")]
    Small {
        /// The size.
        size: u64,
    },
    /// It is said of multiples of a number alone, and nothing says why.
    #[error(
        "a second capture says that multiples of {grid} are known, and no difference at others"
    )]
    Grid {
        /// The number.
        grid: u64,
    },
    /// The sizes of which it was seen are none, or the second capture is not among them.
    #[error("a second capture of size {size} was seen between {least} and {most}")]
    Between {
        /// The size of the second capture.
        size: u64,
        /// The smallest size.
        least: u64,
        /// The largest.
        most: u64,
    },
    /// It has a number where a call has none, or two of them.
    #[error(
        "a second capture has a number for argument {argument} of node `{node}`, which has none \
         there, or it has two"
    )]
    Number {
        /// The name of the node.
        node: String,
        /// The positional argument.
        argument: usize,
    },
}

impl Recapture {
    /// Checks that it is one of the graph with these nodes.
    pub(super) fn check(&self, nodes: &PrimaryMap<NodeId, Node>) -> Result<(), RecaptureError> {
        match self.size {
            None if self.difference.is_none() => return Err(RecaptureError::NoSize),
            Some(_) if self.grid > 1 && self.difference.is_none() => {
                return Err(RecaptureError::Grid { grid: self.grid });
            }
            Some(size) if size < LEAST => return Err(RecaptureError::Small { size }),
            _ => {}
        }
        if let (Some(size), Some((least, most))) = (self.size, self.between)
            && !(LEAST <= least && least <= size && size <= most)
        {
            return Err(RecaptureError::Between { size, least, most });
        }
        let by_name: HashMap<&str, &Node> =
            nodes.values().map(|node| (node.name.as_str(), node)).collect();
        let mut places = HashSet::new();
        for SeenNumber { node: name, argument, item, .. } in &self.numbers {
            let node = by_name.get(name.as_str());
            let given = node.and_then(|node| placed(&node.args, *argument, *item));
            let is_number = matches!(given, Some(Argument::Int(_) | Argument::Float(_)));
            if !is_number || !places.insert((name, argument, item)) {
                return Err(RecaptureError::Number { node: name.clone(), argument: *argument });
            }
        }
        Ok(())
    }
}

/// A number among the arguments of a call in a second capture.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenNumber {
    /// The name of the node.
    pub node: String,
    /// The positional argument.
    pub argument: usize,
    /// Its item, if it is a list.
    pub item: Option<usize>,
    /// The number.
    pub number: f64,
}

/// What captures at other sizes showed.
#[derive(Deserialize)]
pub(super) struct RawRecaptures {
    batch: Option<RawRecapture>,
    length: Option<RawRecapture>,
}

#[derive(Deserialize)]
struct RawRecapture {
    size: Option<u64>,
    grid: Option<NonZeroU64>,
    difference: Option<Name>,
    between: Option<(u64, u64)>,
    below: Option<Name>,
    above: Option<Name>,
    numbers: Option<AtMost<RawNumber, MOST_NAMES>>,
}

#[derive(Deserialize)]
struct RawNumber {
    node: Name,
    argument: usize,
    item: Option<usize>,
    number: f64,
}

impl RawRecaptures {
    /// Each, by its dimension.
    pub fn all(self) -> impl Iterator<Item = (Dimension, Recapture)> {
        let all = [(Dimension::Batch, self.batch), (Dimension::Length, self.length)];
        all.into_iter().filter_map(|(dimension, seen)| Some((dimension, seen?.recapture())))
    }
}

impl RawRecapture {
    fn recapture(self) -> Recapture {
        let number = |RawNumber { node, argument, item, number }| SeenNumber {
            node: node.0,
            argument,
            item,
            number,
        };
        let text = |name: Option<Name>| name.map(|name| name.0);
        Recapture {
            size: self.size,
            grid: self.grid.map_or(1, NonZeroU64::get),
            difference: text(self.difference),
            between: self.between,
            below: text(self.below),
            above: text(self.above),
            numbers: self.numbers.into_iter().flat_map(|all| all.0).map(number).collect(),
        }
    }
}
