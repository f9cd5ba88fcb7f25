//! What a change must not leave behind: unfinished code, debugging prints, tests that do not run,
//! and panics in the libraries. Invariant: only code counts; comments and literals may say
//! anything.

use super::source::{is_word, line_of, split, without_tests};
use super::tree::{File, Finding, Tree};

/// Refused in all Rust code, with what to do instead.
const LEFTOVERS: [(&str, &str); 4] = [
    ("todo!", "finish it, or return an error that says what is not supported"),
    ("unimplemented!", "finish it, or return an error that says what is not supported"),
    ("dbg!", "remove it"),
    ("#[ignore", "make the test run, remove it, or say `full tier: ` and why it is of that tier"),
];

/// A test that the quick tier leaves out.
const FULL_TIER: &str = "#[ignore = \"full tier: ";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let code = split(&file.text).code;
        for (leftover, advice) in LEFTOVERS {
            let is_meant =
                |&at: &usize| file.text.get(at..).is_some_and(|rest| rest.starts_with(FULL_TIER));
            let found = whole_words(&code, leftover).filter(|at| !is_meant(at));
            findings.extend(found.map(|at| {
                Finding::new(
                    file,
                    line_of(&code, at),
                    format!("`{leftover}` is left over; {advice}"),
                )
            }));
        }
        if is_library(file) {
            let code = without_tests(&code);
            findings.extend(code.match_indices(".unwrap()").map(|(at, _)| {
                Finding::new(
                    file,
                    line_of(&code, at),
                    "`.unwrap()` in a library; return the error, or state the invariant with \
                     `.expect(…)`",
                )
            }));
        }
    }
    findings
}

/// Whether a file is in one of the crates that others build upon, without their tests and benches:
/// all but the command line.
fn is_library(file: &File) -> bool {
    let source = file.path.strip_prefix("crates/").and_then(|path| path.split_once('/'));
    source.is_some_and(|(name, path)| name != "cli" && path.starts_with("src/"))
}

/// Where `word` stands in `code` and is not part of a longer one.
fn whole_words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let starts = !code[..at].ends_with(is_word) || !word.starts_with(is_word);
        let ends = !code[at + word.len()..].starts_with(is_word) || !word.ends_with(is_word);
        starts && ends
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn unfinished_code_is_found_everywhere() {
        for text in [
            "fn f() {\n todo!(\"later\") }",
            "fn f() {\n unimplemented!() }",
            "fn f() {\n dbg!(1); }",
            "#[test]\n#[ignore]\nfn f() {}",
            "\n#[ignore = \"slow\"]",
        ] {
            assert_eq!(lines("crates/cli/tests/a.rs", text), [2], "{text}");
        }
    }

    #[test]
    fn a_test_may_be_of_the_full_tier() {
        let text = "// é\n#[test]\n#[ignore = \"full tier: minutes\"]\nfn f() {}";
        assert!(lines("crates/cli/tests/a.rs", text).is_empty());
    }

    #[test]
    fn words_in_comments_literals_and_longer_names_are_not_code() {
        for text in ["// todo!(x)", "let x = \"dbg!(\";", "my_todo!()", "#[ignored]"] {
            assert!(lines("crates/engine/src/a.rs", text).is_empty(), "{text}");
        }
    }

    #[test]
    fn unwrap_is_found_in_libraries_only() {
        let text = "fn f() {\n x.unwrap() }\n#[cfg(test)]\nmod tests { fn g() { y.unwrap() } }\n";
        assert_eq!(lines("crates/planner/src/a.rs", text), [2]);
        assert!(lines("crates/planner/tests/a.rs", text).is_empty());
        assert!(lines("crates/cli/src/a.rs", text).is_empty());
        assert!(lines("crates/planner/src/a.rs", "x.unwrap_or(y)").is_empty());
    }
}
