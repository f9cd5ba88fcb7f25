//! The engine executes a checked schedule inside one slab of memory.
//!
//! The budget is the only memory there is: slab = budget − reserve, where the reserve is what the
//! process itself takes; every buffer's address comes from the schedule, and kernels write into the
//! slab and nowhere else. [`Step`] is what an export produces, [`Session`] a run of it.

mod budget;
mod calibrate;
mod execute;
pub mod file;
mod fit;
mod kernels;
mod memory;
pub mod philox;
mod replan;
mod reserve;
pub mod residency;
pub mod step;
pub mod transport;

pub use budget::{Budget, BudgetError};
pub use calibrate::{Extent, calibrate};
pub use execute::error::{CompileError, SessionError, StepError, UnknownOperator};
pub use execute::evaluation::Evaluation;
pub use execute::executable::{Executable, Executed, StepSettings};
pub use execute::lanes::Traffic;
pub use execute::placement::Iterations;
pub use execute::places::Located;
pub use execute::ready::TierFolder;
pub use execute::region::Region;
pub use execute::residents::Resident;
pub use execute::session::{Session, SessionBuilder};
pub use execute::set_aside::SetAside;
pub use execute::trial::{FastestStep, NodeTimings, Timings, VERSION, trial};
pub use execute::weights;
pub use fit::{
    Divided, Division, FitTask, FittedGraph, FittedStep, FittingError, PlacementError, fit_divided,
    fit_graph, fit_placed, fit_rest, fit_step, parts_tried, within_memory,
};
pub use kernels::{KernelError, assert_disjoint};
pub use memory::process;
pub use memory::slab::{Slab, SlabError};
pub use memory::tier::{self, TierError};
pub use replan::{Kept, Replanned, replan};
pub use reserve::{Reserve, reserve};
pub use step::Step;
pub use step::data::{self, Dataset};
