//! Tables for people. Invariant: a column is sorted by what it shows, before it was rounded or
//! shortened; rows that tie, or have nothing there, stay in their order; a row is one line of usual
//! width, and whatever does not fit into it is said to be left out, unless lines may be wide.

use std::cmp::Ordering;

use textwrap::core::display_width;
use thiserror::Error;
use tightfit::exit::coded;
use tightfit::units::{Bytes, Flops, Seconds};

use crate::{alike, output};

/// The fewest columns to which text is shortened.
const LEAST: usize = 12;
/// Between two columns.
const GAP: &str = "  ";

/// No column has this name.
#[derive(Debug, Error)]
#[error("there is no column `{name}`; the columns are {}", known.join(", "))]
pub struct UnknownColumn {
    name: String,
    known: Vec<String>,
}

/// One entry.
pub struct Cell {
    text: String,
    key: Key,
    shorten: Shorten,
}

/// Where an entry that is too wide loses characters.
#[derive(Clone, Copy)]
enum Shorten {
    /// Nowhere.
    Never,
    /// In its middle, after an indent of this many characters.
    Middle(usize),
    /// At its front, by whole components.
    Front,
    /// At its end.
    End,
}

enum Key {
    Nothing,
    Number(f64),
    Text(String),
}

/// Rows under the names of columns.
pub struct Table {
    heads: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
    /// The columns that are shown.
    shown: Vec<usize>,
}

impl Cell {
    /// What does not apply, or is zero: a dash, so that other entries stand out.
    pub fn nothing() -> Cell {
        Cell { text: "–".to_string(), key: Key::Nothing, shorten: Shorten::Never }
    }

