//! Slices around the calls of a trace: phases, and in them modules and their parts, so that a
//! viewer shows calls nested. Invariant: slices of a lane are nested or disjoint, and the outer one
//! comes first.

use tightfit::units::Seconds;

use crate::trace::TracedCall;

/// The category of these events.
pub const CATEGORY: &str = "within";

/// Calls that follow each other on one lane within one phase, or one module of it.
pub struct Slice<'a> {
    /// The phase, or the last part of the module's path.
    pub name: &'a str,
    /// On the lane of recomputations.
    pub recomputed: bool,
    /// When the first call begins.
    pub start: Seconds,
    /// When the last call ends.
    pub end: Seconds,
}

/// The slices of both lanes.
pub fn slices(calls: &[TracedCall]) -> Vec<Slice<'_>> {
    let mut slices: Vec<Slice> = Vec::new();
    for recomputed in [false, true] {
        // For each open slice its name and its index among the slices.
        let mut open: Vec<(&str, usize)> = Vec::new();
        for call in calls.iter().filter(|call| call.recomputed == recomputed) {
            let parts = call.module.split('.').filter(|part| !part.is_empty());
            let path: Vec<&str> = std::iter::once(call.phase.as_str()).chain(parts).collect();
            let shared = open.iter().zip(&path).take_while(|((a, _), b)| a == *b).count();
            open.truncate(shared);
            for &name in &path[shared..] {
                open.push((name, slices.len()));
                let (start, end) = (call.start, call.start);
                slices.push(Slice { name, recomputed, start, end });
            }
            for &(_, place) in &open {
                slices[place].end = call.start + call.seconds;
            }
        }
    }
    slices
}
