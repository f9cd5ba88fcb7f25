//! Sizes in the system's files. Invariant: a figure that the system does not give is `None`.

use tightfit::units::Bytes;

/// The size in a line such as `VmRSS:   1234 kB`.
pub(super) fn field(file: &str, name: &str) -> Option<Bytes> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kibibytes * 1024))
}
