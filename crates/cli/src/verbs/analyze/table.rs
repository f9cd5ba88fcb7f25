//! Tables for people. Invariant: what a column sorts by is what it shows, before it was rounded;
//! rows that tie, or have nothing there, stay in their order.

use std::cmp::Ordering;

use thiserror::Error;
use tightfit::units::{Bytes, Flops, Seconds};

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
}

impl Cell {
    /// What does not apply, or is zero: a dash, so that what there is stands out.
    pub fn nothing() -> Cell {
        Cell { text: "–".to_string(), key: Key::Nothing }
    }

    /// Words.
    pub fn text(text: impl Into<String>) -> Cell {
        let text = text.into();
        Cell { key: Key::Text(text.clone()), text }
    }

    /// A name of at most `most` characters; what is too much is left out of its middle, since
    /// names of nodes end in a number.
    pub fn name(name: &str, most: usize) -> Cell {
        let (length, kept) = (name.chars().count(), most - 1);
        let mut text = name.to_string();
        if length > most {
            let head = name.chars().take(kept - kept / 2);
            text = head.chain(['…']).chain(name.chars().skip(length - kept / 2)).collect();
        }
        Cell { text, key: Key::Text(name.to_string()) }
    }

    /// A path of at most `most` characters, of which the last components are kept.
    pub fn path(path: &str, most: usize) -> Cell {
        let mut text = if path.is_empty() { "(whole model)".to_string() } else { path.to_string() };
        let length = text.chars().count();
        if length > most {
            let tail: String = text.chars().skip(length - (most - 1)).collect();
            let whole = tail.find('.').map_or(tail.as_str(), |at| &tail[at..]);
            text = format!("…{whole}");
        }
        Cell { text, key: Key::Text(path.to_string()) }
    }

    fn number(number: f64, text: String) -> Cell {
        if number == 0.0 { Cell::nothing() } else { Cell { text, key: Key::Number(number) } }
    }

    /// A size.
    pub fn bytes(bytes: Bytes) -> Cell {
        Cell::number(bytes.0 as f64, bytes.to_string())
    }

    /// A time, in four significant digits or so, down to a tenth of a microsecond.
    pub fn milliseconds(seconds: Seconds) -> Cell {
        let milliseconds = seconds.0 * 1e3;
        let digits = (3.0 - milliseconds.log10().floor()).clamp(1.0, 4.0) as usize;
        let text = match milliseconds < 0.00005 {
            true => "<0.0001".to_string(),
            false => format!("{milliseconds:.digits$}"),
        };
        Cell::number(seconds.0, text)
    }

    /// Operations, by thousands.
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
        rank.map_or_else(Cell::nothing, |rank| Cell {
            text: rank.to_string(),
            key: Key::Number(rank.into()),
        })
    }

    /// How many.
    pub fn count(count: usize) -> Cell {
        Cell::number(count as f64, count.to_string())
    }

    /// With a mark behind it, or room for one.
    pub fn marked(mut self, is_marked: bool) -> Cell {
        self.text.push_str(if is_marked { " *" } else { "  " });
        self
    }

    /// Numbers fall, words rise, and what has nothing comes last.
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
        Table { heads, rows }
    }

    /// Sorts by a column, given its name in any case, words joined as one likes.
    pub fn sort(&mut self, column: &str) -> Result<(), UnknownColumn> {
        let plain = |name: &str| name.to_lowercase().replace(['_', '-'], " ");
        let found = self.heads.iter().position(|head| plain(head) == plain(column));
        let column = found.ok_or_else(|| UnknownColumn {
            name: column.to_string(),
            known: self.heads.iter().map(|head| head.replace(' ', "_")).collect(),
        })?;
        self.rows.sort_by(|a, b| a[column].order(&b[column]));
        Ok(())
    }

    /// Prints the first rows under the heads; numbers stand to the right.
    pub fn print(&self, top: usize) {
        let rows = &self.rows[..top.min(self.rows.len())];
        let is_text: Vec<bool> = (0..self.heads.len())
            .map(|column| rows.iter().any(|row| matches!(row[column].key, Key::Text(_))))
            .collect();
        let length = |text: &str| text.chars().count();
        let widths: Vec<usize> = self
            .heads
            .iter()
            .enumerate()
            .map(|(column, head)| {
                let cells = rows.iter().map(|row| length(&row[column].text));
                cells.max().unwrap_or(0).max(length(head))
            })
            .collect();
        let line = |cell: &dyn Fn(usize) -> String| {
            let cells = widths.iter().enumerate().map(|(column, &width)| match is_text[column] {
                true => format!("{:<width$}", cell(column)),
                false => format!("{:>width$}", cell(column)),
            });
            println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        };
        // A head stands over the digits of its column, not over marks behind them.
        line(&|column| {
            let marks = rows.first().is_some_and(|row| row[column].text.ends_with([' ', '*']));
            format!("{}{}", self.heads[column], if marks { "  " } else { "" })
        });
        rows.iter().for_each(|row| line(&|column| row[column].text.clone()));
        if rows.len() < self.rows.len() {
            println!("… and {} more rows", self.rows.len() - rows.len());
        }
    }
}
