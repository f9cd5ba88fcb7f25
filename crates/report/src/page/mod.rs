//! A report as one HTML file that needs nothing else: no network, no other file. Invariant: same
//! courses, same bytes; all text that comes from a graph is escaped; what the script shows is in
//! the data that the page carries.

mod data;
mod frontier;
mod lanes;
mod modules;
mod plot;
mod tables;

use std::fmt::Write;

use tightfit::units::{Bytes, Seconds};

use crate::axis::{duration, escape, grouped};
use crate::course::Course;
use crate::frontier::FrontierPoint;
use crate::role::Role;
use crate::savings::{Saving, savings};
use crate::stack::{Scale, present};
use crate::trace::Trace;
use crate::words;

pub use modules::modules_svg;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// A trace that was measured, matched to the calls of the course that ran.
#[derive(Clone, Debug)]
pub struct Measured<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// Start and duration of each call of the course.
    pub times: Vec<(Seconds, Seconds)>,
}

/// A plan of the step.
#[derive(Clone, Debug)]
pub struct Planned<'a> {
    /// Its name on the page.
    pub name: &'a str,
    /// Its course.
    pub course: &'a Course<'a>,
    /// The step without a plan, if the plan is of the step in chunks: in the same ones.
    pub chunks: Option<&'a Course<'a>>,
}

impl<'a> Planned<'a> {
    /// The step without this plan, of which every call is one of the plan's.
    fn before(&self, unplanned: &'a Course<'a>) -> &'a Course<'a> {
        self.chunks.unwrap_or(unplanned)
    }
}

/// What a report is about.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// The machine that times are predicted for.
    pub machine: &'a str,
    /// The step without a plan.
    pub unplanned: &'a Course<'a>,
    /// Its plans. All times come from the same profile.
    pub planned: &'a [Planned<'a>],
    /// The part of a budget that is not the slab's.
    pub reserve: Bytes,
    /// Other budgets.
    pub frontier: &'a [FrontierPoint],
    /// How long the last of the courses took.
    pub measured: Option<Measured<'a>>,
}

impl<'a> Report<'a> {
    /// The courses with the key and the name of each.
    fn sides(&self) -> Vec<Side<'a>> {
        let planned =
            self.planned.iter().zip(1..).map(|(&Planned { name, course, .. }, number)| {
                // The first key is the one that links have.
                let key = if number == 1 { "after".to_string() } else { format!("after{number}") };
                (key, name, course)
            });
        std::iter::once(("before".to_string(), "Unplanned", self.unplanned))
            .chain(planned)
            .collect()
    }
}

/// A course with its key, for the script, and its name, for the reader.
type Side<'a> = (String, &'a str, &'a Course<'a>);

/// The report as HTML.
pub fn page(report: &Report<'_>) -> String {
    let sides = report.sides();
    let saved =
        report.planned.iter().map(|plan| savings(plan.before(report.unplanned), plan.course));
    let saved: Vec<Vec<Saving>> = saved.collect();
    let mut html = String::new();
    opening(&mut html, report);
    facts(&mut html, report);
    memory_section(&mut html, &sides, report.reserve);
    peaks_section(&mut html, &sides, report, &saved);
    html.push_str(&modules::section(&sides));
    let several = report.planned.len() > 1;
    for (Planned { name, course, .. }, rows) in report.planned.iter().zip(&saved) {
        html.push_str(&tables::savings(course, several.then_some(name), rows));
    }
    html.push_str(&frontier::section(report));
    if let (Some(measured), Some((_, _, course))) = (&report.measured, sides.last()) {
        html.push_str(&plot::measured_section(course, measured));
    }
    let _ = write!(
        html,
        "</main>\n<script type=\"application/json\" \
         id=\"data\">{}</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        data::embedded(report, &sides)
    );
    html
}

/// The page's head, its title, and what it is about.
fn opening(html: &mut String, report: &Report<'_>) {
    let graph = report.unplanned.graph;
    let title = escape(&format!("{}: memory of one training step", graph.name()));
    let _ = write!(
        html,
        r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{}{STYLE}</style>
</head>
<body>
<main>
<h1>{}</h1>
<p class="soft">"#,
        colours(),
        escape(graph.name()),
    );
    let _ = writeln!(
        html,
        "One training step on {}, {} runs of operators; times are predicted. Every number is read \
         off a schedule that an independent checker executed.</p>",
        escape(report.machine),
        grouped(report.unplanned.calls.len() as u64),
    );
}

