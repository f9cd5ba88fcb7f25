//! What the operating system says about this process, and what the process gives back to it.
//! Invariant: a figure that the system does not give is `None`, never a guess; giving back changes
//! no byte that the program can see.

use tightfit::units::Bytes;

use super::field::field;

pub use super::base::{begins_with, is_program};
pub use super::limit::physical_memory;

/// Resident bytes of this process now.
pub fn resident() -> Option<Bytes> {
    field("/proc/self/status", "VmRSS:")
}

/// Resident bytes that this process shares with no file: what remains its own beside others that
/// run the same program.
pub fn own() -> Option<Bytes> {
    field("/proc/self/status", "RssAnon:")
}

/// Most resident bytes so far of this process, or of a process that it started and waited for.
pub fn peak_resident() -> Option<Bytes> {
    let own = field("/proc/self/status", "VmHWM:")?;
    Some(own.max(peak_of_children()))
}

/// Most resident bytes of a process that was started here and has ended.
fn peak_of_children() -> Bytes {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the structure is plain numbers, which the call fills.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            (libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) == 0).then_some(usage)
        };
        // getrusage(2): in KiB.
        usage.map_or(Bytes::ZERO, |usage| Bytes(usage.ru_maxrss.max(0) as u64 * 1024))
    }
    #[cfg(not(target_os = "linux"))]
    {
        Bytes::ZERO
    }
}

/// From now on [`peak_resident`] counts anew; where the system cannot do that, it goes on from what
/// it was.
pub fn restart_peak() {
    // proc(5): writing 5 resets the high-water mark.
    std::fs::write("/proc/self/clear_refs", "5").ok();
}

/// From now on all threads take memory from one heap, so that what one of them frees serves the
/// others instead of lying in a heap of its own.
pub fn one_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets a number of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives back what was freed, and the pages of code that ran: they come again from the file when
/// they are needed.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: releases free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
    #[cfg(target_os = "linux")]
    give_code_back();
}

/// Drops the resident pages of the program's own code.
#[cfg(target_os = "linux")]
fn give_code_back() {
    let here = give_back as fn() as usize;
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for line in maps.lines() {
        // proc(5): `from-to permissions offset device inode path`.
        let mut words = line.split_whitespace();
        let (Some(range), Some("r-xp")) = (words.next(), words.next()) else { continue };
        let Some((from, to)) = range.split_once('-') else { continue };
        let address = |text| usize::from_str_radix(text, 16).ok();
        let (Some(from), Some(to)) = (address(from), address(to)) else { continue };
        if (from..to).contains(&here) && line.contains('/') {
            // SAFETY: a private mapping of a file that nobody can have written to, since it is not
            // writable and code is not relocated: its pages are read again when they are touched.
            unsafe {
                libc::madvise(from as *mut libc::c_void, to - from, libc::MADV_DONTNEED);
            }
        }
    }
}
