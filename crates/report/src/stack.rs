//! Bytes over one step, stacked by role. Invariant: if several calls share a column, the one that
//! holds most is drawn with its own roles, so no peak is lost and no stack is drawn that never
//! existed.

use std::fmt::Write;

use tightfit::units::{Bytes, Seconds};

use crate::axis::{MANY, duration, escape, moments, ticks};
use crate::course::Course;
use crate::role::{ByRole, Role};
use crate::svg::{Opening, centred, level};

/// Width and height of the drawings' inner coordinates.
pub const SIDE: u32 = 1000;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 20.0;
const HEIGHT: f64 = 210.0;

const LIGHT: &str = ".ground{fill:#fff}.ink{fill:#222}.soft{fill:#5b6270}.grid{stroke:#dde}\
    .mark{stroke:#222}";
const DARK: &str = ".ground{fill:#14171c}.ink{fill:#e6e8eb}.soft{fill:#9aa2ad}\
    .grid{stroke:#2a2f37}.mark{stroke:#e6e8eb}";

/// What all drawings of one page share, so that they can be compared.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Seconds from left to right.
    pub longest: Seconds,
    /// Bytes from bottom to top.
    pub top: Bytes,
}

impl Scale {
    /// The scale on which all courses fit.
    pub fn of<'a>(courses: impl IntoIterator<Item = &'a Course<'a>>) -> Scale {
        let (mut longest, mut highest) = (f64::MIN_POSITIVE, Bytes(1));
        for course in courses {
            longest = longest.max(course.seconds.0);
            highest = highest.max(course.peak);
        }
        Scale { longest: Seconds(longest), top: highest + Bytes(highest.0 / 25) }
    }

    /// A moment as a share of the width.
    pub fn x(&self, at: Seconds) -> f64 {
        at.0 / self.longest.0
    }

    /// Bytes as a share of the height.
    pub fn y(&self, bytes: Bytes) -> f64 {
        bytes.0 as f64 / self.top.0 as f64
    }
}

/// For each of [`SIDE`] columns the call that holds most in it; `None` after the end of the step.
/// While calls wait for a transfer, what was held before is still held.
pub fn tallest(course: &Course<'_>, scale: &Scale) -> Vec<Option<usize>> {
    let mut columns: Vec<Option<usize>> = vec![None; SIDE as usize];
    let column =
        |at: f64| ((at / scale.longest.0 * f64::from(SIDE)) as usize).min(SIDE as usize - 1);
    for (index, call) in course.calls.iter().enumerate() {
        let start = if index == 0 { 0.0 } else { call.start.0 };
        let first = column(start);
        let until = course.calls.get(index + 1).map_or(course.seconds, |next| next.start);
        // A call that ends where a column begins has no part in it.
        let end = (until.0 / scale.longest.0 * f64::from(SIDE)).ceil() as usize;
        for column in &mut columns[first..end.clamp(first + 1, SIDE as usize)] {
            if column.is_none_or(|other| course.calls[other].held < call.held) {
                *column = Some(index);
            }
        }
    }
    columns
}

/// The areas of all roles as paths, the top of the stack first: each reaches down to the ground,
/// and later ones cover it.
pub fn areas(course: &Course<'_>, scale: &Scale) -> Vec<(Role, String)> {
    stacked(&course.by_role, &tallest(course, scale), scale)
}

/// The same for what lies below the device; `scale` gives the height.
pub fn areas_below(course: &Course<'_>, scale: &Scale) -> Vec<(Role, String)> {
    stacked(&course.below.by_role, &tallest(course, scale), scale)
}

fn stacked(
    by_role: &[ByRole<Bytes>],
    columns: &[Option<usize>],
    scale: &Scale,
) -> Vec<(Role, String)> {
    let mut areas = Vec::new();
    for role in Role::ALL.into_iter().rev() {
        if by_role.iter().all(|bytes| bytes[role as usize] == Bytes::ZERO) {
            continue;
        }
        let mut path = format!("M0 {SIDE}");
        let mut height = SIDE;
        for (x, call) in columns.iter().enumerate() {
            let Some(call) = *call else {
                let _ = write!(path, "H{x}");
                break;
            };
            let below: Bytes = by_role[call][..=role as usize].iter().copied().sum();
            let y = SIDE - (scale.y(below) * f64::from(SIDE)).round() as u32;
            if y != height {
                let _ = write!(path, "H{x}V{y}");
                height = y;
            }
        }
        if columns.iter().all(Option::is_some) {
            let _ = write!(path, "H{SIDE}");
        }
        let _ = write!(path, "V{SIDE}Z");
        areas.push((role, path));
    }
    areas
}