    fn shortened(text: String, key: &str, shorten: Shorten) -> Cell {
        // A row is one line, whatever names contain.
        let is_plain = |&c: &char| !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}');
        let plain = |c: char| if is_plain(&c) { c } else { '\u{fffd}' };
        let text = text.chars().map(plain).collect();
        Cell { text, key: Key::Text(key.to_string()), shorten }
    }

    /// A word, which is always whole.
    pub fn word(text: &str) -> Cell {
        Cell::shortened(text.to_string(), text, Shorten::Never)
    }

    /// A list or a sentence, whose end is left out if it does not fit.
    pub fn words(text: &str) -> Cell {
        Cell::shortened(text.to_string(), text, Shorten::End)
    }

    /// A name; if it is too long, its middle is left out, since names of nodes end in a number.
    pub fn name(name: &str) -> Cell {
        Cell::branch(name, 0)
    }

    /// A name at a depth of a tree.
    pub fn branch(name: &str, depth: usize) -> Cell {
        Cell::shortened(format!("{:depth$}{name}", ""), name, Shorten::Middle(depth))
    }

    /// A path, of which the last components are kept.
    pub fn path(path: &str) -> Cell {
        let text = if path.is_empty() { "(root)" } else { path };
        Cell::shortened(text.to_string(), path, Shorten::Front)
    }

    /// A figure, zero included, with its text.
    pub fn figure(number: f64, text: String) -> Cell {
        Cell { text, key: Key::Number(number), shorten: Shorten::Never }
    }

    fn number(number: f64, text: String) -> Cell {
        if number == 0.0 { Cell::nothing() } else { Cell::figure(number, text) }
    }

    /// A size.
    pub fn bytes(bytes: Bytes) -> Cell {
        Cell::number(bytes.0 as f64, bytes.to_string())
    }

    /// A time in milliseconds, in about four significant digits, or three for large numbers.
    pub fn milliseconds(seconds: Seconds) -> Cell {
        let milliseconds = seconds.0 * 1e3;
        let usual = (3.0 - milliseconds.log10().floor()).clamp(1.0, 4.0) as usize;
        Cell::number(seconds.0, output::decimal(milliseconds, usual))
    }

    /// Operations, in units that are powers of a thousand.
    pub fn flops(flops: Flops) -> Cell {
        let (mut value, mut units) = (flops.0 as f64, ["", "k", "M", "G", "T", "P", "E"].iter());
        let mut unit = units.next();
        while value >= 1000.0 {
            (value, unit) = (value / 1000.0, units.next());
        }
        let digits = usize::from(flops.0 >= 1000);
        Cell::number(flops.0 as f64, format!("{value:.digits$} {}", unit.unwrap_or(&"")))
    }

    /// A place in the program; the first one is 0.
    pub fn rank(rank: Option<u32>) -> Cell {
        rank.map_or_else(Cell::nothing, |rank| Cell::figure(rank.into(), rank.to_string()))
    }

    /// A count.
    pub fn count(count: usize) -> Cell {
        Cell::number(count as f64, count.to_string())
    }

    /// With a mark after it, or space for one.
    pub fn marked(mut self, is_marked: bool) -> Cell {
        self.text.push_str(if is_marked { " *" } else { "  " });
        self
    }

    /// Whether both show the same text.
    pub fn shows_as(&self, other: &Cell) -> bool {
        self.text == other.text
    }

    fn width(&self) -> usize {
        display_width(&self.text)
    }

    /// In `most` columns, if that is possible.
    fn within(&self, most: usize) -> String {
        if self.width() <= most || matches!(self.shorten, Shorten::Never) {
            return self.text.clone();
        }
        // Characters may take two columns.
        let fewer = (1..=most).rev().map(|characters| self.in_characters(characters));
        fewer.into_iter().find(|text| display_width(text) <= most).unwrap_or_default()
    }

    /// In this many characters.
    fn in_characters(&self, most: usize) -> String {
        let length = self.text.chars().count();
        if length <= most {
            return self.text.clone();
        }
        let text = || self.text.chars();
        let kept = most.saturating_sub(1);
        match self.shorten {
            Shorten::Never => self.text.clone(),
            Shorten::Middle(indent) => {
                // A deep indent leaves less space for the name, but always half.
                let tail = kept.saturating_sub(indent).max(kept / 2) / 2;
                text().take(kept - tail).chain(['…']).chain(text().skip(length - tail)).collect()
            }
            Shorten::Front => {
                let tail: String = text().skip(length - kept).collect();
                let whole = tail.find('.').map_or(tail.as_str(), |at| &tail[at..]);
                format!("…{whole}")
            }
            Shorten::End => text().take(kept).chain(['…']).collect(),
        }
    }

    /// Numbers fall, words rise, and entries with nothing come last.
    fn order(&self, other: &Cell) -> Ordering {
        match (&self.key, &other.key) {
            (Key::Number(a), Key::Number(b)) => b.total_cmp(a),
            (Key::Text(a), Key::Text(b)) => a.cmp(b),
            (Key::Nothing, Key::Nothing) => Ordering::Equal,
            (Key::Nothing, _) | (Key::Text(_), Key::Number(_)) => Ordering::Greater,
            (_, Key::Nothing) | (Key::Number(_), Key::Text(_)) => Ordering::Less,
        }
    }
}

