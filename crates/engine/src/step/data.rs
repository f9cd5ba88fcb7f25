//! Batches from data files. Invariant: which rows a batch holds depends on the run's seed, the
//! step's sampling seed and the number of the step alone, so a resumed run sees what an unbroken
//! one would have seen; and every row that reaches the model was read from the file.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use thiserror::Error;
use tightfit::graph::Value;
use tightfit::tensor::DType;

use crate::philox::{below, key, philox};
use crate::step::spec::{DataSpec, EveryRow};

/// The random stream of batches; streams of nodes are their seed slots.
const STREAM: u32 = u32::MAX;

/// Why a file cannot serve as data.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The file's hash is not the one that the step states.
    #[error("{}: not the file that the step was made with (SHA-256 {found}, expected {expected}); \
        pass it with --data to use it all the same", path.display())]
    OtherFile {
        /// The file.
        path: PathBuf,
        /// Its SHA-256.
        found: String,
        /// The SHA-256 that the step states.
        expected: String,
    },
    /// The file as a whole does not give batches.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A line of a table cannot be read.
    #[error("line {line} of {}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// The data's rows are not what the model takes.
    #[error("the model's `{name}` is {shape:?} of {dtype}, but the data gives {given}")]
    Shape {
        /// The model's placeholder: `input` or `target`.
        name: &'static str,
        /// Its shape.
        shape: Vec<u64>,
        /// Its element type.
        dtype: &'static str,
        /// What the data gives.
        given: String,
    },
}

#[derive(Clone, Debug)]
enum Rows {
    Bytes {
        bytes: Vec<u8>,
        window: usize,
        training: usize,
    },
    Table {
        features: Vec<f32>,
        classes: Vec<i64>,
        columns: usize,
        training: Vec<u32>,
        validation: Vec<u32>,
    },
}

/// Data in memory, with the split.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// The file.
    pub path: PathBuf,
    rows: Rows,
    sampling_seed: u32,
    /// The shuffled training rows of one epoch, kept between batches.
    epoch: Option<(u64, u64, Vec<u32>)>,
}

/// A batch that was drawn: how many of its rows count.
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
        let bytes =
            std::fs::read(&path).map_err(|error| DataError::Read { path: path.clone(), error })?;
        if let Some(expected) = expected.as_ref().filter(|_| instead.is_none()) {
            let found: String =
                Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            if found != *expected {
                return Err(DataError::OtherFile { path, found, expected: expected.clone() });
            }
        }
        let content = |what: String| DataError::Content { path: path.clone(), what };
        let (rows, sampling_seed) = match *spec {
            DataSpec::Bytes { window, sampling_seed, validation, .. } => {
                if !(0.0..1.0).contains(&validation.last_fraction) {
                    return Err(content(format!(
                        "a validation share of {} is not between 0 and 1",
                        validation.last_fraction
                    )));
                }
                let training =
                    bytes.len() - (bytes.len() as f64 * validation.last_fraction) as usize;
                if window == 0 {
                    return Err(content("windows of no bytes hold nothing".to_string()));
                }
                if training.saturating_sub(2) < window || bytes.len() - training <= window {
                    return Err(content(format!(
                        "{} bytes are too few for windows of {window} in both splits",
                        bytes.len()
                    )));
                }
                (Rows::Bytes { bytes, window, training }, sampling_seed)
            }
            DataSpec::Table { features, scale, sampling_seed, validation, .. } => {
                (table(&path, &bytes, features, scale, validation)?, sampling_seed)
            }
        };
        Ok(Dataset { path, rows, sampling_seed, epoch: None })
    }

    /// Refuses a model whose inputs are not what the data gives.
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
            Rows::Bytes { window, .. } => {
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
            Rows::Table { columns, .. } => {
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

    /// Units of the data in a batch: bytes (tokens) or rows.
    pub fn unit(&self) -> &'static str {
        match self.rows {
            Rows::Bytes { .. } => "tokens",
            Rows::Table { .. } => "rows",
        }
    }

    /// Fills a training batch.
    pub fn training_batch(
        &mut self,
        seed: u64,
        step: u32,
        input: &mut [u8],
        target: &mut [u8],
    ) -> Drawn {
        let sampling_seed = self.sampling_seed;
        match &self.rows {
            Rows::Bytes { bytes, window, training } => {
                let starts = (*training - *window - 1) as u64 + 1;
                let count = input.len() / 8 / window;
                for row in 0..count {
                    let words = philox(key(seed), [row as u32, STREAM, step, sampling_seed]);
                    let start = below([words[0], words[1]], starts) as usize;
                    write_window(bytes, start, *window, row, input, target);
                }
                Drawn { rows: count }
            }
            Rows::Table { features, classes, columns, training, .. } => {
                let count = target.len() / 8;
                for row in 0..count {
                    let place = u64::from(step) * count as u64 + row as u64;
                    let (epoch, index) =
                        (place / training.len() as u64, place % training.len() as u64);
                    if self
                        .epoch
                        .as_ref()
                        .is_none_or(|(known_seed, known, _)| (*known_seed, *known) != (seed, epoch))
                    {
                        self.epoch =
                            Some((seed, epoch, shuffled(training, seed, epoch, sampling_seed)));
                    }
                    let shuffled = self.epoch.as_ref().map_or(&training[..], |(.., rows)| rows);
                    write_row(
                        features,
                        classes,
                        *columns,
                        shuffled[index as usize] as usize,
                        row,
                        input,
                        target,
                    );
                }
                Drawn { rows: count }
            }
        }
    }

    /// How many validation batches of `rows` rows there are.
    pub fn validation_batches(&self, rows: usize) -> usize {
        match &self.rows {
            Rows::Bytes { bytes, window, training } => {
                ((bytes.len() - training - 1) / window).div_ceil(rows.max(1))
            }
            Rows::Table { validation, .. } => validation.len().div_ceil(rows.max(1)),
        }
    }

    /// Fills validation batch `index`; the last one may be filled up with rows from the beginning.
    pub fn validation_batch(&self, index: usize, input: &mut [u8], target: &mut [u8]) -> Drawn {
        match &self.rows {
            Rows::Bytes { bytes, window, training } => {
                let (count, all) =
                    (input.len() / 8 / window, (bytes.len() - training - 1) / window);
                for row in 0..count {
                    write_window(
                        bytes,
                        training + (index * count + row) % all * window,
                        *window,
                        row,
                        input,
                        target,
                    );
                }
                Drawn { rows: count.min(all - index * count) }
            }
            Rows::Table { features, classes, columns, validation, .. } => {
                let count = target.len() / 8;
                for row in 0..count {
                    let from = validation[(index * count + row) % validation.len()] as usize;
                    write_row(features, classes, *columns, from, row, input, target);
                }
                Drawn { rows: count.min(validation.len() - index * count) }
            }
        }
    }
}

