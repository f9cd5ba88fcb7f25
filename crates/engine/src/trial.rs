//! Seconds of a step's calls, measured by running it. Invariant: what is measured are calls of the checked schedule, in
//! its slab and in its order, so caches are as warm or cold as they will be; and they sum to the median step.

use std::collections::BTreeMap;
use std::time::Instant;

use tightfit::graph::{Graph, NodeId};
use tightfit::profile::{CallSeconds, Signature};
use tightfit::units::Seconds;

use crate::data::Dataset;
use crate::program::MeasuredCall;
use crate::session::{Session, SessionError};

/// The version that seconds of calls belong to: kernels change from one to the next.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Most steps of a trial that count.
const MOST: usize = 20;

/// What timed steps took.
#[derive(Clone, Debug, Default)]
pub struct Timings {
    /// Seconds of each step.
    pub steps: Vec<f64>,
    /// Seconds of recomputations, over all steps.
    pub again: f64,
    /// Seconds of first runs, over all steps.
    pub first: f64,
    /// Seconds and number of each node's runs, over all steps.
    pub nodes: BTreeMap<NodeId, (f64, u64)>,
}

impl Timings {
    /// Adds a call.
    pub fn add(&mut self, call: &MeasuredCall) {
        *(if call.again { &mut self.again } else { &mut self.first }) += call.seconds;
        let (seconds, calls) = self.nodes.entry(call.node).or_default();
        *seconds += call.seconds;
        *calls += 1;
    }

    /// Seconds of a step.
    pub fn median(&self) -> Option<f64> {
        let mut steps = self.steps.clone();
        steps.sort_by(f64::total_cmp);
        let (low, high) = (steps.get(steps.len().saturating_sub(1) / 2)?, steps.get(steps.len() / 2)?);
        Some((low + high) / 2.0)
    }

    /// Seconds of recomputations over seconds of all else.
    pub fn overhead(&self) -> Option<f64> {
        (self.first > 0.0).then(|| self.again / self.first)
    }

    /// Seconds of each call: the mean over all that have its signature, times as much as makes the mean step the median
    /// one; so a step that something else disturbed does not count.
    pub fn call_seconds(&self, graph: &Graph, threads: u32) -> CallSeconds {
        let mut table = CallSeconds::new(VERSION, threads);
        let mean = self.steps.iter().sum::<f64>() / self.steps.len() as f64;
        let Some(scale) = self.median().map(|median| median / mean) else { return table };
        let mut sums: BTreeMap<Signature, (f64, u64)> = BTreeMap::new();
        for (&node, &(seconds, calls)) in &self.nodes {
            let sum = sums.entry(Signature::of(graph, node)).or_default();
            *sum = (sum.0 + seconds, sum.1 + calls);
        }
        for (signature, (seconds, calls)) in sums {
            // A call may be over before the clock ticks; that it was measured still counts.
            table.record(signature, Seconds((seconds / calls as f64 * scale).max(1e-9)));
        }
        table
    }
}

/// Runs a step that does not count, since it faults the slab's pages in, and then several more: at least one, and no
/// further one after `limit`.
pub fn trial(session: &mut Session, data: &mut Dataset, limit: Seconds) -> Result<Timings, SessionError> {
    session.step(data)?;
    let mut timings = Timings::default();
    let start = Instant::now();
    while timings.steps.is_empty() || (timings.steps.len() < MOST && start.elapsed().as_secs_f64() < limit.0) {
        let step = Instant::now();
        session.step_timed(data, &mut |call| timings.add(&call))?;
        timings.steps.push(step.elapsed().as_secs_f64());
    }
    Ok(timings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_between_the_middle_steps() {
        let median = |steps: &[f64]| Timings { steps: steps.to_vec(), ..Timings::default() }.median();
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[1.0, 9.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 9.0, 2.0]), Some(3.0));
    }
}
