//! Batches from data files. Invariant: which rows a batch holds depends on the run's seed, the
//! step's sampling seed and the number of the step alone, so a resumed run sees what an unbroken
//! one would have seen; and every row that reaches the model was read from the file.

use std::path::{Path, PathBuf};

use tightfit::graph::Value;
use tightfit::tensor::DType;
use tightfit::units::Bytes;

use crate::philox::{below, key, philox};
pub use crate::step::rows::Halves;
use crate::step::rows::{DataFile, Table, Windows};
use crate::step::spec::DataSpec;
pub use crate::step::unsuitable::DataError;

/// The random stream of batches; the streams of nodes are their seed slots.
const STREAM: u32 = u32::MAX;

#[derive(Debug)]
enum Rows {
    Bytes(Windows),
    Table(Table),
}

/// A data file that is read as batches need it, with the split.
#[derive(Debug)]
pub struct Dataset {
    /// The file.
    pub path: PathBuf,
    rows: Rows,
    sampling_seed: u32,
    /// Seed and number of an epoch, and its training rows in the order in which they are drawn.
    epoch: Option<(u64, u64)>,
    order: Vec<u32>,
}

/// The part of a batch that is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroBatch {
    /// Its number.
    pub index: u32,
    /// The number of micro-batches.
    pub of: u32,
}

impl MicroBatch {
    /// The whole batch.
    pub const WHOLE: MicroBatch = MicroBatch { index: 0, of: 1 };
}

/// A batch that was drawn, with the number of its rows that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// Rows that are not there merely to fill the batch.
    pub rows: usize,
}

impl Dataset {
    /// Reads the data of a step, or `instead`.
    pub fn open(
        spec: &DataSpec,
        folder: &Path,
        instead: Option<&Path>,
    ) -> Result<Dataset, DataError> {
        let (file, expected) = match spec {
            DataSpec::Bytes { file, sha256, .. } | DataSpec::Table { file, sha256, .. } => {
                (file, sha256)
            }
        };
        let path = instead.map_or_else(|| folder.join(file), Path::to_path_buf);
        let file = DataFile::open(path.clone())?;
        if let Some(expected) = expected.as_ref().filter(|_| instead.is_none()) {
            file.expect(expected)?;
        }
        let (rows, sampling_seed, drawn) = match *spec {
            DataSpec::Bytes { window, sampling_seed, validation, .. } => {
                let windows = Windows::new(file, window, validation.last_fraction)?;
                (Rows::Bytes(windows), sampling_seed, 0)
            }
            DataSpec::Table { features, scale, sampling_seed, validation, .. } => {
                let table = Table::new(file, features, scale, validation)?;
                let drawn = table.training();
                (Rows::Table(table), sampling_seed, drawn)
            }
        };
        Ok(Dataset { path, rows, sampling_seed, epoch: None, order: Vec::with_capacity(drawn) })
    }

    /// Bytes that it holds in memory, whatever is drawn.
    pub fn memory(&self) -> Bytes {
        let rows = match &self.rows {
            Rows::Bytes(_) => 0,
            Rows::Table(table) => table.memory(),
        };
        Bytes((rows + self.order.capacity() * size_of::<u32>()) as u64)
    }

    /// These bytes, if they are more than every run is expected to hold; else zero.
    pub fn beside(&self) -> Bytes {
        const USUAL: Bytes = Bytes(256 << 10);
        if self.memory() > USUAL { self.memory() } else { Bytes::ZERO }
    }

    /// Refuses a model whose inputs do not match the data.
    pub fn suits(&self, input: &Value, target: &Value) -> Result<(), DataError> {
        let refuse = |name, value: &Value, given: String| {
            Err(DataError::Shape {
                name,
                shape: value.tensor.shape.clone(),
                dtype: value.tensor.dtype.name(),
                given,
            })
        };
        match &self.rows {
            Rows::Bytes(Windows { window, .. }) => {
                for (name, value) in [("input", input), ("target", target)] {
                    if value.tensor.shape.len() != 2
                        || value.tensor.shape[1] != *window as u64
                        || value.tensor.dtype != DType::I64
                        || !value.tensor.contiguous
                    {
                        return refuse(name, value, format!("windows of {window} in i64"));
                    }
                }
                if target.tensor.shape != input.tensor.shape {
                    let rows = input.tensor.shape[0];
                    return refuse("target", target, format!("{rows} windows, as of the input"));
                }
            }
            Rows::Table(Table { columns, .. }) => {
                if input.tensor.shape.len() != 2
                    || input.tensor.shape[1] != *columns as u64
                    || input.tensor.dtype != DType::F32
                    || !input.tensor.contiguous
                {
                    return refuse("input", input, format!("rows of {columns} in f32"));
                }
                if target.tensor.shape != [input.tensor.shape[0]]
                    || target.tensor.dtype != DType::I64
                    || !target.tensor.contiguous
                {
                    return refuse("target", target, "one class per row in i64".to_string());
                }
            }
        }
        Ok(())
    }

