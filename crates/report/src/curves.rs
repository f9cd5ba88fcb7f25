//! How much is missing after a while, one line for each kind of search, on logarithmic axes, as a
//! self-contained SVG. Invariant: every mark is a given figure; what is below the lowest level lies
//! on it.

use std::fmt::Write;

use crate::axis::escape;
use crate::frontier::line;
use crate::svg::{Opening, centred, column, level};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 62.0;

/// The lowest level.
const LEAST: f64 = 1e-3;

/// Colours of lines, in turn.
const COLOURS: [&str; 5] = ["#2f7ed8", "#c0392b", "#2e9e5b", "#b7791f", "#8e5bd0"];

const LIGHT: &str = ".ground{fill:#fff}.ink{fill:#222}.soft{fill:#667}.grid{stroke:#dde}";
const DARK: &str = ".ground{fill:#14171c}.ink{fill:#e6e8eb}.soft{fill:#9aa2ad}\
    .grid{stroke:#2a2f37}";

/// One line.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Its name, which stands at its end.
    pub name: String,
    /// The figure at each moment, if there is one.
    pub figures: Vec<Option<f64>>,
}

/// Lines over moments in seconds, which increase; `what` the figures are is said below.
pub fn curves_svg(title: &str, moments: &[f64], curves: &[Curve], what: &str) -> String {
    let all = curves.iter().flat_map(|curve| curve.figures.iter().copied().flatten());
    let high = all.fold(LEAST * 10.0, f64::max).log10().ceil();
    let low = LEAST.log10();
    let floor = HEIGHT - BOTTOM;
    let ends = (moments.first().copied().unwrap_or(1.0), moments.last().copied().unwrap_or(1.0));
    let span = (ends.1 / ends.0).log10().max(1e-9);
    let x = |at: f64| LEFT + (at / ends.0).log10() / span * (WIDTH - LEFT - RIGHT);
    let y = |figure: f64| floor - (figure.max(LEAST).log10() - low) / (high - low) * (floor - TOP);
    let mut svg =
        Opening { size: (WIDTH, HEIGHT), title, at: (LEFT, 22.0), light: LIGHT, dark: DARK }.svg();
    for power in low as i32..=high as i32 {
        let figure = 10f64.powi(power);
        level(&mut svg, (LEFT, WIDTH - RIGHT), y(figure), figure);
        svg.push('\n');
    }
    for &at in moments {
        column(&mut svg, x(at), (TOP, floor), format_args!("{at} s"));
        svg.push('\n');
    }
    let mut taken: Vec<f64> = Vec::new();
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let known = moments.iter().zip(&curve.figures);
        let points: Vec<(f64, f64)> =
            known.filter_map(|(&at, figure)| Some((x(at), y((*figure)?)))).collect();
        let Some(&(_, end)) = points.last() else { continue };
        let _ = writeln!(
            svg,
            r#"<path fill="none" stroke="{colour}" stroke-width="2" d="{}"/>"#,
            line(&points)
        );
        for (x, y) in &points {
            let _ = writeln!(svg, r#"<circle fill="{colour}" cx="{x:.1}" cy="{y:.1}" r="3"/>"#);
        }
        // Names that would lie upon each other are moved up.
        let mut at = end;
        while taken.iter().any(|other| (other - at).abs() < 14.0) {
            at -= 1.0;
        }
        taken.push(at);
        let _ = writeln!(
            svg,
            r#"<text fill="{colour}" x="{:.1}" y="{:.1}">{}</text>"#,
            WIDTH - RIGHT + 10.0,
            at + 4.0,
            escape(&curve.name)
        );
    }
    centred(&mut svg, ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14.0), what);
    svg.push_str("\n</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_mark_and_every_line_its_name() {
        let curve = |name: &str, figures: &[Option<f64>]| Curve {
            name: name.to_string(),
            figures: figures.to_vec(),
        };
        let curves = [
            curve("all", &[None, Some(3.0), Some(0.2)]),
            curve("a < b", &[Some(20.0), Some(0.2), Some(0.0)]),
            curve("none", &[None, None, None]),
        ];
        let svg = curves_svg("title", &[0.1, 1.0, 10.0], &curves, "points (up), seconds (across)");
        assert_eq!((svg.matches("<circle").count(), svg.matches("<path").count()), (5, 2));
        assert!(svg.contains(">all<") && svg.contains("a &lt; b") && !svg.contains(">none<"));
        for odd in [curves_svg("", &[], &[], ""), curves_svg("", &[1.0], &curves, ""), svg] {
            assert!(!odd.contains("NaN") && !odd.contains("inf"));
        }
    }
}
