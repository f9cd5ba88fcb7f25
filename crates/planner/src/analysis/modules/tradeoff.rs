//! The cost of checkpointing one module: seconds run again over bytes not kept. Invariant: every
//! point of a curve is a set of operators that can be discarded; the segments are exact where one
//! begins or ends, and no set of operators lies below them, except within the last thousandth,
//! where steep segments are replaced by one above them.
//!
//! Source of the operators: PyTorch, `torch/distributed/_tools/sac_estimator.py`. Its fit with
//! random starts is replaced by the lower convex hull: `doc/theory/tradeoff.md`.

use crate::analysis::modules::{ModuleIndex, Segment, TradeoffCurve};
use crate::analysis::{Dataflow, DisjointSets};
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// Slope of the segment that replaces steeper ones: the last bytes of a curve, a thousandth of it
/// at most, that take long to make are nothing that a plan could aim for, and unbounded slopes ruin
/// every solver.
const STEEPEST: f64 = 1e3;

/// Operators that are discarded together or not at all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// The operators, in program order.
    pub nodes: Vec<NodeId>,
    /// Bytes that discarding them frees.
    pub bytes: Bytes,
    /// Seconds of running them again.
    pub seconds: Seconds,
}

/// The operators of a module's forward pass, as far as checkpointing is concerned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Groups {
    /// The groups that may be discarded, in program order.
    pub groups: Vec<Group>,
    /// Seconds that run again whatever is discarded, for the outputs that leave the module.
    pub always: Seconds,
}

/// What checkpointing a module can free, and what it costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tradeoff {
    /// Bytes of everything that its operators make and that stays within it.
    pub bytes: Bytes,
    /// Seconds of everything that may run again.
    pub seconds: Seconds,
    /// Share of the seconds as a function of the share of the bytes.
    pub curve: TradeoffCurve,
}

impl TradeoffCurve {
    /// The point used to discard a ratio of at least `ratio`: the next point that operators reach.
    /// Its cost is an upper bound of the cheapest way; the segments at `ratio` are a lower one.
    pub fn realised(&self, ratio: f64) -> Option<(f64, f64)> {
        self.points.iter().copied().find(|&(discarded, _)| discarded >= ratio)
    }
}

/// The operators of a module, given its forward nodes that run, in program order. `None` if they
/// cannot run again: something that they read from outside is overwritten later.
///
/// Views are made again at no cost and are not operators here. Nodes that read or write a storage
/// before it is overwritten are discarded with the node that made it; nodes that draw random
/// numbers are discarded together. An output that leaves the module is not discarded. If a node of
/// the module reads it and the backward pass, which would keep it, does not, the node that makes
/// it, and those that write into it, run again whatever is discarded.
pub fn groups(
    graph: &Graph,
    profile: &Profile,
    flow: &Dataflow,
    module: ModuleIndex,
    forward: &[NodeId],
) -> Option<Groups> {
    let mut together = DisjointSets::new(forward.len());
    let mut first_random = None;
    for (index, &id) in forward.iter().enumerate() {
        if graph.nodes()[id].random {
            together.join(*first_random.get_or_insert(index), index);
        }
        for value in graph.nodes()[id].inputs.iter().map(|&value| &graph.values()[value]) {
            let maker = graph.producer(value.storage)?;
            // Parameters and buffers are written after the backward pass, or by updates, which do
            // not run again.
            if value.version == flow.readers[value.storage].version
                || graph.nodes()[maker].phase.is_persistent()
            {
                continue;
            }
            together.join(forward.binary_search(&maker).ok()?, index);
        }
    }
    let mut read: Vec<StorageId> =
        forward.iter().flat_map(|&id| graph.reads(id)).copied().collect();
    read.sort_unstable();
    let leaves = |storage: StorageId| !flow.stays(graph, module, storage);
    let needed_again = |&storage: &StorageId| {
        leaves(storage) && !flow.readers[storage].backward && read.binary_search(&storage).is_ok()
    };
    let mut groups = vec![Group::default(); forward.len()];
    let mut always = Seconds(0.0);
    for (index, &id) in forward.iter().enumerate() {
        let group = &mut groups[together.head(index)];
        let discarded = graph.fresh(id).iter().filter(|&&storage| !leaves(storage));
        group.nodes.push(id);
        group.bytes += discarded.map(|&storage| graph.storages()[storage]).sum();
        let mut written = graph.fresh(id).iter().chain(graph.mutated(id));
        let seconds = if written.any(needed_again) { &mut always } else { &mut group.seconds };
        *seconds = *seconds + profile.seconds[id];
    }
    groups.retain(|group| group.bytes > Bytes::ZERO);
    Some(Groups { groups, always })
}