    /// Number of training rows of a table.
    pub fn training_rows(&self) -> Option<usize> {
        match &self.rows {
            Rows::Bytes(_) => None,
            Rows::Table(table) => Some(table.training()),
        }
    }

    /// The unit in which a batch of the data is counted: bytes (tokens) or rows.
    pub fn unit(&self) -> &'static str {
        match self.rows {
            Rows::Bytes(_) => "tokens",
            Rows::Table(_) => "rows",
        }
    }

    /// Fills a micro-batch of a training batch. Together, all micro-batches hold the rows that one
    /// batch of their total size would.
    pub fn training_batch(
        &mut self,
        seed: u64,
        step: u32,
        part: MicroBatch,
        halves: &mut Halves<'_>,
    ) -> Result<Drawn, DataError> {
        let (sampling_seed, count) = (self.sampling_seed, halves.rows);
        if halves.input.is_none() && halves.target.is_none() {
            return Ok(Drawn { rows: count });
        }
        match &mut self.rows {
            Rows::Bytes(windows) => {
                for row in 0..count {
                    let place = part.index.wrapping_mul(count as u32).wrapping_add(row as u32);
                    let words = philox(key(seed), [place, STREAM, step, sampling_seed]);
                    let start = below([words[0], words[1]], windows.starts());
                    windows.write(start, row, halves)?;
                }
                Ok(Drawn { rows: count })
            }
            Rows::Table(table) => {
                let all = table.training() as u64;
                for row in 0..count {
                    let before = u64::from(step) * u64::from(part.of) + u64::from(part.index);
                    let place = before * count as u64 + row as u64;
                    let (epoch, index) = (place / all, place % all);
                    if self.epoch != Some((seed, epoch)) {
                        self.order.clear();
                        let rows = 0..all as usize;
                        self.order.extend(rows.map(|index| table.training_row(index) as u32));
                        shuffle(&mut self.order, seed, epoch, sampling_seed);
                        self.epoch = Some((seed, epoch));
                    }
                    table.write(self.order[index as usize] as usize, row, halves)?;
                }
                Ok(Drawn { rows: count })
            }
        }
    }

    /// Number of validation batches of `rows` rows.
    pub fn validation_batches(&self, rows: usize) -> usize {
        let all = match &self.rows {
            Rows::Bytes(windows) => windows.validation(),
            Rows::Table(table) => table.validation(),
        };
        all.div_ceil(rows.max(1))
    }

    /// Fills validation batch `index`; the last one may be padded with rows from the beginning.
    pub fn validation_batch(
        &mut self,
        index: usize,
        halves: &mut Halves<'_>,
    ) -> Result<Drawn, DataError> {
        let count = halves.rows;
        match &mut self.rows {
            Rows::Bytes(windows) => {
                let all = windows.validation();
                for row in 0..count {
                    let window = (index * count + row) % all * windows.window;
                    windows.write(windows.training + window as u64, row, halves)?;
                }
                Ok(Drawn { rows: count.min(all - index * count) })
            }
            Rows::Table(table) => {
                let all = table.validation();
                for row in 0..count {
                    let from = table.validation_row((index * count + row) % all);
                    table.write(from, row, halves)?;
                }
                Ok(Drawn { rows: count.min(all - index * count) })
            }
        }
    }
}

