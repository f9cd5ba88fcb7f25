//! Where memory comes from. Invariant: what a backing gives out is its caller's alone, until the
//! caller gives it back with the size that was requested.

use std::num::NonZeroUsize;

use thiserror::Error;

/// An address in the memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub NonZeroUsize);

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub usize);

impl Size {
    /// No bytes.
    pub const ZERO: Size = Size(0);

    /// The sum, or the largest size if it would be larger.
    pub fn plus(self, other: Size) -> Size {
        Size(self.0.saturating_add(other.0))
    }

    /// The difference, or zero if the other is larger.
    pub fn minus(self, other: Size) -> Size {
        Size(self.0.saturating_sub(other.0))
    }
}

/// The error of a backing that has no more memory, with its own description.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct OutOfMemory(pub String);

/// The raw memory of a device.
pub trait Backing {
    /// This many bytes, at least one.
    fn allocate(&mut self, size: Size) -> Result<Address, OutOfMemory>;

    /// Takes back what [`Backing::allocate`] gave out for this size.
    fn free(&mut self, address: Address, size: Size);
}
