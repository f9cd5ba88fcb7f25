//! Seconds of a step's calls, measured by running it. Invariant: what is measured are calls of the
//! checked schedule, in its slab and in its order, so caches are as warm or cold as they will be;
//! and they sum to a step that nothing disturbed.

use std::collections::BTreeMap;
use std::time::Instant;

use tightfit::graph::Graph;
use tightfit::id::NodeId;
use tightfit::profile::{CallSeconds, Signature};
use tightfit::timeline::{CallInTime, TransferInTime};
use tightfit::units::Seconds;

use crate::execute::executable::Executed;
use crate::execute::session::{Session, SessionError};
use crate::step::data::Dataset;

/// The version that seconds of calls belong to: kernels change from one to the next.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Fewest and most steps of a trial that count.
const COUNTED: (usize, usize) = (3, 100);

/// What the runs of one node took.
#[derive(Clone, Copy, Debug)]
pub struct NodeTimings {
    /// Seconds of all runs.
    pub seconds: f64,
    /// Seconds of the fastest run.
    pub fastest: f64,
    /// Number of runs.
    pub runs: u64,
}

/// What timed steps took.
#[derive(Clone, Debug, Default)]
pub struct Timings {
    /// Seconds of each step.
    pub steps: Vec<f64>,
    /// Seconds of recomputations, over all steps.
    pub recomputed: f64,
    /// Seconds of first runs, over all steps.
    pub first: f64,
    /// Seconds for which calls waited for transfers, of each step.
    pub stalls: Vec<f64>,
    /// The same of the step that runs.
    stalling: f64,
    /// Each node's runs, over all steps.
    pub nodes: BTreeMap<NodeId, NodeTimings>,
}

impl Timings {
    /// Adds a call or a transfer.
    pub fn add(&mut self, executed: &Executed) {
        let call = match executed {
            Executed::Call(call) => call,
            Executed::Transfer(transfer) => {
                self.stalling += transfer.stall.0;
                return;
            }
        };
        *(if call.recomputed { &mut self.recomputed } else { &mut self.first }) += call.seconds.0;
        let node = self.nodes.entry(call.node).or_insert(NodeTimings {
            seconds: 0.0,
            fastest: f64::INFINITY,
            runs: 0,
        });
        node.seconds += call.seconds.0;
        node.fastest = node.fastest.min(call.seconds.0);
        node.runs += 1;
    }

    /// Ends a step that took so long.
    pub fn end(&mut self, seconds: f64) {
        self.steps.push(seconds);
        self.stalls.push(std::mem::take(&mut self.stalling));
    }

    /// Seconds of a step.
    pub fn median(&self) -> Option<f64> {
        let mut steps = self.steps.clone();
        steps.sort_by(f64::total_cmp);
        let (low, high) =
            (steps.get(steps.len().saturating_sub(1) / 2)?, steps.get(steps.len() / 2)?);
        Some((low + high) / 2.0)
    }

    /// Seconds of recomputations and of waiting over seconds of all else.
    pub fn overhead(&self) -> Option<f64> {
        let stalled: f64 = self.stalls.iter().sum();
        (self.first > 0.0).then(|| (self.recomputed + stalled) / self.first)
    }

    /// Seconds of waiting for transfers in a step, on average.
    pub fn stall(&self) -> Option<f64> {
        let stalled: f64 = self.stalls.iter().sum();
        (!self.steps.is_empty()).then(|| stalled / self.steps.len() as f64)
    }

    /// The calls of a step that nothing disturbed: the lower quartile, since whatever disturbs a
    /// step makes it slower. Waiting for transfers is not the calls' time.
    fn undisturbed(&self) -> Option<f64> {
        let stalls = self.stalls.iter().copied().chain(std::iter::repeat(0.0));
        let mut steps: Vec<f64> =
            self.steps.iter().zip(stalls).map(|(step, stall)| (step - stall).max(0.0)).collect();
        steps.sort_by(f64::total_cmp);
        steps.get(steps.len() / 4).copied()
    }

