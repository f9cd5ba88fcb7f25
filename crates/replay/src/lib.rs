//! Addresses for a step that PyTorch executes: its allocations are recorded, laid out by the
//! caller, and replayed, the n-th allocation of the step at the n-th planned address of one slab.
//!
//! An [`Allocator`] stands between PyTorch and the memory of one device. It passes allocations on
//! to its [`Backing`], until a step is recorded: then it also notes the allocations that the step's
//! own thread makes for its stream within the step's *windows* (the calls of forward and backward
//! pass). Two [`Trace`]s that agree are [`Settled`]; with an offset for each allocation they become
//! a [`Placement`], which is checked here by code that knows nothing of how the offsets were found.
//! A replayed step gets exactly what was recorded, or it is stopped.
//!
//! Invariant: an address of the slab is never given out while something still lies there, and the
//! bytes reserved of a device are those of the slab and of the blocks that were passed on. What is
//! unsafe is in `host`, `cuda`, `library` and `process` alone; no input makes this crate panic.

mod allocator;
mod backing;
mod cuda;
mod error;
mod host;
mod library;
mod placement;
pub mod process;
mod recording;
mod tenants;
mod trace;

pub use allocator::{Allocator, Counters, Stream, Thread};
pub use backing::{Address, Backing, OutOfMemory, Size};
pub use error::ReplayError;
pub use host::Host;
pub use placement::{ALIGNMENT, MisplacedError, Placement};
pub use tenants::Offset;
pub use trace::{Life, Settled, Trace};
