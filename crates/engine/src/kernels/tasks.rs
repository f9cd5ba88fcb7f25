//! Cutting work into tasks. Invariant: how work is divided among tasks depends on the work alone,
//! not on the number of threads.

use rayon::prelude::*;

use crate::kernels::nest::SERIAL;
use crate::kernels::parts::Parts;

/// Calls `body` for each of `count` parts of `weight` elements each, on worker threads if that
/// pays.
pub(super) fn for_each(count: usize, weight: usize, body: impl Fn(usize) + Sync) {
    let parts = Parts::default();
    let body = |part: usize| parts.run(part, || body(part));
    if count.saturating_mul(weight) < SERIAL {
        (0..count).for_each(body);
        return;
    }
    let group = (SERIAL / 4).div_ceil(weight.max(1)).max(1);
    (0..count.div_ceil(group)).into_par_iter().for_each(|task| {
        for part in task * group..((task + 1) * group).min(count) {
            body(part);
        }
    });
}
