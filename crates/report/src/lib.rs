//! Pages, pictures and traces of what schedules do to memory and time. Invariant: every figure
//! shown is read off a checked timeline or a measured trace; nothing is decided here.

mod axis;
mod course;
mod curves;
mod frontier;
mod gantt;
mod memory;
mod page;
mod role;
mod savings;
mod sizes;
mod stack;
mod svg;
mod trace;
mod treemap;
mod words;

pub use course::{Course, Residency};
pub use curves::{Curve, curves_svg};
pub use frontier::{FrontierPoint, frontier_svg};
pub use gantt::pipeline_svg;
pub use memory::memory_svg;
pub use page::{Measured, Planned, Report, modules_svg, page};
pub use role::{ByRole, Role};
pub use savings::{Saving, savings};
pub use sizes::{SizePoint, sizes_svg};
pub use stack::stack_svg;
pub use trace::{
    FORMAT as TRACE_FORMAT, MemoryMark, Trace, TraceError, TracedCall, TracedTransfer, join,
};
