//! A file that does not have its final name yet. Invariant: its writer holds its lock, so one that
//! can be locked was left by a dead writer, whichever machine or container that ran in.

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::place::folder_of;

/// Separates the name of the final file from a number that no other writer has.
const MARK: &str = ".tightfit-";
/// Digits of that number.
const DIGITS: usize = 16;
/// Most bytes of a name on almost all systems.
const LONGEST: usize = 255;

/// Removed when dropped, unless it was renamed.
pub(super) struct Temporary<'a> {
    disk: &'a dyn Disk,
    /// Where it is until then.
    path: Option<PathBuf>,
    /// Its bytes.
    pub file: File,
}

impl<'a> Temporary<'a> {
    /// A new file in the folder of `path`.
    pub fn create(disk: &'a dyn Disk, path: &Path) -> io::Result<Temporary<'a>> {
        let folder = folder_of(path);
        if !folder.is_dir() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("there is no folder {}", folder.display()),
            ));
        }
        loop {
            let mut name = prefix(path);
            name.push(format!("{:0DIGITS$x}", RandomState::new().hash_one(std::process::id())));
            let path = folder.join(name);
            let file = match disk.create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                created => created?,
            };
            let made = Temporary { disk, path: Some(path), file };
            // Another writer may have found it before it was locked, and be about to remove it, or
            // have done so. On a file system without locks no writer would remove it.
            let is_found = matches!(made.file.try_lock(), Err(TryLockError::WouldBlock));
            if !is_found && made.path.as_ref().is_some_and(|path| path.exists()) {
                return Ok(made);
            }
        }
    }

    /// Ends it: the file has its final name.
    pub fn rename(mut self, to: &Path) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        self.disk.rename(path, to)?;
        self.path = None;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            // If it cannot be removed now, the next writer removes it.
            let _ = self.disk.remove(&path);
        }
    }
}

/// Removes what dead writers of `path` left next to it; what cannot be removed does no harm.
pub(super) fn remove_left(disk: &dyn Disk, path: &Path) {
    let folder = folder_of(path);
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let prefix = prefix(path);
    for entry in entries.flatten() {
        let is_temporary = is_temporary(&entry.file_name(), &prefix)
            && entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_temporary {
            continue;
        }
        // The lock is held until the file is gone: its writer may be about to lock it.
        if let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = disk.remove(&entry.path());
        }
    }
}

/// The beginning of the names of `path`'s temporary files: hidden, and short enough for a name.
fn prefix(path: &Path) -> OsString {
    let name = path.file_name().unwrap_or_default();
    let most = LONGEST - 1 - MARK.len() - DIGITS;
    let mut prefix = OsString::from(".");
    if name.len() <= most {
        prefix.push(name);
    } else {
        // A long name is hashed: on some systems, one cut within a character is not a valid name.
        let number = name.as_encoded_bytes().iter().fold(0u64, |number, &byte| {
            number.wrapping_mul(0x0000_0100_0000_01b3) ^ u64::from(byte)
        });
        prefix.push(format!("{number:016x}"));
    }
    prefix.push(MARK);
    prefix
}

fn is_temporary(name: &OsStr, prefix: &OsStr) -> bool {
    let number = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes());
    number.is_some_and(|number| {
        number.len() == DIGITS && number.iter().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::super::disk::System;
    use super::*;

    #[test]
    fn what_a_dead_writer_left_is_removed_and_what_a_living_one_writes_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let living = Temporary::create(&System, &path).unwrap();
        let left = folder.path().join(".file.tightfit-0123456789abcdef");
        let others =
            [".file.tightfit-draft", ".other.tightfit-0123456789abcdef", "file.tightfit-0"];
        std::fs::write(&left, "half of it").unwrap();
        for name in others {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        remove_left(&System, &path);
        assert!(!left.exists());
        assert!(living.path.as_ref().unwrap().exists());
        assert!(others.iter().all(|name| folder.path().join(name).exists()));
        living.rename(&path).unwrap();
        remove_left(&System, &path);
        assert!(path.exists());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1 + others.len());
    }
}
