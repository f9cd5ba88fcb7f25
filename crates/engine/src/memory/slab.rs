//! The slab: the only memory that a step computes in. Invariant: it is allocated once, never grows,
//! and nothing on the hot path allocates beside it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use thiserror::Error;
use tightfit::units::Bytes;

/// Huge pages begin at multiples of this.
const HUGE_PAGE: usize = 2 << 20;

/// The system refused the memory.
#[derive(Debug, Error)]
#[error("the system refuses {0} of memory in one piece")]
pub struct SlabError(pub Bytes);

/// One piece of zeroed memory. Pages that no buffer uses are never touched, so they cost nothing.
#[derive(Debug)]
pub struct Slab {
    base: NonNull<u8>,
    layout: Layout,
    bytes: Bytes,
}

// SAFETY: the slab owns its memory; who writes where is settled by the schedule, which was checked.
unsafe impl Send for Slab {}
// SAFETY: as above; shared access hands out raw pointers only.
unsafe impl Sync for Slab {}

impl Slab {
    /// Allocates `bytes`.
    pub fn new(bytes: Bytes) -> Result<Slab, SlabError> {
        let size = usize::try_from(bytes.0).map_err(|_| SlabError(bytes))?.max(1);
        let layout = Layout::from_size_align(size, HUGE_PAGE).map_err(|_| SlabError(bytes))?;
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(SlabError(bytes))?;
        #[cfg(target_os = "linux")]
        // SAFETY: advice about memory that was just allocated; failure is harmless.
        unsafe {
            libc::madvise(base.as_ptr().cast(), size, libc::MADV_HUGEPAGE);
        }
        Ok(Slab { base, layout, bytes })
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
    /// Where they do not lie in the slab.
    pub fn read(&self, address: u64, len: u64) -> &[u8] {
        self.assert_inside(address, len);
        // SAFETY: inside the slab, which is initialised; `&self` excludes `write`.
        unsafe {
            std::slice::from_raw_parts(self.base.as_ptr().add(address as usize), len as usize)
        }
    }

    /// `len` bytes from `address`, to be written.
    ///
    /// # Panics
    /// Where they do not lie in the slab.
    pub fn write(&mut self, address: u64, len: u64) -> &mut [u8] {
        self.assert_inside(address, len);
        // SAFETY: inside the slab; `&mut self` excludes every other access.
        unsafe {
            std::slice::from_raw_parts_mut(self.base.as_ptr().add(address as usize), len as usize)
        }
    }

    fn assert_inside(&self, address: u64, len: u64) {
        assert!(
            address.checked_add(len).is_some_and(|end| end <= self.bytes.0),
            "bytes {address}..+{len} are outside the slab"
        );
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
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
        assert!(std::panic::catch_unwind(|| slab.read(1, 128).len()).is_err());
        assert!(std::panic::catch_unwind(|| slab.read(u64::MAX, 2).len()).is_err());
    }
}
