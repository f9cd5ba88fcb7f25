//! Seconds of a step's calls, measured by running it. Invariant: the measured calls are those of
//! the checked schedule, in its slab and in its order, so caches are as warm or cold as they will
//! be; and they sum to a step that nothing disturbed.

use std::collections::BTreeMap;
use std::time::Instant;

use tightfit::graph::Graph;
use tightfit::id::{NodeId, TransferId};
use tightfit::profile::{CallSeconds, Profile, Signature};
use tightfit::schedule::{Instruction, Schedule};
use tightfit::timeline::{CallInTime, TransferInTime};
use tightfit::units::Seconds;

use crate::execute::error::SessionError;
use crate::execute::executable::Executed;
use crate::execute::session::Session;
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

/// Measurements of timed steps.
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
    /// Number of observations of each transfer, and its seconds over all steps.
    pub transfers: BTreeMap<TransferId, (u64, f64)>,
}

impl Timings {
    /// Adds a call, a transfer, or the time for which a call waited for what it needs.
    pub fn add(&mut self, executed: &Executed) {
        let call = match executed {
            Executed::Call(call) => call,
            Executed::Transfer(transfer) => {
                self.stalling += transfer.stall.0;
                let seen = self.transfers.entry(transfer.id).or_default();
                *seen = (seen.0 + 1, seen.1 + transfer.seconds.0);
                return;
            }
            Executed::Layout(seconds) | Executed::End(seconds) => {
                self.stalling += seconds.0;
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

    /// Ends a step that took this many seconds.
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

    /// Seconds of recomputations and of waiting, divided by seconds of everything else.
    pub fn overhead(&self) -> Option<f64> {
        let stalled: f64 = self.stalls.iter().sum();
        (self.first > 0.0).then(|| (self.recomputed + stalled) / self.first)
    }

    /// Seconds of waiting for transfers in a step, on average.
    pub fn stall(&self) -> Option<f64> {
        let stalled: f64 = self.stalls.iter().sum();
        (!self.steps.is_empty()).then(|| stalled / self.steps.len() as f64)
    }

    /// Seconds of the calls of an undisturbed step: the lower quartile, since a disturbance only
    /// makes a step slower. Waiting for transfers does not count.
    fn undisturbed(&self) -> Option<f64> {
        let stalls = self.stalls.iter().copied().chain(std::iter::repeat(0.0));
        let mut steps: Vec<f64> =
            self.steps.iter().zip(stalls).map(|(step, stall)| (step - stall).max(0.0)).collect();
        steps.sort_by(f64::total_cmp);
        steps.get(steps.len() / 4).copied()
    }

    /// How much slower an undisturbed step is than the sum of each node's fastest run.
    fn scale(&self) -> Option<f64> {
        let fastest: f64 = self.nodes.values().map(|node| node.fastest * node.runs as f64).sum();
        let steps = self.steps.len() as f64;
        self.undisturbed().map(|step| step * steps / fastest).filter(|scale| scale.is_finite())
    }

    /// Seconds of each call: the fastest run of each node, averaged over the nodes that have its
    /// signature, scaled such that they sum to an undisturbed step.
    pub fn call_seconds(&self, graph: &Graph, threads: u32) -> CallSeconds {
        let mut table = CallSeconds::new(VERSION, threads);
        let Some(scale) = self.scale() else { return table };
        let mut sums: BTreeMap<Signature, (f64, u64)> = BTreeMap::new();
        for (&id, node) in &self.nodes {
            let sum = sums.entry(Signature::of(graph, id)).or_default();
            *sum = (sum.0 + node.fastest * node.runs as f64, sum.1 + node.runs);
        }
        for (signature, (seconds, runs)) in sums {
            // A call may end before the clock ticks; that it was measured still counts.
            table.record(signature, Seconds((seconds / runs as f64 * scale).max(1e-9)));
        }
        table
    }

    /// The costs of a graph, with measurements in place of estimates: each node's own fastest run,
    /// scaled as in [`Timings::call_seconds`], and the mean rate of each lane over the transfers of
    /// `schedule`, which ran. What was not measured stays as estimated. Workspaces are those of the
    /// operator table: a kernel is given these bytes and has no others.
    pub fn profile(&self, estimated: &Profile, schedule: &Schedule) -> Profile {
        let mut profile = estimated.clone();
        if let Some(scale) = self.scale() {
            for (&node, timings) in &self.nodes {
                // A call may end before the clock ticks.
                profile.seconds[node] = Seconds((timings.fastest * scale).max(1e-9));
            }
        }
        for (lane, known) in profile.hierarchy.lanes.iter_mut() {
            let (mut bytes, mut seconds) = (0.0, 0.0);
            for instruction in &schedule.instructions {
                let Instruction::Start(transfer) = instruction else { continue };
                let seen = self.transfers.get(&transfer.id).filter(|_| transfer.lane == lane);
                let Some(&(count, all)) = seen else { continue };
                let [from, _] = transfer.movement.buffers();
                bytes += schedule.buffers[from].bytes.0 as f64 * count as f64;
                // A transfer takes its latency, and some time for its bytes.
                seconds += (all - known.link.latency.0 * count as f64).max(all / 2.0);
            }
            let rate = bytes / seconds;
            if rate.is_finite() && rate > 0.0 {
                known.link.bandwidth = rate;
            }
        }
        profile
    }
}

/// The calls and transfers of the fastest of several steps. A disturbance only makes a step slower.
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
            Executed::Layout(_) | Executed::End(_) => {}
        }
    }

