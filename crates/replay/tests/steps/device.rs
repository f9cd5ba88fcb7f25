//! A device in a test. Invariant: it panics if the allocator gives back what it was not given.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::rc::Rc;

use tightfit_replay::{Address, Allocator, Backing, OutOfMemory, Size, Stream, Thread};

/// The step's own thread and stream.
pub const OWN: (Thread, Stream) = (Thread(1), Stream(7));
/// Another thread.
pub const OTHER: (Thread, Stream) = (Thread(2), Stream(7));

/// Blocks that were given out: where each begins, and its size.
pub type Out = Rc<RefCell<BTreeMap<usize, usize>>>;

/// A device with this many bytes, which never gives out an address twice.
pub struct Table {
    pub out: Out,
    next: usize,
    left: usize,
}

impl Backing for Table {
    fn allocate(&mut self, size: Size) -> Result<Address, OutOfMemory> {
        let left = self.left.checked_sub(size.0);
        self.left = left.ok_or_else(|| OutOfMemory("the table is full".to_string()))?;
        let begin = self.next;
        self.next += size.0.next_multiple_of(512) + 512;
        self.out.borrow_mut().insert(begin, size.0);
        Ok(address(begin))
    }

    fn free(&mut self, address: Address, size: Size) {
        assert_eq!(self.out.borrow_mut().remove(&address.0.get()), Some(size.0));
        self.left += size.0;
    }
}

pub fn address(place: usize) -> Address {
    Address(NonZeroUsize::new(place).unwrap())
}

/// An allocator over a device of one gibibyte, and the blocks given out.
pub fn allocator() -> (Allocator<Table>, Out) {
    let out = Out::default();
    let table = Table { out: Rc::clone(&out), next: 1 << 20, left: 1 << 30 };
    (Allocator::new(table), out)
}
