//! Time of a step over its budget, with the lower bound below it, as a self-contained SVG.
//! Invariant: every mark is a plan that was checked at exactly that budget; the lines only join the
//! marks.

use std::fmt::Write;

use tightfit::units::{Bytes, Seconds};

use crate::axis::{MANY, duration, percents, ticks};
use crate::svg::{Opening, centred, column, legend, level};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 62.0;

const LIGHT: &str = ".ground{fill:#fff}.ink{fill:#222}.soft{fill:#667}.grid{stroke:#dde}\
    .plan{fill:none;stroke:#2f7ed8}.mark{fill:#2f7ed8}.bound{fill:none;stroke:#c0392b}\
    .between{fill:#2f7ed8;fill-opacity:.16}";
const DARK: &str = ".ground{fill:#14171c}.ink{fill:#e6e8eb}.soft{fill:#9aa2ad}\
    .grid{stroke:#2a2f37}.plan{stroke:#5ba3f0}.mark{fill:#5ba3f0}.bound{stroke:#ff7566}\
    .between{fill:#5ba3f0}";

/// One budget of a frontier.
#[derive(Clone, Copy, Debug)]
pub struct FrontierPoint {
    /// The budget.
    pub budget: Bytes,
    /// How much more time the plan takes than the unplanned step, as a share of that.
    pub overhead: f64,
    /// How much more every schedule within the budget takes, at least.
    pub bound: Option<f64>,
}

/// Overhead over budget. `unplanned`: seconds of the step to which shares refer.
pub fn frontier_svg(title: &str, unplanned: Seconds, points: &[FrontierPoint]) -> String {
    let mut points = points.to_vec();
    points.sort_by_key(|point| point.budget);
    let axes = Axes::around(points.iter(), 0.03, 1.08);
    let floor = HEIGHT - BOTTOM;
    let x = |bytes: Bytes| LEFT + axes.across(bytes) * (WIDTH - LEFT - RIGHT);
    let y = |share: f64| TOP + axes.down(share) * (floor - TOP);
    let mut svg =
        Opening { size: (WIDTH, HEIGHT), title, at: (LEFT, 22.0), light: LIGHT, dark: DARK }.svg();
    for share in percents(axes.top) {
        level(&mut svg, (LEFT, WIDTH - RIGHT), y(share), percent(share));
        svg.push('\n');
    }
    for tick in ticks(axes.low, axes.high, MANY) {
        column(&mut svg, x(tick), (TOP, floor), tick);
        svg.push('\n');
    }
    let plan: Vec<(f64, f64)> =
        points.iter().map(|point| (x(point.budget), y(point.overhead))).collect();
    let bound: Vec<(f64, f64)> =
        points.iter().filter_map(|point| Some((x(point.budget), y(point.bound?)))).collect();
    if bound.len() == plan.len() {
        let around: Vec<(f64, f64)> =
            plan.iter().copied().chain(bound.iter().rev().copied()).collect();
        let _ = writeln!(svg, r#"<path class="between" d="{}Z"/>"#, line(&around));
    }
    let _ = writeln!(svg, r#"<path class="plan" stroke-width="2" d="{}"/>"#, line(&plan));
    for (x, y) in &plan {
        let _ = writeln!(svg, r#"<circle class="mark" cx="{x:.1}" cy="{y:.1}" r="3.5"/>"#);
    }
    // Drawn last, so that it is visible where both lines meet.
    if !bound.is_empty() {
        let _ = writeln!(
            svg,
            r#"<path class="bound" stroke-width="1.5" stroke-dasharray="6 4" d="{}"/>"#,
            line(&bound)
        );
    }
    explain(&mut svg, &points);
    let unplanned = duration(unplanned.0);
    centred(
        &mut svg,
        ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14.0),
        format_args!("budget; time is predicted, more than the {unplanned} of the unplanned step"),
    );
    svg.push_str("\n</svg>\n");
    svg
}

/// Budgets from left to right, additional time from the bottom to the top.
pub(crate) struct Axes {
    /// Bytes at the left end.
    pub low: f64,
    /// Bytes at the right end.
    pub high: f64,
    /// The share of time at the top; at the bottom it is zero.
    pub top: f64,
}

impl Axes {
    /// Around points, with a margin on both sides, as a share of the budgets' range; the top is a
    /// multiple of the longest time.
    pub fn around<'a>(
        points: impl Iterator<Item = &'a FrontierPoint> + Clone,
        margin: f64,
        headroom: f64,
    ) -> Axes {
        let budgets = points.clone().map(|point| point.budget.0 as f64);
        let low = budgets.clone().reduce(f64::min).unwrap_or(0.0);
        let high = budgets.reduce(f64::max).unwrap_or(1.0);
        // A single point stands in the middle.
        let margin = if high > low { (high - low) * margin } else { high.max(1.0) * 0.1 };
        let slowest = slowest(points);
        Axes {
            low: (low - margin).max(0.0),
            high: high + margin,
            top: if slowest > 1e-6 { slowest * headroom } else { 0.01 },
        }
    }

    /// How far from the left end, as a share of the way.
    pub fn across(&self, budget: Bytes) -> f64 {
        (budget.0 as f64 - self.low) / (self.high - self.low)
    }

    /// How far from the top, as a share of the way.
    pub fn down(&self, overhead: f64) -> f64 {
        1.0 - overhead.max(0.0) / self.top
    }
}

fn slowest<'a>(points: impl Iterator<Item = &'a FrontierPoint>) -> f64 {
    points.map(|point| point.overhead).fold(0.0, f64::max)
}

fn explain(svg: &mut String, points: &[FrontierPoint]) {
    let smallest = points.first().map_or(Bytes::ZERO, |point| point.budget);
    let planned = format!(
        "planned: down to {smallest}, there {} % time",
        format_args!("{:+.1}", slowest(points.iter()) * 100.0)
    );
    let gaps = points.iter().filter_map(|point| Some(point.overhead - point.bound?));
    let widest = gaps
        .reduce(f64::max)
        .map(|gap| format!("lower bound: at most {:.2} points below", gap * 100.0));
    legend(svg, LEFT, [("plan", Some(planned)), ("bound", widest)]);
}

/// Straight lines through points; empty if there are none.
pub(crate) fn line(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (index, (x, y)) in points.iter().enumerate() {
        let _ = write!(path, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
    }
    path
}

/// As many digits as the step between two ticks needs.
fn percent(share: f64) -> String {
    let text = format!("{:.3}", share * 100.0);
    let short = text.trim_end_matches('0').trim_end_matches('.');
    format!("{}{short} %", if share > 0.0 { "+" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(budget: u64, overhead: f64, bound: Option<f64>) -> FrontierPoint {
        FrontierPoint { budget: Bytes(budget), overhead, bound }
    }

    #[test]
    fn figures_are_those_of_the_points() {
        let svg = frontier_svg(
            "a < b",
            Seconds(0.5),
            &[point(400, 0.0, Some(0.0)), point(200, 0.25, Some(0.2))],
        );
        assert!(svg.contains("a &lt; b") && svg.contains("500.0 ms"));
        assert!(
            svg.contains("down to 200 B, there +25.0 % time")
                && svg.contains("at most 5.00 points below")
        );
        assert_eq!(svg.matches("<circle").count(), 2);
    }

    #[test]
    fn nothing_is_drawn_of_a_bound_that_is_not_known() {
        let svg = frontier_svg("one", Seconds(1.0), &[point(400, 0.0, None)]);
        assert!(!svg.contains("class=\"bound\"") && !svg.contains("lower bound"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(!frontier_svg("none", Seconds(0.0), &[]).contains("NaN"));
    }
}