    /// Seconds of each call: the fastest run of each node, averaged over the nodes that have its
    /// signature, times as much as makes their sum an undisturbed step.
    pub fn call_seconds(&self, graph: &Graph, threads: u32) -> CallSeconds {
        let mut table = CallSeconds::new(VERSION, threads);
        let fastest: f64 = self.nodes.values().map(|node| node.fastest * node.runs as f64).sum();
        let steps = self.steps.len() as f64;
        let Some(scale) = self.undisturbed().map(|step| step * steps / fastest) else {
            return table;
        };
        let mut sums: BTreeMap<Signature, (f64, u64)> = BTreeMap::new();
        for (&id, node) in &self.nodes {
            let sum = sums.entry(Signature::of(graph, id)).or_default();
            *sum = (sum.0 + node.fastest * node.runs as f64, sum.1 + node.runs);
        }
        for (signature, (seconds, runs)) in sums {
            // A call may be over before the clock ticks; that it was measured still counts.
            table.record(signature, Seconds((seconds / runs as f64 * scale).max(1e-9)));
        }
        table
    }
}

/// The calls and transfers of the fastest of several steps. Whatever disturbs a step makes it
/// slower.
#[derive(Clone, Debug, Default)]
pub struct FastestStep {
    calls: Vec<CallInTime>,
    transfers: Vec<TransferInTime>,
    fastest: Option<f64>,
    next: Vec<CallInTime>,
    next_transfers: Vec<TransferInTime>,
}

impl FastestStep {
    /// Adds a call or a transfer of the step that runs.
    pub fn add(&mut self, executed: &Executed) {
        match executed {
            Executed::Call(call) => self.next.push(*call),
            Executed::Transfer(transfer) => self.next_transfers.push(*transfer),
        }
    }

    /// Ends the step that runs; one that does not count only leaves room for the calls of the
    /// others.
    pub fn end(&mut self, counts: bool, seconds: f64) {
        if counts && self.fastest.is_none_or(|fastest| seconds < fastest) {
            self.fastest = Some(seconds);
            std::mem::swap(&mut self.calls, &mut self.next);
            std::mem::swap(&mut self.transfers, &mut self.next_transfers);
        }
        self.next.clear();
        self.next_transfers.clear();
    }

    /// Its transfers, in the order in which they were waited for.
    pub fn transfers(&self) -> &[TransferInTime] {
        &self.transfers
    }

    /// Its calls, in order; `None` where no step counted.
    pub fn calls(&self) -> Option<&[CallInTime]> {
        self.fastest.map(|_| self.calls.as_slice())
    }
}

/// Runs a step that does not count, since it faults the slab's pages in, and then at least three
/// more, but no fourth one after `limit`.
pub fn trial(
    session: &mut Session,
    data: &mut Dataset,
    limit: Seconds,
) -> Result<Timings, SessionError> {
    session.step(data)?;
    let mut timings = Timings::default();
    let start = Instant::now();
    let (least, most) = COUNTED;
    while timings.steps.len() < least
        || (timings.steps.len() < most && start.elapsed().as_secs_f64() < limit.0)
    {
        let step = Instant::now();
        session.step_timed(data, &mut |executed| timings.add(&executed))?;
        timings.end(step.elapsed().as_secs_f64());
    }
    Ok(timings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_disturbed_step_is_no_measure() {
        let undisturbed =
            |steps: &[f64]| Timings { steps: steps.to_vec(), ..Timings::default() }.undisturbed();
        assert_eq!(undisturbed(&[]), None);
        assert_eq!(undisturbed(&[7.0, 1.0, 2.0]), Some(1.0));
        assert_eq!(undisturbed(&[7.0, 1.0, 2.0, 3.0, 2.0]), Some(2.0));
    }

    #[test]
    fn the_fastest_step_that_counts_is_kept() {
        let mut fastest = FastestStep::default();
        assert!(fastest.calls().is_none());
        for (seconds, counts) in [(1.0, false), (3.0, true), (2.0, true), (4.0, true)] {
            fastest.add(&Executed::Call(CallInTime {
                node: NodeId::from_u32(0),
                recomputed: false,
                start: Seconds(0.5),
                seconds: Seconds(seconds),
                held: tightfit::units::Bytes::ZERO,
            }));
            fastest.end(counts, seconds);
        }
        assert_eq!(
            fastest.calls().map(|calls| calls.iter().map(|call| call.seconds.0).collect()),
            Some(vec![2.0])
        );
    }

    #[test]
    fn the_median_lies_between_the_middle_steps() {
        let median =
            |steps: &[f64]| Timings { steps: steps.to_vec(), ..Timings::default() }.median();
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[1.0, 9.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 9.0, 2.0]), Some(3.0));
    }
}