/// The rows of one epoch in random order (Fisher and Yates).
fn shuffle(rows: &mut [u32], seed: u64, epoch: u64, sampling_seed: u32) {
    for i in (1..rows.len()).rev() {
        let words = philox(key(seed), [i as u32, STREAM, epoch as u32, sampling_seed]);
        rows.swap(i, below([words[0], words[1]], i as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::spec::EveryRow;

    fn digits() -> Dataset {
        let spec = DataSpec::Table {
            file: "data/digits.csv".to_string(),
            features: 64,
            scale: 0.0625,
            batch: 100,
            evaluation_batch: None,
            sampling_seed: 1,
            validation: EveryRow { every: 5, remainder: 0 },
            sha256: None,
        };
        Dataset::open(&spec, &Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus"), None)
            .unwrap()
    }

    fn halves<'a>(input: &'a mut [u8], target: &'a mut [u8]) -> Halves<'a> {
        Halves { rows: target.len() / 8, input: Some(input), target: Some(target) }
    }

    #[test]
    fn half_a_batch_is_that_half_of_it() {
        let mut data = digits();
        let (mut input, mut target) = (vec![0; 100 * 64 * 4], vec![0; 100 * 8]);
        let all = &mut halves(&mut input, &mut target);
        data.training_batch(1, 20, MicroBatch::WHOLE, all).unwrap();
        let (mut alone, mut nothing) =
            (vec![0; 100 * 8], Halves { rows: 100, ..Halves::default() });
        let half = &mut Halves { rows: 100, input: None, target: Some(&mut alone) };
        data.training_batch(1, 20, MicroBatch::WHOLE, half).unwrap();
        assert_eq!(alone, target);
        data.training_batch(1, 20, MicroBatch::WHOLE, &mut nothing).unwrap();
        assert_eq!(data.validation_batch(3, &mut nothing).unwrap(), Drawn { rows: 60 });
    }

    #[test]
    fn an_epoch_holds_every_training_row_once() {
        let mut data = digits();
        let Rows::Table(table) = &data.rows else { panic!("a table") };
        assert_eq!((table.training(), table.validation()), (1437, 360));
        let expected: f64 = 1437.0;
        let (mut input, mut target) = (vec![0; 1437 * 64 * 4], vec![0; 1437 * 8]);
        let mut firsts = std::collections::BTreeSet::new();
        for step in 0..2 {
            let halves = &mut halves(&mut input, &mut target);
            data.training_batch(3, step, MicroBatch::WHOLE, halves).unwrap();
            let rows = data.order.clone();
            assert_eq!(
                rows.iter().collect::<std::collections::BTreeSet<_>>().len() as f64,
                expected
            );
            firsts.insert(rows);
        }
        assert_eq!(firsts.len(), 2, "epochs differ");
    }

    #[test]
    fn batches_depend_on_step_and_seed_alone() {
        let draw = |seed, step| {
            let (mut input, mut target) = (vec![0; 100 * 64 * 4], vec![0; 100 * 8]);
            let whole = MicroBatch::WHOLE;
            let halves = &mut halves(&mut input, &mut target);
            digits().training_batch(seed, step, whole, halves).unwrap();
            (input, target)
        };
        assert_eq!(draw(1, 5), draw(1, 5));
        assert_ne!(draw(1, 5), draw(2, 5));
        assert_ne!(draw(1, 5), draw(1, 6));
    }

    #[test]
    fn micro_batches_hold_the_rows_of_their_batch() {
        let mut data = digits();
        let (mut input, mut target) = (vec![0; 100 * 64 * 4], vec![0; 100 * 8]);
        let all = &mut halves(&mut input, &mut target);
        data.training_batch(1, 20, MicroBatch::WHOLE, all).unwrap();
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for index in 0..4 {
            let part = MicroBatch { index, of: 4 };
            let (mut input, mut target) = (vec![0; 25 * 64 * 4], vec![0; 25 * 8]);
            data.training_batch(1, 20, part, &mut halves(&mut input, &mut target)).unwrap();
            inputs.extend(input);
            targets.extend(target);
        }
        assert!((inputs, targets) == (input, target));
    }

    #[test]
    fn a_short_last_batch_counts_only_its_own_rows() {
        let mut data = digits();
        assert_eq!(data.validation_batches(100), 4);
        let (mut input, mut target) = (vec![0; 100 * 64 * 4], vec![0; 100 * 8]);
        let drawn = data.validation_batch(3, &mut halves(&mut input, &mut target)).unwrap();
        assert_eq!(drawn, Drawn { rows: 60 });
    }
}
