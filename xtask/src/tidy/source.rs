//! Rust source, with code separated from comments. Invariant: every text that leaves this file has
//! the length and the lines of the text that entered, with everything left out blanked; so a
//! position in one is a position in all of them.

/// A file taken apart. Literals are in neither part.
pub struct Source {
    pub code: String,
    pub comments: String,
}

enum Piece {
    Code,
    Comment,
    Literal,
}

/// Takes a file apart.
pub fn split(text: &str) -> Source {
    let mut source = Source {
        code: String::with_capacity(text.len()),
        comments: String::with_capacity(text.len()),
    };
    let mut rest = text;
    let mut after_word = false;
    while let Some(first) = rest.chars().next() {
        let (piece, length) = next(rest, first, after_word);
        let (part, left) = rest.split_at(length.min(rest.len()));
        match piece {
            Piece::Code => {
                source.code.push_str(part);
                blank(&mut source.comments, part);
            }
            Piece::Comment => {
                blank(&mut source.code, part);
                source.comments.push_str(part);
            }
            Piece::Literal => {
                blank(&mut source.code, part);
                blank(&mut source.comments, part);
            }
        }
        after_word = is_word(first);
        rest = left;
    }
    source
}

/// The code without its test items: without the items that follow `#[cfg(test)]`.
pub fn without_tests(code: &str) -> String {
    const ATTRIBUTE: &str = "#[cfg(test)]";
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(start) = rest.find(ATTRIBUTE) {
        let (before, item) = rest.split_at(start);
        kept.push_str(before);
        let (item, after) = item.split_at(end_of_item(item));
        blank(&mut kept, item);
        rest = after;
    }
    kept.push_str(rest);
    kept
}

/// The line of a position, counted from 1.
pub fn line_of(text: &str, position: usize) -> usize {
    1 + text[..position].bytes().filter(|&byte| byte == b'\n').count()
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The kind of the piece that starts here, and its length in bytes.
fn next(rest: &str, first: char, after_word: bool) -> (Piece, usize) {
    if rest.starts_with("//") {
        return (Piece::Comment, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (Piece::Comment, block_comment(rest));
    }
    let string = if after_word && first != '"' { None } else { string(rest) };
    if let Some(length) = string.or_else(|| character(rest)) {
        return (Piece::Literal, length);
    }
    (Piece::Code, first.len_utf8())
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let bytes = &rest.as_bytes()[at..];
        if bytes.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The length of the string literal that starts here: `"…"`, `r#"…"#`, and these with `b` or `c`
/// before them.
fn string(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix(['b', 'c']).unwrap_or(rest);
    if let Some(raw) = body.strip_prefix('r') {
        let hashes = raw.bytes().take_while(|&byte| byte == b'#').count();
        let content = raw[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let length = content.find(&end).map_or(content.len(), |at| at + end.len());
        return Some(rest.len() - content.len() + length);
    }
    let content = body.strip_prefix('"')?;
    let mut escaped = false;
    let length = content.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    });
    Some(rest.len() - content.len() + length.map_or(content.len(), |at| at + 1))
}

/// The length of the character literal that starts here; `None` for a lifetime.
fn character(rest: &str) -> Option<usize> {
    let content = rest.strip_prefix('\'')?;
    if let Some(escape) = content.strip_prefix('\\') {
        let name = escape.chars().next()?.len_utf8();
        return Some(2 + name + escape[name..].find('\'')? + 1);
    }
    let c = content.chars().next()?;
    content[c.len_utf8()..].starts_with('\'').then_some(2 + c.len_utf8())
}

/// The position after the `;` or the block that ends the item which starts here.
pub fn end_of_item(item: &str) -> usize {
    let mut depth = 0;
    for (at, c) in item.char_indices() {
        match c {
            ';' if depth == 0 => return at + 1,
            '{' => depth += 1,
            '}' if depth <= 1 => return at + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    item.len()
}

/// Appends as many blanks as `part` has bytes, with its line ends.
pub fn blank(text: &mut String, part: &str) {
    text.extend(part.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, code: &str) {
        let source = split(text);
        assert_eq!(
            source.code.split_whitespace().collect::<Vec<_>>(),
            code.split_whitespace().collect::<Vec<_>>()
        );
        assert_eq!((source.code.len(), source.comments.len()), (text.len(), text.len()));
        assert_eq!(source.code.matches('\n').count(), text.matches('\n').count());
    }

    #[test]
    fn comments_are_no_code() {
        check("a // b.unwrap()\nc /* d /* e */ f */ g", "a\n c g");
        assert_eq!(split("a // é\nb /* c */").comments.trim(), "// é\n  /* c */");
    }

    #[test]
    fn literals_are_no_code() {
        check(r#"let x = "dbg!( \" }" + y;"#, "let x = + y;");
        check("r#\"todo!( \" {\"# b\"{\" br\"{\" z", "z");
        check("('{', '\\'', '\\u{7b}', b'{')", "( , , , b )");
        check("for\"x\"", "for");
    }

    #[test]
    fn lifetimes_and_raw_identifiers_are_code() {
        check("fn f<'a>(x: &'a str) { r#type }", "fn f<'a>(x: &'a str) { r#type }");
    }

    #[test]
    fn unfinished_text_ends_somewhere() {
        for text in ["\"", "'", "'\\", "r##\"a\"#", "/* /*", "//", "b'", "#[cfg(test)] mod t { {"] {
            without_tests(&split(text).code);
        }
    }

    #[test]
    fn test_items_are_cut_out() {
        let code = "a;\n#[cfg(test)]\nmod tests {\n fn f() { b }\n}\nc;\n#[cfg(test)]\nuse d;\ne;";
        let kept = without_tests(code);
        assert_eq!(kept.split_whitespace().collect::<String>(), "a;c;e;");
        assert_eq!(kept.len(), code.len());
        assert_eq!(line_of(&kept, kept.find("c;").unwrap()), 6);
    }
}
