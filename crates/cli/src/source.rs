//! Where a run's batches come from. Invariant: a step reads only files next to it, or where its
//! user works, unless the user allows more.

use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use tightfit_engine::{Dataset, Step};

use crate::failure::Result;
use crate::values::Outside;

/// Where a run's batches come from, as it is given on the command line.
#[derive(Args, Clone, Default)]
pub struct Source {
    /// Run on this file instead of the step's own data
    #[arg(long, requires = "step")]
    pub data: Option<PathBuf>,
    /// Let the step name data and first values that lie neither in its folder, nor in the
    /// repository around it, nor below the working directory
    #[arg(long, requires = "step")]
    allow_outside: bool,
}

impl Source {
    /// The data of a step, or the file given in their place.
    pub fn open(&self, step: &Step) -> Result<Dataset> {
        let data = self.data.as_deref();
        match step.outside(data).filter(|_| !self.allow_outside) {
            Some(file) => Err(Outside { step: step.folder.clone(), file }.into()),
            None => Ok(Dataset::open(&step.data, &step.folder, data)?),
        }
    }

    /// Passes the same on to another run of the program.
    pub fn pass_on(&self, command: &mut Command) {
        if let Some(data) = &self.data {
            command.arg("--data").arg(data);
        }
        command.args(self.allow_outside.then_some("--allow-outside"));
    }
}