/// The outline of the bytes held, as a path that is not closed at the bottom.
pub fn outline(marks: &[(Seconds, Bytes)], end: Seconds, scale: &Scale) -> String {
    // Within a column only the highest mark is drawn.
    let mut columns: Vec<(u32, Bytes)> = Vec::new();
    for &(at, bytes) in marks {
        let x = (scale.x(at) * f64::from(SIDE)) as u32;
        match columns.last_mut() {
            Some((column, held)) if *column == x => *held = (*held).max(bytes),
            _ => columns.push((x, bytes)),
        }
    }
    let mut path = String::new();
    for (index, (x, bytes)) in columns.iter().enumerate() {
        let y = f64::from(SIDE) * (1.0 - scale.y(*bytes));
        let _ = if index == 0 { write!(path, "M{x} {y:.0}") } else { write!(path, "H{x}V{y:.0}") };
    }
    if !path.is_empty() {
        let _ = write!(path, "H{:.0}", scale.x(end) * f64::from(SIDE));
    }
    path
}

/// Roles that hold anything in any of the courses, from the bottom of the stack up.
pub fn present(courses: &[&Course<'_>]) -> Vec<Role> {
    let holds = |role: Role| {
        courses
            .iter()
            .flat_map(|course| course.by_role.iter().chain(&course.below.by_role))
            .any(|bytes| bytes[role as usize] > Bytes::ZERO)
    };
    Role::ALL.into_iter().filter(|&role| holds(role)).collect()
}

/// What the colours of a drawing stand for, in lines from `left` to `right`, and the position of
/// the last line.
pub fn legend(roles: &[Role], left: f64, right: f64, first: f64) -> (String, f64) {
    let (mut svg, mut at, mut line) = (String::new(), left, first);
    for &role in roles {
        let width = 36.0 + role.name().len() as f64 * 7.4;
        if at + width > right {
            (at, line) = (left, line + 20.0);
        }
        let _ = write!(
            svg,
            r#"<rect class="r{}" x="{at:.1}" y="{:.1}" width="11" height="11"/>"#,
            role as usize,
            line - 10.0
        );
        let _ = write!(
            svg,
            r#"<text class="ink" x="{:.1}" y="{line:.1}">{}</text>"#,
            at + 16.0,
            role.name()
        );
        at += width;
    }
    (svg, line)
}

/// Style rules of all roles: fills on light and on dark ground.
pub fn role_style() -> String {
    let rules = |dark: bool| {
        let rule = |role: Role| {
            format!(
                ".r{}{{fill:{}}}",
                role as usize,
                if dark { role.colours().1 } else { role.colours().0 }
            )
        };
        Role::ALL.map(rule).concat()
    };
    format!("{}@media(prefers-color-scheme:dark){{{}}}", rules(false), rules(true))
}

/// Bytes over the step by role, one drawing below the other, as a self-contained SVG.
pub fn stack_svg(title: &str, courses: &[(&str, &Course<'_>)]) -> String {
    let scale = Scale::of(courses.iter().map(|(_, course)| *course));
    let drawn: Vec<&Course<'_>> = courses.iter().map(|(_, course)| *course).collect();
    let (legend, line) = legend(&present(&drawn), LEFT, WIDTH - RIGHT, 46.0);
    let first = line + 46.0;
    let height = first + courses.len() as f64 * (HEIGHT + 64.0) - 10.0;
    let light = format!("{LIGHT}{}", role_style());
    let mut svg =
        Opening { size: (WIDTH, height), title, at: (LEFT, 22.0), light: &light, dark: DARK }.svg();
    svg.push_str(&legend);
    svg.push('\n');
    let inner = WIDTH - LEFT - RIGHT;
    for (number, (name, course)) in courses.iter().enumerate() {
        let top = first + number as f64 * (HEIGHT + 64.0);
        let x = |share: f64| LEFT + share * inner;
        let y = |share: f64| top + (1.0 - share) * HEIGHT;
        for tick in ticks(0.0, scale.top.0 as f64, MANY) {
            level(&mut svg, (LEFT, WIDTH - RIGHT), y(scale.y(tick)), tick);
        }
        for (moment, label) in moments(scale.longest.0, 8) {
            let at = x(scale.x(Seconds(moment))).min(WIDTH - RIGHT - 12.0);
            centred(&mut svg, (at, top + HEIGHT + 18.0), label);
        }
        let _ = write!(svg, r#"<svg x="{LEFT}" y="{top}" width="{inner}" height="{HEIGHT}""#);
        let _ = write!(svg, r#" viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none">"#);
        for (role, path) in areas(course, &scale) {
            let _ = write!(svg, r#"<path class="r{}" d="{path}"/>"#, role as usize);
        }
        svg.push_str("</svg>");
        let peak = course.calls.get(course.at).map_or(0.0, |call| scale.x(call.start));
        let _ = write!(
            svg,
            r#"<text class="ink" x="{LEFT}" y="{:.1}">{}: peak {}, {}</text>"#,
            top - 8.0,
            escape(name),
            course.peak,
            duration(course.seconds.0)
        );
        let _ = writeln!(
            svg,
            r#"<line class="mark" x1="{:.1}" x2="{:.1}" y1="{:.1}" y2="{:.1}"/>"#,
            x(peak),
            x(peak),
            y(scale.y(course.peak)),
            y(1.0)
        );
    }
    svg.push_str("</svg>\n");
    svg
}
