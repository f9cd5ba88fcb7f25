//! What a text cites exists. Invariant: only what looks like a path of this repository is checked,
//! so that a text may speak of other people's files.
//!
//! Cited are the words in backticks of the Markdown files (outside fenced blocks) and of Rust
//! comments that start with one of the repository's folders; in Markdown also `….rs`, `….md` and
//! `…/….py`, whose first folders may be left out; in Rust comments also `doc/theory/…` without
//! backticks. What follows a `*`, `<` or `…` is not checked.

use super::source::split;
use super::tree::{File, Finding, Tree};

const FOLDERS: [&str; 8] =
    ["crates/", "corpus/", "doc/", "python/", "xtask/", "fuzz/", ".cargo/", ".ci/"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| is_document(file)) {
        let wrong = in_backticks(&outside_fences(&file.text), |word| {
            !exists(tree, word) || !ends_a_path(tree, word)
        });
        findings.extend(wrong.into_iter().map(|(line, word)| missing(file, line, &word)));
    }
    for file in tree.rust() {
        let comments = split(&file.text).comments;
        let mut wrong = in_backticks(&comments, |word| !exists(tree, word));
        wrong.extend(theory(&comments).into_iter().filter(|(_, word)| !exists(tree, word)));
        wrong.sort();
        wrong.dedup();
        findings.extend(wrong.into_iter().map(|(line, word)| missing(file, line, &word)));
    }
    findings
}

fn missing(file: &File, line: usize, path: &str) -> Finding {
    Finding::new(
        file,
        line,
        format!("`{path}` does not exist; correct the path, or add what it names"),
    )
}

fn is_document(file: &File) -> bool {
    let in_root = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].contains(&file.path.as_str());
    in_root || file.path.starts_with("doc/") && file.path.ends_with(".md")
}

/// The text with its fenced blocks blanked.
pub fn outside_fences(text: &str) -> String {
    let mut fenced = false;
    let mut kept = String::with_capacity(text.len());
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        if !fence && !fenced {
            kept.push_str(line);
        }
        kept.push('\n');
        fenced ^= fence;
    }
    kept
}

/// The words in backticks for which `wrong` holds, with their lines.
fn in_backticks(text: &str, wrong: impl Fn(&str) -> bool) -> Vec<(usize, String)> {
    let wrong = words(text).filter(|(_, word)| wrong(word));
    wrong.map(|(line, word)| (line, word.to_string())).collect()
}

/// The words in backticks, with their lines. `a/b.rs:12` names the file.
pub fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(index, line)| {
        let quoted = line.split('`').skip(1).step_by(2);
        quoted
            .filter(|word| !word.contains(char::is_whitespace))
            .map(move |word| (index + 1, without_line(word)))
    })
}

fn without_line(word: &str) -> &str {
    match word.rsplit_once(':') {
        Some((path, line))
            if !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            path
        }
        _ => word,
    }
}

/// Everything that starts with `doc/theory/`, with its line.
fn theory(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for (at, _) in line.match_indices("doc/theory/") {
            let end = line[at..]
                .find(|c: char| !c.is_ascii_alphanumeric() && !"/_-.*<…".contains(c))
                .map_or(line.len(), |length| at + length);
            found.push((index + 1, line[at..end].trim_end_matches('.').to_string()));
        }
    }
    found
}

/// Whether the path exists, or is not one of this repository.
fn exists(tree: &Tree, path: &str) -> bool {
    let ours = FOLDERS.iter().any(|folder| path.starts_with(folder));
    !ours || tree.has(known_part(path))
}

/// The path up to the folder of the first part with a placeholder.
fn known_part(path: &str) -> &str {
    match path.find(['*', '<', '…']) {
        Some(at) => path[..at].rsplit_once('/').map_or("", |(folder, _)| folder),
        None => path,
    }
}

/// Whether some file's path ends with it, or it is not a file's name.
fn ends_a_path(tree: &Tree, path: &str) -> bool {
    let kind = path.rsplit_once('.').map_or("", |(_, kind)| kind);
    let named = (kind == "rs" || kind == "md" || kind == "py" && path.contains('/'))
        && known_part(path) == path;
    let ends = |file: &File| {
        file.path
            .strip_suffix(path)
            .is_some_and(|before| before.is_empty() || before.ends_with('/'))
    };
    !named || tree.files.iter().any(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let tree = Tree::of(&[
            (path, text),
            ("crates/planner/src/check.rs", ""),
            ("doc/theory/chen.md", ""),
            ("corpus/steps/a/step.json", ""),
        ]);
        check(&tree)
            .into_iter()
            .map(|finding| (finding.line, finding.what.split('`').nth(1).unwrap().to_string()))
            .collect()
    }

    #[track_caller]
    fn finds(path: &str, text: &str, cited: &[(usize, &str)]) {
        let expected: Vec<_> = cited.iter().map(|&(line, word)| (line, word.to_string())).collect();
        assert_eq!(found(path, text), expected);
    }

    #[test]
    fn paths_that_do_not_exist_are_found() {
        finds(
            "README.md",
            "see\n`crates/planner/src/chekc.rs`",
            &[(2, "crates/planner/src/chekc.rs")],
        );
        finds(
            "doc/theory/layout.md",
            "`doc/theory/chem.md` and `corpus/step/`",
            &[(1, "doc/theory/chem.md"), (1, "corpus/step/")],
        );
        finds(
            "ARCHITECTURE.md",
            "`src/chekc.rs` `heck.rs` `GUIDE.md`",
            &[(1, "src/chekc.rs"), (1, "heck.rs"), (1, "GUIDE.md")],
        );
        finds("README.md", "`steps/b/make.py`", &[(1, "steps/b/make.py")]);
        finds(
            "CONTRIBUTING.md",
            "`corpus/stesp/<name>/make.py`",
            &[(1, "corpus/stesp/<name>/make.py")],
        );
    }

    #[test]
    fn paths_that_exist_are_not() {
        finds(
            "README.md",
            "`crates/planner/src/check.rs:12`, `crates/planner`, `check.rs`, `src/check.rs`, \
             `corpus/steps/<name>/make.py`, `corpus/*/`",
            &[],
        );
    }

    #[test]
    fn other_words_are_not_paths() {
        finds(
            "README.md",
            "`tokens/second`, `python -m doc/x`, `train.py`, \
             crates/none.rs\n```\n`crates/none.rs`\n```\n",
            &[],
        );
        finds("corpus/data/README.md", "`crates/none.rs`", &[]);
    }

    #[test]
    fn rust_comments_are_read_and_rust_code_is_not() {
        finds(
            "a.rs",
            "//! See doc/theory/chem.md.\n// `crates/none`",
            &[(1, "doc/theory/chem.md"), (2, "crates/none")],
        );
        finds(
            "a.rs",
            "//! See `doc/theory/chen.md`, or doc/theory/chen.md.\nlet x = \"doc/theory/chem.md\";",
            &[],
        );
    }
}
