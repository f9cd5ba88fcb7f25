//! ARCHITECTURE.md's tree is the tree on disk. Invariant: every source file of every crate is named
//! on that page, by the end of its path, and each such name means one file only.
//!
//! Named is what stands in backticks outside of fenced blocks. `node.rs` or `graph/node.rs` means
//! the file whose path ends so; if several do, the one below the folder that was named last. A
//! pattern, such as `kernels/*.rs`, means all files that it matches. A folder means its own
//! `mod.rs`, and a crate its `lib.rs` or `main.rs`; what else lies there has to be named
//! separately.

use std::collections::BTreeSet;

use super::citations::{outside_fences, words};
use super::tree::{File, Finding, Tree};

const PAGE: &str = "ARCHITECTURE.md";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.files.iter().find(|file| file.path == PAGE) else { return Vec::new() };
    let sources: Vec<&str> = tree.rust().filter(|file| is_source(file)).map(path).collect();
    let mut findings = Vec::new();
    let mut named: BTreeSet<&str> = BTreeSet::new();
    // Ends in `/`, or is empty.
    let mut folder = String::new();
    for (line, word) in words(&outside_fences(&page.text)) {
        if !word.ends_with(".rs") {
            if let Some(below) = Some(format!("{}/", word.trim_end_matches('/')))
                .filter(|below| sources.iter().any(|path| path.starts_with(below.as_str())))
            {
                named.extend(own_files(&sources, &below));
                folder = below;
            }
            continue;
        }
        let mut meant: Vec<&str> =
            sources.iter().copied().filter(|path| ends_as(path, word)).collect();
        if meant.len() > 1 && !word.contains('*') {
            let below: Vec<&str> =
                meant.iter().copied().filter(|path| path.starts_with(&folder)).collect();
            // A file directly in the folder takes precedence over those further down.
            let direct = below.iter().copied().find(|path| path[folder.len()..] == *word);
            meant = if below.is_empty() { meant } else { direct.map_or(below, |path| vec![path]) };
            if meant.len() > 1 {
                let what =
                    format!("`{word}` may be {}; name it by more of its path", meant.join(" or "));
                findings.push(Finding::new(page, line, what));
            }
        }
        named.extend(meant);
    }
    let missing = tree.rust().filter(|file| is_source(file) && !named.contains(path(file)));
    findings.extend(missing.map(|file| {
        Finding::new(file, 1, format!("{PAGE} does not name this file; say there what it is for"))
    }));
    findings
}

fn path(file: &File) -> &str {
    &file.path
}

/// Whether a file is a source file of a crate, other than a test.
fn is_source(file: &File) -> bool {
    let inside = match file.path.strip_prefix("crates/") {
        Some(path) => path.split_once('/').map(|(_, path)| path),
        None => ["xtask/", "fuzz/"].iter().find_map(|root| file.path.strip_prefix(root)),
    };
    inside.is_some_and(|path| {
        path.starts_with("src/") && !path.split('/').any(|part| part == "tests.rs")
    })
}

/// The files of the module, or of the crate, that a folder stands for.
fn own_files<'a>(sources: &[&'a str], folder: &str) -> impl Iterator<Item = &'a str> {
    const OWN: [&str; 5] = ["mod.rs", "lib.rs", "main.rs", "src/lib.rs", "src/main.rs"];
    sources
        .iter()
        .copied()
        .filter(move |path| path.strip_prefix(folder).is_some_and(|inside| OWN.contains(&inside)))
}

/// Whether a path ends with a word, part by part; a `*` stands for anything within a part.
fn ends_as(path: &str, word: &str) -> bool {
    let (mut path, word) = (path.rsplit('/'), word.rsplit('/'));
    word.into_iter().all(|pattern| path.next().is_some_and(|part| fits(part, pattern)))
}

fn fits(part: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => part == pattern,
        Some((start, end)) => {
            part.len() >= start.len() + end.len() && part.starts_with(start) && part.ends_with(end)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [&str; 9] = [
        "crates/a/src/graph/id.rs",
        "crates/a/src/graph/mod.rs",
        "crates/a/src/lib.rs",
        "crates/a/src/plan/mod.rs",
        "crates/a/src/plan/search/id.rs",
        "crates/a/src/plan/search/mod.rs",
        "crates/a/src/plan/search/tests.rs",
        "crates/a/tests/graph.rs",
        "xtask/src/main.rs",
    ];

    /// Everything that is wrong with the page.
    fn found(page: &str) -> Vec<String> {
        let mut files = vec![(PAGE, page)];
        files.extend(FILES.map(|path| (path, "")));
        check(&Tree::of(&files)).iter().map(Finding::to_string).collect()
    }

    const WHOLE: &str = "### `crates/a`\n- `crates/a/src/graph`: x\n  - `graph/id.rs`: x\n\
        - `plan/mod.rs`: x\n- `crates/a/src/plan/search`: x\n  - `id.rs`: x\n### `xtask`\n";

    #[test]
    fn files_are_named_by_the_end_of_their_path() {
        assert_eq!(found(WHOLE), [] as [&str; 0]);
        let patterns =
            "`crates/a/src/l*.rs` `graph/*.rs` `crates/a/src/plan` `plan/*/*.rs` `xtask`";
        assert_eq!(found(patterns), [] as [&str; 0]);
    }

    #[test]
    fn files_without_a_name_are_found() {
        let missing = |path: &str| {
            format!("{path}:1: ARCHITECTURE.md does not name this file; say there what it is for")
        };
        assert_eq!(
            found(&WHOLE.replace("`id.rs`", "ids").replace("`xtask`", "xtask")),
            [missing("crates/a/src/plan/search/id.rs"), missing("xtask/src/main.rs")]
        );
        // A folder does not name the files in it, and a fenced block names nothing.
        assert_eq!(
            found(&WHOLE.replace("`graph/id.rs`: x", "\n```\n`graph/id.rs`\n```")),
            [missing("crates/a/src/graph/id.rs")]
        );
        assert_eq!(found("").len(), FILES.len() - 2);
    }

    #[test]
    fn names_that_may_mean_several_files_are_found() {
        assert_eq!(
            found(&format!("`id.rs`\n{WHOLE}")),
            ["ARCHITECTURE.md:1: `id.rs` may be crates/a/src/graph/id.rs or \
              crates/a/src/plan/search/id.rs; name it by more of its path"]
        );
    }
}
