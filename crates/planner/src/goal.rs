//! What is asked for. Invariant: no number of bytes stands for "as few as possible".

use crate::units::Bytes;

/// How many bytes a step may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// At most so many; within them as fast as possible.
    Within(Bytes),
    /// As few as possible, however slow.
    Smallest,
}
