//! Text as it is shown. Invariant: what reaches standard output or standard error holds no control
//! characters but the ends of lines, whatever the names in files hold: a terminal obeys no one but
//! its user. `say!` and `note!` pass through here.

use std::fmt::{self, Write};

/// The text with everything that a terminal would obey written out, as JSON writes it: so a
/// document remains one that reads the same.
pub fn shown(text: fmt::Arguments<'_>) -> String {
    let mut shown = Shown(String::new());
    // Writing to a string cannot fail; if something cannot be formatted, the text ends there.
    let _ = shown.write_fmt(text);
    shown.0
}

struct Shown(String);

impl Write for Shown {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(is_obeyed) {
            let (plain, obeyed) = rest.split_at(at);
            self.0.push_str(plain);
            let mut characters = obeyed.chars();
            for character in characters.by_ref().take(1) {
                write!(self.0, "\\u{:04x}", u32::from(character))?;
            }
            rest = characters.as_str();
        }
        self.0.push_str(rest);
        Ok(())
    }
}

/// Control characters (ECMA-48), and those that change the direction of writing (Unicode's
/// Bidi_Control), with which a name can look like another.
fn is_obeyed(character: char) -> bool {
    let turns = matches!(character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (character.is_control() && character != '\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_given_nothing_to_obey() {
        for (text, expected) in [
            ("h.0.attn.qkv.weight: 1.5 KiB …\n", "h.0.attn.qkv.weight: 1.5 KiB …\n"),
            ("\x1b[2Jgone\r", "\\u001b[2Jgone\\u000d"),
            ("\u{9b}31m\u{7f}\0", "\\u009b31m\\u007f\\u0000"),
            ("\u{202e}gnp.exe", "\\u202egnp.exe"),
        ] {
            assert_eq!(shown(format_args!("{text}")), expected);
        }
    }

    #[test]
    fn documents_stay_documents() {
        let name = "a\u{7f}\u{9b}\u{202e}\u{1b}\n\"b";
        let document = serde_json::json!({ name: [name] });
        let text = shown(format_args!("{document}"));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), document);
        assert!(!text.contains(is_obeyed));
    }
}
