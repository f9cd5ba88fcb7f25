//! Orders from files. Invariant: what is read is valid, and for as many ranks and micro-batches as
//! were requested.

use std::io;
use std::path::Path;

use tightfit::exit::{Coded, Exit};
use tightfit::graph::limits::MOST_SCHEDULE;
use tightfit::pipeline::{CsvError, PipelineSchedule, Rows, read_csv};

use crate::input;

/// Why a file is not an order for the run.
#[derive(Debug, thiserror::Error)]
pub enum NotASchedule {
    /// It looks like a name, but no schedule has it.
    #[error("there is no schedule `{name}`; schedules are {}, or a CSV file", names())]
    Unknown {
        /// The given name.
        name: String,
    },
    /// There is no such file.
    #[error("`{name}` is neither a schedule nor a file: {error}; schedules are {}", names())]
    Unread {
        /// The given name.
        name: String,
        /// The system's error.
        error: io::Error,
    },
    /// Its content is not an order.
    #[error("{name}: {error}")]
    Csv {
        /// The file.
        name: String,
        /// Why not.
        error: CsvError,
    },
    /// It is for other numbers of ranks or micro-batches.
    #[error(
        "{name}: it is for --stages {ranks} and --microbatches {micro_batches}; {stages} and \
         {asked} were asked for"
    )]
    Other {
        /// The file.
        name: String,
        /// Its ranks.
        ranks: usize,
        /// Its micro-batches.
        micro_batches: u32,
        /// The ranks that are requested.
        stages: u32,
        /// The micro-batches that are requested.
        asked: u32,
    },
}

fn names() -> String {
    let names: Vec<&str> = PipelineSchedule::ALL.iter().map(|(_, name)| *name).collect();
    names.join(", ")
}

/// The order of a file, for this many ranks and micro-batches.
pub fn from_file(path: &Path, stages: u32, asked: u32) -> Result<Rows, NotASchedule> {
    let name = path.display().to_string();
    let is_word = path.extension().is_none() && path.components().count() == 1;
    let unread = |error: io::Error| match is_word && error.kind() == io::ErrorKind::NotFound {
        true => NotASchedule::Unknown { name: name.clone() },
        false => NotASchedule::Unread { name: name.clone(), error },
    };
    let bytes = input::bytes(path, MOST_SCHEDULE, "a schedule").map_err(unread)?;
    let rows = read_csv(&String::from_utf8_lossy(&bytes))
        .map_err(|error| NotASchedule::Csv { name: name.clone(), error })?;
    let (ranks, micro_batches) = (rows.rows.len(), rows.micro_batches);
    if (ranks, micro_batches) != (stages as usize, asked) {
        return Err(NotASchedule::Other { name, ranks, micro_batches, stages, asked });
    }
    Ok(rows)
}

impl Coded for NotASchedule {
    fn exit(&self) -> Exit {
        match self {
            NotASchedule::Unread { .. } => Exit::File,
            NotASchedule::Csv { .. } => Exit::Content,
            NotASchedule::Unknown { .. } | NotASchedule::Other { .. } => Exit::Usage,
        }
    }
}
