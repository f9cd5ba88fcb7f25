//! Loss and accuracy over the validation split. Invariant: an evaluation computes in what training
//! leaves free and changes no parameter and no state.

use tightfit::tensor::DType;

use crate::execute::executable::StepSettings;
use crate::execute::places::{Located, loss_of, offsets, pair};
use crate::execute::session::{Session, SessionError};
use crate::memory::slab::Slab;
use crate::step::data::Dataset;

/// The result of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean loss over all batches, weighted by their rows.
    pub loss: f64,
    /// Share of predictions whose largest entry is the target.
    pub accuracy: Option<f64>,
    /// Batches evaluated, and batches there are.
    pub batches: (usize, usize),
}

impl Session {
    /// Loss and accuracy over the validation split, or over its first `most` batches; `None` where
    /// the step has no evaluation that fits.
    pub fn evaluate(
        &mut self,
        data: &mut Dataset,
        most: usize,
    ) -> Result<Option<Evaluation>, SessionError> {
        let Some(compiled) = &self.evaluation else { return Ok(None) };
        let settings = StepSettings { seed: self.seed, step: self.next_step, learning_rate: 0.0 };
        let all = data.validation_batches(compiled.rows);
        let (mut loss, mut rows, mut hits, mut predictions) = (0.0, 0.0, 0u64, 0u64);
        for index in 0..all.min(most) {
            let (input, target) = pair(&mut self.slab, compiled.input, compiled.target);
            let drawn = data.validation_batch(index, input, target)?;
            let targets: Vec<i64> =
                target.as_chunks::<8>().0.iter().map(|&class| i64::from_ne_bytes(class)).collect();
            compiled
                .executable
                .run(&mut self.slab, &settings)
                .map_err(|error| SessionError::Step { step: self.next_step, error })?;
            loss += f64::from(loss_of(&self.slab, compiled)) * drawn.rows as f64;
            rows += drawn.rows as f64;
            let prediction = compiled.outputs.get(1);
            if let Some(prediction) = prediction.filter(|output| output.dtype == DType::F32) {
                let counted = targets.len() * drawn.rows / compiled.rows.max(1);
                hits += hits_among(&self.slab, prediction, &targets[..counted]);
                predictions += counted as u64;
            }
        }
        let accuracy = (predictions > 0).then(|| hits as f64 / predictions as f64);
        Ok(Some(Evaluation { loss: loss / rows, accuracy, batches: (all.min(most), all) }))
    }
}

/// How many rows of a prediction (classes last) have their largest entry at the target.
fn hits_among(slab: &Slab, prediction: &Located, targets: &[i64]) -> u64 {
    let classes = prediction.shape.last().copied().unwrap_or(1) as usize;
    let at = |offset: u64| {
        f32::from_ne_bytes(
            slab.read(prediction.address + offset, 4).try_into().expect("four bytes"),
        )
    };
    let mut entries = offsets(prediction).map(at);
    let mut hits = 0;
    for &target in targets {
        let mut best = (0, f32::NEG_INFINITY);
        for class in 0..classes {
            let Some(entry) = entries.next() else { return hits };
            if entry > best.1 {
                best = (class, entry);
            }
        }
        hits += u64::from(best.0 as i64 == target);
    }
    hits
}
