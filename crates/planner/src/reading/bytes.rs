//! Bytes within limits. Invariant: at most the limit and one byte are read of an endless source, at
//! most its limit is passed on of one string, and brackets are nested no deeper than theirs.

use std::io::{self, Read};

use thiserror::Error;

/// A source has more of something than its reader allows.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what} of more than {most} {unit} is not read; no real one is that long")]
pub struct Excess {
    /// The thing that is too large.
    pub what: &'static str,
    /// The largest allowed amount.
    pub most: u64,
    /// The unit of the amount: bytes, mostly.
    pub unit: &'static str,
}

impl Excess {
    /// More than `most` bytes.
    pub fn of_bytes(what: &'static str, most: u64) -> Excess {
        Excess { what, most, unit: "bytes" }
    }
}

/// Most nested brackets that serde_json reads.
const MOST_NESTED: u64 = 127;

impl From<Excess> for io::Error {
    fn from(excess: Excess) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, excess)
    }
}

/// The exceeded limit that a reading error reports, if there is one.
pub fn excess(error: &io::Error) -> Option<&Excess> {
    error.get_ref()?.downcast_ref()
}

/// All of a source of at most `most` bytes; `what` names its contents, with an article.
pub fn in_full(source: impl Read, most: u64, what: &'static str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(Excess::of_bytes(what, most).into());
    }
    Ok(bytes)
}

/// A source that fails once it has given more bytes than allowed.
pub(crate) struct Within<R> {
    source: R,
    left: u64,
    excess: Excess,
}

impl<R> Within<R> {
    /// `what` names its contents, with an article.
    pub fn new(source: R, most: u64, what: &'static str) -> Within<R> {
        Within { source, left: most, excess: Excess::of_bytes(what, most) }
    }
}

impl<R: Read> Read for Within<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(out)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| self.excess.clone())?;
        Ok(count)
    }
}

/// A JSON text that fails if a string has more bytes than allowed, or if brackets are nested deeper
/// than serde_json follows them: its parser holds one string at a time, and each bracket around it,
/// even in parts that are skipped.
pub(crate) struct BoundedText<R> {
    text: R,
    most: u64,
    /// Brackets that are open.
    depth: u64,
    /// Bytes of the current string, if the text is inside one.
    inside: Option<u64>,
    /// The next byte comes after a backslash.
    escaped: bool,
}

impl<R> BoundedText<R> {
    pub fn new(text: R, most: usize) -> BoundedText<R> {
        BoundedText { text, most: most as u64, depth: 0, inside: None, escaped: false }
    }

    fn step(&mut self, byte: u8) -> Result<(), Excess> {
        match (self.inside, byte) {
            (None, b'[' | b'{') => self.depth += 1,
            (None, b']' | b'}') => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        if self.depth > MOST_NESTED {
            let unit = "brackets within brackets";
            return Err(Excess { what: "a text", most: MOST_NESTED, unit });
        }
        self.inside = match (self.inside, byte) {
            (None, b'"') => Some(0),
            (None, _) => None,
            (Some(_), b'"') if !self.escaped => None,
            (Some(length), _) if length == self.most => {
                return Err(Excess::of_bytes("a string", self.most));
            }
            (Some(length), _) => Some(length + 1),
        };
        self.escaped = self.inside.is_some() && byte == b'\\' && !self.escaped;
        Ok(())
    }
}

impl<R: Read> Read for BoundedText<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.text.read(out)?;
        out[..count].iter().try_for_each(|&byte| self.step(byte))?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut source: impl Read) -> Result<String, String> {
        let mut text = String::new();
        source.read_to_string(&mut text).map_err(|error| error.to_string())?;
        Ok(text)
    }

    #[test]
    fn a_source_is_read_up_to_its_limit() {
        let text = |most| all(Within::new(&b"12345"[..], most, "a text"));
        assert_eq!(text(5), Ok("12345".to_string()));
        assert_eq!(
            text(4).unwrap_err(),
            "a text of more than 4 bytes is not read; no real one is that long"
        );
        assert_eq!(in_full(&b"12345"[..], 5, "a text").unwrap(), b"12345");
        let error = in_full(io::repeat(0), 1000, "a text").unwrap_err();
        assert_eq!(excess(&error), Some(&Excess::of_bytes("a text", 1000)));
    }

    #[test]
    fn brackets_are_counted_outside_of_strings() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        let read = |text: String| all(BoundedText::new(text.as_bytes(), 1000));
        assert!(read(nested(127)).is_ok() && read(format!("\"{}\"", "[".repeat(500))).is_ok());
        assert_eq!(
            read(nested(128)).unwrap_err(),
            "a text of more than 127 brackets within brackets is not read; no real one is that long"
        );
    }

    #[test]
    fn strings_are_measured_wherever_they_are_cut() {
        for (text, most, passes) in [
            (r#"["abc", "de"]"#, 3, true),
            (r#"["abc", "de"]"#, 2, false),
            (r#"["\"\\", 1000000]"#, 4, true),
            (r#"["\"\\", 1000000]"#, 3, false),
            (r#"["a\\", "b\\", "c"]"#, 3, true),
            (r#"["a\"b\"c"]"#, 6, false),
            (r#"["a\"b\"c"]"#, 7, true),
        ] {
            for chunk in 1..=text.len() {
                let pieces = text.as_bytes().chunks(chunk).map(io::Cursor::new);
                let source = pieces.fold(Box::new(io::empty()) as Box<dyn Read>, |all, piece| {
                    Box::new(all.chain(piece))
                });
                let read = all(BoundedText::new(source, most));
                assert_eq!(read.is_ok(), passes, "{text} within {most}, by {chunk}");
            }
        }
    }
}
