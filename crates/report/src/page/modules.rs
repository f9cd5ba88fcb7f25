//! Bytes at the peak by module, as tree maps. Invariant: the maps of one page have the same scale
//! and the same modules.

use std::fmt::Write;

use tightfit::units::Bytes;

use super::{Side, tables};
use crate::axis::escape;
use crate::course::Course;
use crate::role::{ByRole, Role};
use crate::stack::{legend, present, role_style};
use crate::svg::Opening;
use crate::treemap::{ModuleTree, Rectangle, bytes};

/// Width of a map for a height of one.
const ASPECT: f64 = 2.2;
/// Height of the map of the largest peak, in pixels of a page and of a drawing.
const HEIGHT: f64 = 340.0;
const WIDTH: f64 = 900.0;

const LIGHT: &str = ".ground,.chip{fill:#fff}.ink{fill:#222}.frame{fill:none;stroke:#fff}";
const DARK: &str = ".ground,.chip{fill:#14171c}.ink{fill:#e6e8eb}.frame{stroke:#14171c}";

/// The maps with a table of their numbers.
pub fn section(sides: &[Side<'_>]) -> String {
    let courses: Vec<&Course<'_>> = sides.iter().map(|(_, _, course)| *course).collect();
    let tree = ModuleTree::of(&courses);
    let mut html = String::from(
        "<section aria-labelledby=\"modules\">\n<h2 id=\"modules\">By module, at the \
         peak</h2>\n<p>Areas are bytes alive at the peak, to one scale, under the module whose \
         operator made them or first reads them; colours as above.</p>\n",
    );
    for (number, (_, name, course)) in sides.iter().enumerate() {
        let _ = write!(
            html,
            "<figure>\n<figcaption><b>{}</b>: {}</figcaption>\n<div class=\"map\" \
             role=\"img\" aria-label=\"Bytes by module; the table below has the numbers\" \
             style=\"height:{:.0}px\">",
            escape(name),
            course.peak,
            height(&courses, course)
        );
        for (leaf, rectangle) in
            tree.leaves.iter().zip(tree.rectangles(number, aspect(&courses, course)))
        {
            let by_role = &leaf.bytes[number];
            if bytes(by_role) == Bytes::ZERO {
                continue;
            }
            let Rectangle { x, y, width, height } = rectangle;
            let _ = write!(
                html,
                "<div class=\"box\" \
                 style=\"left:{:.2}%;top:{:.2}%;width:{:.2}%;height:{:.2}%;background:{}\" \
                 title=\"{}\"><span>{}<br>{}</span></div>",
                x * 100.0,
                y * 100.0,
                width * 100.0,
                height * 100.0,
                stripes(by_role),
                escape(&described(&leaf.path, by_role)),
                escape(label(&leaf.path)),
                bytes(by_role)
            );
        }
        html.push_str("</div>\n</figure>\n");
    }
    let heads: Vec<&str> =
        std::iter::once("module").chain(sides.iter().map(|(_, name, _)| *name)).collect();
    let mut leaves: Vec<_> = tree.leaves.iter().collect();
    leaves.sort_by_key(|leaf| std::cmp::Reverse(bytes(&leaf.bytes[0])));
    let rows: Vec<Vec<String>> = leaves
        .into_iter()
        .map(|leaf| {
            std::iter::once(named(&leaf.path).to_string())
                .chain(leaf.bytes.iter().map(|by_role| bytes(by_role).to_string()))
                .collect()
        })
        .collect();
    html.push_str(&tables::modules(&heads, &rows));
    html.push_str("</section>\n");
    html
}

/// The maps as a self-contained SVG.
pub fn modules_svg(title: &str, sides: &[(&str, &Course<'_>)]) -> String {
    let courses: Vec<&Course<'_>> = sides.iter().map(|(_, course)| *course).collect();
    let tree = ModuleTree::of(&courses);
    let maps: f64 = courses.iter().map(|course| height(&courses, course) + 34.0).sum();
    let (legend, line) = legend(&present(&courses), 20.0, WIDTH - 20.0, 40.0 + maps + 18.0);
    let total = line + 16.0;
    let light = format!("{LIGHT}{}", role_style());
    let mut svg =
        Opening { size: (WIDTH, total), title, at: (20.0, 24.0), light: &light, dark: DARK }.svg();
    let mut top = 40.0;
    for (number, (name, course)) in sides.iter().enumerate() {
        let _ = writeln!(
            svg,
            r#"<text class="ink" x="20" y="{:.0}">{}: {} at the peak</text>"#,
            top + 18.0,
            escape(name),
            course.peak
        );
        top += 28.0;
        let high = height(&courses, course);
        for (leaf, rectangle) in
            tree.leaves.iter().zip(tree.rectangles(number, aspect(&courses, course)))
        {
            let by_role = &leaf.bytes[number];
            let (x, y) = (20.0 + rectangle.x * (WIDTH - 40.0), top + rectangle.y * high);
            let (width, height) = (rectangle.width * (WIDTH - 40.0), rectangle.height * high);
            let all = bytes(by_role).0 as f64;
            if all == 0.0 {
                continue;
            }
            let _ = write!(svg, "<g><title>{}</title>", escape(&described(&leaf.path, by_role)));
            let mut from = x;
            for role in Role::ALL.into_iter().filter(|&role| by_role[role as usize] > Bytes::ZERO) {
                let part = by_role[role as usize].0 as f64 / all * width;
                let class = format!("r{}", role as usize);
                svg.push_str(&rectangle_svg(
                    &class,
                    &Rectangle { x: from, y, width: part, height },
                ));
                from += part;
            }
            svg.push_str(&rectangle_svg("frame", &Rectangle { x, y, width, height }));
            let label = label(&leaf.path);
            let room = label.chars().count() as f64 * 6.6 + 8.0;
            if room < width && height > 20.0 {
                let _ = write!(
                    svg,
                    r#"<rect class="chip" fill-opacity=".88" x="{:.1}" y="{:.1}""#,
                    x + 2.0,
                    y + 2.0
                );
                let _ = write!(svg, r#" width="{room:.1}" height="15"/>"#);
                let _ = write!(
                    svg,
                    r#"<text class="ink" font-size="11" x="{:.1}" y="{:.1}">{}</text>"#,
                    x + 6.0,
                    y + 13.0,
                    escape(label)
                );
            }
            svg.push_str("</g>\n");
        }
        top += high + 6.0;
    }
    svg.push_str(&legend);
    svg.push_str("</svg>\n");
    svg
}

fn rectangle_svg(class: &str, rectangle: &Rectangle) -> String {
    let Rectangle { x, y, width, height } = rectangle;
    format!(
        r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"/>"#
    )
}

fn height(courses: &[&Course<'_>], course: &Course<'_>) -> f64 {
    let highest = courses.iter().map(|course| course.peak.0).max().unwrap_or(1).max(1);
    (course.peak.0 as f64 / highest as f64 * HEIGHT).max(1.0)
}

/// The smaller peak's map is equally wide and less high.
fn aspect(courses: &[&Course<'_>], course: &Course<'_>) -> f64 {
    ASPECT * HEIGHT / height(courses, course)
}

fn named(path: &str) -> &str {
    if path.is_empty() { "(root)" } else { path }
}

/// The end of a name: its last two parts tell modules apart and fit, preceded by a third if that is
/// a number.
fn label(path: &str) -> &str {
    let mut dots = path.rmatch_indices('.').map(|(at, _)| at).skip(1);
    let Some(second) = dots.next() else { return named(path) };
    let third = dots.next().map_or(0, |at| at + 1);
    let numbered = path[third..second].parse::<u64>().is_ok();
    &path[if numbered { third } else { second + 1 }..]
}

/// A module with its bytes by role, in words.
fn described(path: &str, by_role: &ByRole<Bytes>) -> String {
    let parts = Role::ALL.into_iter().filter(|&role| by_role[role as usize] > Bytes::ZERO);
    let parts: Vec<String> =
        parts.map(|role| format!("{} {}", by_role[role as usize], role.name())).collect();
    format!("{}: {}", named(path), parts.join(", "))
}

/// A background with one stripe for each role, as wide as its part.
fn stripes(by_role: &ByRole<Bytes>) -> String {
    let all = bytes(by_role).0 as f64;
    let held: Vec<Role> =
        Role::ALL.into_iter().filter(|&role| by_role[role as usize] > Bytes::ZERO).collect();
    if let [role] = held[..] {
        return format!("var(--r{})", role as usize);
    }
    let (mut from, mut stops) = (0.0, Vec::new());
    for role in held {
        let to = from + by_role[role as usize].0 as f64 / all * 100.0;
        stops.push(format!("var(--r{}) {from:.1}% {to:.1}%", role as usize));
        from = to;
    }
    format!("linear-gradient(90deg,{})", stops.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_tell_modules_apart() {
        for (path, expected) in [
            ("", "(root)"),
            ("head", "head"),
            ("h.3", "h.3"),
            ("model.layers.3", "layers.3"),
            ("h.3.mlp.fc", "3.mlp.fc"),
            ("3.mlp.fc", "3.mlp.fc"),
            ("a.h.3.mlp", "3.mlp"),
            ("a.b.c.d", "c.d"),
        ] {
            assert_eq!(label(path), expected, "{path}");
        }
    }
}
