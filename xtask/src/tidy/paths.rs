//! The paths that code mentions, and the names that it imports. Invariant: `use a::{b, c::d}`
//! mentions `a::b` and `a::c::d`, and a path in the middle of an expression is read like one after
//! `use`.

use super::source::{blank, is_word};

/// A path, with its position.
pub type Mention = (usize, Vec<String>);

/// A name that a `use` brings in.
#[derive(Debug, PartialEq, Eq)]
pub struct Use {
    /// Where its statement stands.
    pub at: usize,
    /// Where it comes from; `*` and `self` at the end are left out.
    pub path: Vec<String>,
    /// The name that it has here; absent for `as _` and for `*`.
    pub name: Option<String>,
    /// It brings in all names of `path`.
    pub is_glob: bool,
    /// It re-exports the name.
    pub is_reexport: bool,
}

/// A statement from `use` to its end.
struct Statement {
    start: usize,
    end: usize,
    is_public: bool,
}

/// One path that was read: its words, and its new name if it has one.
struct Leaf {
    path: Vec<String>,
    renamed: Option<String>,
}

/// Every path of at least two words whose first word is a `start`.
pub fn mentions(code: &str, start: impl Fn(&str) -> bool) -> Vec<Mention> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(offset) = code[from..].find(is_word) {
        let at = from + offset;
        let word = word(&code[at..]);
        from = at + word.len();
        let before = code[..at].trim_end();
        let is_member = before.ends_with("::") || before.ends_with('.') && !before.ends_with("..");
        if is_member || !start(word) {
            continue;
        }
        let mut leaves = Vec::new();
        read(&code[at..], &mut Vec::new(), &mut leaves);
        let paths = leaves.into_iter().map(|leaf| leaf.path);
        found.extend(paths.filter(|path| path.len() > 1).map(|path| (at, path)));
    }
    found.sort();
    found
}

/// Every name that a `use` brings in.
pub fn uses(code: &str) -> Vec<Use> {
    let mut found = Vec::new();
    for Statement { start, end, is_public } in statements(code) {
        let mut leaves = Vec::new();
        read(&code[start + "use".len()..end], &mut Vec::new(), &mut leaves);
        for Leaf { mut path, renamed } in leaves {
            let is_glob = path.last().is_some_and(|word| word == "*");
            if is_glob || path.last().is_some_and(|word| word == "self") && path.len() > 1 {
                path.pop();
            }
            let name = renamed.or_else(|| path.last().cloned());
            let name = name.filter(|name| !is_glob && name != "_");
            found.push(Use { at: start, path, name, is_glob, is_reexport: is_public });
        }
    }
    found
}

/// The code with its `use` statements blanked.
pub fn without_uses(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut from = 0;
    for Statement { start, end, .. } in statements(code) {
        kept.push_str(&code[from..start]);
        blank(&mut kept, &code[start..end]);
        from = end;
    }
    kept.push_str(&code[from..]);
    kept
}

fn statements(code: &str) -> Vec<Statement> {
    let mut found = Vec::new();
    for (start, _) in code.match_indices("use") {
        let after = &code[start + "use".len()..];
        if code[..start].ends_with(is_word) || !after.starts_with(char::is_whitespace) {
            continue;
        }
        let before = code[..start].trim_end();
        let is_public = before.ends_with("pub")
            || before.ends_with(')')
                && before
                    .rsplit_once('(')
                    .is_some_and(|(before, _)| before.trim_end().ends_with("pub"));
        if is_public || before.is_empty() || before.ends_with([';', '{', '}', ']']) {
            let end = after.find(';').map_or(code.len(), |at| start + "use".len() + at);
            found.push(Statement { start, end, is_public });
        }
    }
    found
}

