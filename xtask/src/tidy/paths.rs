//! The paths that code mentions. Invariant: `use a::{b, c::d}` mentions `a::b` and `a::c::d`, and a
//! path in the middle of an expression counts like one after `use`.

use crate::tidy::source::is_word;

/// Every path that starts at the root of the crate, above the module or in the standard library,
/// with its position.
pub fn paths(code: &str) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    for start in ["crate", "super", "std"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].trim_end();
            if code[..at].ends_with(is_word)
                || before.ends_with("::")
                || code[at + start.len()..].starts_with(is_word)
            {
                continue;
            }
            let mut paths = Vec::new();
            tree(&code[at..], &mut Vec::new(), &mut paths);
            found.extend(paths.into_iter().filter(|path| path.len() > 1).map(|path| (at, path)));
        }
    }
    found.sort();
    found
}

/// Reads one path, or one group of them, behind `prefix`; returns what follows.
fn tree<'a>(rest: &'a str, prefix: &mut Vec<String>, paths: &mut Vec<Vec<String>>) -> &'a str {
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
            let after = tree(group, prefix, paths);
            prefix.truncate(depth);
            // Past `as name`, to the next path of the group or to its end.
            group = after.find([',', '}']).map_or("", |at| &after[at..]);
        }
    }
    let length = rest.find(|c: char| !is_word(c) && c != '*').unwrap_or(rest.len());
    let (word, after) = rest.split_at(length);
    if word.is_empty() {
        return rest;
    }
    prefix.push(word.to_string());
    match after.trim_start().strip_prefix("::") {
        Some(next)
            if next.trim_start().starts_with(|c: char| is_word(c) || c == '{' || c == '*') =>
        {
            tree(next, prefix, paths)
        }
        _ => {
            paths.push(prefix.clone());
            after
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(code: &str, expected: &[&str]) {
        let mut found: Vec<String> =
            paths(code).into_iter().map(|(_, path)| path.join("::")).collect();
        found.sort();
        assert_eq!(found, expected);
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
    }

    #[test]
    fn other_words_do_not() {
        check("pub(crate) fn f(my_crate: u8) { a::crate_::b; superb::c }", &[]);
    }

    #[test]
    fn unfinished_groups_end_somewhere() {
        for code in ["crate::{", "crate::{a, (", "crate::", "crate::{a::{b", "crate::{=}"] {
            paths(code);
        }
    }
}
