//! Slices of a dimension. Invariant: limits beyond the extent are clamped to it, as in ATen.

use crate::operator::call::{TypedCall, Unsuited};

/// The elements of a dimension that a slice takes.
pub struct Slice {
    /// The first one.
    pub start: u64,
    /// The number of elements.
    pub count: u64,
    /// The distance from one to the next.
    pub step: u64,
}

/// Start, end and step as arguments `first`, `first + 1` and `first + 2`, within `extent`.
pub fn limits(call: &TypedCall<'_>, first: usize, extent: u64) -> Result<Slice, Unsuited> {
    let within = |limit: i64| {
        let limit = if limit < 0 { limit.saturating_add_unsigned(extent) } else { limit };
        u64::try_from(limit).unwrap_or(0).min(extent)
    };
    let start = call.optional_integer(first, "start")?.map_or(0, within);
    let end = call.optional_integer(first + 1, "end")?.map_or(extent, within);
    let step = call.optional_integer(first + 2, "step")?.unwrap_or(1);
    let Some(step) = u64::try_from(step).ok().filter(|&step| step > 0) else {
        return Err(Unsuited::Shapes(format!("a slice with step {step}")));
    };
    Ok(Slice { start, count: end.saturating_sub(start).div_ceil(step), step })
}
