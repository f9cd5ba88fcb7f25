//! A case: the files that a target reads, by name. Invariant: a case is all that its target sees,
//! so the folder that it is written to reproduces its verdict.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Files by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Case {
    /// The bytes of each file.
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Case {
    /// A case of the given files.
    pub fn of<const N: usize>(files: [(&str, Vec<u8>); N]) -> Case {
        Case { files: files.into_iter().map(|(name, bytes)| (name.to_string(), bytes)).collect() }
    }

    /// Reads all files of a folder.
    pub fn read(folder: &Path) -> io::Result<Case> {
        let mut case = Case::default();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if let Some(name) = path.file_name().filter(|_| path.is_file()) {
                case.files.insert(name.to_string_lossy().into_owned(), std::fs::read(&path)?);
            }
        }
        Ok(case)
    }

    /// Makes `folder` hold these files and no others.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_file() && !path.file_name().is_some_and(|name| self.has(name)) {
                std::fs::remove_file(path)?;
            }
        }
        self.files.iter().try_for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes))
    }

    fn has(&self, name: &std::ffi::OsStr) -> bool {
        name.to_str().is_some_and(|name| self.files.contains_key(name))
    }

    /// The bytes of a file; empty if there is no such file.
    pub fn bytes(&self, name: &str) -> &[u8] {
        self.files.get(name).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_read_as_it_was_written_whatever_lay_there() {
        let folder = tempfile::tempdir().unwrap();
        Case::of([("old", vec![1])]).write(folder.path()).unwrap();
        let case = Case::of([("a.json", b"{}".to_vec()), ("b", Vec::new())]);
        case.write(folder.path()).unwrap();
        assert_eq!(Case::read(folder.path()).unwrap(), case);
    }
}