/// Reads one path, or one group of paths, after `prefix`; returns what follows.
fn read<'a>(rest: &'a str, prefix: &mut Vec<String>, leaves: &mut Vec<Leaf>) -> &'a str {
    let rest = rest.trim_start();
    if let Some(mut group) = rest.strip_prefix('{') {
        loop {
            group = group.trim_start().trim_start_matches(',').trim_start();
            if group.is_empty() {
                return group;
            }
            if let Some(after) = group.strip_prefix('}') {
                return after;
            }
            let depth = prefix.len();
            let after = read(group, prefix, leaves);
            prefix.truncate(depth);
            // Up to the next path of the group, or its end.
            group = after.find([',', '}']).map_or("", |at| &after[at..]);
        }
    }
    let word = word(rest);
    if word.is_empty() {
        return rest;
    }
    let after = &rest[word.len()..];
    prefix.push(word.to_string());
    match after.trim_start().strip_prefix("::") {
        Some(next) if next.trim_start().starts_with(|c: char| is_word(c) || "{*".contains(c)) => {
            read(next, prefix, leaves)
        }
        _ => {
            let new =
                after.trim_start().strip_prefix("as ").map(|new| self::word(new.trim_start()));
            let renamed = new.filter(|new| !new.is_empty()).map(str::to_string);
            leaves.push(Leaf { path: prefix.clone(), renamed });
            after
        }
    }
}

/// The word, or `*`, that `rest` starts with.
fn word(rest: &str) -> &str {
    if rest.starts_with('*') {
        return &rest[..1];
    }
    &rest[..rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(code: &str, expected: &[&str]) {
        let starts = ["crate", "super", "std"];
        let mut found: Vec<String> = mentions(code, |word| starts.contains(&word))
            .into_iter()
            .map(|(_, path)| path.join("::"))
            .collect();
        found.sort();
        assert_eq!(found, expected);
    }

    /// Each use as `path as name`, with `pub` before a re-export.
    #[track_caller]
    fn brings_in(code: &str, expected: &[&str]) {
        let shown = |found: &Use| {
            let public = if found.is_reexport { "pub " } else { "" };
            let name = found.name.as_deref().unwrap_or(if found.is_glob { "*" } else { "_" });
            format!("{public}{} as {name}", found.path.join("::"))
        };
        assert_eq!(uses(code).iter().map(shown).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn groups_are_taken_apart() {
        check(
            "use crate::{graph::{Graph, NodeId}, plan};",
            &["crate::graph::Graph", "crate::graph::NodeId", "crate::plan"],
        );
        check(
            "use crate::{\n    a as b,\n    c::*,\n};\nuse std::fmt;",
            &["crate::a", "crate::c::*", "std::fmt"],
        );
    }

    #[test]
    fn paths_in_expressions_count() {
        check("let x = crate::plan::plan::<u8>(y) + super::z;", &["crate::plan::plan", "super::z"]);
        check("super::super::plan::Plan", &["super::super::plan::Plan"]);
        check("for i in 0..crate::a::N {}", &["crate::a::N"]);
    }

    #[test]
    fn other_words_do_not() {
        check("pub(crate) fn f(my_crate: u8) { a::crate_::b; superb::c; x.std::<u8>() }", &[]);
    }

    #[test]
    fn names_are_brought_in_by_use() {
        brings_in(
            "use a::{self, b as c, d::*};\n#[allow(x)]\nuse e as _;",
            &["a as a", "a::b as c", "a::d as *", "e as _"],
        );
        brings_in(
            "pub use a::b;pub(crate) use c::d;fn f() { use g::h; }",
            &["pub a::b as b", "pub c::d as d", "g::h as h"],
        );
        brings_in("fn f() -> impl Fn() + use<'_> { reuse a; }", &[]);
    }

    #[test]
    fn uses_are_cut_out() {
        let code = "use a::b;\nlet x = c::d;\npub use e::{f,\n g};h";
        let kept = without_uses(code);
        assert_eq!(kept.split_whitespace().collect::<String>(), ";letx=c::d;pub;h");
        assert_eq!(kept.len(), code.len());
    }

    #[test]
    fn unfinished_groups_end_somewhere() {
        for code in ["crate::{", "crate::{a, (", "crate::", "crate::{a::{b", "crate::{=}", "use "] {
            mentions(code, |_| true);
            uses(code);
        }
    }
}
