//! How a run of steps ended, and what is said of it. Invariant: a file is only called saved once it
//! was, and a message about an error says what was saved before.

use std::path::{Path, PathBuf};

use thiserror::Error;
use tightfit::exit::coded;

use crate::failure::Failure;

/// Why no further step was run.
#[derive(Debug)]
pub enum Ending {
    /// All steps were done, or a signal asked the run to end.
    InOrder,
    /// A loss is not finite, so the run cannot go on from it.
    NotFinite(LossNotFinite),
    /// Something failed between two steps: the other ranks cannot be told of the next one, say. The
    /// weights are those after the last step.
    Failed(Failure),
}

/// The loss of a step, or of the validation data after it, is NaN or infinite.
#[derive(Clone, Debug, Error)]
#[error(
    "step {step}: the {what} is {loss}; the run ended there{}; a smaller --lr may help, and \
     --keep-going goes on all the same", kept(save.as_deref())
)]
pub struct LossNotFinite {
    /// The step, from 1.
    pub step: u32,
    /// Which loss: the step's own, or that of the validation data after it.
    pub what: &'static str,
    /// The loss.
    pub loss: f64,
    /// The file to which its weights would have been saved.
    pub save: Option<PathBuf>,
}

/// What is true of the weights if the tier fails.
pub fn unsaved(save: Option<&Path>) -> String {
    format!("the run ended in the middle of a step, with nothing saved{}", kept(save))
}

fn kept(save: Option<&Path>) -> String {
    match save {
        Some(path) if path.exists() => format!(", and {} stays as it was", path.display()),
        Some(path) => format!(", and {} was not written", path.display()),
        None => String::new(),
    }
}

/// The losses of a run that were NaN or infinite.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotFinite {
    /// The first such step, from 1.
    pub first: Option<u32>,
    /// How many there were.
    pub count: u32,
}

impl NotFinite {
    /// Counts one more.
    pub fn add(&mut self, step: u32) {
        self.first.get_or_insert(step);
        self.count += 1;
    }
}

/// A run does not have numbers for this many steps.
#[derive(Debug, Error)]
#[error(
    "{}: {done} steps were done, so at most {} more can be counted; --steps {steps} is too many",
    path.display(),
    u32::MAX - done
)]
pub struct TooManySteps {
    /// The weights that are resumed.
    pub path: PathBuf,
    /// Steps that they have already done.
    pub done: u32,
    /// Steps that were requested.
    pub steps: u32,
}

/// A run that is resumed keeps the seed that it began with.
#[derive(Debug, thiserror::Error)]
#[error("--seed {asked} contradicts {}, whose run has seed {seed}", path.display())]
pub struct OtherSeed {
    /// The weights that are resumed.
    pub path: PathBuf,
    /// The seed of the run that wrote them.
    pub seed: u64,
    /// The seed that was requested.
    pub asked: u64,
}

/// What is true of the weights if something fails after the last step.
pub fn said(saved: Option<&Path>, steps: u32) -> String {
    match saved {
        Some(path) => format!("the weights after step {steps} were saved to {}", path.display()),
        None => format!("the run ended after step {steps}, and no weights were saved"),
    }
}

coded!(NotFinite: LossNotFinite);
coded!(Usage: OtherSeed, TooManySteps);
