//! Memory over one step, before and after planning, as a self-contained SVG. Invariant: the curves
//! are the timelines' own, moment by moment; only what is too narrow to see is left out.

use std::fmt::Write;

use tightfit::timeline::Timeline;
use tightfit::units::{Bytes, Seconds};

use crate::axis::{MANY, duration, escape, ticks};
use crate::svg::{Opening, centred, level};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 46.0;

/// How the line of the budget is drawn in the plot and in the legend.
const DASHES: &str = r#"stroke-width="1.5" stroke-dasharray="6 4""#;

const LIGHT: &str = ".ground{fill:#fff}.ink{fill:#222}.soft{fill:#667}.grid{stroke:#dde}\
    .before{fill:#c9ced6;stroke:#9aa2ad}.after{fill:#2f7ed8;fill-opacity:.55;stroke:#1b5fae}\
    .budget{stroke:#c0392b}";
const DARK: &str = ".ground{fill:#14171c}.ink{fill:#e6e8eb}.soft{fill:#9aa2ad}\
    .grid{stroke:#2a2f37}.before{fill:#3a414c;stroke:#6b7480}\
    .budget{stroke:#ff7566}";

/// Bytes over time: the unplanned step, the planned one, and the budget between them.
pub fn memory_svg(title: &str, unplanned: &Timeline, planned: &Timeline, budget: Bytes) -> String {
    let longest = unplanned.seconds.0.max(planned.seconds.0).max(f64::MIN_POSITIVE);
    let highest = unplanned.peak.max(planned.peak).max(budget).0.max(1) as f64 * 1.06;
    let x = |seconds: Seconds| LEFT + seconds.0 / longest * (WIDTH - LEFT - RIGHT);
    let y = |bytes: Bytes| TOP + (1.0 - bytes.0 as f64 / highest) * (HEIGHT - TOP - BOTTOM);
    let mut svg =
        Opening { size: (WIDTH, HEIGHT), title, at: (LEFT, 22.0), light: LIGHT, dark: DARK }.svg();
    for tick in ticks(0.0, highest, MANY) {
        level(&mut svg, (LEFT, WIDTH - RIGHT), y(tick), tick);
        svg.push('\n');
    }
    for (class, timeline) in [("before", unplanned), ("after", planned)] {
        let _ = writeln!(svg, r#"<path class="{class}" d="{}"/>"#, area(timeline, &x, &y));
    }
    let line = y(budget);
    let _ = write!(
        svg,
        r#"<line class="budget" x1="{LEFT}" x2="{:.1}" y1="{line:.1}" y2="{line:.1}""#,
        WIDTH - RIGHT
    );
    let _ = writeln!(svg, " {DASHES}/>");
    let slower = planned.seconds.0 / unplanned.seconds.0.max(f64::MIN_POSITIVE) * 100.0 - 100.0;
    let legend = [
        ("before", format!("unplanned: peak {}", unplanned.peak)),
        ("after", format!("planned: peak {}, {slower:+.1} % time", planned.peak)),
        ("budget", format!("budget {budget}")),
    ];
    let mut at = LEFT;
    for (class, text) in legend {
        let _ = match class {
            "budget" => {
                let to = at + 16.0;
                write!(
                    svg,
                    r#"<line class="budget" x1="{at:.1}" x2="{to:.1}" y1="39" y2="39" {DASHES}/>"#
                )
            }
            _ => {
                write!(svg, r#"<rect class="{class}" x="{at:.1}" y="34" width="11" height="11"/>"#)
            }
        };
        let _ = writeln!(
            svg,
            r#"<text class="ink" x="{:.1}" y="44">{}</text>"#,
            at + 21.0,
            escape(&text)
        );
        at += 38.0 + text.len() as f64 * 7.0;
    }
    centred(
        &mut svg,
        ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14.0),
        format_args!("time within one step (predicted, {})", duration(longest)),
    );
    svg.push_str("\n</svg>\n");
    svg
}

/// The area under a timeline; within each half pixel only its largest value is drawn.
fn area(timeline: &Timeline, x: &impl Fn(Seconds) -> f64, y: &impl Fn(Bytes) -> f64) -> String {
    let mut columns: Vec<(f64, Bytes)> = Vec::new();
    for call in &timeline.calls {
        let at = (x(call.start) * 2.0).floor() / 2.0;
        match columns.last_mut() {
            Some((column, held)) if *column == at => *held = (*held).max(call.held),
            _ => columns.push((at, call.held)),
        }
    }
    let floor = y(Bytes::ZERO);
    let mut path = format!("M{:.1} {floor:.1}", x(Seconds(0.0)));
    for (column, held) in &columns {
        let _ = write!(path, "H{column:.1}V{:.1}", y(*held));
    }
    let _ = write!(path, "H{:.1}V{floor:.1}Z", x(timeline.seconds));
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use tightfit::id::NodeId;
    use tightfit::timeline::CallInTime;

    fn timeline(held: &[u64]) -> Timeline {
        let calls = held.iter().enumerate().map(|(i, &bytes)| CallInTime {
            node: NodeId::from_u32(0),
            recomputed: false,
            start: Seconds(i as f64),
            seconds: Seconds(1.0),
            held: Bytes(bytes),
        });
        Timeline {
            calls: calls.collect(),
            transfers: Vec::new(),
            residencies: Vec::new(),
            held_at_end: Bytes(0),
            peak: Bytes(held.iter().copied().max().unwrap_or(0)),
            at: 0,
            high_water: Bytes(0),
            seconds: Seconds(held.len() as f64),
        }
    }

    #[test]
    fn figures_are_those_of_the_timelines() {
        let svg = memory_svg(
            "a < b",
            &timeline(&[100, 400, 100]),
            &timeline(&[100, 200, 200, 100]),
            Bytes(250),
        );
        assert!(
            svg.contains("peak 400 B")
                && svg.contains("peak 200 B, +33.3 % time")
                && svg.contains("budget 250 B")
        );
        assert!(svg.contains("a &lt; b"));
    }
}
