//! The name of the graph format, and the limits of all files that are read. Invariant: readers and
//! their messages use the same limits; each is far above what real files need, and any file within
//! them is read in a few hundred megabytes in addition to the file itself.
//!
//! For comparison: the largest known graph has 60,000 nodes; its text is 13 MB, which is 220 bytes
//! a node, and gzip packs it to one thirteenth.

/// The format for reading and writing.
pub const FORMAT: &str = "tightfit-graph/1";

/// Bytes of a graph's text, after unpacking.
pub const MOST_TEXT: u64 = 1 << 30;
/// Bytes of the longest text that is held in memory while it is read, since that is faster; of a
/// longer one only a window is.
pub(super) const HELD_TEXT: u64 = 16 << 20;
/// Bytes of one name; names of nodes and modules have tens.
pub const LONGEST_NAME: usize = 1 << 20;

/// Nodes of a graph.
pub const MOST_NODES: usize = 1 << 20;
/// Names in one list: of modules, and of outputs.
pub(super) const MOST_NAMES: usize = 1 << 20;
/// Storages of a graph.
pub(super) const MOST_STORAGES: usize = 1 << 22;
/// Inputs, outputs, extents, strides and arguments of all nodes together.
pub(super) const MOST_OPERANDS: usize = 1 << 24;
/// Entries of one list of a node, and arguments of one call including all items of their lists.
pub(super) const MOST_OF_A_NODE: usize = 1 << 17;
/// Dimensions of a tensor, as in PyTorch.
pub(super) const MOST_DIMENSIONS: usize = 64;
/// Nesting of lists in arguments; ATen needs two.
pub(super) const DEEPEST_LIST: usize = 16;
/// Parts of the description of a file's origin.
pub const MOST_OF_A_SOURCE: usize = 1 << 12;

/// Bytes of a plan's text.
pub const MOST_PLAN: u64 = 64 << 20;
/// Bytes of a pipeline schedule's text.
pub const MOST_SCHEDULE: u64 = 64 << 20;
/// Buffers of a plan.
pub const MOST_BUFFERS: usize = 1 << 22;
/// Instructions of a plan.
pub const MOST_INSTRUCTIONS: usize = 1 << 22;
/// Parts of one instruction; most of them are a call's inputs and outputs.
pub const MOST_OF_A_CALL: usize = 3 * MOST_OF_A_NODE;

/// Bytes of a `step.json`, with half a kilobyte for each parameter.
pub const MOST_STEP: u64 = 32 << 20;
/// Parameters of a step.
pub const MOST_PARAMETERS: usize = 1 << 16;

/// Bytes of statistics of modules.
pub const MOST_STATISTICS: u64 = 64 << 20;
/// Modules that have statistics.
pub const MOST_MODULES: usize = 1 << 16;
/// Parts of one module's statistics: figures, and pairs of its curve.
pub const MOST_OF_A_MODULE: usize = 1 << 16;
/// Parts of the statistics of all operators together.
pub const MOST_OPERATOR_FIGURES: usize = 1 << 20;

/// Bytes of a trace.
pub const MOST_TRACE: u64 = 256 << 20;
/// Events of a trace.
pub const MOST_EVENTS: usize = 1 << 22;
/// Parts of one event of a trace, or of a value of which only a number or a name is used.
pub const MOST_OF_AN_EVENT: usize = 1 << 12;

/// Bytes of the header of a weights file: 120 for each tensor.
pub const LONGEST_HEADER: u64 = 16 << 20;
