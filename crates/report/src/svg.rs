//! What self-contained SVGs are made of: their opening, grid lines and labels. Invariant: every
//! drawing has a title, which a screen reader says too, and style rules for light and for dark
//! ground; it needs no other file.

use std::fmt::{Display, Write};

use crate::axis::escape;

/// The opening of a drawing.
pub struct Opening<'a> {
    /// Width and height of the drawing.
    pub size: (f64, f64),
    /// The title, as text.
    pub title: &'a str,
    /// Where the title stands.
    pub at: (f64, f64),
    /// Style rules.
    pub light: &'a str,
    /// The rules that differ on dark ground.
    pub dark: &'a str,
}

impl Opening<'_> {
    /// Everything before the drawing's own elements: style, ground and title.
    pub fn svg(&self) -> String {
        let Opening { size: (width, height), title, at: (x, y), light, dark } = self;
        let title = escape(title);
        [
            r#"<svg xmlns="http://www.w3.org/2000/svg""#,
            &format!(r#" viewBox="0 0 {width} {height:.0}" role="img""#),
            " font-family=\"system-ui, sans-serif\" font-size=\"13\">\n",
            &format!("<title>{title}</title>\n<style>{light}\n"),
            &format!("@media(prefers-color-scheme:dark){{{dark}}}</style>\n"),
            &format!(r#"<rect class="ground" width="{width}" height="{height:.0}"/>"#),
            &format!("\n<text class=\"ink\" x=\"{x}\" y=\"{y}\""),
            &format!(" font-size=\"15\" font-weight=\"600\">{title}</text>\n"),
        ]
        .concat()
    }
}

/// A horizontal line of the grid from `left` to `right`, with its label before it.
pub fn level(svg: &mut String, (left, right): (f64, f64), at: f64, label: impl Display) {
    let _ = write!(
        svg,
        r#"<line class="grid" x1="{left}" x2="{right:.1}" y1="{at:.1}" y2="{at:.1}"/>"#
    );
    let _ = write!(
        svg,
        r#"<text class="soft" x="{:.1}" y="{:.1}" text-anchor="end">{label}</text>"#,
        left - 8.0,
        at + 4.0
    );
}

/// A label with its middle at `x`.
pub fn centred(svg: &mut String, (x, y): (f64, f64), label: impl Display) {
    let _ = write!(
        svg,
        r#"<text class="soft" x="{x:.1}" y="{y:.1}" text-anchor="middle">{label}</text>"#
    );
}

/// An upright grid line from the top to the floor, with its label below.
pub fn column(svg: &mut String, at: f64, (top, floor): (f64, f64), label: impl Display) {
    let _ =
        write!(svg, r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{top}" y2="{floor}"/>"#);
    centred(svg, (at, floor + 18.0), label);
}

/// What the lines of a drawing are, from `left` on: a sample of each that has a text, by its class;
/// bounds are dashed.
pub fn legend(svg: &mut String, left: f64, entries: [(&str, Option<String>); 2]) {
    let mut at = left;
    for (class, text) in entries {
        let Some(text) = text else { continue };
        let dashes = if class == "bound" { r#" stroke-dasharray="6 4""# } else { "" };
        let _ = write!(
            svg,
            r#"<line class="{class}" x1="{at:.1}" x2="{:.1}" y1="40" y2="40""#,
            at + 22.0
        );
        let _ = writeln!(
            svg,
            r#" stroke-width="2"{dashes}/><text class="ink" x="{:.1}" y="44">{}</text>"#,
            at + 28.0,
            escape(&text)
        );
        at += 48.0 + text.chars().count() as f64 * 7.0;
    }
}
