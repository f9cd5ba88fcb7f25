//! Every file opens by saying what it is for: Rust with `//!`, Python with a docstring. Invariant:
//! that it says something is tested, that what it says is true is for the reader.

use super::tree::{Finding, Tree};

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
    rust.chain(python).collect()
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
    fn other_files_open_as_they_like() {
        assert!(!finds("a.md", "") && !finds("a.toml", "x = 1"));
    }
}
