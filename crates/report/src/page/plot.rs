//! The plots of a page. Invariant: shapes are stretched to the window, text and lines are not:
//! labels stand next to the drawing and are placed by shares of it.

use std::fmt::Write;

use tightfit::units::{Bytes, Seconds};

use super::{Measured, lanes, tables};
use crate::axis::{MANY, duration, escape, moments, ticks};
use crate::course::Course;
use crate::stack::{SIDE, Scale, areas, outline};

/// Most moments marked along the time axis.
const MOMENTS: u32 = 5;

/// A drawing with labels along two of its edges, each at a share of it.
pub struct Frame {
    /// Elements of the drawing, in inner coordinates.
    pub shapes: String,
    /// The labels on the left.
    pub vertical: Vec<(f64, String)>,
    /// The labels below it.
    pub horizontal: Vec<(f64, String)>,
    /// Text for a screen reader.
    pub label: String,
    /// Its key in the script.
    pub key: String,
}

impl Frame {
    /// The drawing with its labels.
    pub fn html(&self) -> String {
        let mut html =
            String::from("<div class=\"frame\"><div class=\"vertical\" aria-hidden=\"true\">");
        let mut grid = String::new();
        for (share, label) in &self.vertical {
            let _ = write!(
                html,
                "<span style=\"bottom:{:.2}%\">{}</span>",
                share * 100.0,
                escape(label)
            );
            let _ = write!(grid, "M0 {0:.0}H{SIDE}", (1.0 - share) * f64::from(SIDE));
        }
        let key = if self.key.is_empty() {
            String::new()
        } else {
            format!(" data-side=\"{}\"", self.key)
        };
        let _ = write!(
            html,
            r#"</div><div class="area" role="img" aria-label="{}"{key}>"#,
            escape(&self.label)
        );
        let _ = write!(
            html,
            r#"<svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" aria-hidden="true">"#
        );
        let _ = write!(html, r#"<path class="grid" d="{grid}"/>{}</svg></div>"#, self.shapes);
        html.push_str(r#"<div class="horizontal" aria-hidden="true">"#);
        for (share, label) in &self.horizontal {
            let edge = if *share > 0.9 { " class=\"edge\"" } else { "" };
            let _ = write!(
                html,
                "<span{edge} style=\"left:{:.2}%\">{}</span>",
                share * 100.0,
                escape(label)
            );
        }
        html.push_str("</div></div>\n");
        html
    }
}

fn time_axis(scale: &Scale) -> Vec<(f64, String)> {
    moments(scale.longest.0, MOMENTS)
        .into_iter()
        .map(|(at, label)| (scale.x(Seconds(at)), label))
        .collect()
}

fn memory_axis(scale: &Scale) -> Vec<(f64, String)> {
    ticks(0.0, scale.top.0 as f64, MANY)
        .into_iter()
        .map(|bytes| (scale.y(bytes), bytes.to_string()))
        .collect()
}

/// Memory over one course, stacked by role, with its peak.
pub fn memory(key: &str, name: &str, course: &Course<'_>, scale: &Scale, reserve: Bytes) -> String {
    let mut shapes = String::new();
    let waits = course.waits();
    if !course.transfers.is_empty() && !waits.is_empty() {
        let waits = waits.iter().map(|&(_, from, to)| (from, to));
        let bars = lanes::bars(waits, scale.longest, f64::from(SIDE));
        let _ = write!(shapes, "<path class=\"stall\" d=\"{bars}\"/>");
    }
    for (role, path) in areas(course, scale) {
        let _ = write!(shapes, "<path class=\"r{}\" d=\"{path}\"/>", role as usize);
    }
    let peak = course
        .calls
        .get(course.at)
        .map_or(0.0, |call| scale.x(Seconds(call.start.0 + call.seconds.0 / 2.0)));
    let at = |share: f64| share * f64::from(SIDE);
    let _ = write!(
        shapes,
        "<path class=\"peak\" d=\"M{:.1} 0V{:.1}\"/>",
        at(peak),
        at(1.0 - scale.y(course.peak))
    );
    let mut limit = String::new();
    if key != "before" {
        let line = at(1.0 - scale.y(course.budget)).max(0.0);
        let _ = write!(shapes, "<path class=\"limit\" d=\"M0 {line:.1}H{SIDE}\"/>");
        let slab = if reserve > Bytes::ZERO { " less reserve" } else { "" };
        let _ = write!(
            limit,
            " <span class=\"key\"><svg viewBox=\"0 0 24 4\" aria-hidden=\"true\"><path \
             class=\"limit\" d=\"M0 2H24\"/></svg>budget{slab} {}</span>",
            course.budget
        );
    }
    let place = match peak {
        low if low < 0.12 => "low",
        high if high > 0.88 => "high",
        _ => "middle",
    };
    let frame = Frame {
        shapes,
        vertical: memory_axis(scale),
        horizontal: time_axis(scale),
        label: format!("{name}: bytes over {}, peak {}", duration(course.seconds.0), course.peak),
        key: key.to_string(),
    };
    format!(
        "<figure>\n<figcaption><b>{}</b>: {}{limit}</figcaption>\n<div class=\"tag {place}\" \
         aria-hidden=\"true\"><span style=\"left:{:.2}%\">peak {}</span></div>\n{}{}</figure>\n",
        escape(name),
        duration(course.seconds.0),
        peak * 100.0,
        course.peak,
        frame.html(),
        lanes::strip(key, course, scale)
    )
}

/// Predicted and measured, over time and by operator.
pub fn measured_section(course: &Course<'_>, measured: &Measured<'_>) -> String {
    let predicted: Vec<(Seconds, Bytes)> =
        course.calls.iter().map(|call| (call.start, call.held)).collect();
    let total = |bytes: &[Bytes]| bytes.iter().copied().sum();
    let marks: Vec<(Seconds, Bytes)> =
        measured.trace.memory.iter().map(|mark| (mark.at, total(&mark.bytes))).collect();
    let end = measured.trace.seconds();
    let longest = Seconds(course.seconds.0.max(end.0).max(f64::MIN_POSITIVE));
    let highest = marks
        .iter()
        .map(|&(_, bytes)| bytes)
        .max()
        .unwrap_or_default()
        .max(course.peak)
        .max(Bytes(1));
    let scale = Scale { longest, top: highest + Bytes(highest.0 / 25) };
    let shapes = format!(
        "<path class=\"line\" d=\"{}\"/><path class=\"taken\" d=\"{}\"/>",
        outline(&predicted, course.seconds, &scale),
        outline(&marks, end, &scale)
    );
    let frame = Frame {
        shapes,
        vertical: memory_axis(&scale),
        horizontal: time_axis(&scale),
        label: format!(
            "Bytes over time: {} predicted, {} measured",
            duration(course.seconds.0),
            duration(end.0)
        ),
        key: String::new(),
    };
    let busy: f64 = measured.times.iter().map(|(_, seconds)| seconds.0).sum();
    let text = format!(
        "The step took {} on {}, {:.2} times the predicted {}; {} of it passed between calls. \
         Bytes are those of the schedule, at the times that were measured.",
        duration(end.0),
        measured.trace.machine,
        end.0 / course.seconds.0.max(f64::MIN_POSITIVE),
        duration(course.seconds.0),
        duration((end.0 - busy).max(0.0)),
    );
    format!(
        "<section aria-labelledby=\"measured\">\n<h2 id=\"measured\">Predicted and \
         measured</h2>\n<p>{}</p>\n<figure>\n<figcaption><span class=\"key\"><i \
         class=\"stroke\"></i>predicted</span> <span class=\"key\"><i class=\"stroke \
         taken\"></i>measured</span></figcaption>\n{}{}</figure>\n{}</section>\n",
        escape(&text),
        frame.html(),
        lanes::measured(measured.trace, &scale),
        tables::operators(course, &measured.times)
    )
}
