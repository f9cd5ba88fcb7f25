//! No file is too long to be one concept, and no line too long to be read next to another file.
//! Invariant: characters are counted, not bytes.

use super::tree::{File, Finding, Tree};

/// Most lines of a source file.
const SOURCE_LINES: usize = 500;
/// Most lines of a file of tests or benches.
const TEST_LINES: usize = 800;
/// Most characters of a line; the same as in `rustfmt.toml`.
const COLUMNS: usize = 100;

pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust().flat_map(|file| length(file).into_iter().chain(columns(file))).collect()
}

fn length(file: &File) -> Option<Finding> {
    let (most, advice) = if is_test(file) {
        (TEST_LINES, "split it by what is tested")
    } else {
        (SOURCE_LINES, "split it by concepts")
    };
    let lines = file.text.lines().count();
    (lines > most).then(|| {
        Finding::new(file, most + 1, format!("the file has {lines} lines of {most}; {advice}"))
    })
}

fn columns(file: &File) -> impl Iterator<Item = Finding> {
    let lines = file.text.lines().map(|line| line.chars().count()).enumerate();
    lines.filter(|&(_, columns)| columns > COLUMNS).map(|(index, columns)| {
        let what = format!(
            "the line has {columns} characters of {COLUMNS}; break it (a literal by `\\` at the \
             end of the line, or by `concat!`)"
        );
        Finding::new(file, index + 1, what)
    })
}

fn is_test(file: &File) -> bool {
    file.path.split('/').any(|part| ["tests", "benches", "tests.rs"].contains(&part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn long_files_are_found() {
        for (path, most) in [
            ("crates/a/src/x.rs", 500),
            ("xtask/src/contests.rs", 500),
            ("crates/a/src/x/tests.rs", 800),
            ("crates/a/tests/x/main.rs", 800),
            ("crates/a/benches/x.rs", 800),
        ] {
            assert!(lines(path, &"\n".repeat(most)).is_empty(), "{path}");
            assert_eq!(lines(path, &"\n".repeat(most + 1)), [most + 1], "{path}");
        }
    }

    #[test]
    fn long_lines_are_found() {
        assert_eq!(lines("a.rs", &format!("x\n{}", "x".repeat(101))), [2]);
        assert!(lines("a.rs", &"é".repeat(100)).is_empty());
        assert!(lines("a.md", &"x".repeat(101)).is_empty());
    }
}
