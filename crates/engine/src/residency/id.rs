//! Dense ids of tensors, chunks and their places. Invariant: an id is an index into the table of
//! its own kind, never a bare number.

use tightfit::ids;

ids! {
    /// A stateful tensor, in the order of registration.
    TensorId, "tensor";
    /// Chunks that move together: one that several tensors share, or all those of a large tensor.
    BlockId, "block";
    /// A part of the model data of a fixed size.
    ChunkId, "chunk";
    /// A place for one chunk in the region of the device.
    SlotId, "slot";
    /// A graph whose order of accesses is recorded.
    RecordId, "record";
}

/// The caller's name for a graph, such as the hash of its file or the length of its sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphKey(pub u64);
