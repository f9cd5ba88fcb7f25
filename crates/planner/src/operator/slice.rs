//! Slices of a dimension. Invariant: limits beyond the extent are the extent, as in ATen.

use crate::operator::call::{TypedCall, Unsuited};

/// Which elements of a dimension a slice takes.
pub struct Slice {
    /// The first one.
    pub start: u64,
    /// How many.
    pub count: u64,
    /// From one to the next.
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
