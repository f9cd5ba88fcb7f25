//! How much memory a process may use here. Invariant: the least of what the machine has and what
//! any control group around the process allows, of either version; a limit that cannot be read is
//! no limit.

use std::path::{Path, PathBuf};

use tightfit::units::Bytes;

use super::field::field;

/// Memory that this process may use: the machine's, or its control group's if that is less.
pub fn physical_memory() -> Option<Bytes> {
    let machine = field("/proc/meminfo", "MemTotal:")?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(limit(Path::new("/sys/fs/cgroup"), &groups).map_or(machine, |limit| limit.min(machine)))
}

/// The least limit of the groups that `/proc/self/cgroup` names, and of those around them, if their
/// hierarchies are mounted at `root`.
fn limit(root: &Path, groups: &str) -> Option<Bytes> {
    groups.lines().flat_map(|line| files(root, line)).filter_map(|file| read(&file)).min()
}

/// Files that may hold a limit for a line such as `4:memory:/a/b` (version 1) or `0::/a/b`.
fn files(root: &Path, line: &str) -> Vec<PathBuf> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
        return Vec::new();
    };
    let (folders, name) = if controllers.is_empty() {
        (vec![root.to_path_buf(), root.join("unified")], "memory.max")
    } else if controllers.split(',').any(|controller| controller == "memory") {
        let named = root.join(controllers);
        let folders =
            if controllers == "memory" { vec![named] } else { vec![root.join("memory"), named] };
        (folders, "memory.limit_in_bytes")
    } else {
        return Vec::new();
    };
    // In a container the path may be that of the host, which is not mounted: the hierarchy's root
    // is then the container's own group, and is read like any ancestor.
    let group = Path::new(group.trim_start_matches('/'));
    let inside = |folder: &PathBuf| {
        let folder = folder.clone();
        group.ancestors().map(move |part| folder.join(part).join(name)).collect::<Vec<_>>()
    };
    folders.iter().flat_map(inside).collect()
}

/// The limit in a file; `max`, as version 2 writes it, is none.
fn read(file: &Path) -> Option<Bytes> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok().map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(files: &[(&str, &str)], groups: &str) -> Option<Bytes> {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let file = root.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        limit(root.path(), groups)
    }

    #[test]
    fn either_version_limits_and_the_least_limit_counts() {
        let first = "9:name=systemd:/\n4:memory:/jobs/one\n0::/\n";
        assert_eq!(
            with(&[("memory/jobs/one/memory.limit_in_bytes", "335544320\n")], first),
            Some(Bytes(320 << 20))
        );
        let around = [
            ("memory/jobs/one/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/jobs/memory.limit_in_bytes", "1000\n"),
            ("memory/memory.limit_in_bytes", "5000\n"),
        ];
        assert_eq!(with(&around, first), Some(Bytes(1000)));
        // A container sees the host's path, and its own group at the root.
        assert_eq!(with(&[("memory/memory.limit_in_bytes", "7000\n")], first), Some(Bytes(7000)));
        assert_eq!(
            with(&[("a/memory.max", "max\n"), ("memory.max", "9\n")], "0::/a\n"),
            Some(Bytes(9))
        );
        assert_eq!(with(&[("a/memory.max", "max\n")], "0::/a\n"), None);
        assert_eq!(with(&[], first), None);
    }

    #[test]
    fn the_machine_itself_is_the_last_limit() {
        if let Some(memory) = physical_memory() {
            assert!(memory > Bytes::ZERO && Some(memory) <= field("/proc/meminfo", "MemTotal:"));
        }
    }
}
