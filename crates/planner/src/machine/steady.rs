//! The transfers that repeated steps leave in flight. Invariant: the returned step begins with what
//! it leaves, up to rounding; so it is a step of a run that has reached a steady state.

/// Most steps that are played.
const MOST_STEPS: usize = 256;
/// Steps in a row that must leave more by the same amount before some of them are skipped.
const EVEN: usize = 4;
/// Relative difference, as a fraction of the larger value, that counts as equal.
const ROUNDING: f64 = 1e-12;

/// Plays steps, each beginning with what the one before has left: the times at which the transfers
/// that cross the border arrive, in seconds from the start of the step. `play` returns what it
/// leaves, in the same order, and the result of the step.
///
/// If lanes have a little more to do than a step takes, what is left grows by the same amount from
/// step to step, until a call has to wait for it. Such steps are skipped, ever more at once; if too
/// many were, the next step waits for the excess.
pub fn steady<R>(mut play: impl FnMut(&[f64]) -> (Vec<f64>, R)) -> R {
    let (mut before, mut result) = play(&[]);
    let mut growth: Vec<f64> = Vec::new();
    let (mut even, mut skipped) = (0, 1.0);
    for _ in 1..MOST_STEPS {
        let (left, now) = play(&before);
        result = now;
        if is_same(&left, &before) {
            break;
        }
        let grown: Vec<f64> =
            left.iter().zip(&before).map(|(left, before)| left - before).collect();
        let grows = grown.iter().all(|&grown| grown >= 0.0) && is_same(&grown, &growth);
        even = if grows { even + 1 } else { 0 };
        growth = grown;
        before = left;
        if even >= EVEN {
            let ahead = before.iter().zip(&growth).map(|(before, grown)| before + grown * skipped);
            before = ahead.collect();
            skipped *= 2.0;
            even = 0;
        }
    }
    result
}

fn is_same(these: &[f64], those: &[f64]) -> bool {
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= ROUNDING * a.abs().max(b.abs()).max(1e-9);
    these.len() == those.len() && these.iter().zip(those).all(close)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step of ten seconds with a lane that takes `load`; it waits if more than nine seconds of
    /// work are left.
    fn seconds(load: f64) -> f64 {
        steady(|before| {
            let left = before.first().copied().unwrap_or(0.0);
            let step = 10.0 + (left - 9.0).max(0.0);
            (vec![(left + load - step).max(0.0)], step)
        })
    }

    #[test]
    fn a_lane_that_is_a_little_too_slow_sets_the_pace() {
        for load in [0.0, 5.0, 9.99, 10.0, 10.001, 10.01, 10.25, 11.0, 30.0] {
            let settled = seconds(load);
            assert!((settled - f64::max(10.0, load)).abs() < 1e-9, "{load}: {settled}");
        }
    }
}
