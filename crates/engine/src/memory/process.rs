//! What the operating system reports about this process, and what the process gives back to it.
//! Invariant: a figure that the system does not give is `None`, never a guess; giving back changes
//! no byte that the program can see.

#[cfg(target_os = "linux")]
use std::ops::Range;

use tightfit::units::Bytes;

use super::children;
use super::field::field;

pub use super::children::{output, send};
pub use super::footprint::{begins_with, is_program};
pub use super::limit::physical_memory;

/// Resident bytes of this process now.
pub fn resident() -> Option<Bytes> {
    field("/proc/self/status", "VmRSS:")
}

/// Resident bytes that this process shares with no file: what it adds to others that run the same
/// program.
pub fn own() -> Option<Bytes> {
    field("/proc/self/status", "RssAnon:")
}

/// Most resident bytes so far of this process, or of a process that it ran by [`output`].
pub fn peak_resident() -> Option<Bytes> {
    let own = field("/proc/self/status", "VmHWM:")?;
    Some(own.max(children::peak()))
}

/// From now on [`peak_resident`] counts from zero; if the system cannot do that, it continues from
/// its previous value.
pub fn restart_peak() {
    // proc(5): writing 5 resets the high-water mark.
    std::fs::write("/proc/self/clear_refs", "5").ok();
    children::restart_peak();
}

/// From now on all threads allocate from one heap, so that what one of them frees serves the others
/// instead of lying in a heap of its own, and only the used part of it is resident.
pub fn one_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets parameters of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        // Overrides the environment, which may make the allocator fill, and so touch, what it
        // returns.
        libc::mallopt(libc::M_PERTURB, 0);
    }
}

/// Gives back what was freed, and the pages of code and constants that were read: they are read
/// again from their files when needed.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: releases free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
    #[cfg(target_os = "linux")]
    give_files_back();
}

/// Gives back what it can, and makes allocations of a quarter of a MiB or more come from the heap's
/// end from now on. Gaps between what is in use would serve some of them, and larger ones come from
/// the end anyway, so that both would stay resident: packing of several sizes would take more than
/// the largest of them.
pub fn settle_heap() {
    give_back();
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if is_program() {
        const LARGEST: usize = 16 << 20;
        const SMALLEST: usize = 256 << 10;
        let Some(heap) = heap() else { return };
        // SAFETY: pieces that are never used; those that the allocator took from a gap are kept for
        // good, which costs addresses and no memory, since their pages were given back.
        unsafe {
            let mut size = LARGEST;
            while size >= SMALLEST {
                let piece = libc::malloc(size);
                // A piece with a mapping of its own may lie on either side of the heap: below it
                // if the size of stacks has no limit.
                let is_in_a_gap =
                    heap.contains(&(piece as usize)) && piece as usize + size <= heap.end;
                if !is_in_a_gap {
                    libc::free(piece);
                    size /= 2;
                }
            }
        }
    }
}

/// The current addresses of the heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn heap() -> Option<Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with(" [heap]"))?;
    addresses(line.split_whitespace().next()?)
}

/// Parses addresses, which proc(5) writes as `from-to`.
#[cfg(target_os = "linux")]
fn addresses(text: &str) -> Option<Range<usize>> {
    let (from, to) = text.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(address(from)?..address(to)?)
}

/// Drops the resident pages of files that are mapped read-only and of which this process has
/// changed nothing: the code and the constants of the program and its libraries.
#[cfg(target_os = "linux")]
fn give_files_back() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/smaps") else { return };
    let (mut mapping, mut is_whole) = (None, false);
    for line in maps.lines() {
        // proc(5): `from-to permissions offset device inode path`, then lines such as
        // `Anonymous:  4 kB`, which counts the pages that are no longer the file's, and `Swap:`,
        // which counts those of them that were swapped out.
        if let Some(copied) = line.strip_prefix("Anonymous:") {
            is_whole = copied.trim() == "0 kB";
        } else if let Some(swapped) = line.strip_prefix("Swap:") {
            is_whole &= swapped.trim() == "0 kB";
            if let Some(Range { start, end }) = mapping.take().filter(|_| is_whole) {
                // SAFETY: a private mapping of a file, not writable, with no page that is not the
                // file's: each is read from there again when it is touched.
                unsafe {
                    libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED);
                }
            }
        } else if let Some(found) = file_mapped_for_reading(line) {
            mapping = found;
        }
    }
}

/// The addresses of the mapping that `line` begins, if it maps a file read-only and privately;
/// `None` if the line begins no mapping.
#[cfg(target_os = "linux")]
fn file_mapped_for_reading(line: &str) -> Option<Option<Range<usize>>> {
    let mut words = line.split_whitespace();
    let mapping = addresses(words.next()?)?;
    let is_read_only = matches!(words.next(), Some("r-xp" | "r--p"));
    let is_file = words.nth(3).is_some_and(|path| path.starts_with('/'));
    Some((is_read_only && is_file).then_some(mapping))
}

/// The processors that this process may use, as the system lists them.
pub fn processors() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(line.trim().to_string())
}
