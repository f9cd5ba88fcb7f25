//! Memory: the slab, what the process takes besides it, and what the operating system reports of
//! both. Invariant: nothing but the slab holds tensors.

mod children;
mod field;
pub mod footprint;
pub mod limit;
pub mod process;
pub mod slab;
pub mod tier;
