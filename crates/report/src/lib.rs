//! Pictures of what a schedule does to memory. Invariant: every figure shown is read off a checked timeline.

mod memory;

pub use memory::memory_svg;
