//! Weights and optimizer state on disk, as safetensors. Invariant: tensors stream between file and
//! slab or tier, part by part; and what is read is, bit for bit, what was saved.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use thiserror::Error;
use tightfit::exit::{Coded, Exit};
use tightfit::tensor::DType;

use crate::execute::error::OtherRank;
use crate::execute::ranks::agree;
use crate::execute::remote::{self, Everywhere};
use crate::execute::residents::{Resident, within};
use crate::execute::session::Session;
use crate::file;
use crate::memory::tier::TierError;
use crate::step::stream::{self, CHECKSUM, Data, Piece, Reader, StreamError};
use crate::transport::{Link, LinkError};

/// The format that is written, in the file's metadata.
pub const FORMAT: &str = "tightfit-weights/1";

/// Why weights cannot be written or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file cannot be written or read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The file is not whole, or not safetensors.
    #[error("{}: {what}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The file's metadata are not those that [`save`] writes.
    #[error("{}: these are not weights that this program saved ({what})", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// What is missing or wrong.
        what: String,
    },
    /// The weights were saved by a run of another step.
    #[error("{}: the weights are of `{found}`, the step is `{expected}`", path.display())]
    OtherStep {
        /// The file.
        path: PathBuf,
        /// The step that the file belongs to.
        found: String,
        /// The step that was expected.
        expected: String,
    },
    /// Another rank of the pipeline failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Another rank could not write or read the file.
    #[error(transparent)]
    OtherRank(#[from] OtherRank),
    /// A tensor of the step is missing, or has another shape or type.
    #[error("{}: `{name}`: {what}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        name: String,
        /// What is wrong with it.
        what: String,
    },
}

impl Coded for WeightsError {
    fn exit(&self) -> Exit {
        match self {
            WeightsError::Io { error, .. } => {
                let tier = error.get_ref().and_then(|inner| inner.downcast_ref::<TierError>());
                tier.map_or(Exit::File, Coded::exit)
            }
            WeightsError::Link(_) | WeightsError::OtherRank(_) => Exit::OtherRank,
            _ => Exit::Content,
        }
    }
}

impl WeightsError {
    fn at(path: &Path, error: StreamError) -> WeightsError {
        let path = path.to_path_buf();
        match error {
            StreamError::Io(error) => WeightsError::Io { path, error },
            error => WeightsError::Format { path, what: error.to_string() },
        }
    }
}

/// Bytes with a shape, as safetensors needs them.
pub struct Bytes<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extent of each dimension.
    pub shape: Vec<usize>,
    /// The elements, row-major.
    pub data: Elements<'a>,
}

/// The bytes of elements.
pub enum Elements<'a> {
    /// In memory.
    Held(Cow<'a, [u8]>),
    /// A tensor that a session keeps from step to step, wherever it lies.
    Kept(&'a Session, &'a Resident),
    /// Pieces that several ranks keep and serve meanwhile; this rank has some itself.
    Ranks(&'a Session, &'a dyn Link, &'a Everywhere),
}

impl Elements<'_> {
    fn stream(&self, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        match self {
            Elements::Held(bytes) => sink(bytes),
            Elements::Kept(session, resident) => session.stream(resident, sink),
            Elements::Ranks(session, link, tensor) => remote::stream(session, *link, tensor, sink),
        }
    }
}

/// The type as safetensors calls it.
fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}

/// Writes tensors as a file of weights, with their checksums.
pub fn write_tensors<'a>(
    path: &Path,
    tensors: &'a [(String, Bytes<'a>)],
    metadata: &BTreeMap<&str, String>,
) -> Result<(), WeightsError> {
    let streams: Vec<_> = tensors
        .iter()
        .map(|(_, bytes)| |sink: &mut dyn FnMut(&[u8]) -> io::Result<()>| bytes.data.stream(sink))
        .collect();
    let piece = |((name, bytes), data): (&'a (String, Bytes<'a>), _)| Piece {
        name,
        dtype: dtype(bytes.dtype),
        shape: &bytes.shape,
        data,
    };
    let pieces: Vec<Piece> =
        tensors.iter().zip(streams.iter().map(|stream| stream as Data<'_>)).map(piece).collect();
    file::write(path, |file| stream::write(file, &pieces, metadata))
        .map_err(|error| WeightsError::Io { path: path.to_path_buf(), error })
}

/// Saves weights, buffers and optimizer state with the numbers that a resumed run needs; on the
/// ranks of a pipeline those of all of them, in one file, which the leading one writes.
pub fn save(path: &Path, session: &Session, step_name: &str) -> Result<(), WeightsError> {
    let Some(link) = session.link.as_deref() else {
        let own = session.residents().iter().map(|(name, resident)| {
            let shape = resident.shape.clone();
            let data = Elements::Kept(session, resident);
            (name.clone(), Bytes { dtype: resident.dtype, shape, data })
        });
        return save_tensors(path, session, step_name, &own.collect::<Vec<_>>());
    };
    let everything = remote::everything(session, link)?;
    let mut saved = Ok(());
    if session.leads() {
        let all = everything.iter().map(|(name, tensor)| {
            let data = Elements::Ranks(session, link, tensor);
            (name.clone(), Bytes { dtype: tensor.dtype, shape: tensor.shape.clone(), data })
        });
        saved = save_tensors(path, session, step_name, &all.collect::<Vec<_>>());
        if link.failure().is_none() {
            let told = remote::enough(link);
            saved = saved.and_then(|()| Ok(told?));
        }
    } else {
        remote::serve(session, link)?;
    }
    // No rank goes on before the file is whole.
    agree(Some(link), saved)
}

/// Writes tensors of a session with its numbers.
fn save_tensors<'a>(
    path: &Path,
    session: &Session,
    step_name: &str,
    tensors: &'a [(String, Bytes<'a>)],
) -> Result<(), WeightsError> {
    let metadata = BTreeMap::from([
        ("format", FORMAT.to_string()),
        ("step_name", step_name.to_string()),
        ("steps", session.next_step.to_string()),
        ("seed", session.seed.to_string()),
    ]);
    write_tensors(path, tensors, &metadata)
}

