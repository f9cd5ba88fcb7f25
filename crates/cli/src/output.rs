//! Writing results. Invariant: a file appears whole or not at all; standard output that accepts no
//! more is an error like any other, so that its caller decides what is still to be saved.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};
use textwrap::{Options, WordSplitter, fill};
use thiserror::Error;
use tightfit::exit::coded;
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::file;

use crate::failure::{Context, Result};
use crate::shown::shown;
use crate::style;

/// Prints a line to standard output, or says why not.
#[macro_export]
macro_rules! say {
    () => { $crate::output::line(format_args!("")) };
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}

/// Prints a sentence to standard output, in lines of usual width, or says why not.
macro_rules! tell {
    ($($text:tt)*) => { $crate::output::sentence("", format_args!($($text)*)) };
}

/// Prints a figure to standard output: its name, its value, and a sentence about it.
macro_rules! row {
    ($name:expr, $figure:expr) => { row!($name, $figure, "") };
    ($name:expr, $figure:expr, $($text:tt)*) => {
        $crate::output::row($name.as_ref(), &$figure.to_string(), format_args!($($text)*))
    };
}

/// Prints a figure that is words.
macro_rules! entry {
    ($name:expr, $($text:tt)*) => {
        $crate::output::entry($name, format_args!($($text)*))
    };
}

/// Prints a line to standard error; if that fails, there is no one left to tell.
#[macro_export]
macro_rules! note {
    ($($text:tt)*) => { $crate::output::aside(format_args!($($text)*)) };
}

/// Standard output accepted no more.
#[derive(Debug, Error)]
#[error("standard output: {0}")]
pub struct Unprinted(#[from] io::Error);

impl Unprinted {
    /// Its reader has gone, as that of `| head` does.
    pub fn is_unread(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// The outcome of printing.
pub type Printed = Result<(), Unprinted>;

/// The name of standard output as a file to write.
const STANDARD_OUTPUT: &str = "-";

/// Whether standard output is taken by a file: then results for people go to standard error.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// A line on standard output.
pub fn line(text: fmt::Arguments<'_>) -> Printed {
    styled(text, str::to_string)
}

/// A line on standard output that stands above others: the subject of an answer, or the heads of a
/// table.
pub fn heading(text: fmt::Arguments<'_>) -> Printed {
    // One line, whatever names hold.
    styled(format_args!("{}", text.to_string().replace('\n', "\\n")), style::heading)
}

fn styled(text: fmt::Arguments<'_>, style: fn(&str) -> String) -> Printed {
    if IS_TAKEN.load(Ordering::Relaxed) {
        aside(text);
        return Ok(());
    }
    let mut output = io::stdout().lock();
    writeln!(output, "{}", style(&shown(text))).map_err(Unprinted)
}

/// Columns of a line, unless `--wide` was given.
const USUAL: usize = 80;

static COLUMNS: AtomicUsize = AtomicUsize::new(USUAL);

/// From now on lines are as long as their content.
pub fn widen(is_wide: bool) {
    COLUMNS.store(if is_wide { usize::MAX } else { USUAL }, Ordering::Relaxed);
}

/// Columns of a line.
pub fn columns() -> usize {
    COLUMNS.load(Ordering::Relaxed)
}

/// Whether lines are as long as their content.
pub fn is_wide() -> bool {
    columns() == usize::MAX
}

/// The answer of a verb as JSON, with the name of its format.
pub fn answer(mut answer: Value) -> Printed {
    answer["format"] = json!(ANSWER);
    line(format_args!("{answer}"))
}

/// The format of answers: members keep their meaning, and new ones may be added.
const ANSWER: &str = "tightfit-answer/1";

/// Lines of text after `head`; the second and later lines are indented to the text of the first.
pub fn sentence(head: &str, text: fmt::Arguments<'_>) -> Printed {
    let indent = " ".repeat(head.chars().count());
    let options = Options::new(columns())
        .initial_indent(head)
        .subsequent_indent(&indent)
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation);
    match text.to_string() {
        text if text.is_empty() => line(format_args!("{}", head.trim_end())),
        text => line(format_args!("{}", fill(&together(&text), options).replace(JOINT, " "))),
    }
}

/// A space at which no line ends.
const JOINT: char = '\u{a0}';

/// Text whose figures stay on the same line as their units.
fn together(text: &str) -> String {
    const UNITS: [&str; 9] = ["%", "B", "KiB", "MiB", "GiB", "TiB", "ms", "s", "points"];
    let mut result = String::with_capacity(text.len());
    for word in text.split(' ') {
        let is_unit = UNITS.contains(&word.trim_end_matches([',', ';', ':', '.', ')']));
        let follows = result.ends_with(|last: char| last.is_ascii_digit());
        if !result.is_empty() {
            result.push(if is_unit && follows { JOINT } else { ' ' });
        }
        result.push_str(word);
    }
    result
}

/// A figure, with its name before it and a sentence after it.
pub fn row(name: &str, figure: &str, text: fmt::Arguments<'_>) -> Printed {
    sentence(&format!("{name:<16}{figure:>12}  "), text)
}

/// A figure that is words, with its name before it.
pub fn entry(name: &str, text: fmt::Arguments<'_>) -> Printed {
    sentence(&format!("{name:<16}"), text)
}

/// What was printed has reached its reader.
pub fn flush() -> Printed {
    io::stdout().flush().map_err(Unprinted)
}

/// A line on standard error.
pub fn aside(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{}", style::message(&shown(text)));
}

/// A number of things.
pub fn several(count: usize, what: &str, plural: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { plural })
}

/// Closed standard streams lead nowhere from now on; otherwise the next file that is opened would
/// become one, and receive what is printed.
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

/// Writes a whole file, as [`file::write`] does it, or to standard output if its name is `-`.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    if path.as_os_str() == STANDARD_OUTPUT {
        IS_TAKEN.store(true, Ordering::Relaxed);
        let mut output = io::stdout().lock();
        let written = output.write_all(bytes).and_then(|()| output.flush());
        return Ok(written.map_err(Unprinted)?);
    }
    file::write(path, |file| file.write_all(bytes))
        .with_context(|| format!("{} could not be written", path.display()))
}

