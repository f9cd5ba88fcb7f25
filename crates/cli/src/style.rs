//! Colour. Invariant: an escape sequence reaches a stream only if `--color` says so, or if the
//! stream is a terminal and neither `--color` nor the environment (NO_COLOR) objects; only the
//! program's own words are styled, after `shown` has removed whatever a name may hold.

use std::ffi::{OsStr, OsString};
use std::io;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;

/// When output is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Everywhere, in files and pipes too
    Always,
    /// Nowhere
    Never,
}

const HEADING: Style = Style::new().bold();
const ERROR: Style = AnsiColor::Red.on_default().bold();
const NOTE: Style = AnsiColor::Cyan.on_default().bold();

/// Words with which a line on standard error begins, and how they look.
const OPENINGS: [(&str, Style); 2] = [("error:", ERROR), ("note:", NOTE)];

impl Color {
    /// What a command line says, before it is parsed: help and usage errors are coloured, too.
    pub fn of(arguments: &[OsString]) -> Color {
        let options = arguments.iter().take_while(|argument| *argument != "--");
        let words: Vec<&OsStr> = options.map(OsString::as_os_str).collect();
        let mut values = words.iter().enumerate().filter_map(|(at, word)| {
            let word = word.to_str()?;
            match word.strip_prefix("--color")? {
                "" => words.get(at + 1)?.to_str(),
                joined => joined.strip_prefix('='),
            }
        });
        // The last one counts, as in clap.
        values.next_back().and_then(|value| Color::from_str(value, false).ok()).unwrap_or_default()
    }

    /// Settles it for the whole process, including what clap prints.
    pub fn settle(self) {
        let choice = match self {
            Color::Auto => ColorChoice::Auto,
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
        };
        choice.write_global();
    }
}

/// A line of standard output that stands above others.
pub fn heading(line: &str) -> String {
    match AutoStream::choice(&io::stdout()) {
        ColorChoice::Never => line.to_string(),
        _ => styled(line, HEADING),
    }
}

/// A message on standard error, its first word coloured.
pub fn message(text: &str) -> String {
    let opening = OPENINGS.into_iter().find(|(opening, _)| text.starts_with(opening));
    match (opening, AutoStream::choice(&io::stderr())) {
        (None, _) | (_, ColorChoice::Never) => text.to_string(),
        (Some((opening, style)), _) => styled(opening, style) + &text[opening.len()..],
    }
}

fn styled(text: &str, style: Style) -> String {
    format!("{style}{text}{style:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_says_it_in_either_form() {
        let of = |words: &[&str]| Color::of(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of(&["tightfit", "plan", "--color", "always", "x"]), Color::Always);
        assert_eq!(of(&["tightfit", "--color=never", "plan"]), Color::Never);
        assert_eq!(of(&["tightfit", "plan", "--color"]), Color::Auto);
        assert_eq!(of(&["tightfit", "plan", "--color", "mauve"]), Color::Auto);
        assert_eq!(of(&["tightfit", "plan", "--", "--color=never"]), Color::Auto);
        assert_eq!(of(&["tightfit", "--color=always", "plan", "--color", "never"]), Color::Never);
    }
}
