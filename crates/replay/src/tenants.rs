//! What lies in the slab. Invariant: no two tenants overlap.

use std::collections::BTreeMap;

use crate::backing::Size;

/// A place in the slab, in bytes from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offset(pub usize);

/// Ranges of the slab that are held.
#[derive(Debug, Default)]
pub struct Tenants {
    sizes: BTreeMap<Offset, Size>,
    held: Size,
}

/// A range that is held already, or whose end cannot be represented.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken;

impl Tenants {
    /// Takes a range, if no part of it is held.
    pub fn claim(&mut self, offset: Offset, size: Size) -> Result<(), Taken> {
        let end = offset.0.checked_add(size.0).ok_or(Taken)?;
        let below = self.sizes.range(..=offset).next_back();
        if below.is_some_and(|(start, size)| start.0 + size.0 > offset.0) {
            return Err(Taken);
        }
        if self.sizes.range(offset..).next().is_some_and(|(start, _)| start.0 < end) {
            return Err(Taken);
        }
        self.sizes.insert(offset, size);
        self.held = self.held.plus(size);
        Ok(())
    }

    /// Takes back the range that begins here, if there is one.
    pub fn release(&mut self, offset: Offset) -> Option<Size> {
        let size = self.sizes.remove(&offset)?;
        self.held = self.held.minus(size);
        Some(size)
    }

    /// The total bytes of all ranges.
    pub fn held(&self) -> Size {
        self.held
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected results come from a table of single bytes.
    #[test]
    fn claims_succeed_exactly_where_every_byte_is_free() {
        const BYTES: usize = 9;
        for (first, first_size, second, second_size) in (0..BYTES * BYTES * 16)
            .map(|case| (case / 16 / BYTES, case / 4 % 4 + 1, case / 16 % BYTES, case % 4 + 1))
        {
            let mut tenants = Tenants::default();
            assert_eq!(tenants.claim(Offset(first), Size(first_size)), Ok(()));
            let bytes: Vec<usize> = (first..first + first_size).collect();
            let is_free = (second..second + second_size).all(|byte| !bytes.contains(&byte));
            assert_eq!(tenants.claim(Offset(second), Size(second_size)).is_ok(), is_free);
            assert_eq!(tenants.release(Offset(first)), Some(Size(first_size)));
            assert_eq!(tenants.release(Offset(first)), None);
            assert_eq!(tenants.is_empty(), !is_free);
        }
    }

    #[test]
    fn a_range_that_has_no_end_is_refused() {
        let mut tenants = Tenants::default();
        assert_eq!(tenants.claim(Offset(1), Size(usize::MAX)), Err(Taken));
        assert!(tenants.is_empty());
    }
}
