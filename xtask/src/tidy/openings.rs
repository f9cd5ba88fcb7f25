//! Every file opens by saying what it is for: Rust with `//!`, Python with a docstring; and a file
//! of tests also in which tier it is, and why. Invariant: this checks that it says something;
//! whether what it says is true is up to the reader.

use super::tree::{File, Finding, Tree};

pub fn check(tree: &Tree) -> Vec<Finding> {
    let rust = tree.rust().filter(|file| !opens_rust(&file.text)).map(|file| {
        Finding::new(
            file,
            1,
            "the file does not open with a sentence after `//!`; say what it is \
            for and the invariant it keeps",
        )
    });
    let python = tree.python().filter(|file| !opens_python(&file.text)).map(|file| {
        Finding::new(
            file,
            1,
            "the file does not open with a docstring; say what it \
            is for and the invariant it keeps",
        )
    });
    let tiers = tree.files.iter().filter(|file| is_tests(file) && !says_tier(&file.text));
    let tiers = tiers.map(|file| {
        Finding::new(
            file,
            1,
            "the opening does not say in which tier these tests are, and why: `Tier: quick, …`",
        )
    });
    rust.chain(python).chain(tiers).collect()
}

fn opens_rust(text: &str) -> bool {
    text.strip_prefix("//!").is_some_and(is_sentence)
}

/// Comments, such as `#!`, may come first.
fn opens_python(text: &str) -> bool {
    let first =
        text.lines().map(str::trim_start).find(|line| !line.is_empty() && !line.starts_with('#'));
    let opening = first.map(|line| line.trim_start_matches(['r', 'R']));
    opening
        .and_then(|line| line.strip_prefix("\"\"\"").or_else(|| line.strip_prefix("'''")))
        .is_some_and(is_sentence)
}

/// Whether a file holds tests, rather than code that tests share.
fn is_tests(file: &File) -> bool {
    let (path, text) = (file.path.as_str(), &file.text);
    let in_rust = path.contains("/tests/") && path.ends_with(".rs");
    let in_python = path.starts_with("python/tests/test_") && path.ends_with(".py");
    in_rust && text.lines().any(|line| line.trim() == "#[test]") || in_python
}

/// In Rust in the opening's own lines; in Python before the first import.
fn says_tier(text: &str) -> bool {
    let opening = text.lines().take_while(|line| !line.starts_with("import "));
    opening.map(|line| line.trim_start_matches("//! ")).any(|line| line.starts_with("Tier: quick"))
}

fn is_sentence(opening: &str) -> bool {
    opening.lines().next().is_some_and(|line| line.split_whitespace().count() >= 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finds(path: &str, text: &str) -> bool {
        !check(&Tree::of(&[(path, text)])).is_empty()
    }

    #[test]
    fn rust_without_an_opening_is_found() {
        assert!(finds("a.rs", "use std::fmt;\n//! Late, but not never.\n"));
        assert!(finds("a.rs", ""));
        assert!(finds("a.rs", "//! x\n"));
        assert!(finds("a.rs", "/// Says what follows, not the file.\n"));
        assert!(!finds("a.rs", "//! Says what it is for.\n"));
    }

    #[test]
    fn python_without_a_docstring_is_found() {
        assert!(finds("a.py", "import os\n\"\"\"Late, but not never.\"\"\"\n"));
        assert!(finds("__init__.py", ""));
        assert!(finds("a.py", "\"\"\"\"\"\"\n"));
        assert!(!finds("a.py", "#!/usr/bin/env python3\n\n\"\"\"Says what it is for.\"\"\"\n"));
        assert!(!finds("a.py", "r\"\"\"Says what it is for.\n\nAnd more.\"\"\"\n"));
    }

    #[test]
    fn tests_without_a_tier_are_found() {
        let rust =
            |opening: &str| format!("//! Says what it is for.\n{opening}\n#[test]\nfn f() {{}}");
        assert!(finds("crates/a/tests/b.rs", &rust("")));
        assert!(!finds("crates/a/tests/b.rs", &rust("//!\n//! Tier: quick, since it takes 2 s.")));
        assert!(!finds("crates/a/src/b.rs", &rust("")));
        assert!(!finds("crates/a/tests/c/mod.rs", "//! What others start from.\n"));
        let python = "\"\"\"Says what it is for.\n\nTier: quick, 2 s.\n\"\"\"\n\nimport os\n";
        assert!(!finds("python/tests/test_a.py", python));
        assert!(finds("python/tests/test_a.py", &python.replace("Tier", "Tear")));
    }

    #[test]
    fn other_files_open_as_they_like() {
        assert!(!finds("a.md", "") && !finds("a.toml", "x = 1"));
    }
}
