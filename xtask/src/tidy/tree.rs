//! The files that the rules check, and what a rule finds. Invariant: paths are relative to the
//! workspace, with `/`, sorted; a file whose kind no rule reads has an empty text.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;

/// One file.
pub struct File {
    pub path: String,
    pub text: String,
}

impl File {
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub fn is_python(&self) -> bool {
        self.path.ends_with(".py")
    }
}

/// All files.
pub struct Tree {
    pub files: Vec<File>,
}

impl Tree {
    /// The files that git tracks, and those that it would add.
    pub fn of_repository(workspace: &Workspace) -> Result<Tree> {
        let root = &*workspace.root;
        let mut git = workspace.command("git");
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        // What cargo builds is ignored in its usual place; this ignores it elsewhere.
        if let Ok(target) = workspace.target.strip_prefix(root) {
            git.arg(format!("--exclude=/{}/", target.display()));
        }
        let listing = git.output().context("git ls-files")?;
        ensure!(
            listing.status.success(),
            "git ls-files: {}",
            String::from_utf8_lossy(&listing.stderr).trim()
        );
        let mut paths: Vec<String> = listing
            .stdout
            .split(|&byte| byte == 0)
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .collect();
        paths.sort();
        paths.dedup();
        // A file that was deleted on disk, but not yet from the index, is left out.
        paths.retain(|path| !path.is_empty() && root.join(path).is_file());
        let files = paths.into_iter().map(|path| read(root, path)).collect::<Result<_>>()?;
        Ok(Tree { files })
    }

    /// A tree made of strings, for the rules' tests.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        let file =
            |&(path, text): &(&str, &str)| File { path: path.to_string(), text: text.to_string() };
        Tree { files: files.iter().map(file).collect() }
    }

    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.is_rust())
    }

    pub fn python(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.is_python())
    }

    /// Whether `path` is a file or a folder.
    pub fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let under = |file: &File| {
            file.path
                .strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.files.iter().any(under)
    }
}

fn read(root: &Path, path: String) -> Result<File> {
    let kinds = [".rs", ".py", ".md", ".toml"];
    let text = if kinds.iter().any(|kind| path.ends_with(kind)) {
        std::fs::read_to_string(root.join(&path)).with_context(|| path.clone())?
    } else {
        String::new()
    };
    Ok(File { path, text })
}

/// Something that breaks a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    pub path: String,
    pub line: usize,
    /// What is wrong, and what to do.
    pub what: String,
}

impl Finding {
    pub fn new(file: &File, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: file.path.clone(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_exist_and_prefixes_of_names_do_not() {
        let tree = Tree::of(&[("doc/theory/chen.md", "")]);
        assert!(tree.has("doc/theory/chen.md") && tree.has("doc/theory/") && tree.has("doc"));
        assert!(!tree.has("doc/theory/che") && !tree.has("doc/theo"));
    }
}