/// What a file says about the run that saved it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Steps done.
    pub steps: u32,
    /// Seed of the run.
    pub seed: u64,
    /// The checksum over everything that was saved, if the file has one.
    pub checksum: Option<String>,
}

/// Reads only the numbers of a saved run.
pub fn progress(path: &Path, step_name: &str) -> Result<Progress, WeightsError> {
    let reader = Reader::open(path).map_err(|error| WeightsError::at(path, error))?;
    read_progress(path, &reader, step_name)
}

fn read_progress(path: &Path, reader: &Reader, step_name: &str) -> Result<Progress, WeightsError> {
    let wrong = |what: String| WeightsError::Metadata { path: path.to_path_buf(), what };
    let metadata = reader.metadata();
    let get = |key: &str| {
        metadata.get(key).cloned().ok_or_else(|| wrong(format!("its metadata has no `{key}`")))
    };
    let format = get("format")?;
    if format != FORMAT {
        return Err(wrong(format!("format is \"{format}\", this program reads \"{FORMAT}\"")));
    }
    let found = get("step_name")?;
    if found != step_name {
        return Err(WeightsError::OtherStep {
            path: path.to_path_buf(),
            found,
            expected: step_name.to_string(),
        });
    }
    let steps = get("steps")?.parse().map_err(|_| wrong("`steps` is not a number".to_string()))?;
    let seed = get("seed")?.parse().map_err(|_| wrong("`seed` is not a number".to_string()))?;
    let checksum = metadata.get(CHECKSUM).cloned();
    Ok(Progress { steps, seed, checksum })
}

/// Puts saved weights and state into a session and sets its next step. Nothing is changed unless
/// all names, types and shapes are the session's and all checksums are right; so the file is read
/// twice. Each rank of a pipeline reads what it keeps.
pub fn load(path: &Path, session: &mut Session, step_name: &str) -> Result<Progress, WeightsError> {
    let loaded = load_own(path, session, step_name);
    agree(session.link.as_deref(), loaded)
}

fn load_own(path: &Path, session: &mut Session, step_name: &str) -> Result<Progress, WeightsError> {
    let mut reader = Reader::open(path).map_err(|error| WeightsError::at(path, error))?;
    let progress = read_progress(path, &reader, step_name)?;
    let wrong = |name: &str, what: String| WeightsError::Tensor {
        path: path.to_path_buf(),
        name: name.to_string(),
        what,
    };
    for (name, resident) in session.residents() {
        let info = reader.info(name).ok_or_else(|| wrong(name, "missing".to_string()))?;
        if info.shape != resident.shape || info.dtype != dtype(resident.dtype) {
            let (found, needed) = (info.dtype, dtype(resident.dtype));
            return Err(wrong(
                name,
                format!(
                    "{found} of shape {:?}, the step needs {needed} of {:?}",
                    info.shape, resident.shape
                ),
            ));
        }
    }
    let names: Vec<String> = session.residents().keys().cloned().collect();
    for name in &names {
        reader.verify(name).map_err(|error| WeightsError::at(path, error))?;
    }
    for name in names {
        let Some(resident) = session.residents().get(&name) else { continue };
        let (whole, kept) = (resident.whole, resident.kept.clone());
        let mut failed = None;
        let filled = session.fill(&name, &mut |from, out| {
            let (from, out) = within(&kept, (from, out));
            reader.read_part(&name, whole, from, out).map_err(|error| {
                failed = Some(error);
                io::Error::other("unread")
            })
        });
        if let Err(error) = filled {
            let error = failed.unwrap_or(StreamError::Io(error));
            return Err(WeightsError::at(path, error));
        }
    }
    session.next_step = progress.steps;
    session.seed = progress.seed;
    Ok(progress)
}