impl Table {
    /// Every row has a cell for each head.
    pub fn new(heads: &'static [&'static str], rows: Vec<Vec<Cell>>) -> Table {
        Table { heads, rows, shown: (0..heads.len()).collect() }
    }

    /// Shows some columns only, if lines have the usual width.
    pub fn usually(mut self, heads: &[&str]) -> Table {
        if !output::is_wide() {
            self.shown.retain(|&column| heads.contains(&self.heads[column]));
        }
        self
    }

    /// A table of modules, whose names are in the first column: the part in front that all names
    /// share is said once, and one row stands for consecutive layers that are alike.
    pub fn of_modules(
        heads: &'static [&'static str],
        rows: Vec<(&str, Vec<Cell>)>,
    ) -> (String, Table) {
        let names: Vec<&str> = rows.iter().map(|row| row.0).collect();
        let is_wide = output::is_wide();
        let front = if is_wide { 0 } else { alike::shared_front(&names) };
        let within = names.first().map_or("", |name| &name[..front]);
        let within = within.trim_end_matches('.').to_string();
        let short: Vec<&str> = names.iter().map(|name| &name[front..]).collect();
        let is_same = |a: usize, b: usize| {
            let cells = |row: usize| rows[row].1.iter();
            !is_wide && cells(a).zip(cells(b)).all(|(a, b)| a.shows_as(b))
        };
        let runs = alike::runs(&short, is_same);
        let mut rows: Vec<_> = rows.into_iter().map(|row| Some(row.1)).collect();
        let joint = runs.into_iter().filter_map(|run| {
            let mut row = vec![Cell::path(&run.name)];
            row.extend(rows[run.first].take()?);
            Some(row)
        });
        let joint = joint.collect();
        (within, Table::new(heads, joint))
    }

    /// Sorts by a column, given its name in any case, with words joined in any way.
    pub fn sort(&mut self, column: &str) -> Result<(), UnknownColumn> {
        let plain = |name: &str| name.to_lowercase().replace(['_', '-'], " ");
        let found = self.heads.iter().position(|head| plain(head) == plain(column));
        let column = found.ok_or_else(|| UnknownColumn {
            name: column.to_string(),
            known: self.heads.iter().map(|head| head.replace(' ', "_")).collect(),
        })?;
        if !self.shown.contains(&column) {
            // It replaces the last figure shown, since a line has no space for more.
            let figures = |&&shown: &&usize| !self.is_text(shown, &self.rows);
            if let Some(&last) = self.shown.iter().rfind(figures) {
                self.shown.retain(|&shown| shown != last);
            }
            self.shown.push(column);
            self.shown.sort_unstable();
        }
        self.rows.sort_by(|a, b| a[column].order(&b[column]));
        Ok(())
    }

    /// Prints the first rows under the heads; numbers are aligned to the right.
    pub fn print(&self, top: usize) -> output::Printed {
        let rows = &self.rows[..top.min(self.rows.len())];
        let widths = self.widths(rows);
        let is_text: Vec<bool> =
            (0..self.heads.len()).map(|column| self.is_text(column, rows)).collect();
        let line = |cell: &dyn Fn(usize, usize) -> String| {
            let cells = self.shown.iter().zip(&widths).map(|(&column, &width)| {
                let text = cell(column, width);
                let rest = " ".repeat(width.saturating_sub(display_width(&text)));
                if is_text[column] { text + &rest } else { rest + &text }
            });
            cells.collect::<Vec<_>>().join(GAP).trim_end().to_string()
        };
        // A head stands over the digits of its column, not over marks after them.
        let heads = line(&|column, _| {
            let marks = rows.first().is_some_and(|row| row[column].text.ends_with([' ', '*']));
            format!("{}{}", self.heads[column], if marks { "  " } else { "" })
        });
        output::heading(format_args!("{heads}"))?;
        for row in rows {
            say!("{}", line(&|column, width| row[column].within(width)))?;
        }
        if rows.len() < self.rows.len() {
            say!("… and {} more rows", self.rows.len() - rows.len())?;
        }
        let hidden = self.heads.len() - self.shown.len();
        if hidden > 0 {
            say!("… and {} with --wide", output::several(hidden, "more column", "s"))?;
        }
        Ok(())
    }

    fn is_text(&self, column: usize, rows: &[Vec<Cell>]) -> bool {
        rows.iter().any(|row| matches!(row[column].key, Key::Text(_)))
    }

    /// Each column as wide as its widest entry or its head; if that is too much for a line, the
    /// widest columns of text give way first.
    fn widths(&self, rows: &[Vec<Cell>]) -> Vec<usize> {
        let columns = || self.shown.iter().copied();
        let head = |column: usize| display_width(self.heads[column]);
        let widest = |column: usize, counts: fn(&Cell) -> bool| {
            let cells = rows.iter().map(|row| &row[column]).filter(|cell| counts(cell));
            cells.map(Cell::width).max().unwrap_or(0).max(head(column))
        };
        let mut widths: Vec<usize> = columns().map(|c| widest(c, |_| true)).collect();
        let is_whole = |cell: &Cell| matches!(cell.shorten, Shorten::Never);
        let least: Vec<usize> = columns().map(|c| widest(c, is_whole).max(LEAST)).collect();
        let gaps = GAP.len() * self.shown.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > output::columns() {
            let yielding = (0..widths.len()).filter(|&column| widths[column] > least[column]);
            match yielding.max_by_key(|&column| widths[column]) {
                Some(column) => widths[column] -= 1,
                None => break,
            }
        }
        widths
    }
}

coded!(Usage: UnknownColumn);