    /// Ends the step that runs; one that does not count only reserves memory for the calls of the
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

    /// Its calls, in order; `None` if no step counted.
    pub fn calls(&self) -> Option<&[CallInTime]> {
        self.fastest.map(|_| self.calls.as_slice())
    }
}

/// Runs a step that does not count, since it faults the slab's pages in, and then at least three
/// more, but does not start a fourth after `limit`.
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
    use tightfit::graph::{GraphBuilder, NodeSpec, Phase, ValueSpec};
    use tightfit::id::{DEVICE, LaneId, TierId};
    use tightfit::machine::{Link, Machine, Tier};
    use tightfit::schedule::{Buffer, Movement, Transfer};
    use tightfit::tensor::DType;
    use tightfit::units::Bytes;
    use tightfit::unplanned;

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
    fn what_was_measured_replaces_what_was_estimated() {
        let mut graph = GraphBuilder::new("three");
        let mut node = |name: &str, phase, inputs: &[_]| {
            let storage = graph.storage(Bytes(64));
            let op = if inputs.is_empty() { "placeholder" } else { name };
            let spec = NodeSpec { inputs: inputs.to_vec(), ..NodeSpec::new(name, op, phase) };
            graph.node(spec, &[Some(ValueSpec::contiguous(&[16], DType::F32, storage))])[0]
        };
        let x = node("x", Phase::Input, &[]);
        let a = node("a", Phase::Forward, &[x]);
        let b = node("b", Phase::Forward, &[a]);
        graph.output(b);
        let graph = graph.build().unwrap();
        let mut machine = Machine::unmeasured_cpu(1);
        let link = |bandwidth| Link { latency: Seconds(0.5), bandwidth };
        let tier = Tier { name: "disk".to_string(), capacity: None, block: Bytes(1) };
        machine.hierarchy.add(tier, link(1.0), link(2.0));
        let estimated = Profile::new(&graph, &machine);
        let order = graph.compute_nodes();
        let mut schedule = unplanned(&graph, &estimated).unwrap().schedule().clone();
        let [from, to] = [DEVICE, TierId::from_u32(1)]
            .map(|tier| schedule.buffers.push(Buffer { bytes: Bytes(64), address: 0, tier }));
        let (id, lane) = (TransferId::from_u32(0), LaneId::from_u32(0));
        let movement = Movement::Copy { from, to };
        schedule.instructions.push(Instruction::Start(Transfer { id, lane, movement }));

        let mut timings = Timings::default();
        let call = |node, seconds| {
            let (start, held) = (Seconds(0.0), Bytes::ZERO);
            let seconds = Seconds(seconds);
            Executed::Call(CallInTime { node, recomputed: false, start, seconds, held })
        };
        for slower in [1.0, 3.0, 1.0] {
            timings.add(&call(order[0], 2.0 * slower));
            timings.add(&call(order[1], 4.0 * slower));
            let (start, seconds, stall) = (Seconds(0.0), Seconds(16.5), Seconds(1.0));
            timings.add(&Executed::Transfer(TransferInTime { id, lane, start, seconds, stall }));
            // A second between the calls, and one of waiting.
            timings.end(6.0 * slower + 2.0);
        }
        let measured = timings.profile(&estimated, &schedule);
        let seconds = |node| measured.seconds[node].0;
        // An undisturbed step takes 7 s without its waiting, of which the calls' fastest are 6.
        assert!((seconds(order[0]) - 2.0 * 7.0 / 6.0).abs() < 1e-12, "{}", seconds(order[0]));
        assert!((seconds(order[1]) - 4.0 * 7.0 / 6.0).abs() < 1e-12, "{}", seconds(order[1]));
        let rates = measured.hierarchy.lanes.values().map(|lane| lane.link.bandwidth);
        assert_eq!(rates.collect::<Vec<_>>(), [4.0, 2.0]);
        assert_eq!(measured.workspace, estimated.workspace);
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
                held: Bytes::ZERO,
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
