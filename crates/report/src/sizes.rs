//! Samples per second over the size of a batch, with the upper bound above it, as a self-contained
//! SVG. Invariant: every mark is a plan that was checked at exactly that size; the lines only join
//! the marks.

use std::fmt::Write;

use crate::axis::grouped;
use crate::frontier::line;
use crate::svg::{Opening, centred, column, legend, level};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 62.0;

const LIGHT: &str = ".ground{fill:#fff}.ink{fill:#222}.soft{fill:#667}.grid{stroke:#dde}\
    .plan{fill:none;stroke:#2f7ed8}.mark{fill:#2f7ed8}.bound{fill:none;stroke:#c0392b}";
const DARK: &str = ".ground{fill:#14171c}.ink{fill:#e6e8eb}.soft{fill:#9aa2ad}\
    .grid{stroke:#2a2f37}.plan{stroke:#5ba3f0}.mark{fill:#5ba3f0}.bound{stroke:#ff7566}";

/// A size for which there is a plan.
#[derive(Clone, Copy, Debug)]
pub struct SizePoint {
    /// The size.
    pub size: u64,
    /// What the planned step takes per second.
    pub per_second: f64,
    /// What no plan exceeds, if something is proven.
    pub most: Option<f64>,
}

/// What a step takes per second over its size, which is called `name`; `largest` is the largest one
/// that fits.
pub fn sizes_svg(title: &str, name: &str, points: &[SizePoint], largest: u64) -> String {
    let mut points = points.to_vec();
    points.sort_by_key(|point| point.size);
    let fastest = points.iter().map(|point| point.most.unwrap_or(point.per_second));
    let top = fastest.fold(0.0f64, f64::max).max(1e-9) * 1.08;
    let right = points.last().map_or(1, |point| point.size).max(1) as f64 * 1.03;
    let floor = HEIGHT - BOTTOM;
    let x = |size: f64| LEFT + size / right * (WIDTH - LEFT - RIGHT);
    let y = |rate: f64| floor - rate / top * (floor - TOP);
    let mut svg =
        Opening { size: (WIDTH, HEIGHT), title, at: (LEFT, 22.0), light: LIGHT, dark: DARK }.svg();
    for (rate, label) in round(top) {
        level(&mut svg, (LEFT, WIDTH - RIGHT), y(rate), label);
        svg.push('\n');
    }
    for (size, label) in round(right).into_iter().filter(|(size, _)| size.fract() == 0.0) {
        column(&mut svg, x(size), (TOP, floor), label);
        svg.push('\n');
    }
    let plan: Vec<(f64, f64)> =
        points.iter().map(|point| (x(point.size as f64), y(point.per_second))).collect();
    let bound: Vec<(f64, f64)> =
        points.iter().filter_map(|point| Some((x(point.size as f64), y(point.most?)))).collect();
    let _ = writeln!(svg, r#"<path class="plan" stroke-width="2" d="{}"/>"#, line(&plan));
    for (x, y) in &plan {
        let _ = writeln!(svg, r#"<circle class="mark" cx="{x:.1}" cy="{y:.1}" r="3.5"/>"#);
    }
    if !bound.is_empty() {
        let _ = writeln!(
            svg,
            r#"<path class="bound" stroke-width="1.5" stroke-dasharray="6 4" d="{}"/>"#,
            line(&bound)
        );
    }
    explain(&mut svg, &points, largest, !bound.is_empty());
    let what = if name == "batch" { "samples" } else { "elements of each sample" };
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    centred(
        &mut svg,
        (middle, HEIGHT - 14.0),
        format_args!("{name} (across), {what} per second as predicted (up)"),
    );
    svg.push_str("\n</svg>\n");
    svg
}

/// At most eight round numbers from zero to `high`, each with its label: 1, 2 or 5 times a power of
/// ten apart.
fn round(high: f64) -> Vec<(f64, String)> {
    let mut steps =
        (-9..18).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
    let step = steps.find(|step| high / step <= 8.0).unwrap_or(high);
    let label = |number: f64| match number.fract() == 0.0 && number < 1e15 {
        true => grouped(number as u64),
        false => format!("{number:.9}").trim_end_matches('0').to_string(),
    };
    let all = (0..=8).map(|index| f64::from(index) * step).filter(|&number| number <= high);
    all.map(|number| (number, label(number))).collect()
}

fn explain(svg: &mut String, points: &[SizePoint], largest: u64, has_bound: bool) {
    let speed = |point: &&SizePoint| point.per_second;
    let fastest = points.iter().max_by(|a, b| speed(a).total_cmp(&speed(b)));
    let fastest = fastest.map_or(largest, |point| point.size);
    let planned =
        format!("planned: up to {}, the fastest is {}", grouped(largest), grouped(fastest));
    let bound = has_bound.then(|| "upper bound".to_string());
    legend(svg, LEFT, [("plan", Some(planned)), ("bound", bound)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_mark() {
        let point = |size, per_second, most| SizePoint { size, per_second, most };
        let points = [point(64, 900.0, Some(950.0)), point(8, 400.0, Some(400.0))];
        let svg = sizes_svg("a < b", "batch", &points, 64);
        assert!(svg.contains("a &lt; b") && svg.contains("up to 64, the fastest is 64"));
        assert_eq!(svg.matches("<circle").count(), 2);
        let unproven = sizes_svg("one", "batch", &[point(2, 0.5, None)], 2);
        assert!(!unproven.contains("upper bound") && !unproven.contains("NaN"));
        assert!(!sizes_svg("none", "batch", &[], 2).contains("NaN"));
    }
}
