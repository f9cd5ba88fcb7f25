//! What a graph file calls itself and holds at most. Invariant: the reader and its messages know
//! the same figures.

/// The format that is read and written.
pub const FORMAT: &str = "tightfit-graph/1";

/// A compressed file may not unfold to more than this: the largest graphs known have some hundred
/// megabytes.
pub(super) const MOST_BYTES: u64 = 4 << 30;
/// Nesting of lists in arguments; ATen needs two.
pub(super) const DEEPEST_LIST: usize = 16;
