//! The few disk operations by which a file appears. Invariant: all code that writes a file does it
//! through a [`Disk`] and in no other way, so that a test can make each operation fail.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::path::Path;

/// What a writer requests of the system; each method returns what the system does.
pub(crate) trait Disk {
    /// Creates a file; the umask decides who may read it.
    fn create(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).open(path)
    }

    /// Opens what is already there (a device, a pipe) for writing.
    fn open(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).open(path)
    }

    /// Writes some of these bytes at the file's current position; returns how many.
    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        file.write(bytes)
    }

    /// Sets who may read and write the file.
    fn permit(&self, file: &File, permissions: Permissions) -> io::Result<()> {
        file.set_permissions(permissions)
    }

    /// Returns once the file's bytes outlive a loss of power.
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    /// Renames atomically; a file that had the new name is gone.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    /// Returns once the names in a folder outlive a loss of power.
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        match cfg!(unix) {
            true => File::open(folder)?.sync_all(),
            // Elsewhere a folder cannot be opened, and its names need no call.
            false => Ok(()),
        }
    }

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }
}

/// The disk of this machine.
pub(crate) struct System;

impl Disk for System {}
