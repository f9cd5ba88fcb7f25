//! What `step.json` says beside its graphs: how parameters begin, what the optimizer is told, how
//! batches are drawn. Invariant: plain data, as written; whether it suits graphs and files is for
//! their readers to say.

use serde::Deserialize;

/// How a parameter begins.
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

/// Optimizer defaults that a run may change.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct OptimizerSpec {
    /// `adamw` or `sgd`; its constants are on the graph's nodes.
    pub kind: String,
    /// Learning rate, constant over the run.
    pub learning_rate: f64,
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
