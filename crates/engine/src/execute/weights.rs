//! Weights and optimizer state on disk, as safetensors. Invariant: a file appears whole or not at
//! all (it is written beside its place and renamed), and tensors stream between file and slab:
//! nothing is copied on the way.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use tempfile::NamedTempFile;
use thiserror::Error;
use tightfit::tensor::DType;

use crate::execute::session::Session;
use crate::step::stream::{self, Piece, Reader, StreamError};

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
        /// The step that they are of.
        found: String,
        /// The step that they are for.
        expected: String,
    },
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

impl WeightsError {
    fn at(path: &Path, error: StreamError) -> WeightsError {
        let path = path.to_path_buf();
        match error {
            StreamError::Io(error) => WeightsError::Io { path, error },
            error => WeightsError::Format { path, what: error.to_string() },
        }
    }
}

/// Some bytes with a shape, as safetensors wants them.
pub struct Bytes<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extent of each dimension.
    pub shape: Vec<usize>,
    /// The elements, row-major.
    pub data: Cow<'a, [u8]>,
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
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}

/// Writes tensors beside `path` and renames the file when it is whole.
pub fn write_tensors(
    path: &Path,
    tensors: &[(String, Bytes)],
    metadata: &BTreeMap<&str, String>,
) -> Result<(), WeightsError> {
    let failed = |error| WeightsError::Io { path: path.to_path_buf(), error };
    replaceable(path)?;
    let known = std::fs::metadata(path).ok();
    // A link is followed, so that what it leads to is replaced and not the link.
    let target = match known {
        Some(_) => path.canonicalize().map_err(failed)?,
        None => path.to_path_buf(),
    };
    let folder =
        target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = NamedTempFile::new_in(folder).map_err(failed)?;
    let pieces: Vec<Piece> = tensors
        .iter()
        .map(|(name, bytes)| Piece {
            name,
            dtype: dtype(bytes.dtype),
            shape: &bytes.shape,
            data: &bytes.data,
        })
        .collect();
    stream::write(file.as_file_mut(), &pieces, metadata).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    match known {
        Some(known) => file.as_file().set_permissions(known.permissions()).map_err(failed)?,
        None => readable_by_all(file.path()).map_err(failed)?,
    }
    file.persist(&target).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Refuses a place where weights would replace what is no file: a folder, a device, a pipe.
pub fn replaceable(path: &Path) -> Result<(), WeightsError> {
    if std::fs::metadata(path).is_ok_and(|known| !known.is_file()) {
        let what = "it is no file, and weights replace what is there";
        let error = io::Error::new(io::ErrorKind::InvalidInput, what);
        return Err(WeightsError::Io { path: path.to_path_buf(), error });
    }
    Ok(())
}

/// Temporary files are private; weights are ordinary files.
fn readable_by_all(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644))?;
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

/// Saves weights, buffers and optimizer state with the numbers that a resumed run needs.
pub fn save(path: &Path, session: &Session, step_name: &str) -> Result<(), WeightsError> {
    let tensors: Vec<(String, Bytes)> = session
        .residents()
        .iter()
        .map(|(name, resident)| {
            (
                name.clone(),
                Bytes {
                    dtype: resident.dtype,
                    shape: resident.shape.clone(),
                    data: Cow::Borrowed(session.resident_bytes(resident)),
                },
            )
        })
        .collect();
    let metadata = BTreeMap::from([
        ("format", FORMAT.to_string()),
        ("step_name", step_name.to_string()),
        ("steps", session.next_step.to_string()),
        ("seed", session.seed.to_string()),
    ]);
    write_tensors(path, &tensors, &metadata)
}

/// What a file says of the run that saved it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Steps done.
    pub steps: u32,
    /// Seed of the run.
    pub seed: u64,
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
    Ok(Progress { steps, seed })
}

/// Puts saved weights and state into a session and sets its next step; nothing is changed unless
/// everything fits.
pub fn load(path: &Path, session: &mut Session, step_name: &str) -> Result<Progress, WeightsError> {
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
    for name in names {
        if let Some(out) = session.resident_bytes_mut(&name) {
            reader.read(&name, out).map_err(|error| WeightsError::at(path, error))?;
        }
    }
    session.next_step = progress.steps;
    session.seed = progress.seed;
    Ok(progress)
}
