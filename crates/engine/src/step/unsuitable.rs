//! Why a file cannot serve as data. Invariant: each error names the file, or the model's tensor
//! that it does not suit.

use std::path::PathBuf;

use thiserror::Error;
use tightfit::exit::{Coded, Exit};

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
    /// The file as a whole does not provide batches.
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

impl Coded for DataError {
    fn exit(&self) -> Exit {
        match self {
            DataError::Read { .. } => Exit::File,
            _ => Exit::Data,
        }
    }
}