/// Window and window one later, as 64-bit integers, into row `row` of a batch.
fn write_window(
    bytes: &[u8],
    start: usize,
    window: usize,
    row: usize,
    input: &mut [u8],
    target: &mut [u8],
) {
    for (shift, out) in [(0, input), (1, target)] {
        let out = &mut out[row * window * 8..(row + 1) * window * 8];
        for (slot, &byte) in out.as_chunks_mut::<8>().0.iter_mut().zip(&bytes[start + shift..]) {
            *slot = i64::from(byte).to_ne_bytes();
        }
    }
}

fn write_row(
    features: &[f32],
    classes: &[i64],
    columns: usize,
    from: usize,
    row: usize,
    input: &mut [u8],
    target: &mut [u8],
) {
    let out = &mut input[row * columns * 4..(row + 1) * columns * 4];
    for (slot, feature) in out.as_chunks_mut::<4>().0.iter_mut().zip(&features[from * columns..]) {
        *slot = feature.to_ne_bytes();
    }
    target[row * 8..(row + 1) * 8].copy_from_slice(&classes[from].to_ne_bytes());
}

/// The rows of one epoch in random order (Fisher and Yates).
fn shuffled(rows: &[u32], seed: u64, epoch: u64, sampling_seed: u32) -> Vec<u32> {
    let mut rows = rows.to_vec();
    for i in (1..rows.len()).rev() {
        let words = philox(key(seed), [i as u32, STREAM, epoch as u32, sampling_seed]);
        rows.swap(i, below([words[0], words[1]], i as u64 + 1) as usize);
    }
    rows
}

fn table(
    path: &Path,
    bytes: &[u8],
    columns: usize,
    scale: f32,
    split: EveryRow,
) -> Result<Rows, DataError> {
    let content = |what: String| DataError::Content { path: path.to_path_buf(), what };
    let text = std::str::from_utf8(bytes).map_err(|_| content("not a text file".to_string()))?;
    let (mut features, mut classes) = (Vec::new(), Vec::new());
    for (number, line) in
        text.lines().enumerate().skip(1).filter(|(_, line)| !line.trim().is_empty())
    {
        let wrong =
            |what: String| DataError::Line { path: path.to_path_buf(), line: number + 1, what };
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        if cells.len() != columns + 1 {
            return Err(wrong(format!(
                "{} columns, expected {columns} features and a class",
                cells.len()
            )));
        }
        for cell in &cells[..columns] {
            let feature: f32 = cell
                .parse()
                .ok()
                .filter(|x: &f32| x.is_finite())
                .ok_or_else(|| wrong(format!("`{cell}` is not a number")))?;
            features.push(feature * scale);
        }
        let class = cells[columns];
        classes.push(
            class
                .parse()
                .ok()
                .filter(|&class: &i64| class >= 0)
                .ok_or_else(|| wrong(format!("`{class}` is not a class")))?,
        );
    }
    let every = split.every.max(1);
    let (validation, training): (Vec<u32>, Vec<u32>) =
        (0..classes.len() as u32).partition(|&row| row as usize % every == split.remainder);
    if training.is_empty() || validation.is_empty() {
        return Err(content(format!("{} rows are too few for both splits", classes.len())));
    }
    Ok(Rows::Table { features, classes, columns, training, validation })
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn an_epoch_holds_every_training_row_once() {
        let mut data = digits();
        let Rows::Table { training, validation, .. } = &data.rows else { panic!("a table") };
        assert_eq!((training.len(), validation.len()), (1437, 360));
        let expected: f64 = 1437.0;
        let (mut input, mut target) = (vec![0; 1437 * 64 * 4], vec![0; 1437 * 8]);
        let mut firsts = std::collections::BTreeSet::new();
        for step in 0..2 {
            data.training_batch(3, step, &mut input, &mut target);
            let (_, _, rows) = data.epoch.clone().unwrap();
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
            digits().training_batch(seed, step, &mut input, &mut target);
            (input, target)
        };
        assert_eq!(draw(1, 5), draw(1, 5));
        assert_ne!(draw(1, 5), draw(2, 5));
        assert_ne!(draw(1, 5), draw(1, 6));
    }

    #[test]
    fn a_short_last_batch_counts_only_its_own_rows() {
        let data = digits();
        assert_eq!(data.validation_batches(100), 4);
        let (mut input, mut target) = (vec![0; 100 * 64 * 4], vec![0; 100 * 8]);
        assert_eq!(data.validation_batch(3, &mut input, &mut target), Drawn { rows: 60 });
    }
}
