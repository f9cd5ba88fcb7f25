//! First values of parameters. Invariant: an element depends on the run's seed, the parameter's
//! place among the step's names and its own position alone.

use std::io;
use std::path::{Path, PathBuf};

use crate::philox::{key, normal, philox, uniform};
use crate::step::spec::Initialisation;
use crate::step::stream::{Reader, StreamError};

/// The random stream of initialisations; the streams of nodes are their seed slots.
const STREAM: u32 = u32::MAX - 1;

/// Why a parameter has no first values.
pub(crate) enum Unfilled {
    /// Their file cannot be read.
    Read { path: PathBuf, error: io::Error },
    /// They are not of its type or its size, or their file is damaged.
    Wrong(String),
}

/// The parameter that is filled.
pub(crate) struct Unset<'a> {
    pub name: &'a str,
    /// Its place among the step's names.
    pub index: u32,
    /// The size in bytes of all of it.
    pub whole: u64,
    /// Whether its elements are 32-bit floats; others are constant or come from a file.
    pub is_float: bool,
}

/// Fills a part of a contiguous parameter, given with its first byte and whether it is the first
/// part that is filled.
pub(crate) fn fill(
    recipe: &Initialisation,
    &Unset { name, index, whole, is_float }: &Unset<'_>,
    seed: u64,
    folder: &Path,
    (from, out): (u64, &mut [u8]),
    is_first: bool,
) -> Result<(), Unfilled> {
    let first = (from / 4) as usize;
    let block = |i: usize| philox(key(seed), [i as u32, STREAM, index, 0]);
    let floats = |out: &mut [u8], value: &dyn Fn(usize) -> f32| {
        for (i, slot) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *slot = value(first + i).to_ne_bytes();
        }
    };
    match recipe {
        Initialisation::Normal { mean, std } if is_float => floats(out, &|i| {
            let words = block(i / 4);
            let pair = normal([words[i / 2 % 2 * 2], words[i / 2 % 2 * 2 + 1]]);
            (f64::from(pair[i % 2]) * std + mean) as f32
        }),
        Initialisation::Uniform { low, high } if is_float => {
            floats(out, &|i| (low + (high - low) * f64::from(uniform(block(i / 4)[i % 4]))) as f32)
        }
        Initialisation::Constant(value) if is_float => floats(out, &|_| *value as f32),
        Initialisation::Constant(value) => {
            for slot in out.as_chunks_mut::<8>().0 {
                *slot = (*value as i64).to_ne_bytes();
            }
        }
        Initialisation::File(file) => {
            let path = folder.join(file);
            let read = Reader::open(&path).and_then(|mut reader| {
                if is_first {
                    reader.verify(name)?;
                }
                reader.read_part(name, whole, from, out)
            });
            read.map_err(|error| match error {
                StreamError::Io(error) => Unfilled::Read { path, error },
                error => Unfilled::Wrong(format!("{}: {error}", path.display())),
            })?;
        }
        Initialisation::Normal { .. } | Initialisation::Uniform { .. } => {
            return Err(Unfilled::Wrong(format!(
                "`{name}` is not of type f32: it can only be constant or come from a file"
            )));
        }
    }
    Ok(())
}
