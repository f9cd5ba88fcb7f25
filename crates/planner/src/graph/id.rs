//! Dense ids of a graph's parts. Invariant: an id is an index into the table of its own kind, never
//! a bare number.

use cranelift_entity::entity_impl;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident, $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);
        entity_impl!($name, $prefix);
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
}
