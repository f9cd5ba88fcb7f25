//! When storages are alive over a sequence of runs. Invariant: an interval starts where its storage
//! is produced and ends at its last access before it is produced again; kept storages live to the
//! end.
//!
//! A sequence may run a node several times: each run of the producer starts a new interval (a
//! rematerialization). A read belongs to the newest interval, except that a kept storage's first
//! interval serves all reads, and copies made by later runs die at once.

use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};

use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::profile::Profile;
use crate::units::Bytes;

/// One life of a storage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IntervalId(u32);
entity_impl!(IntervalId, "interval");

/// From where to where a copy of a storage is alive, in positions of the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The storage.
    pub storage: StorageId,
    /// Position that produces it; `None` = a placeholder, there before the first position.
    pub born: Option<u32>,
    /// Last position that touches it.
    pub dies: u32,
    /// It takes over the memory of this interval, which ends where it starts.
    pub in_place_of: Option<IntervalId>,
}

/// All lives over a sequence.
#[derive(Clone, Debug)]
pub struct Liveness {
    /// The lives, in order of birth.
    pub intervals: PrimaryMap<IntervalId, Interval>,
    /// For each position: the interval of each storage that the node reads, in the order of
    /// [`Graph::reads`].
    pub reads: Vec<Vec<IntervalId>>,
    /// For each position: the interval of each fresh storage, in the order of [`Graph::fresh`].
    pub fresh: Vec<Vec<IntervalId>>,
}

/// Bytes over a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryCurve {
    /// Bytes held while each position runs: inputs, outputs and workspace included.
    pub held: Vec<Bytes>,
    /// The largest of them.
    pub peak: Bytes,
    /// The first position that reaches it.
    pub at: usize,
}

/// Positions, one after another, at which more is held than a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeakInterval {
    /// The first of them.
    pub first: u32,
    /// The last of them.
    pub last: u32,
    /// The first of those at which the most is held.
    pub at: u32,
    /// Bytes held there.
    pub held: Bytes,
}

impl MemoryCurve {
    /// Where more than `limit` is held, in rising order.
    pub fn above(&self, limit: Bytes) -> Vec<PeakInterval> {
        let mut intervals: Vec<PeakInterval> = Vec::new();
        for (at, &held) in (0..).zip(&self.held).filter(|&(_, &held)| held > limit) {
            match intervals.last_mut().filter(|interval| interval.last + 1 == at) {
                Some(interval) => {
                    interval.last = at;
                    if held > interval.held {
                        (interval.at, interval.held) = (at, held);
                    }
                }
                None => intervals.push(PeakInterval { first: at, last: at, at, held }),
            }
        }
        intervals
    }
}

/// The lives of all storages over `runs`, which must produce everything before reading it.
pub fn liveness(graph: &Graph, profile: &Profile, runs: &[NodeId]) -> Liveness {
    let mut intervals: PrimaryMap<IntervalId, Interval> = PrimaryMap::with_capacity(runs.len() * 2);
    let mut current: SecondaryMap<StorageId, Option<IntervalId>> =
        SecondaryMap::with_capacity(graph.storages().len());
    let end = runs.len().saturating_sub(1) as u32;
    for (_, storage) in graph.placeholder_storages() {
        let dies = if graph.is_kept(storage) { end } else { 0 };
        current[storage] =
            Some(intervals.push(Interval { storage, born: None, dies, in_place_of: None }));
    }
    let (mut reads, mut fresh) = (Vec::with_capacity(runs.len()), Vec::with_capacity(runs.len()));
    for (position, &node) in runs.iter().enumerate() {
        let position = position as u32;
        let read: Vec<IntervalId> = graph
            .reads(node)
            .iter()
            .map(|&storage| {
                current[storage].expect("a sequence produces every storage before it is read")
            })
            .collect();
        for &interval in &read {
            intervals[interval].dies = intervals[interval].dies.max(position);
        }
        reads.push(read);
        let made = graph.fresh(node).iter().map(|&storage| {
            let again = current[storage].is_some();
            let kept = graph.is_kept(storage);
            let dies = if kept && !again { end } else { position };
            let interval =
                intervals.push(Interval { storage, born: Some(position), dies, in_place_of: None });
            if !(kept && again) {
                current[storage] = Some(interval);
            }
            interval
        });
        fresh.push(made.collect());
    }
    let mut liveness = Liveness { intervals, reads, fresh };
    if profile.reuse.is_any() {
        reuse_dying_inputs(graph, profile, runs, &mut liveness);
    }
    liveness
}

