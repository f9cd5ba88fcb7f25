//! Pictures of what schedules do to memory and time. Invariant: every figure shown is read off a checked timeline.

mod axis;
mod frontier;
mod memory;

pub use frontier::{FrontierPoint, frontier_svg};
pub use memory::memory_svg;
