//! The one writer of files. Invariant: a file appears whole or not at all, whenever its writer
//! fails, is killed or loses power: what is at its place is what was there before, or all of what
//! is new. What a killed writer leaves next to it is removed by the next one.
//!
//! Links are followed, and what they lead to is replaced. A file that is replaced keeps its
//! permissions; a new one has those that the umask leaves. What is not a regular file (a device, a
//! pipe) is written to as it is.

mod disk;
#[cfg(test)]
mod faults;
mod place;
mod temporary;

use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::path::Path;

pub(crate) use disk::{Disk, System};
pub use place::end_of_links;
use place::{Place, folder_of, place};
use temporary::Temporary;

/// Writes what `content` writes to `path`.
pub fn write(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    write_on(&System, path, content)
}

/// [`write`] on a disk.
pub(crate) fn write_on(
    disk: &dyn Disk,
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    match place(path)? {
        Place::File { path, known } => replace(disk, &path, known.as_ref(), content),
        Place::Device(path) => content(&mut Sink { disk, file: &mut disk.open(&path)? }),
        Place::Stream(mut file) => {
            io::stdout().flush()?;
            content(&mut Sink { disk, file: &mut file })
        }
    }
}

/// Refuses a place where nothing can be written, before minutes are spent on computing what is to
/// be written there.
pub fn writable(path: &Path) -> io::Result<()> {
    match place(path)? {
        Place::File { path, .. } => Temporary::create(&System, &path).map(drop),
        Place::Device(_) | Place::Stream(_) => Ok(()),
    }
}

/// Writes next to `path`, and renames once all of it is on the disk.
fn replace(
    disk: &dyn Disk,
    path: &Path,
    known: Option<&Metadata>,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    temporary::remove_left(disk, path);
    let mut temporary = Temporary::create(disk, path)?;
    if let Some(known) = known {
        // Before any byte of it can be read.
        own(&temporary.file, known);
        disk.permit(&temporary.file, known.permissions())?;
    }
    content(&mut Sink { disk, file: &mut temporary.file })?;
    disk.sync(&temporary.file)?;
    temporary.rename(path)?;
    match disk.sync_folder(folder_of(path)) {
        // The folder may be written but not read, or the file system has no such call.
        Err(error) if is_about_the_folder(&error) => Ok(()),
        result => result,
    }
}

fn is_about_the_folder(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    matches!(error.kind(), InvalidInput | PermissionDenied | Unsupported)
}

/// A file that is replaced keeps its owner, if the system lets this process give it away.
#[cfg(unix)]
fn own(file: &File, known: &Metadata) {
    use std::os::unix::fs::{MetadataExt, fchown};

    let differs = |new: Metadata| new.uid() != known.uid() || new.gid() != known.gid();
    if file.metadata().is_ok_and(differs) {
        let _ = fchown(file, Some(known.uid()), Some(known.gid()));
    }
}

#[cfg(not(unix))]
fn own(_: &File, _: &Metadata) {}

/// A file as something to be written to.
struct Sink<'a> {
    disk: &'a dyn Disk,
    file: &'a mut File,
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.disk.write(self.file, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn put(path: &Path, text: &str) {
        write(path, |file| file.write_all(text.as_bytes())).unwrap();
    }

    fn names(folder: &Path) -> Vec<PathBuf> {
        let mut names: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_written_is_there_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        put(&path, "old");
        put(&path, "new");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(names(folder.path()), [PathBuf::from("file")]);
    }

    #[test]
    fn the_longest_name_that_a_folder_takes_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("é".repeat(127));
        put(&path, "new");
        assert_eq!(names(folder.path()).len(), 1);
    }

    #[cfg(unix)]
    mod unix {
        use std::os::unix::fs::{PermissionsExt, symlink};

        use super::*;

        fn mode(path: &Path) -> u32 {
            std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
        }

        #[test]
        fn links_are_followed_to_their_end_and_stay() {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            std::fs::create_dir(at("far")).unwrap();
            symlink("second", at("first")).unwrap();
            symlink("far/file", at("second")).unwrap();
            // The first time it leads nowhere.
            for text in ["new", "newer"] {
                put(&at("first"), text);
                assert!(at("first").is_symlink() && at("second").is_symlink());
                assert_eq!(std::fs::read_to_string(at("far/file")).unwrap(), text);
                assert_eq!(names(&at("far")), [PathBuf::from("file")]);
            }
        }

        #[test]
        fn a_circle_of_links_is_refused_and_stays() {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            symlink("b", at("a")).unwrap();
            symlink("a", at("b")).unwrap();
            assert!(writable(&at("a")).is_err());
            let error = write(&at("a"), |file| file.write_all(b"x")).unwrap_err();
            assert!(error.to_string().contains("symbolic links"), "{error}");
            assert!(at("a").is_symlink() && at("b").is_symlink());
        }

        #[test]
        fn a_file_that_is_replaced_keeps_its_permissions() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file");
            for bits in [0o600, 0o640, 0o755] {
                put(&path, "old");
                std::fs::set_permissions(&path, PermissionsExt::from_mode(bits)).unwrap();
                put(&path, "new");
                assert_eq!(mode(&path), bits, "{bits:o}");
            }
        }

        #[test]
        fn a_pipe_stays_a_pipe_and_gets_the_bytes() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("pipe");
            let status = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
            assert!(status.success());
            writable(&path).unwrap();
            let reader = std::thread::spawn({
                let path = path.clone();
                move || std::fs::read_to_string(path).unwrap()
            });
            put(&path, "through");
            assert_eq!(reader.join().unwrap(), "through");
            assert_eq!(names(folder.path()), [PathBuf::from("pipe")]);
        }
    }
}
