//! Why a step cannot have another size. Invariant: each cause names the node, the tensor or the
//! number that it is about.

use thiserror::Error;

use crate::exit::coded;
use crate::graph::GraphError;
use crate::operator::Unsuited;
use crate::sizes::compare::Difference;

/// Why a step cannot have another size.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum SizeError {
    /// No tensor of the batch has such a dimension.
    #[error("the step has no {dimension}: no tensor of its batch has such a dimension")]
    NoDimension {
        /// What the size is called.
        dimension: &'static str,
    },
    /// A size for which PyTorch captures another graph.
    #[error(
        "a {dimension} of {size} is too small: the least is 2, since PyTorch captures another \
         graph for one"
    )]
    Small {
        /// What the size is called.
        dimension: &'static str,
        /// The size.
        size: u64,
    },
    /// The step cannot have any other size.
    #[error("the step has no other {dimension} of which it is known what it would be")]
    None {
        /// What the size is called.
        dimension: &'static str,
    },
    /// A second capture showed more differences than follow, or could not be made.
    #[error("it is not known what the step is with another {dimension}: {why}")]
    Differs {
        /// What the size is called.
        dimension: &'static str,
        /// The difference.
        why: String,
    },
    /// Only multiples are known to be what follows.
    #[error(
        "it is not known what the step is with a {dimension} of {size}, only with multiples of \
         {grid}: {why}"
    )]
    Multiple {
        /// What the size is called.
        dimension: &'static str,
        /// The size.
        size: u64,
        /// The number of which sizes are multiples.
        grid: u64,
        /// What was different at another size.
        why: String,
    },
    /// Smaller or larger sizes are known to be something else.
    #[error(
        "it is not known what the step is with a {dimension} of {size}, only with {least} to \
         {most}: {why}"
    )]
    Outside {
        /// What the size is called.
        dimension: &'static str,
        /// The size.
        size: u64,
        /// The smallest size of which it is known.
        least: u64,
        /// The largest.
        most: u64,
        /// What was different at a smaller or larger one.
        why: String,
    },
    /// What follows from a size along one dimension depends on that along another one.
    #[error("the step depends on which of its sizes is changed first: {difference}")]
    Order {
        /// What is different then.
        difference: Difference,
    },
    /// A number is another one at another size, and it is not known how it follows.
    #[error(
        "node `{node}` has the number {other} instead of {one}, and how that follows from the \
         {dimension} is not known"
    )]
    Varies {
        /// The name of the node.
        node: String,
        /// What the size is called.
        dimension: &'static str,
        /// The number at the captured size.
        one: f64,
        /// And that of the second capture.
        other: f64,
    },
    /// The step has several micro-batches.
    #[error("the step has several micro-batches; give that of a single one")]
    MicroBatches,
    /// A call whose axes are not known has a tensor that grows with the size.
    #[error(
        "node `{node}` has a tensor that grows with the {dimension} in dimension {dim}, and what \
         `{op}` does along that is not known"
    )]
    Unknown {
        /// The name of the node.
        node: String,
        /// The operator.
        op: String,
        /// What the size is called.
        dimension: &'static str,
        /// The dimension of the tensor.
        dim: usize,
    },
    /// Two dimensions that must go together grow with the size in different ways.
    #[error("node `{node}` puts together what grows with the {dimension} in different ways")]
    Conflict {
        /// The name of the node.
        node: String,
        /// What the size is called.
        dimension: &'static str,
    },
    /// A parameter or buffer would have to grow with the size.
    #[error(
        "`{name}`, a {phase}, has the extent of the {dimension} in dimension {dim}, and its \
         contents are known for that alone"
    )]
    Fixed {
        /// The name of the parameter or buffer.
        name: String,
        /// Which of them it is.
        phase: &'static str,
        /// What the size is called.
        dimension: &'static str,
        /// The dimension of the tensor.
        dim: usize,
    },
    /// A factor may count what the size counts.
    #[error(
        "node `{node}` has the factor {number}, which may count the {dimension}, as in a mean that \
         the model computes by itself"
    )]
    Counted {
        /// The name of the node.
        node: String,
        /// The factor.
        number: f64,
        /// What the size is called.
        dimension: &'static str,
    },
    /// A call alone says how many elements it makes, which may follow from the size.
    #[error(
        "node `{node}` makes a tensor with {extent} elements in dimension {dim}, as one that grows \
         with the {dimension} has; no call puts them together, so it is not known whether it \
         grows: capture the step with another {dimension}"
    )]
    Made {
        /// The name of the node.
        node: String,
        /// The extent.
        extent: u64,
        /// What the size is called.
        dimension: &'static str,
        /// The dimension of the tensor.
        dim: usize,
    },
    /// What is counted along the size is limited by a number.
    #[error(
        "node `{node}` compares positions that are counted along the {dimension} with {number}, \
         which may follow from it"
    )]
    Limited {
        /// The name of the node.
        node: String,
        /// The number.
        number: f64,
        /// What the size is called.
        dimension: &'static str,
    },
    /// What grows is looked up in at as many positions as before.
    #[error(
        "node `{node}` looks up in dimension {dim} of what grows with the {dimension}, at as many \
         positions as before, which may follow from it"
    )]
    LookUp {
        /// The name of the node.
        node: String,
        /// What the size is called.
        dimension: &'static str,
        /// The dimension of the tensor.
        dim: usize,
    },
    /// A slice starts or ends at a number that may follow from the size.
    #[error(
        "node `{node}` takes a slice up to, or from, element {position} of what grows with the \
         {dimension}, and it is not known whether that number grows"
    )]
    Ends {
        /// The name of the node.
        node: String,
        /// Where it starts or ends.
        position: u64,
        /// What the size is called.
        dimension: &'static str,
    },
    /// A table has fewer rows than are looked up in it.
    #[error("node `{node}` looks up {asked} rows at this size, and its table has {rows}")]
    Rows {
        /// The name of the node.
        node: String,
        /// The rows that there are.
        rows: u64,
        /// The rows that are looked up.
        asked: u64,
    },
    /// A call would not conform to its operator.
    #[error("node `{node}` at this size: {error}")]
    Call {
        /// The name of the node.
        node: String,
        /// Why.
        error: Unsuited,
    },
    /// A tensor would not have the shape that its operator makes.
    #[error(
        "node `{node}` makes {made:?} at this size, where the batch needs {followed:?}: what it is \
         made from, such as a table of positions, may have no more"
    )]
    Shape {
        /// The name of the node.
        node: String,
        /// The shape that the operator makes.
        made: Vec<u64>,
        /// The shape that follows.
        followed: Vec<u64>,
    },
    /// The places of a tensor's elements are not known.
    #[error("node `{node}` makes a tensor whose strides at this size are not known")]
    Layout {
        /// The name of the node.
        node: String,
    },
    /// The size of a tensor or of another figure is beyond all bounds.
    #[error("node `{node}` is too large at this size")]
    Large {
        /// The name of the node.
        node: String,
    },
    /// A rule of graphs would be broken.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

coded!(Usage: SizeError);
