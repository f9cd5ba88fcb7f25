//! The engine executes a checked schedule inside one slab of memory.
//!
//! The budget is the only memory there is: slab = budget − reserve, every buffer's address comes
//! from the schedule, and kernels write into the slab and nowhere else. [`Step`] is what an export
//! gives, [`Session`] a run of it.

mod calibrate;
pub mod checkpoint;
pub mod data;
mod initialise;
mod kernels;
pub mod philox;
pub mod process;
mod program;
mod reserve;
mod session;
mod slab;
pub mod step;
mod stream;
mod tensor;
mod trial;

pub use calibrate::calibrate;
pub use data::Dataset;
pub use kernels::KernelError;
pub use program::{CompileError, MeasuredCall, Program, StepError, StepSettings, UnknownOperator};
pub use reserve::reserve;
pub use session::{Evaluation, Located, Resident, Session, SessionError};
pub use slab::{Slab, SlabError};
pub use step::Step;
pub use trial::{FastestStep, Timings, VERSION, trial};
