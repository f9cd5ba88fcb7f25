//! Writing results. Invariant: a file appears whole or not at all; a reader that goes away ends the
//! program quietly.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use tempfile::NamedTempFile;
use tightfit::units::Seconds;

/// From now on a pipe whose reader has gone (`| head`) ends the program, as it ends other tools,
/// instead of failing a write.
pub fn end_with_the_reader() {
    #[cfg(unix)]
    // SAFETY: called once, before any thread is started; the default action replaces what Rust's
    // runtime set up.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// From now on a standard output that takes no more (a full disk) ends the program with one message
/// and the exit code of files that cannot be written, where Rust's own would be a panic.
pub fn end_with_the_disk() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let message = info.payload_as_str().unwrap_or_default();
        match message.strip_prefix("failed printing to stdout: ") {
            Some(cause) => {
                let _ = writeln!(io::stderr(), "error: standard output: {cause}");
                std::process::exit(4);
            }
            None => usual(info),
        }
    }));
}

/// Writes beside `path` and renames. A link is followed, a file's permissions stay, and what is no
/// file (a device, a pipe) is written to as it is.
pub fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || -> io::Result<()> {
        let known = std::fs::metadata(path).ok();
        if known.as_ref().is_some_and(|known| !known.is_file() && !known.is_dir()) {
            return std::fs::OpenOptions::new().write(true).open(path)?.write_all(bytes);
        }
        let target = if known.is_some() { path.canonicalize()? } else { path.to_path_buf() };
        let mut file = beside(&target)?;
        file.write_all(bytes)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let permissions =
                known.map_or(std::fs::Permissions::from_mode(0o644), |known| known.permissions());
            file.as_file().set_permissions(permissions)?;
        }
        file.persist(&target).map_err(|error| error.error)?;
        Ok(())
    };
    write().with_context(|| format!("{} could not be written", path.display()))
}

/// Refuses a place where nothing can be written, before minutes are spent on what is to be written
/// there.
pub fn writable(path: &Path) -> anyhow::Result<()> {
    if std::fs::metadata(path).is_ok_and(|known| !known.is_file() && !known.is_dir()) {
        return Ok(());
    }
    let probe = if path.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { beside(path) };
    probe.map(drop).with_context(|| format!("{} could not be written", path.display()))
}

/// A file of no name yet in the folder of `path`.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("there is no folder {}", folder.display()),
        ));
    }
    NamedTempFile::new_in(folder)
}

/// `+12.3 %`
pub fn percent(share: f64) -> String {
    // Nothing has no sign.
    format!("{:+.1} %", (share * 1e3).round() / 10.0 + 0.0)
}

/// A time as sentences give it: `35.64 ms`, `0.00123 ms`.
pub fn milliseconds(seconds: Seconds) -> String {
    format!("{} ms", in_milliseconds(seconds))
}

/// The number of [`milliseconds`] alone: two decimals, or what three significant digits take.
pub fn in_milliseconds(seconds: Seconds) -> String {
    decimal(seconds.0 * 1e3, 2)
}

/// A number with `usual` decimals, or as many more as three significant digits take; with an
/// exponent where those would be more than eight.
pub fn decimal(number: f64, usual: usize) -> String {
    if number == 0.0 || !number.is_finite() {
        return format!("{number:.usual$}");
    }
    if number.abs() < 1e-6 {
        return format!("{number:.2e}");
    }
    // A cast of less than nothing is 0.
    let decimals = usual.max((2.0 - number.abs().log10().floor()) as usize);
    format!("{number:.decimals$}")
}
