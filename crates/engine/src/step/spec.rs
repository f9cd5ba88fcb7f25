//! The contents of `step.json` besides its graphs: how parameters are initialised, what the
//! optimizer is given, how batches are drawn. Invariant: plain data, as written; this file checks
//! what is invalid by itself, and its readers check whether it suits graphs and files.

use serde::{Deserialize, Deserializer, de::Error};
use thiserror::Error as Message;
use tightfit::exit::coded;
use tightfit::graph::Graph;
use tightfit::graph::limits::MOST_OF_AN_EVENT;
use tightfit::reading::Bounded;
use tightfit::sizes::Dimension;

/// How a parameter is initialised.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Initialisation {
    /// Normally distributed.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// Uniformly distributed over [low, high).
    Uniform {
        /// Lower end.
        low: f64,
        /// Upper end.
        high: f64,
    },
    /// All elements alike.
    Constant(f64),
    /// Read from a safetensors file of the step's folder.
    File(String),
}

/// Kernels compute in 32 bits: a number that becomes infinite there is not valid for them.
fn is_finite(number: f64) -> bool {
    (number as f32).is_finite()
}

impl Initialisation {
    /// What is wrong with it, if anything.
    pub(super) fn senseless(&self) -> Option<String> {
        let numbers = match *self {
            Initialisation::Normal { mean, std } => [("mean", mean), ("std", std)],
            Initialisation::Uniform { low, high } => [("low", low), ("high", high)],
            Initialisation::Constant(value) => [("constant", value); 2],
            Initialisation::File(_) => return None,
        };
        if let Some((field, number)) = numbers.into_iter().find(|&(_, x)| !is_finite(x)) {
            return Some(format!("`{field}` is {number:e}, which is no finite number in 32 bits"));
        }
        match *self {
            Initialisation::Normal { std, .. } if std < 0.0 => {
                Some(format!("`std` is {std}; a standard deviation is not negative"))
            }
            Initialisation::Uniform { low, high } if low > high => {
                Some(format!("`low` is {low} and above `high`, which is {high}; swap them"))
            }
            Initialisation::Normal { .. }
            | Initialisation::Uniform { .. }
            | Initialisation::Constant(_)
            | Initialisation::File(_) => None,
        }
    }
}

/// Optimizer defaults that a run may change.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct OptimizerSpec {
    /// `adamw` or `sgd`; its constants are on the graph's nodes.
    pub kind: String,
    /// Learning rate, constant over the run.
    pub learning_rate: f64,
}

impl OptimizerSpec {
    /// The optimizers for which there are nodes.
    const KINDS: [&str; 2] = ["adamw", "sgd"];

    /// What is wrong with it, if anything.
    pub(super) fn senseless(&self) -> Option<String> {
        if !OptimizerSpec::KINDS.contains(&self.kind.as_str()) {
            let known = OptimizerSpec::KINDS.join(" and ");
            return Some(format!("`kind` is \"{}\"; the engine has {known}", self.kind));
        }
        if is_finite(self.learning_rate) && self.learning_rate >= 0.0 {
            return None;
        }
        Some(format!(
            "`learning_rate` is {:e}; a learning rate is a finite number that is not negative",
            self.learning_rate
        ))
    }
}

/// How batches are drawn, as `step.json` says.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DataSpec {
    /// Windows of a byte sequence; the target is the window one byte later.
    Bytes {
        /// Path from the step's folder.
        file: String,
        /// Bytes of a window.
        window: usize,
        /// Windows of a batch.
        batch: usize,
        /// Seed of the sampling.
        sampling_seed: u32,
        /// The end that is held back.
        validation: LastFraction,
        /// SHA-256 of the file that the step was made with.
        sha256: Option<String>,
    },
    /// Rows of numbers, comma-separated under a header line, the class last.
    Table {
        /// Path from the step's folder.
        file: String,
        /// Columns before the class.
        features: usize,
        /// Factor for each feature.
        scale: f32,
        /// Rows of a batch.
        batch: usize,
        /// Rows of an evaluation batch.
        evaluation_batch: Option<usize>,
        /// Seed of the shuffling.
        sampling_seed: u32,
        /// The rows that are held back.
        validation: EveryRow,
        /// SHA-256 of the file that the step was made with.
        sha256: Option<String>,
    },
}

impl DataSpec {
    /// The path of the data from the step's folder.
    pub fn file(&self) -> &String {
        let (DataSpec::Bytes { file, .. } | DataSpec::Table { file, .. }) = self;
        file
    }
}

impl DataSpec {
    /// The same with batches of another size.
    pub fn resized(mut self, dimension: Dimension, size: u64) -> DataSpec {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        match (&mut self, dimension) {
            (DataSpec::Bytes { batch, .. } | DataSpec::Table { batch, .. }, Dimension::Batch) => {
                *batch = size;
            }
            (DataSpec::Bytes { window, .. }, Dimension::Length) => *window = size,
            (DataSpec::Table { features, .. }, Dimension::Length) => *features = size,
        }
        self
    }
}

/// The last part of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct LastFraction {
    /// Between 0 and 1.
    pub last_fraction: f64,
}

/// The rows whose number leaves this remainder.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct EveryRow {
    /// Divisor.
    pub every: usize,
    /// Remainder.
    pub remainder: usize,
}

/// A step states batches of another size than its graphs take.
#[derive(Clone, Debug, PartialEq, Eq, Message)]
#[error(
    "the step's data has `{field}` {said}, but the input of its {kind} graph has {rows} rows; \
     export the step again with batches of one size"
)]
pub struct OtherBatch {
    /// The field of the step's data.
    pub field: &'static str,
    /// The size that it states.
    pub said: usize,
    /// Which of the graphs it refers to.
    pub kind: &'static str,
    /// The rows that the graph takes.
    pub rows: u64,
}

coded!(Data: OtherBatch);

impl DataSpec {
    /// Refuses batches of another size than the graphs take, since the graphs are what runs.
    pub fn suits(&self, training: &Graph, evaluation: Option<&Graph>) -> Result<(), OtherBatch> {
        let (batch, evaluated) = match *self {
            DataSpec::Bytes { batch, .. } => (batch, None),
            DataSpec::Table { batch, evaluation_batch, .. } => (batch, evaluation_batch),
        };
        let said = [
            ("batch", "training", Some(batch), Some(training)),
            ("evaluation_batch", "evaluation", evaluated, evaluation),
        ];
        for (field, kind, said, graph) in said {
            let (Some(said), Some(rows)) = (said, graph.and_then(rows)) else { continue };
            if said as u64 != rows {
                return Err(OtherBatch { field, said, kind, rows });
            }
        }
        Ok(())
    }
}

/// The rows of the batch that a graph takes.
fn rows(graph: &Graph) -> Option<u64> {
    let input = &graph.nodes()[graph.node_named("input")?];
    let &value = input.outputs.first()?.as_ref()?;
    graph.values()[value].tensor.shape.first().copied()
}

/// Reads it; what belongs to none of its fields is not kept.
pub(super) fn data<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DataSpec, D::Error> {
    // Which fields there are depends on the kind, which need not come first.
    let Bounded(json) = Bounded::<MOST_OF_AN_EVENT>::deserialize(deserializer)?;
    if !json.is_object() {
        return Err(D::Error::custom(
            "`data` is an object whose `kind` is \"bytes\" or \"table\", as `tightfit.export` \
             writes it",
        ));
    }
    DataSpec::deserialize(json).map_err(D::Error::custom)
}
