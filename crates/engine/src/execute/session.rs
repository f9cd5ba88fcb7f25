//! A training run: one slab, the compiled step, the compiled evaluation.
//! Invariant: parameters and state stay at their addresses from the first step to the last;
//! evaluation runs in what training leaves free.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use rayon::ThreadPoolBuilder;
use thiserror::Error;
use tightfit::check::Checked;
use tightfit::tensor::DType;
use tightfit::timeline::CallInTime;
use tightfit::units::Bytes;

use crate::execute::error::{CompileError, StepError};
use crate::execute::executable::{Executable, StepSettings};
use crate::execute::places::{Compiled, Resident, compile, gather, loss_of, pair, residents};
use crate::memory::slab::{Slab, SlabError};
use crate::step::Step;
use crate::step::data::Dataset;
use crate::step::initialise::{self, Unfilled};

/// Why a run cannot start or go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// A schedule cannot be executed here.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The system refused the slab's memory.
    #[error(transparent)]
    Slab(#[from] SlabError),
    /// The system refused the worker threads.
    #[error("the worker threads could not be started: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    /// A parameter's first values are not of its type, or their file is damaged.
    #[error("a parameter could not be initialised: {0}")]
    Initialise(String),
    /// The file of a parameter's first values cannot be read.
    #[error("a parameter could not be initialised: {}: {error}", path.display())]
    InitialValues {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The evaluation's schedule was made for another layout than the training's.
    #[error(
        "`{name}` lies elsewhere in the evaluation's schedule than in the training's; plan the \
         evaluation with the residents of the training"
    )]
    Moved {
        /// The parameter, buffer or state.
        name: String,
    },
    /// A step failed.
    #[error("step {step}: {error}")]
    Step {
        /// Number of the step, from 1.
        step: u32,
        /// Why it failed.
        error: StepError,
    },
}

/// A running training.
pub struct Session {
    pub(super) slab: Slab,
    training: Compiled,
    pub(super) evaluation: Option<Compiled>,
    residents: BTreeMap<String, Resident>,
    /// Seed of the run.
    pub seed: u64,
    /// Number of the next step.
    pub next_step: u32,
    /// Learning rate.
    pub learning_rate: f64,
}

impl Session {
    /// Compiles both schedules, allocates the slab and fills the parameters; state begins at zero.
    pub fn new(
        step: &Step,
        training: &Checked,
        evaluation: Option<&Checked>,
        slab: Bytes,
        threads: usize,
        seed: u64,
    ) -> Result<Session, SessionError> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .stack_size(1 << 20)
            .thread_name(|i| format!("tightfit-{i}"))
            .build()?;
        let pool = Arc::new(pool);
        let compiled = compile(&step.training, training, &pool)?;
        let stay = residents(&step.training, training.schedule());
        let evaluation = match (&step.evaluation, evaluation) {
            (Some(graph), Some(checked)) => {
                stays_in_place(&stay, residents(graph, checked.schedule()))?;
                Some(compile(graph, checked, &pool)?)
            }
            _ => None,
        };
        let mut session = Session {
            slab: Slab::new(slab)?,
            training: compiled,
            evaluation,
            residents: stay,
            seed,
            next_step: 0,
            learning_rate: step.optimizer.learning_rate,
        };
        session.initialise(step)?;
        Ok(session)
    }

    fn initialise(&mut self, step: &Step) -> Result<(), SessionError> {
        for (index, (name, recipe)) in step.parameters.iter().enumerate() {
            let Some(resident) = self.residents.get(name) else { continue };
            let out = self.slab.write(resident.address, resident.bytes);
            initialise::fill(
                recipe,
                name,
                index as u32,
                self.seed,
                &step.folder,
                out,
                resident.dtype == DType::F32,
            )
            .map_err(|unfilled| match unfilled {
                Unfilled::Read { path, error } => SessionError::InitialValues { path, error },
                Unfilled::Wrong(what) => SessionError::Initialise(what),
            })?;
        }
        Ok(())
    }

    /// Draws a batch, executes one step and returns the loss before the update.
    pub fn step(&mut self, data: &mut Dataset) -> Result<f32, SessionError> {
        self.advance(data, |executable, slab, settings| executable.run(slab, settings))
    }

    /// Like [`Session::step`], with the seconds of every call.
    pub fn step_timed(
        &mut self,
        data: &mut Dataset,
        report: &mut (dyn FnMut(CallInTime) + Send),
    ) -> Result<f32, SessionError> {
        self.advance(data, |executable, slab, settings| {
            executable.run_timed(slab, settings, report)
        })
    }

    /// Draws a batch, has `run` execute the step and goes on to the next one.
    fn advance(
        &mut self,
        data: &mut Dataset,
        run: impl FnOnce(&Executable, &mut Slab, &StepSettings) -> Result<(), StepError>,
    ) -> Result<f32, SessionError> {
        let (input, target) = pair(&mut self.slab, self.training.input, self.training.target);
        data.training_batch(self.seed, self.next_step, input, target);
        let settings = StepSettings {
            seed: self.seed,
            step: self.next_step,
            learning_rate: self.learning_rate,
        };
        run(&self.training.executable, &mut self.slab, &settings)
            .map_err(|error| SessionError::Step { step: self.next_step + 1, error })?;
        self.next_step += 1;
        Ok(loss_of(&self.slab, &self.training))
    }

    /// Everything that stays in the slab, by name.
    pub fn residents(&self) -> &BTreeMap<String, Resident> {
        &self.residents
    }

    /// The bytes of a resident tensor.
    pub fn resident_bytes(&self, resident: &Resident) -> &[u8] {
        self.slab.read(resident.address, resident.bytes)
    }

    /// The bytes of a resident tensor, to be written.
    pub fn resident_bytes_mut(&mut self, name: &str) -> Option<&mut [u8]> {
        let resident = self.residents.get(name)?;
        Some(self.slab.write(resident.address, resident.bytes))
    }

    /// Elements of a batch's targets: tokens, or rows.
    pub fn units_per_batch(&self) -> u64 {
        self.training.target.bytes / 8
    }

    /// Size of the slab.
    pub fn slab_bytes(&self) -> Bytes {
        self.slab.bytes()
    }

    /// The training graph's outputs after a step, contiguous.
    pub fn training_output(&self, index: usize) -> Option<Vec<u8>> {
        self.training.outputs.get(index).map(|located| gather(&self.slab, located))
    }
}

/// Evaluation finds parameters and state where training keeps them.
fn stays_in_place(
    training: &BTreeMap<String, Resident>,
    evaluation: BTreeMap<String, Resident>,
) -> Result<(), SessionError> {
    let is_moved = |name: &String, here: &Resident| {
        training.get(name).is_some_and(|there| there.address != here.address)
    };
    match evaluation.into_iter().find(|(name, here)| is_moved(name, here)) {
        Some((name, _)) => Err(SessionError::Moved { name }),
        None => Ok(()),
    }
}