/// Lets an output take over the memory of an input that dies at the same node, where the operator
/// allows it.
fn reuse_dying_inputs(graph: &Graph, profile: &Profile, runs: &[NodeId], liveness: &mut Liveness) {
    for (position, &node) in runs.iter().enumerate() {
        let Some(&Some(output)) = graph.nodes()[node].outputs.first() else { continue };
        let storage = graph.values()[output].storage;
        let Some(slot) = graph.fresh(node).iter().position(|&s| s == storage) else { continue };
        let made = liveness.fresh[position][slot];
        let taken = profile.overwritable(graph, node).into_iter().find_map(|input| {
            let from = graph.values()[input].storage;
            let slot = graph.reads(node).iter().position(|&s| s == from)?;
            let read = liveness.reads[position][slot];
            let dying = liveness.intervals[read].dies == position as u32 && !graph.is_kept(from);
            (dying && graph.storages()[from] == graph.storages()[storage]).then_some(read)
        });
        liveness.intervals[made].in_place_of = taken;
    }
}

/// The curve of `runs` at once, for planners that ask for many: what [`memory_curve`] says of
/// [`liveness`], without a table of lives where no output may take over an input.
pub fn held(graph: &Graph, profile: &Profile, runs: &[NodeId]) -> MemoryCurve {
    if profile.reuse.is_any() {
        return memory_curve(graph, profile, runs, &liveness(graph, profile, runs));
    }
    // For each storage the last access to its newest copy; nothing before its first run.
    let mut last: SecondaryMap<StorageId, Option<u32>> =
        SecondaryMap::with_capacity(graph.storages().len());
    let mut born = vec![Bytes::ZERO; runs.len() + 1];
    let mut freed = vec![Bytes::ZERO; runs.len() + 1];
    let mut now = Bytes::ZERO;
    for (_, storage) in graph.placeholder_storages() {
        now += graph.storages()[storage];
        last[storage] = Some(0);
    }
    for (position, &node) in runs.iter().enumerate() {
        for &storage in graph.reads(node) {
            last[storage] = Some(position as u32);
        }
        for &storage in graph.fresh(node) {
            let bytes = graph.storages()[storage];
            born[position] += bytes;
            match last[storage] {
                Some(_) if graph.is_kept(storage) => freed[position] += bytes,
                Some(before) => freed[before as usize] += bytes,
                None => {}
            }
            last[storage] = Some(position as u32);
        }
    }
    for (storage, last) in last.iter() {
        if let Some(last) = last.filter(|_| !graph.is_kept(storage)) {
            freed[last as usize] += graph.storages()[storage];
        }
    }
    curve(profile, runs, now, &born, &freed)
}

/// Bytes over `runs`: outputs and workspace are allocated while inputs are still held; what was
/// used for the last time is freed after the node.
pub fn memory_curve(
    graph: &Graph,
    profile: &Profile,
    runs: &[NodeId],
    liveness: &Liveness,
) -> MemoryCurve {
    let mut born = vec![Bytes::ZERO; runs.len() + 1];
    let mut freed = vec![Bytes::ZERO; runs.len() + 1];
    let mut now = Bytes::ZERO;
    let taken_over: Vec<IntervalId> =
        liveness.intervals.values().filter_map(|interval| interval.in_place_of).collect();
    let mut is_taken: SecondaryMap<IntervalId, bool> = SecondaryMap::new();
    for id in taken_over {
        is_taken[id] = true;
    }
    for (id, interval) in &liveness.intervals {
        let bytes = graph.storages()[interval.storage];
        match (interval.born, interval.in_place_of) {
            (_, Some(_)) => {}
            (None, None) => now += bytes,
            (Some(position), None) => born[position as usize] += bytes,
        }
        // What is taken over is not freed: its successor holds the same bytes on.
        if !is_taken[id] {
            freed[interval.dies as usize] += bytes;
        }
    }
    curve(profile, runs, now, &born, &freed)
}

/// Adds up what is born and freed at each position, from `now` on.
fn curve(
    profile: &Profile,
    runs: &[NodeId],
    mut now: Bytes,
    born: &[Bytes],
    freed: &[Bytes],
) -> MemoryCurve {
    let mut held = Vec::with_capacity(runs.len());
    for (position, &node) in runs.iter().enumerate() {
        now += born[position];
        held.push(now + profile.workspace[node]);
        now -= freed[position];
    }
    let (mut peak, mut at) = (now, 0);
    for (position, &bytes) in held.iter().enumerate() {
        if bytes > peak || position == 0 {
            (peak, at) = (bytes, position);
        }
    }
    MemoryCurve { held, peak, at }
}
