//! Schedules: a plan as a list of instructions over buffers with addresses. Invariant: everything
//! that a plan does is an instruction here, so one checker and one interpreter serve all planners.

mod below;
mod buffers;
mod format;
mod instruction;
mod layout;
mod lower;
mod lowering;
mod persistent;
mod read;
mod transfer;

pub use format::{FORMAT, PlanFileError, write};
pub use instruction::{ALIGNMENT, Buffer, Call, Instruction, Schedule};
pub use layout::{Lifetime, Packing, Shelf, pack};
pub use lower::lower;
pub use lowering::Lowering;
pub use persistent::Residents;
pub use read::read;
pub use transfer::{Movement, Transfer};
