//! The slab: the only memory that a step computes in. Invariant: it is allocated once, never grows,
//! and nothing on the hot path allocates memory besides it.

use std::ptr::NonNull;

use thiserror::Error;
use tightfit::exit::coded;
use tightfit::units::Bytes;

/// Huge pages begin at multiples of this many bytes.
const HUGE_PAGE: usize = 2 << 20;
/// Bytes of the largest pages that any system has.
const PAGE: usize = 64 << 10;

/// The system refused the memory.
#[derive(Debug, Error)]
#[error("the system refuses {0} of memory in one piece")]
pub struct SlabError(pub Bytes);

coded!(Budget: SlabError);

/// One piece of zeroed memory. Pages that no buffer uses are never touched, so they cost nothing.
#[derive(Debug)]
pub struct Slab {
    base: NonNull<u8>,
    /// Bytes that are mapped: the size in whole pages.
    mapped: usize,
    bytes: Bytes,
}

// SAFETY: the slab owns its memory; the checked schedule settles which code writes where.
unsafe impl Send for Slab {}
// SAFETY: as above; shared access hands out raw pointers only.
unsafe impl Sync for Slab {}

impl Slab {
    /// Allocates `bytes`.
    pub fn new(bytes: Bytes) -> Result<Slab, SlabError> {
        let size = usize::try_from(bytes.0).map_err(|_| SlabError(bytes))?.max(1);
        let mapped = size.checked_next_multiple_of(PAGE).ok_or(SlabError(bytes))?;
        let base = pages::map(mapped).ok_or(SlabError(bytes))?;
        Ok(Slab { base, mapped, bytes })
    }

    /// Gives all of its memory back to the system; what is read afterwards is zero.
    pub fn clear(&mut self) {
        self.clear_from(0);
    }

    /// Gives the memory from `address` on back to the system, in whole pages; what is read there
    /// afterwards is zero, or what it was.
    pub(crate) fn clear_from(&mut self, address: u64) {
        let from = address.next_multiple_of(PAGE as u64);
        let Some(bytes) = (self.mapped as u64).checked_sub(from).filter(|&bytes| bytes > 0) else {
            return;
        };
        // SAFETY: the end of what was mapped, which no other code uses.
        unsafe { pages::clear(self.base.add(from as usize), bytes as usize) }
    }

    /// Its size.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Its first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// `len` bytes from `address`.
    ///
    /// # Panics
    /// If they do not lie in the slab.
    pub fn read(&self, address: u64, len: u64) -> &[u8] {
        self.assert_inside(address, len);
        // SAFETY: inside the slab, which is initialised; `&self` excludes `write`, and lanes write
        // only where the checker lets no call read.
        unsafe {
            std::slice::from_raw_parts(self.base.as_ptr().add(address as usize), len as usize)
        }
    }

    /// `len` bytes from `address`, to be written.
    ///
    /// # Panics
    /// If they do not lie in the slab.
    pub fn write(&mut self, address: u64, len: u64) -> &mut [u8] {
        self.assert_inside(address, len);
        // SAFETY: inside the slab; `&mut self` excludes every other access but that of lanes, which
        // move what no call writes.
        unsafe {
            std::slice::from_raw_parts_mut(self.base.as_ptr().add(address as usize), len as usize)
        }
    }

    /// Two pieces of the slab, each an address and a size, to be written.
    ///
    /// # Panics
    /// If they do not lie in the slab, or overlap.
    pub fn write_both(&mut self, first: (u64, u64), second: (u64, u64)) -> (&mut [u8], &mut [u8]) {
        let overlap = first.0 < second.0 + second.1 && second.0 < first.0 + first.1;
        assert!(!overlap || first.1 == 0 || second.1 == 0, "the pieces overlap");
        let (mut first, mut second) = (self.part(first.0, first.1), self.part(second.0, second.1));
        // SAFETY: inside the slab, disjoint, and borrowed from it as long as the slices live;
        // lanes touch neither, since the checker lets no schedule pass in which they would.
        unsafe {
            let first = std::slice::from_raw_parts_mut(first.first.as_mut(), first.len);
            let second = std::slice::from_raw_parts_mut(second.first.as_mut(), second.len);
            (first, second)
        }
    }

    /// `len` bytes from `address`, to be moved while calls compute elsewhere in the slab.
    ///
    /// # Panics
    /// If they do not lie in the slab.
    pub(crate) fn part(&self, address: u64, len: u64) -> Part {
        self.assert_inside(address, len);
        // SAFETY: inside the slab.
        let first = unsafe { self.base.add(address as usize) };
        Part { first, len: len as usize }
    }

    /// Copies `len` bytes from one address to another; the two places may overlap.
    ///
    /// # Safety
    /// No other code reads or writes in either place meanwhile.
    ///
    /// # Panics
    /// If they do not lie in the slab.
    pub(crate) unsafe fn copy_within(&self, from: u64, to: u64, len: u64) {
        self.assert_inside(from, len);
        self.assert_inside(to, len);
        // SAFETY: both inside the slab, and the caller's promise.
        unsafe {
            let (from, to) = (self.base.add(from as usize), self.base.add(to as usize));
            std::ptr::copy(from.as_ptr(), to.as_ptr(), len as usize);
        }
    }