/// Bytes and seconds of several groups.
#[derive(Clone, Copy)]
struct Sum {
    bytes: Bytes,
    seconds: Seconds,
}

impl Sum {
    /// As a quotient: comparing two groups by crosswise products rounds so that it does not even
    /// order three of them consistently.
    fn seconds_per_byte(&self) -> f64 {
        self.seconds.0 / self.bytes.0 as f64
    }
}

/// The curve over all sets of operators: most bytes per second first, ties in program order.
pub fn tradeoff(all: &Groups) -> Tradeoff {
    let mut groups: Vec<Sum> =
        all.groups.iter().map(|group| Sum { bytes: group.bytes, seconds: group.seconds }).collect();
    groups.sort_by(|a, b| a.seconds_per_byte().total_cmp(&b.seconds_per_byte()));
    let mut done = vec![Sum { bytes: Bytes::ZERO, seconds: all.always }];
    let mut corners = done.clone();
    for (index, group) in groups.iter().enumerate() {
        let before = done[index];
        done.push(Sum {
            bytes: before.bytes + group.bytes,
            seconds: before.seconds + group.seconds,
        });
        if groups
            .get(index + 1)
            .is_none_or(|next| next.seconds_per_byte() > group.seconds_per_byte())
        {
            corners.push(done[index + 1]);
        }
    }
    let all = done[groups.len()];
    if all.bytes == Bytes::ZERO {
        return Tradeoff::default();
    }
    let share = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
    let ratio = |at: &Sum| share(at.bytes.0 as f64, all.bytes.0 as f64);
    let time = |at: &Sum| share(at.seconds.0, all.seconds.0);
    let slope = |from: &Sum, to: &Sum| {
        share(to.seconds.0 - from.seconds.0, all.seconds.0)
            / share((to.bytes - from.bytes).0 as f64, all.bytes.0 as f64)
    };
    let mut curve = TradeoffCurve {
        points: done.iter().map(|at| (ratio(at), time(at))).collect(),
        ..TradeoffCurve::default()
    };
    for (from, to) in corners.iter().zip(&corners[1..]) {
        let slope = slope(from, to);
        curve.segments.push(Segment { slope, intercept: time(from) - slope * ratio(from) });
    }
    curve.breakpoints = corners.iter().map(ratio).collect();
    blunt(&mut curve);
    Tradeoff { bytes: all.bytes, seconds: all.seconds, curve }
}

/// Replaces all segments steeper than [`STEEPEST`] by one segment of that slope, which ends where
/// the curve does.
fn blunt(curve: &mut TradeoffCurve) {
    let Some(steep) = curve.segments.iter().position(|segment| segment.slope > STEEPEST) else {
        return;
    };
    // A slope comes only from seconds, and all of them are spent at the end.
    let last = Segment { slope: STEEPEST, intercept: 1.0 - STEEPEST };
    curve.segments.truncate(steep);
    while let Some(kept) = curve.segments.last() {
        let meet = (kept.intercept - last.intercept) / (last.slope - kept.slope);
        curve.breakpoints.truncate(curve.segments.len());
        if curve.breakpoints.last().is_none_or(|&start| start <= meet) {
            curve.breakpoints.extend([meet, 1.0]);
            break;
        }
        curve.segments.pop();
    }
    curve.segments.push(last);
}
