//! The opening of a self-contained SVG. Invariant: every drawing has a title, which a screen reader
//! says too, and style rules for light and for dark ground; it needs no other file.

use crate::axis::escape;

/// What a drawing opens with.
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
