//! Memory: the slab, what the process takes beside it, and what the operating system says of both.
//! Invariant: nothing but the slab holds tensors.

pub mod base;
mod field;
pub mod limit;
pub mod process;
pub mod slab;
