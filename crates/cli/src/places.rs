//! Where results go, and paths as people read them. Invariant: no result replaces another one of
//! the same run, or what it was made from.

use std::path::{Component, Path, PathBuf};

use thiserror::Error;
use tightfit::exit::coded;
use tightfit_engine::file::end_of_links;

/// A path as people write it: without components that `..` undoes, if that leads to the same file.
pub fn short(path: &Path) -> PathBuf {
    let mut short = PathBuf::new();
    for part in path.components() {
        let is_named = matches!(short.components().next_back(), Some(Component::Normal(_)));
        if part == Component::ParentDir && is_named {
            short.pop();
        } else {
            short.push(part);
        }
    }
    // After a symbolic link, `..` leads elsewhere.
    let is_same = path.canonicalize().is_ok_and(|file| short.canonicalize().ok() == Some(file));
    if is_same { short } else { path.to_path_buf() }
}

/// A result would replace another file of the run.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum Replaced {
    /// Two results go into one file.
    #[error("{first} and {second} name the same file; the second would replace the first")]
    Result {
        /// The option of one.
        first: &'static str,
        /// The option of the other.
        second: &'static str,
    },
    /// A result goes into a file that was read.
    #[error("{option} would replace {}, which is read here; name another file", path.display())]
    Source {
        /// The option.
        option: &'static str,
        /// The file.
        path: PathBuf,
    },
}

/// Refuses results that would replace each other, or one of `sources`. Anything that is not a
/// regular file, such as `/dev/null`, takes any number of results.
pub fn distinct(
    results: &[(&'static str, Option<&PathBuf>)],
    sources: &[PathBuf],
) -> Result<(), Replaced> {
    let sources: Vec<PathBuf> = sources.iter().filter_map(|path| file(path)).collect();
    let mut known: Vec<(&'static str, PathBuf)> = Vec::new();
    for &(option, path) in results {
        let Some((path, place)) = path.and_then(|path| Some((path, file(path)?))) else { continue };
        if sources.contains(&place) {
            return Err(Replaced::Source { option, path: path.clone() });
        }
        if let Some((first, _)) = known.iter().find(|(_, other)| *other == place) {
            return Err(Replaced::Result { first, second: option });
        }
        known.push((option, place));
    }
    Ok(())
}

/// The one name of a file, whether it exists or not.
fn file(path: &Path) -> Option<PathBuf> {
    match path.metadata() {
        Ok(found) => found.is_file().then(|| path.canonicalize().ok()).flatten(),
        Err(_) => {
            let path = end_of_links(path).ok()?;
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
            Some(folder.join(path.file_name()?))
        }
    }
}

coded!(Usage: Replaced);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_back_is_left_out_of_a_path() {
        let folder = tempfile::tempdir().unwrap();
        let named = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(named("steps/one")).unwrap();
        std::fs::write(named("data"), "").unwrap();
        assert_eq!(short(&named("steps/one/../../data")), named("data"));
        assert_eq!(short(&named("steps/./one/../absent")), named("steps/./one/../absent"));
        assert_eq!(short(Path::new("../src")), Path::new("../src"));
        std::os::unix::fs::symlink(named("steps/one"), named("link")).unwrap();
        std::fs::write(named("steps/data"), "").unwrap();
        assert_eq!(short(&named("link/../data")), named("link/../data"));
    }

    #[test]
    fn one_file_is_known_by_all_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let named = |name: &str| folder.path().join(name);
        std::fs::write(named("read"), "").unwrap();
        std::fs::create_dir(named("inner")).unwrap();
        let around = named("inner/../new");
        let clash = |one: &PathBuf, other: &PathBuf| {
            distinct(
                &[("--one", Some(one)), ("--other", Some(other)), ("--none", None)],
                &[named("inner/../read")],
            )
        };
        assert_eq!(clash(&named("old"), &named("new")), Ok(()));
        let both = Replaced::Result { first: "--one", second: "--other" };
        assert_eq!(clash(&named("new"), &around), Err(both));
        let source = Replaced::Source { option: "--other", path: named("read") };
        assert_eq!(clash(&named("new"), &named("read")), Err(source));
        let nowhere = PathBuf::from("/dev/null");
        assert_eq!(clash(&nowhere, &nowhere), Ok(()));
    }

    #[test]
    #[cfg(unix)]
    fn links_lead_to_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let results = [("--save", Some(&link)), ("--trace", Some(&file))];
        let both = Err(Replaced::Result { first: "--save", second: "--trace" });
        assert_eq!(distinct(&results, &[]), both, "where nothing is yet");
        std::fs::write(&file, "").unwrap();
        assert_eq!(distinct(&results, &[]), both);
    }
}