/// Memory over each course, to one scale.
fn memory_section(html: &mut String, sides: &[Side<'_>], reserve: Bytes) {
    let courses: Vec<&Course<'_>> = sides.iter().map(|(_, _, course)| *course).collect();
    let scale = Scale::of(courses.iter().copied());
    html.push_str(
        "<section aria-labelledby=\"memory\">\n<h2 id=\"memory\">Memory over the step</h2>\n",
    );
    legend(html, &present(&courses));
    for (key, name, course) in sides {
        html.push_str(&plot::memory(key, name, course, &scale, reserve));
    }
    html.push_str(INSTANT);
    html.push_str("</section>\n");
}

/// What is held at each course's peak, and what each plan saves and costs.
fn peaks_section(
    html: &mut String,
    sides: &[Side<'_>],
    report: &Report<'_>,
    saved: &[Vec<Saving>],
) {
    html.push_str(
        "<section aria-labelledby=\"peaks\">\n<h2 id=\"peaks\">Where it peaks</h2>\n<div \
         class=\"pair\">\n",
    );
    for (_, name, course) in sides {
        let _ = write!(html, "<div><h3>{}</h3>", escape(name));
        for sentence in words::peak(course) {
            let _ = write!(html, "<p>{}</p>", escape(&sentence));
        }
        html.push_str("</div>\n");
    }
    html.push_str("</div>\n");
    let several = report.planned.len() > 1;
    for (plan, rows) in report.planned.iter().zip(saved) {
        let of = if several { format!("{}: ", plan.name) } else { String::new() };
        let chunks = plan.chunks.map(|chunks| words::chunks(report.unplanned, chunks));
        let before = match plan.chunks {
            Some(chunks) => (chunks, "that"),
            None => (report.unplanned, "the unplanned step"),
        };
        let price = of + &chunks.unwrap_or_default() + &words::price(before, plan.course, rows);
        let _ = writeln!(html, "<p>{}</p>", escape(&price));
    }
    html.push_str("</section>\n");
}

/// Elements that the script fills in; without it, everything else can still be read.
const INSTANT: &str = concat!(
    r#"<div id="instant" role="region" aria-label="The instant that is selected">"#,
    "\n<noscript><p class=\"soft\">The tensors of each instant are shown by a script, ",
    "which is switched off here.</p></noscript>\n</div>\n"
);

/// Custom properties of the roles' colours.
fn colours() -> String {
    let all = |dark: bool| {
        let one = |role: Role| {
            format!(
                "--r{}:{};",
                role as usize,
                if dark { role.colours().1 } else { role.colours().0 }
            )
        };
        Role::ALL.map(one).concat()
    };
    let classes = Role::ALL
        .map(|role| format!(".r{0}{{fill:var(--r{0});background:var(--r{0})}}\n", role as usize))
        .concat();
    format!(
        ":root{{{}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{}}}}}\n{classes}",
        all(false),
        all(true)
    )
}

/// A figure: its name, its value, and a remark.
type Fact = (String, String, String);

/// The step's figures: in one row if there is one plan, else in a row for each.
fn facts(html: &mut String, report: &Report<'_>) {
    let before = report.unplanned;
    let mut unplanned: Vec<Fact> = vec![
        (
            "unplanned peak".to_string(),
            before.peak.to_string(),
            format!("{} bytes", grouped(before.peak.0)),
        ),
        ("unplanned time".to_string(), duration(before.seconds.0), "predicted".to_string()),
    ];
    if let Some(measured) = &report.measured {
        let note = format!("{} calls", grouped(measured.times.len() as u64));
        unplanned.push(("measured time".to_string(), duration(measured.trace.seconds().0), note));
    }
    let mut rows = vec![unplanned];
    for Planned { name, course: after, .. } in report.planned {
        let mut facts: Vec<Fact> = Vec::new();
        // One plan needs no name.
        let short = name.strip_prefix("Planned, ").unwrap_or(name);
        let of = if report.planned.len() > 1 { format!(", {short}") } else { String::new() };
        let share = |now: f64, then: f64| {
            format!("{:+.1} %", (now / then.max(f64::MIN_POSITIVE) - 1.0) * 100.0)
        };
        facts.push((
            format!("planned peak{of}"),
            after.peak.to_string(),
            share(after.peak.0 as f64, before.peak.0 as f64),
        ));
        facts.push((
            format!("planned time{of}"),
            duration(after.seconds.0),
            share(after.seconds.0, before.seconds.0),
        ));
        let reserve = if report.reserve > Bytes::ZERO {
            format!("{} of it reserve", report.reserve)
        } else {
            format!("planner {}", after.planner)
        };
        facts.push((format!("budget{of}"), (after.budget + report.reserve).to_string(), reserve));
        facts.push((
            format!("recomputed{of}"),
            grouped(after.recomputed() as u64),
            "calls that run again".to_string(),
        ));
        if !after.transfers.is_empty() {
            let [out, back] = after.moved();
            let moved = format!("{out} out, {back} back");
            facts.push((format!("below the slab{of}"), after.below.peak().to_string(), moved));
        }
        match report.planned.len() {
            1 => rows[0].extend(facts),
            _ => rows.push(facts),
        }
    }
    for row in rows {
        html.push_str("<dl class=\"facts\">\n");
        for (name, figure, note) in row {
            let _ = writeln!(
                html,
                "<div><dt>{}</dt><dd>{}<small>{}</small></dd></div>",
                escape(&name),
                escape(&figure),
                escape(&note)
            );
        }
        html.push_str("</dl>\n");
    }
}

fn legend(html: &mut String, roles: &[Role]) {
    html.push_str(
        "<ul class=\"legend\" aria-label=\"What the colours stand for, from the bottom \
        of the stacks up\">\n",
    );
    for role in roles {
        let _ = writeln!(
            html,
            "<li title=\"{}\"><i class=\"r{}\"></i>{}</li>",
            role.meaning(),
            *role as usize,
            role.name()
        );
    }
    html.push_str("</ul>\n");
}
