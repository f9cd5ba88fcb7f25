//! Memory: the slab, and what the operating system says of the process. Invariant: nothing else
//! holds tensors.

pub mod process;
pub mod slab;
