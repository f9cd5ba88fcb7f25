//! The strip under a drawing of memory: both lanes, when calls wait for them, and what lies below
//! the slab. Invariant: it has the drawing's time scale, and is left out if nothing moves.

use std::fmt::Write;

use tightfit::units::{Bytes, Seconds};

use crate::axis::{MANY, duration, escape, ticks};
use crate::course::Course;
use crate::stack::{SIDE, Scale, areas_below};
use crate::trace::Trace;
use crate::words;

/// Height of a lane in inner coordinates.
const LANE: f64 = 10.0;
/// The narrowest bar, in inner coordinates: about a pixel.
const NARROWEST: f64 = 1.0;

/// One row: its name, its class and its bars.
struct Row {
    name: &'static str,
    class: &'static str,
    bars: Vec<(Seconds, Seconds)>,
}

/// Bars from one moment to another as a path, of a height in inner coordinates.
pub fn bars(
    spans: impl Iterator<Item = (Seconds, Seconds)>,
    longest: Seconds,
    height: f64,
) -> String {
    let mut path = String::new();
    let x = |at: Seconds| (at.0 / longest.0).clamp(0.0, 1.0) * f64::from(SIDE);
    for (from, to) in spans {
        let (left, right) = (x(from), x(to).max(x(from) + NARROWEST));
        let _ = write!(path, "M{left:.1} 0H{right:.1}V{height:.0}H{left:.1}Z");
    }
    path
}

/// The strip of a course.
pub fn strip(key: &str, course: &Course<'_>, scale: &Scale) -> String {
    let Some(text) = words::moves(course) else { return String::new() };
    let lane = |leaves: bool| {
        let carried = course.transfers.iter().filter(move |carried| carried.leaves == leaves);
        let spans =
            carried.map(|carried| (carried.time.start, carried.time.start + carried.time.seconds));
        around(spans, course.seconds)
    };
    let waits = course.waits().into_iter().map(|(_, from, to)| (from, to)).collect();
    let mut html = rows(key, &text, scale.longest, &[lane(true), lane(false), waits]);
    let peak = course.below.peak().max(Bytes(1));
    let below = Scale { longest: scale.longest, top: peak + Bytes(peak.0 / 12) };
    html.push_str("<div class=\"vertical\">");
    for tick in few(below.top) {
        let share = below.y(tick) * 100.0;
        let _ = write!(html, "<span style=\"bottom:{share:.2}%\">{tick}</span>");
    }
    let _ = write!(
        html,
        "</div><svg class=\"below\" viewBox=\"0 0 {SIDE} {SIDE}\" preserveAspectRatio=\"none\">"
    );
    for (role, path) in areas_below(course, &below) {
        let _ = write!(html, "<path class=\"r{}\" d=\"{path}\"/>", role as usize);
    }
    let _ = write!(html, "</svg></div>\n<p class=\"soft\">{}</p>\n", escape(&text));
    html
}

/// The strip of a measured trace, without what lies below: that is the schedule's.
pub fn measured(trace: &Trace, scale: &Scale) -> String {
    if trace.transfers.is_empty() {
        return String::new();
    }
    let lane = |leaves: bool| {
        let moved = trace.transfers.iter().filter(move |moved| moved.leaves == leaves);
        around(moved.map(|moved| (moved.start, moved.start + moved.seconds)), trace.seconds())
    };
    let waits: Vec<(Seconds, Seconds)> =
        trace.transfers.iter().filter_map(|transfer| transfer.wait()).collect();
    let seconds: f64 = trace.transfers.iter().map(|transfer| transfer.stall.0).sum();
    let text = format!("Measured: calls wait {} for transfers.", duration(seconds));
    let rows = rows("", &text, scale.longest, &[lane(true), lane(false), waits]);
    format!("{rows}</div>\n<p class=\"soft\">{}</p>\n", escape(&text))
}

/// The step is a cycle: a transfer that continues beyond its end was under way when it began.
fn around(
    spans: impl Iterator<Item = (Seconds, Seconds)>,
    end: Seconds,
) -> Vec<(Seconds, Seconds)> {
    let mut found = Vec::new();
    for (from, to) in spans {
        found.push((from, Seconds(to.0.min(end.0))));
        if to > end {
            let beyond = Seconds((to.0 - end.0).min(end.0));
            found.push((Seconds(0.0), beyond));
        }
    }
    found
}

/// The opening of a strip, and its three rows.
fn rows(key: &str, text: &str, longest: Seconds, spans: &[Vec<(Seconds, Seconds)>; 3]) -> String {
    let [out, back, waits] = spans.clone();
    let rows = [
        Row { name: "to tier", class: "out", bars: out },
        Row { name: "back", class: "back", bars: back },
        Row { name: "waiting", class: "wait", bars: waits },
    ];
    let side = if key.is_empty() { String::new() } else { format!(" data-side=\"{key}\"") };
    let mut html =
        format!("<div class=\"lanes\" role=\"img\" aria-label=\"{}\"{side}>", escape(text));
    for Row { name, class, bars: spans } in rows {
        let path = bars(spans.into_iter(), longest, LANE);
        let _ = write!(
            html,
            "<span>{name}</span><svg viewBox=\"0 0 {SIDE} {LANE}\" preserveAspectRatio=\"none\">\
             <path class=\"{class}\" d=\"{path}\"/></svg>"
        );
    }
    html
}

/// Two ticks: the largest round number of bytes, and half of it.
fn few(top: Bytes) -> Vec<Bytes> {
    let last = ticks(0.0, top.0 as f64, MANY).pop().unwrap_or_default();
    [Bytes(last.0 / 2), last].into_iter().filter(|&tick| tick > Bytes::ZERO).collect()
}
