//! Reading external files. Invariant: no bytes whatever make a reader hold more than its limits and
//! what it has accepted so far; anything beyond is refused where it begins, unread.

mod bytes;
mod json;

pub(crate) use bytes::{BoundedText, Within};
pub use bytes::{Excess, excess, in_full};
pub use json::{AtMost, Bounded, Each, Object, Table, Text};
pub(crate) use json::{Parts, format_of};
