//! Loss and accuracy over the validation split. Invariant: an evaluation computes in what training
//! leaves free and changes no parameter and no state.

use tightfit::tensor::DType;

use crate::execute::error::SessionError;
use crate::execute::executable::StepSettings;
use crate::execute::places::{Located, loss_of, offsets, pair};
use crate::execute::session::Session;
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
        if self.evaluation.is_none() {
            return Ok(None);
        }
        let failed = |step| move |error| SessionError::Step { step, error };
        self.settle().map_err(failed(self.next_step))?;
        let evaluated = self.evaluate_settled(data, most);
        if let Err(SessionError::Step { error, .. }) = &evaluated {
            self.has_failed |= error.is_fatal();
        }
        // What it has brought for a batch that does not come lies where training computes.
        let rested = self.rest().map_err(failed(self.next_step));
        // What failed first says why.
        evaluated.and_then(|evaluation| rested.map(|()| evaluation))
    }

    fn evaluate_settled(
        &mut self,
        data: &mut Dataset,
        most: usize,
    ) -> Result<Option<Evaluation>, SessionError> {
        let Some(compiled) = &self.evaluation else { return Ok(None) };
        let failed = |error| SessionError::Step { step: self.next_step, error };
        compiled.executable.begin(&self.slab).map_err(failed)?;
        let settings = StepSettings { seed: self.seed, step: self.next_step, learning_rate: 0.0 };
        let all = data.validation_batches(compiled.rows);
        let (mut loss, mut rows, mut hits, mut predictions) = (0.0, 0.0, 0u64, 0u64);
        for index in 0..all.min(most) {
            let (input, target) = pair(&mut self.slab, compiled.batch());
            let drawn = data.validation_batch(index, input, target)?;
            let of_row = [input.len(), target.len()].map(|bytes| bytes / compiled.rows.max(1));
            compiled
                .executable
                .run(&mut self.slab, &settings)
                .map_err(|error| SessionError::Step { step: self.next_step, error })?;
            loss += f64::from(loss_of(&self.slab, compiled)) * drawn.rows as f64;
            rows += drawn.rows as f64;
            let prediction = compiled.outputs.get(1);
            let Some(prediction) = prediction.filter(|output| output.dtype == DType::F32) else {
                continue;
            };
            // The batch may be overwritten by now. Its rows are read again one by one: all of its
            // targets would be memory beside the slab.
            let mut entries = entries(&self.slab, prediction);
            let classes = prediction.shape.last().copied().unwrap_or(1) as usize;
            let [mut input, mut target] = of_row.map(|bytes| vec![0; bytes]);
            for number in 0..drawn.rows {
                data.validation_batch(index * compiled.rows + number, &mut input, &mut target)?;
                for &target in target.as_chunks::<8>().0 {
                    let class = largest(entries.by_ref().take(classes));
                    hits += u64::from(class == Some(i64::from_ne_bytes(target)));
                    predictions += 1;
                }
            }
        }
        let accuracy = (predictions > 0).then(|| hits as f64 / predictions as f64);
        Ok(Some(Evaluation { loss: loss / rows, accuracy, batches: (all.min(most), all) }))
    }
}

/// All entries of a prediction, classes last.
fn entries<'a>(slab: &'a Slab, prediction: &'a Located) -> impl Iterator<Item = f32> + 'a {
    offsets(prediction).map(|offset| {
        f32::from_ne_bytes(
            slab.read(prediction.address + offset, 4).try_into().expect("four bytes"),
        )
    })
}

/// The index of the largest entry, the first one of equals; `None` where no entry is any number.
fn largest(entries: impl Iterator<Item = f32>) -> Option<i64> {
    let mut best = None;
    for (class, entry) in entries.enumerate() {
        if best.map_or(entry > f32::NEG_INFINITY, |(_, least)| entry > least) {
            best = Some((class as i64, entry));
        }
    }
    best.map(|(class, _)| class)
}
