//! Writing results. Invariant: a file appears whole or not at all.

use std::io::Write;
use std::path::Path;

use anyhow::Context;

/// Writes beside `path` and renames.
pub fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(bytes)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
        }
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().with_context(|| format!("{} could not be written", path.display()))
}

/// `+12.3 %`
pub fn percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}
