//! Where a path leads. Invariant: links are followed to their end, even if nothing is there yet, so
//! that what is replaced is never a link; and what is not a regular file is known as such.

use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// Longer chains of links count as cycles, as in the system.
const MOST_LINKS: usize = 40;

/// What a path leads to.
pub(super) enum Place {
    /// A file, or the name of a future one: it is replaced.
    File {
        /// Its own path, after all links.
        path: PathBuf,
        /// What is there now.
        known: Option<Metadata>,
    },
    /// A device or a pipe: it is written to as it is.
    Device(PathBuf),
    /// The file that this process already writes its standard output or standard error to.
    Stream(File),
}

/// Follows `path`.
pub(super) fn place(path: &Path) -> io::Result<Place> {
    let known = match std::fs::metadata(path) {
        Ok(known) => known,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Place::File { path: end_of_links(path)?, known: None });
        }
        Err(error) => return Err(error),
    };
    if known.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if is_socket(&known) {
        let what = "it is a socket, which no program can open";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    if !known.is_file() {
        return Ok(Place::Device(path.to_path_buf()));
    }
    if let Some(stream) = standard_stream(&known) {
        return Ok(Place::Stream(stream));
    }
    Ok(Place::File { path: path.canonicalize()?, known: Some(known) })
}

/// The name that a chain of links ends in, even if it does not exist; any other path is itself.
pub fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        if !path.is_symlink() {
            return match path.file_name() {
                Some(_) => Ok(path),
                None => Err(io::Error::new(io::ErrorKind::InvalidInput, "it names no file")),
            };
        }
        let next = std::fs::read_link(&path)?;
        path = folder_of(&path).join(next);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "too many symbolic links"))
}

/// The folder of a file.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(unix)]
fn is_socket(known: &Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&known.file_type())
}

#[cfg(not(unix))]
fn is_socket(_: &Metadata) -> bool {
    false
}

/// The stream of this process that already writes to the file: a new file in its place would never
/// get what is still to be printed.
#[cfg(unix)]
fn standard_stream(known: &Metadata) -> Option<File> {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    let (output, error) = (io::stdout(), io::stderr());
    [output.as_fd(), error.as_fd()].into_iter().find_map(|stream| {
        let stream = File::from(stream.try_clone_to_owned().ok()?);
        let same = stream.metadata().ok()?;
        (same.dev() == known.dev() && same.ino() == known.ino()).then_some(stream)
    })
}

#[cfg(not(unix))]
fn standard_stream(_: &Metadata) -> Option<File> {
    None
}
