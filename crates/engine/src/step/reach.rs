//! Which files a step may name. Invariant: a step that someone else wrote reads nothing of this
//! machine except what lies with it, or where its user works; links are followed before a path is
//! judged.

use std::path::{Path, PathBuf};

/// Whether the file lies neither in the step's folder, nor in the repository around that, nor below
/// the working directory. A missing file counts as inside: opening it reports the error.
pub(super) fn is_outside(folder: &Path, file: &Path) -> bool {
    let Ok(file) = file.canonicalize() else { return false };
    let folder = folder.canonicalize().ok();
    let repository = folder.as_deref().and_then(repository);
    let working = std::env::current_dir().and_then(|path| path.canonicalize()).ok();
    let mut around = [folder.clone(), repository, working].into_iter().flatten();
    !around.any(|place| file.starts_with(place))
}

/// The nearest folder at or around this one that a version control system manages.
fn repository(folder: &Path) -> Option<PathBuf> {
    const KEPT: [&str; 3] = [".git", ".hg", ".jj"];
    let is_kept = |folder: &&Path| KEPT.iter().any(|name| folder.join(name).exists());
    folder.ancestors().find(is_kept).map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_the_repository_counts() {
        use std::fs::{create_dir_all, write};
        use std::os::unix::fs::symlink;

        use super::is_outside;

        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        create_dir_all(at("work/steps/step")).unwrap();
        write(at("secret"), "secret").unwrap();
        write(at("work/data"), "data").unwrap();
        let step = at("work/steps/step");
        for name in ["secret", "work/data"] {
            symlink(at(name), step.join(name.replace('/', "-"))).unwrap();
        }
        let named = |name: &str| is_outside(&step, &step.join(name));
        assert!(!named("step.json") && !named("nowhere") && !named("../nowhere"));
        assert!(named("../../data") && named("work-data"));
        create_dir_all(at("work/.git")).unwrap();
        assert!(!named("../../data") && !named("work-data"));
        for outside in ["../../../secret", "secret", "/etc/passwd", "../../../work/../secret"] {
            assert!(named(outside), "{outside}");
        }
    }
}
