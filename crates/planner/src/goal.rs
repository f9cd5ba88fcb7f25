//! Goals for the memory of a step. Invariant: no number of bytes stands for "as few as possible".

use crate::units::Bytes;

/// How many bytes a step may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The slab takes at most this many bytes; within them the step is as fast as possible.
    Within(Bytes),
    /// The slab is as small as possible, however slow the step becomes.
    Smallest,
}
