//! Dense ids of the parts of a graph, a machine and a schedule. Invariant: an id is an index into
//! the table of its own kind, never a bare number.
//!
//! Tables indexed by an id are [`PrimaryMap`], where adding an entry makes the id, and
//! [`SecondaryMap`], which adds data to existing ids. Both come from the crate `cranelift-entity`,
//! as does [`EntityRef`], which every id implements.

pub use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap, entity_impl};

/// Tiers, lanes, ranks and micro-batches have smaller numbers than this, so that tables indexed by
/// them stay small whatever a file contains.
pub(crate) const MOST_IDS: u64 = 1 << 16;

/// The tier that computes.
pub const DEVICE: TierId = TierId(0);

/// Types of ids, each with its documentation and the word before its number.
#[macro_export]
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident, $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);
        $crate::id::entity_impl!($name, $prefix);
    )*};
}

ids! {
    /// An operator call or a placeholder, in program order.
    NodeId, "node";
    /// A tensor that a node produces. Values that alias share a storage.
    ValueId, "value";
    /// A run of bytes that values live in.
    StorageId, "storage";
    /// A module of the model; 0 is the root.
    ModuleId, "module";
    /// A run of bytes that holds one storage after another, never two at a time.
    BufferId, "buffer";
    /// A memory of the machine; 0 is the device that computes.
    TierId, "tier";
    /// A connection between two tiers that moves one thing after another.
    LaneId, "lane";
    /// A transfer of a schedule, from its start to its wait.
    TransferId, "transfer";
    /// A part of a model that is computed by one rank of a pipeline.
    StageId, "stage";
    /// A part of the batch that runs through the step on its own.
    MicroBatchId, "micro-batch";
    /// A process of a run on several devices.
    RankId, "rank";
}

impl MicroBatchId {
    /// The whole batch, if a step is not divided.
    pub const WHOLE: MicroBatchId = MicroBatchId(0);
}
