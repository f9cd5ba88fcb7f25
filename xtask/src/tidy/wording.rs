//! Words that have a plainer one. Invariant: only prose counts: comments, literals and pages,
//! without names in backticks, fields in braces and quoted blocks.

use super::citations::outside_fences;
use super::source::{is_word, split};
use super::tree::{File, Finding, Tree};

/// Refused in prose, with what to say instead.
const WORDS: [(&str, &str); 9] = [
    ("beside", "as well as, in addition to, next to, at the same time as"),
    ("behind", "after"),
    ("nobody", "no node, no caller; or make the sentence passive"),
    ("somebody", "the caller, the user"),
    ("whoever", "the caller, a planner that"),
    ("so many", "this many"),
    ("so often", "this often"),
    ("anew", "again"),
    ("as asked", "as requested"),
];

/// Sentences that may have one of them.
const ALLOWED: [&str; 5] = [
    "a change must not leave behind",
    "leaves behind, which survives",
    "neither lags behind it",
    "leaves a thread behind",
    "--planner nobody",
];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| is_checked(&file.path)) {
        for (index, (line, shown)) in prose(file).lines().zip(file.text.lines()).enumerate() {
            let is_empty = line.trim_start().is_empty();
            if is_empty || ALLOWED.iter().any(|sentence| shown.contains(sentence)) {
                continue;
            }
            let line = without_names(line).to_lowercase();
            for (word, instead) in WORDS.iter().filter(|(word, _)| has_word(&line, word)) {
                let what = format!("`{word}` has plainer words: {instead}");
                findings.push(Finding::new(file, index + 1, what));
            }
        }
    }
    findings
}

/// All but history, texts that others wrote, and the words themselves.
fn is_checked(path: &str) -> bool {
    let is_text = [".rs", ".py", ".pyi", ".md"].iter().any(|end| path.ends_with(end));
    let is_left_out = path.starts_with("corpus/")
        || ["CHANGELOG.md", "CODE_OF_CONDUCT.md", "xtask/src/tidy/wording.rs"].contains(&path);
    is_text && !is_left_out
}

/// The text with everything blanked that is no prose.
fn prose(file: &File) -> String {
    if file.path.ends_with(".md") {
        return outside_fences(&file.text);
    }
    if !file.is_rust() {
        return python(&file.text);
    }
    let code = split(&file.text).code;
    let is_code = |at: usize| !code.as_bytes()[at].is_ascii_whitespace();
    file.text.char_indices().map(|(at, c)| if is_code(at) { ' ' } else { c }).collect()
}

/// Comments and literals of Python.
fn python(text: &str) -> String {
    let mut prose = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let triple = rest.get(..3).filter(|quotes| ["\"\"\"", "'''"].contains(quotes));
        let quote = triple.or(rest.get(..1)).filter(|_| matches!(first, '"' | '\''));
        let length = match quote {
            Some(quote) => literal(rest, quote),
            None if first == '#' => rest.find('\n').unwrap_or(rest.len()),
            None => {
                prose.push(if first == '\n' { '\n' } else { ' ' });
                rest = &rest[first.len_utf8()..];
                continue;
            }
        };
        let (part, left) = rest.split_at(length);
        prose.push_str(part);
        rest = left;
    }
    prose
}

/// The length of the literal that starts here between these quotes.
fn literal(rest: &str, quote: &str) -> usize {
    let mut at = quote.len();
    while at < rest.len() && !rest[at..].starts_with(quote) {
        let escaped = rest[at..].starts_with('\\');
        let mut ahead = rest[at..].chars().take(1 + usize::from(escaped));
        at += ahead.by_ref().map(char::len_utf8).sum::<usize>();
    }
    (at + quote.len()).min(rest.len())
}

/// A line without what stands in backticks or braces.
fn without_names(line: &str) -> String {
    let (mut kept, mut closing) = (String::with_capacity(line.len()), None);
    for c in line.chars() {
        match (closing, c) {
            (Some(end), c) if c == end => closing = None,
            (Some(_), _) => {}
            (None, '`') => closing = Some('`'),
            (None, '{') => closing = Some('}'),
            (None, c) => kept.push(c),
        }
    }
    kept
}

/// Whether a sentence has this word: a literal that is this word alone is a name.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        let is_whole = !before.ends_with(is_word) && !after.starts_with(is_word);
        let is_alone = before.ends_with(['"', '\'']) && after.starts_with(['"', '\'']);
        is_whole && !is_alone
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn words_are_found_in_comments_messages_and_pages() {
        assert_eq!(lines("crates/cli/src/a.rs", "fn f() {}\n/// Beside it.\n"), [2]);
        assert_eq!(lines("crates/cli/src/a.rs", "x(\"so many of\n them\");"), [1]);
        assert_eq!(
            lines("python/a.py", "x = 1  # nobody reads it\n'''a\nwhoever asks'''\n"),
            [1, 3]
        );
        assert_eq!(lines("python/a.py", "raise E('it\\'s behind ' f\"{x} anew\")"), [1, 1]);
        assert_eq!(lines("doc/a.md", "Made\nanew.\n"), [2]);
    }

    #[test]
    fn names_code_and_quotations_are_not_prose() {
        for (path, text) in [
            ("crates/cli/src/a.rs", "let beside = anew.behind; // `beside` of a rank\n"),
            ("crates/cli/src/a.rs", "f(\"behind\"); say(\"{beside} bytes\"); // besides\n"),
            ("python/a.py", "beside = behind(nobody='x')  # the `beside` of it\n"),
            ("doc/a.md", "```text\nnobody\n```\n"),
            ("CHANGELOG.md", "made anew\n"),
        ] {
            assert!(lines(path, text).is_empty(), "{text}");
        }
    }
}
