//! Tests of every fault of a disk, one after the other. Invariant: whatever fails and wherever a
//! writer is killed, the file is what it was or what it was to become, and the next writer leaves
//! nothing else in the folder.

use std::cell::Cell;
use std::fs::{File, Permissions};
use std::io;
use std::path::Path;
use std::process::Command;

use super::disk::{Disk, System};

/// What happens to the faulty call.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// It fails; a write has written half by then.
    Fails,
    /// It kills the process; a write has written half by then.
    Kills,
}

/// A disk whose call number `at`, from 1, is faulty.
struct Faulty {
    at: usize,
    fault: Fault,
    calls: Cell<usize>,
}

impl Faulty {
    /// Its call number `at` fails.
    fn failing(at: usize) -> Faulty {
        Faulty { at, fault: Fault::Fails, calls: Cell::new(0) }
    }

    /// Whether there were enough calls to reach the faulty one.
    fn has_failed(&self) -> bool {
        self.calls.get() >= self.at
    }

    fn call(&self, half: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.calls.set(self.calls.get() + 1);
        if self.calls.get() != self.at {
            return Ok(());
        }
        half()?;
        match self.fault {
            Fault::Fails => Err(io::Error::from(io::ErrorKind::StorageFull)),
            Fault::Kills => {
                let id = std::process::id().to_string();
                Command::new("kill").args(["-KILL", &id]).status()?;
                loop {
                    std::thread::park();
                }
            }
        }
    }
}

fn nothing() -> io::Result<()> {
    Ok(())
}

impl Disk for Faulty {
    fn create(&self, path: &Path) -> io::Result<File> {
        self.call(nothing)?;
        System.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        self.call(nothing)?;
        System.open(path)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        self.call(|| System.write(file, &bytes[..bytes.len() / 2]).map(drop))?;
        System.write(file, bytes)
    }

    fn permit(&self, file: &File, permissions: Permissions) -> io::Result<()> {
        self.call(nothing)?;
        System.permit(file, permissions)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.call(nothing)?;
        System.sync(file)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(nothing)?;
        System.rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.call(nothing)?;
        System.sync_folder(folder)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call(nothing)?;
        System.remove(path)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::write_on;
    use super::*;

    const OLD: &[u8] = b"what was there before";
    const NEW: &[u8] = b"what is to be there from now on";

    /// Writes in several calls, as tensors are written.
    fn put(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
        write_on(disk, path, |file| bytes.chunks(8).try_for_each(|part| file.write_all(part)))
    }

    /// A folder with the old file, or without one, and with what an earlier writer left.
    fn folder(is_new: bool) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("save");
        if !is_new {
            put(&System, &path, OLD).unwrap();
        }
        std::fs::write(folder.path().join(".save.tightfit-00000000000000ff"), "half").unwrap();
        (folder, path)
    }

    /// Checks that the file is old or new, and new if that was reported; afterwards a writer
    /// without faults leaves nothing else.
    fn judge(path: &Path, is_new: bool, done: bool, case: &str) {
        let found = std::fs::read(path).ok();
        let old = if is_new { None } else { Some(OLD.to_vec()) };
        assert!(found.as_deref() == Some(NEW) || (found == old && !done), "{case}: {found:?}");
        put(&System, path, NEW).unwrap();
        assert_eq!(std::fs::read(path).unwrap(), NEW, "{case}");
        let names = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(names, 1, "{case}: something was left");
    }

    #[test]
    fn whatever_fails_the_file_is_the_old_or_the_new_one() {
        for is_new in [false, true] {
            let mut at = 1;
            loop {
                let (folder, path) = folder(is_new);
                let disk = Faulty::failing(at);
                let done = put(&disk, &path, NEW).is_ok();
                if !done {
                    // What was left before stays if it could not be removed; nothing joins it.
                    let left = std::fs::read_dir(folder.path()).unwrap().count();
                    assert!(left <= 1, "call {at}: {left} names");
                }
                judge(&path, is_new, done, &format!("call {at}, new: {is_new}"));
                if !disk.has_failed() {
                    break;
                }
                at += 1;
            }
            // Remove, create, at least four writes, sync, rename, sync of the folder; permissions.
            assert!(at > 9 + usize::from(!is_new), "{at} calls");
        }
    }

    /// Set if this process is the one to be killed: at which call, and what it writes.
    const AT: &str = "TIGHTFIT_FAULT_AT";
    const FILE: &str = "TIGHTFIT_FAULT_FILE";

    #[test]
    #[cfg(unix)]
    fn wherever_a_writer_is_killed_the_file_is_the_old_or_the_new_one() {
        use std::os::unix::process::ExitStatusExt;

        if let (Ok(at), Some(path)) = (std::env::var(AT), std::env::var_os(FILE)) {
            let at = at.parse().unwrap();
            let disk = Faulty { at, fault: Fault::Kills, calls: Cell::new(0) };
            return put(&disk, Path::new(&path), NEW).unwrap();
        }
        let this = "wherever_a_writer_is_killed_the_file_is_the_old_or_the_new_one";
        for is_new in [false, true] {
            let mut at = 1;
            loop {
                let (_folder, path) = folder(is_new);
                let killed = Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", &format!("file::faults::tests::{this}")])
                    .env(AT, at.to_string())
                    .env(FILE, &path)
                    .output()
                    .unwrap();
                let status = killed.status;
                assert!(status.success() || status.signal() == Some(9), "{killed:?}");
                judge(&path, is_new, status.success(), &format!("call {at}, new: {is_new}"));
                if status.success() {
                    break;
                }
                at += 1;
            }
            assert!(at > 9 + usize::from(!is_new), "{at} calls");
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_device_is_opened_and_written_and_nothing_else() {
        let device = Path::new("/dev/null");
        let mut at = 1;
        while {
            let disk = Faulty::failing(at);
            assert_eq!(put(&disk, device, NEW).is_err(), disk.has_failed(), "call {at}");
            disk.has_failed()
        } {
            at += 1;
        }
        assert_eq!(at, 1 + 1 + NEW.len().div_ceil(8));
    }
}
