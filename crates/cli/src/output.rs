//! Writing results. Invariant: a file appears whole or not at all; standard output that takes no
//! more is an error like any other, so that whoever prints decides what is still to be saved.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use thiserror::Error;
use tightfit::units::Seconds;
use tightfit_engine::file;

use crate::shown::shown;

/// Prints a line to standard output, or says why not.
macro_rules! say {
    () => { $crate::output::line(format_args!("")) };
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}

/// Prints a line to standard error; where that takes nothing, nobody is left to be told.
macro_rules! note {
    ($($text:tt)*) => { $crate::output::aside(format_args!($($text)*)) };
}

/// Standard output took no more.
#[derive(Debug, Error)]
#[error("standard output: {0}")]
pub struct Unprinted(#[from] io::Error);

impl Unprinted {
    /// Its reader has gone, as that of `| head` does.
    pub fn is_unread(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// What came of printing.
pub type Printed = Result<(), Unprinted>;

/// A line on standard output.
pub fn line(text: fmt::Arguments<'_>) -> Printed {
    let mut output = io::stdout().lock();
    writeln!(output, "{}", shown(text)).map_err(Unprinted)
}

/// What was printed has reached whoever reads it.
pub fn flush() -> Printed {
    io::stdout().flush().map_err(Unprinted)
}

/// A line on standard error.
pub fn aside(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{}", shown(text));
}

/// A number of things.
pub fn several(count: usize, what: &str, plural: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { plural })
}

/// Standard streams that were closed lead nowhere from now on; else the next file that is opened
/// would become one, and get what is printed.
pub fn open_streams() {
    #[cfg(unix)]
    {
        use std::os::fd::{AsRawFd, IntoRawFd};

        let nowhere = || std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
        while let Ok(file) = nowhere()
            && file.as_raw_fd() <= 2
        {
            let _stays_open = file.into_raw_fd();
        }
    }
}

/// Writes a whole file, as [`file::write`] does it.
pub fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    file::write(path, |file| file.write_all(bytes))
        .with_context(|| format!("{} could not be written", path.display()))
}

/// Refuses a place where nothing can be written, before minutes are spent on what is to be written
/// there.
pub fn writable(path: &Path) -> anyhow::Result<()> {
    file::writable(path).with_context(|| format!("{} could not be written", path.display()))
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