    fn assert_inside(&self, address: u64, len: u64) {
        assert!(
            address.checked_add(len).is_some_and(|end| end <= self.bytes.0),
            "bytes {address}..+{len} are outside the slab"
        );
    }
}

/// A part of the slab that a lane reads or fills. It does not keep the slab alive: it must not be
/// used after the slab is dropped.
pub(crate) struct Part {
    first: NonNull<u8>,
    len: usize,
}

// SAFETY: a part is a place; the schedule settles which code reads and writes there, and when.
unsafe impl Send for Part {}

impl Part {
    /// Its size.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Its bytes.
    ///
    /// # Safety
    /// The slab lives, and nothing writes there meanwhile.
    pub unsafe fn read(&self) -> &[u8] {
        // SAFETY: inside the slab, and the caller's promise.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }

    /// Its bytes, to be written.
    ///
    /// # Safety
    /// The slab lives, and nothing else reads or writes there meanwhile.
    pub unsafe fn write(&mut self) -> &mut [u8] {
        // SAFETY: inside the slab, and the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and used by no other code.
        unsafe { pages::unmap(self.base, self.mapped) }
    }
}

/// Zeroed memory from the system's own call: an allocator of aligned memory writes the zeros
/// itself, and so takes every page.
#[cfg(unix)]
mod pages {
    use std::ptr::{self, NonNull};

    use super::HUGE_PAGE;

    /// Maps `size` bytes at a multiple of [`HUGE_PAGE`].
    pub fn map(size: usize) -> Option<NonNull<u8>> {
        let all = size.checked_add(HUGE_PAGE)?;
        // SAFETY: a new mapping of no file at a place that the system chooses.
        let first = unsafe {
            libc::mmap(
                ptr::null_mut(),
                all,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if first == libc::MAP_FAILED {
            return None;
        }
        let before = first.align_offset(HUGE_PAGE);
        let base = first.wrapping_byte_add(before);
        // SAFETY: both ends of what was just mapped, around the part that is kept; advice about
        // that part. All in whole pages, except the end of the size, which the system rounds up.
        unsafe {
            if before > 0 {
                libc::munmap(first, before);
            }
            if before < HUGE_PAGE {
                libc::munmap(base.byte_add(size), HUGE_PAGE - before);
            }
            #[cfg(target_os = "linux")]
            libc::madvise(base, size, libc::MADV_HUGEPAGE);
        }
        NonNull::new(base.cast())
    }

    /// # Safety
    /// `base` and `size` are those of [`map`], and nothing uses the memory meanwhile.
    pub unsafe fn clear(base: NonNull<u8>, size: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            #[cfg(target_os = "linux")]
            libc::madvise(base.as_ptr().cast(), size, libc::MADV_DONTNEED);
            #[cfg(not(target_os = "linux"))]
            base.as_ptr().write_bytes(0, size);
        }
    }

    /// # Safety
    /// `base` and `size` are those of [`map`], and nothing uses the memory any more.
    pub unsafe fn unmap(base: NonNull<u8>, size: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            libc::munmap(base.as_ptr().cast(), size);
        }
    }
}

/// Zeroed memory by the allocator.
#[cfg(not(unix))]
mod pages {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    use super::HUGE_PAGE;

    /// Allocates `size` bytes at a multiple of [`HUGE_PAGE`].
    pub fn map(size: usize) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(size, HUGE_PAGE).ok()?;
        // SAFETY: the layout's size is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    /// # Safety
    /// `base` and `size` are those of [`map`], and nothing uses the memory meanwhile.
    pub unsafe fn clear(base: NonNull<u8>, size: usize) {
        // SAFETY: the caller's promise.
        unsafe { base.as_ptr().write_bytes(0, size) }
    }

    /// # Safety
    /// `base` and `size` are those of [`map`], and nothing uses the memory any more.
    pub unsafe fn unmap(base: NonNull<u8>, size: usize) {
        if let Ok(layout) = Layout::from_size_align(size, HUGE_PAGE) {
            // SAFETY: the layout of `map`.
            unsafe { dealloc(base.as_ptr(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_is_zeroed_and_bounded() {
        let mut slab = Slab::new(Bytes(128)).unwrap();
        assert!(slab.read(0, 128).iter().all(|&byte| byte == 0));
        slab.write(64, 64).fill(7);
        assert_eq!(slab.read(127, 1), [7]);
        slab.clear();
        assert_eq!(slab.read(127, 1), [0]);
        assert!(std::panic::catch_unwind(|| slab.read(1, 128).len()).is_err());
        assert!(std::panic::catch_unwind(|| slab.read(u64::MAX, 2).len()).is_err());
    }
}
