//! What the ranks of a pipeline do when, as a self-contained SVG: a bar for each action. Invariant:
//! bars stand at the times of the simulation, in one scale; a gap between two bars of a rank is
//! time in which it waits.

use std::fmt::Write;

use tightfit::pipeline::{Pass, Simulated};

use crate::axis::{duration, escape, moments};
use crate::svg::{Opening, centred};

const WIDTH: f64 = 1_100.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 66.0;
const BOTTOM: f64 = 40.0;
/// Height of a rank's row, and of the bars in it.
const ROW: f64 = 26.0;
const BAR: f64 = 20.0;
/// Bars as wide as this have the number of their micro-batch in them.
const NUMBERED: f64 = 15.0;
/// Most bars that have tooltips: with more, drawing takes viewers long enough as it is.
const MOST_WORDS: usize = 20_000;

// Light to dark in the order of the passes, so that they differ in greyscale too.
const LIGHT: &str = ".ground{fill:#fff}.ink{fill:#222}.soft{fill:#667}.grid{stroke:#dde}\
    .F{fill:#a9cdf2}.I{fill:#f0a868}.B{fill:#e08a3c}.W{fill:#8a5a9c}.again{fill-opacity:.72}\
    .number{fill:#14171c;font-size:11px}.W+.number{fill:#fff}";
const DARK: &str =
    ".ground{fill:#14171c}.ink{fill:#e6e8eb}.soft{fill:#9aa2ad}.grid{stroke:#2a2f37}";

/// The passes: short name and description.
const PASSES: [(Pass, &str, &str); 4] = [
    (Pass::Forward, "F", "forward"),
    (Pass::Backward, "B", "backward"),
    (Pass::InputGradient, "I", "gradients of inputs"),
    (Pass::WeightGradient, "W", "gradients of weights"),
];

/// A pipeline in time. Stages of a rank after its first one are paler.
pub fn pipeline_svg(title: &str, simulated: &Simulated) -> String {
    let count = simulated.ranks.len() as f64;
    let height = TOP + count * ROW + BOTTOM;
    let whole = simulated.makespan.0.max(f64::MIN_POSITIVE);
    let x = |seconds: f64| LEFT + seconds / whole * (WIDTH - LEFT - RIGHT);
    let mut svg =
        Opening { size: (WIDTH, height), title, at: (LEFT, 22.0), light: LIGHT, dark: DARK }.svg();
    let floor = TOP + count * ROW;
    for (at, label) in moments(simulated.makespan.0, 10) {
        let at = x(at);
        let _ = write!(
            svg,
            r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{floor}"/>"#
        );
        centred(&mut svg, (at, floor + 18.0), label);
        svg.push('\n');
    }
    let bars: usize = simulated.ranks.values().map(Vec::len).sum();
    for ((rank, row), number) in simulated.ranks.iter().zip(0u32..) {
        let top = TOP + f64::from(number) * ROW + (ROW - BAR) / 2.0;
        let middle = top + BAR / 2.0 + 4.0;
        let _ = writeln!(
            svg,
            r#"<text class="soft" x="{:.1}" y="{middle:.1}" text-anchor="end">{rank}</text>"#,
            LEFT - 8.0
        );
        let first = row.iter().map(|done| done.action.stage).min();
        for done in row {
            let (from, to) = (x(done.start.0), x(done.end.0));
            let letter = letter(done.action.pass);
            let again = if Some(done.action.stage) == first { "" } else { " again" };
            // A thin gap between two bars.
            let width = (to - from - 0.6).max(0.3);
            let _ = write!(
                svg,
                r#"<rect class="{letter}{again}" x="{from:.2}" y="{top:.1}" width="{width:.2}""#
            );
            let _ = write!(svg, r#" height="{BAR}""#);
            if bars > MOST_WORDS {
                svg.push_str("/>");
            } else {
                let _ = write!(
                    svg,
                    "><title>{}: {} from {}</title></rect>",
                    done.action,
                    escape(&duration(done.end.0 - done.start.0)),
                    escape(&duration(done.start.0))
                );
            }
            if to - from >= NUMBERED {
                let _ = write!(
                    svg,
                    r#"<text class="number" x="{:.1}" y="{middle:.1}" text-anchor="middle">"#,
                    (from + to) / 2.0
                );
                let _ = write!(svg, "{}</text>", done.action.micro_batch.as_u32());
            }
            svg.push('\n');
        }
    }
    legend(&mut svg, simulated);
    svg.push_str("</svg>\n");
    svg
}

fn letter(pass: Pass) -> &'static str {
    PASSES.iter().find(|(other, ..)| *other == pass).map_or("", |(_, letter, _)| letter)
}

/// The meaning of the passes that occur, and how long ranks wait.
fn legend(svg: &mut String, simulated: &Simulated) {
    let mut at = LEFT;
    for (pass, letter, words) in PASSES {
        if simulated.ranks.values().flatten().all(|done| done.action.pass != pass) {
            continue;
        }
        let _ =
            write!(svg, r#"<rect class="{letter}" x="{at:.1}" y="36" width="14" height="14"/>"#);
        let text = at + 20.0;
        let _ = write!(svg, r#"<text class="ink" x="{text:.1}" y="48">{letter}: {words}</text>"#);
        at += 44.0 + 7.5 * (words.len() + 3) as f64;
    }
    let _ = writeln!(
        svg,
        r#"<text class="soft" x="{:.1}" y="48" text-anchor="end">{}; bubble {:.1} %</text>"#,
        WIDTH - RIGHT,
        escape(&duration(simulated.makespan.0)),
        simulated.bubble() * 100.0
    );
}

#[cfg(test)]
mod tests {
    use tightfit::id::SecondaryMap;
    use tightfit::pipeline::{PipelineSchedule, StageCost, simulate};
    use tightfit::units::Seconds;

    use super::*;

    #[test]
    fn every_action_has_a_bar_where_it_runs() {
        let cost = StageCost {
            forward: Seconds(1.0),
            input_gradient: Seconds(1.0),
            weight_gradient: Seconds(1.0),
            ..StageCost::default()
        };
        for schedule in [PipelineSchedule::OneFOneB, PipelineSchedule::ZbV] {
            let rows = schedule.rows(3, 5).unwrap();
            let simulated = simulate(&rows, &SecondaryMap::with_default(cost)).unwrap();
            let svg = pipeline_svg("a <pipeline>", &simulated);
            let actions: usize = simulated.ranks.values().map(Vec::len).sum();
            assert_eq!(svg.matches("<title>").count(), actions + 1);
            assert!(svg.contains("<title>a &lt;pipeline&gt;</title>"));
            let bars = svg.lines().filter_map(|line| line.strip_prefix("<rect class=\""));
            let number = |bar: &str, key: &str| -> f64 {
                let rest = bar.split_once(&format!("{key}=\"")).unwrap().1;
                rest.split_once('"').unwrap().0.parse().unwrap()
            };
            for bar in bars.filter(|bar| bar.contains("<title>")) {
                assert!(number(bar, " x") >= LEFT);
                assert!(number(bar, " x") + number(bar, " width") <= WIDTH - RIGHT);
            }
        }
    }
}
