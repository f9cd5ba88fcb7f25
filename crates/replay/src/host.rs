//! The memory of this computer. Invariant: blocks are aligned to a cache line, as PyTorch's own
//! allocator aligns them.

use std::alloc::{Layout, alloc, dealloc};
use std::num::NonZeroUsize;

use crate::backing::{Address, Backing, OutOfMemory, Size};

const ALIGNMENT: usize = 64;

/// The memory of this computer.
#[derive(Debug, Default)]
pub struct Host;

impl Backing for Host {
    fn allocate(&mut self, size: Size) -> Result<Address, OutOfMemory> {
        let refused = || OutOfMemory("this computer has no block of that size".to_string());
        let layout = layout(size).ok_or_else(refused)?;
        // SAFETY: the layout is of at least one byte.
        let block = unsafe { alloc(layout) };
        NonZeroUsize::new(block.expose_provenance()).map(Address).ok_or_else(refused)
    }

    fn free(&mut self, address: Address, size: Size) {
        let Some(layout) = layout(size) else { return };
        let block = std::ptr::with_exposed_provenance_mut(address.0.get());
        // SAFETY: the allocator gives back once, with its size, what `allocate` gave out for it.
        unsafe { dealloc(block, layout) }
    }
}

fn layout(size: Size) -> Option<Layout> {
    let layout = Layout::from_size_align(size.0, ALIGNMENT).ok()?;
    (layout.size() > 0).then_some(layout)
}
