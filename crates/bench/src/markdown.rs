//! Tables in Markdown. Invariant: what is not known is a dash, so that no row is shorter than the
//! head.

use tightfit::units::{Bytes, Seconds};

/// A table: the first column to the left, all others to the right.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    rows.iter().fold(self::head(head), |text, row| text + &line(row))
}

/// The beginning of a table, before its rows.
pub fn head(names: &[&str]) -> String {
    let rule = |column| if column == 0 { "---" } else { "---:" };
    let rules: Vec<&str> = (0..names.len()).map(rule).collect();
    format!("| {} |\n|{}|\n", names.join(" | "), rules.join("|"))
}

/// A row of a table.
pub fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// A table of rows that name their columns.
pub fn titled<const N: usize>(rows: &[[(&str, String); N]]) -> String {
    let head = rows.first().map_or([""; N], |row| row.each_ref().map(|(head, _)| *head));
    let cells = |row: &[(&str, String); N]| row.iter().map(|(_, cell)| cell.clone()).collect();
    table(&head, &rows.iter().map(cells).collect::<Vec<_>>())
}

/// A share in percent.
pub fn percent(share: Option<f64>) -> String {
    known(share, |share| format!("{:.2}", rounded(share * 100.0, 100.0)))
}

/// Percentage points, for figures for which hundredths are too coarse.
pub fn points(share: Option<f64>) -> String {
    known(share, |share| format!("{:.3}", rounded(share * 100.0, 1000.0)))
}

/// Zero without a sign, since sums in another order may leave a tiny remainder.
fn rounded(number: f64, digits: f64) -> f64 {
    (number * digits).round() / digits + 0.0
}

/// Seconds, to the millisecond.
pub fn seconds(seconds: Option<Seconds>) -> String {
    known(seconds, |seconds| format!("{:.3}", seconds.0))
}

/// One size as a multiple of another.
pub fn ratio(bytes: Option<Bytes>, of: Bytes) -> String {
    known(bytes, |bytes| format!("{:.4}", bytes.0 as f64 / of.0.max(1) as f64))
}

/// A dash if there is nothing.
pub fn known<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or("–".to_string(), show)
}
