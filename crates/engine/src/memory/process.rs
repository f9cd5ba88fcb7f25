//! What the operating system says about this process and this machine. Invariant: a figure that the
//! system does not give is `None`, never a guess.

use tightfit::units::Bytes;

/// Resident bytes of this process now.
pub fn resident() -> Option<Bytes> {
    field("/proc/self/status", "VmRSS:")
}

/// Most resident bytes of this process so far.
pub fn peak_resident() -> Option<Bytes> {
    field("/proc/self/status", "VmHWM:")
}

/// From now on [`peak_resident`] counts anew; where the system cannot do that, it goes on from what
/// it was.
pub fn restart_peak() {
    // proc(5): writing 5 resets the high-water mark.
    std::fs::write("/proc/self/clear_refs", "5").ok();
}

/// Memory that this process may use: the machine's, or its control group's if that is less.
pub fn physical_memory() -> Option<Bytes> {
    let machine = field("/proc/meminfo", "MemTotal:")?;
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .map(Bytes);
    Some(limit.map_or(machine, |limit| limit.min(machine)))
}

/// A line such as `VmRSS:   1234 kB`.
fn field(file: &str, name: &str) -> Option<Bytes> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kibibytes * 1024))
}