/// Files that a verb writes in addition to its answer.
#[derive(Default)]
pub struct Written<'a> {
    files: Vec<(&'a Path, Bytes, &'static str)>,
}

impl<'a> Written<'a> {
    /// Writes one; `what` describes it.
    pub fn write(&mut self, path: &'a Path, bytes: &[u8], what: &'static str) -> Result<()> {
        write_whole(path, bytes)?;
        if path.as_os_str() != STANDARD_OUTPUT {
            self.files.push((path, Bytes(bytes.len() as u64), what));
        }
        Ok(())
    }

    /// Says what was written, after the answer.
    pub fn tell(&self) -> Printed {
        self.files
            .iter()
            .try_for_each(|(path, size, what)| tell!("{} written, {size}: {what}", path.display()))
    }
}

/// Refuses a place that cannot be written to, before minutes are spent on what is to be written
/// there. If it is standard output, nothing else is printed there from now on.
pub fn writable(path: &Path) -> Result<()> {
    if path.as_os_str() == STANDARD_OUTPUT {
        IS_TAKEN.store(true, Ordering::Relaxed);
        return Ok(());
    }
    file::writable(path).with_context(|| format!("{} could not be written", path.display()))
}

/// `+12.3 %`
pub fn percent(share: f64) -> String {
    // Zero has no sign.
    format!("{:+.1} %", (share * 1e3).round() / 10.0 + 0.0)
}

/// A time as sentences give it: `35.64 ms`, `0.00123 ms`.
pub fn milliseconds(seconds: Seconds) -> String {
    format!("{} ms", in_milliseconds(seconds))
}

/// The number in [`milliseconds`] alone: two decimals, or as many as three significant digits take.
pub fn in_milliseconds(seconds: Seconds) -> String {
    decimal(seconds.0 * 1e3, 2)
}

/// A number with `usual` decimals, or as many more as three significant digits take; with an
/// exponent if those would be more than eight.
pub fn decimal(number: f64, usual: usize) -> String {
    if number == 0.0 || !number.is_finite() {
        return format!("{number:.usual$}");
    }
    if number.abs() < 1e-6 {
        return format!("{number:.2e}");
    }
    // A negative number is cast to 0.
    let decimals = usual.max((2.0 - number.abs().log10().floor()) as usize);
    format!("{number:.decimals$}")
}

coded!(File: Unprinted);
