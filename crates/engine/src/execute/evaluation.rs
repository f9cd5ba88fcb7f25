//! Loss and accuracy over the validation split. Invariant: an evaluation computes in the memory
//! that training leaves free and changes no parameter and no state.

use tightfit::tensor::DType;

use crate::execute::error::SessionError;
use crate::execute::executable::StepSettings;
use crate::execute::places::{Located, halves, loss_of, offsets};
use crate::execute::ranks::agree;
use crate::execute::session::Session;
use crate::memory::slab::Slab;
use crate::step::data::{Dataset, Halves};

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
    /// Loss and accuracy over the validation split, or over its first `most` batches; `None` if the
    /// step has no evaluation that fits.
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
            self.has_failed |= self.is_fatal(error);
        }
        // What was already moved for a batch that does not follow lies where training computes.
        let rested = self.rest().map_err(failed(self.next_step));
        // The first failure says why.
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
        let [batch] = compiled.batches[..] else { return Ok(None) };
        let all = data.validation_batches(batch.rows);
        let asked = all.min(most);
        // Ranks that share batches take one each in turn. A rank that has none left computes the
        // last one along with the others, and leaves it out.
        let share = compiled.part.share.as_ref();
        let (first, step) = share.map_or((0, 1), |share| (share.rank, share.ranks));
        let numbers = (0..asked).step_by(step as usize).map(|number| number + first as usize);
        let mut sums = Sums::default();
        for number in numbers {
            let index = number.min(asked - 1);
            let halves = &mut halves(&mut self.slab, batch);
            let drawn = data.validation_batch(index, halves).map_err(SessionError::Data);
            let drawn = agree(self.link.as_deref(), drawn)?;
            let ran = compiled.executable.run(&mut self.slab, &settings);
            ran.map_err(|error| SessionError::Step { step: self.next_step, error })?;
            if number != index {
                continue;
            }
            sums.rows += drawn.rows as f64;
            if let Some(loss) = loss_of(&self.slab, compiled) {
                sums.loss += f64::from(loss) * drawn.rows as f64;
            }
            let prediction = compiled.output(1);
            let Some(prediction) = prediction.filter(|output| output.dtype == DType::F32) else {
                continue;
            };
            // The batch may be overwritten by now. Its rows are read again one by one: holding all
            // of its targets would take memory in addition to the slab.
            let mut entries = entries(&self.slab, prediction);
            let classes = prediction.shape.last().copied().unwrap_or(1) as usize;
            let mut target = vec![0; 8 * compiled.part.targets as usize / batch.rows.max(1)];
            for number in 0..drawn.rows {
                let halves = &mut Halves { rows: 1, input: None, target: Some(&mut target) };
                data.validation_batch(index * batch.rows + number, halves)?;
                for &target in target.as_chunks::<8>().0 {
                    let class = largest(entries.by_ref().take(classes));
                    sums.hits += f64::from(class == Some(i64::from_ne_bytes(target)));
                    sums.predictions += 1.0;
                }
            }
        }
        let Sums { rows, loss, hits, predictions } = self.all(sums)?;
        let accuracy = (predictions > 0.0).then(|| hits / predictions);
        Ok(Some(Evaluation { loss: loss / rows, accuracy, batches: (all.min(most), all) }))
    }

    /// The sums of an evaluation over all ranks.
    fn all(&self, own: Sums) -> Result<Sums, SessionError> {
        let Some(link) = &self.link else { return Ok(own) };
        let shares = self.evaluation.as_ref().is_some_and(|it| it.part.share.is_some());
        let said = [own.rows, own.loss, own.hits, own.predictions].map(f64::to_ne_bytes);
        let mut sums = Sums::default();
        for said in link.gather(said.as_flattened())? {
            let numbers = said.as_chunks::<8>().0.iter().map(|bytes| f64::from_ne_bytes(*bytes));
            if let [rows, loss, hits, predictions] = numbers.collect::<Vec<_>>()[..] {
                // Each rank of a pipeline has a part of every row.
                sums.rows = if shares { sums.rows + rows } else { rows };
                sums.loss += loss;
                sums.hits += hits;
                sums.predictions += predictions;
            }
        }
        Ok(sums)
    }
}

/// The sums over the batches of an evaluation; on one of several ranks, the part computed there.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    rows: f64,
    loss: f64,
    hits: f64,
    predictions: f64,
}

/// All entries of a prediction, classes last.
fn entries<'a>(slab: &'a Slab, prediction: &'a Located) -> impl Iterator<Item = f32> + 'a {
    offsets(prediction).map(|offset| {
        f32::from_ne_bytes(
            slab.read(prediction.address + offset, 4).try_into().expect("four bytes"),
        )
    })
}

/// The index of the largest entry, the first one of equals; `None` if every entry is NaN.
fn largest(entries: impl Iterator<Item = f32>) -> Option<i64> {
    let mut best = None;
    for (class, entry) in entries.enumerate() {
        if best.map_or(entry > f32::NEG_INFINITY, |(_, least)| entry > least) {
            best = Some((class as i64, entry));
        }
    }
    best.map(|(class, _)| class)
}

#[cfg(test)]
mod tests {
    use super::largest;

    #[test]
    fn the_largest_entry_is_the_first_of_equals_and_a_number() {
        let (nan, least) = (f32::NAN, f32::NEG_INFINITY);
        let of = |entries: &[f32]| largest(entries.iter().copied());
        assert_eq!(of(&[1.0, 3.0, 3.0, 2.0]), Some(1));
        assert_eq!(of(&[nan, -7.0, nan]), Some(1));
        assert_eq!(of(&[least, f32::MIN]), Some(1));
        for entries in [&[][..], &[nan], &[nan, nan], &[least, least], &[least, nan]] {
            assert_eq!(of(entries), None, "{entries:?}");
        }
    }
}
