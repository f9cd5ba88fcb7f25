//! When storages are alive over a sequence. Invariant: an interval starts where its storage
//! is produced and ends at its last access before it is produced again; kept storages live to the
//! end.
//!
//! A sequence may run a node several times: each run of the producer starts a new interval (a
//! rematerialization). A read belongs to the newest interval, except that a kept storage's first
//! interval serves all reads, and copies made by later runs die at once.
//!
//! A storage that moves is alive on the device until it is released, and again from its prefetch
//! on. The sequence is a cycle: a kept storage is there at its beginning exactly if it is there at
//! its end.

use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};

use crate::analysis::sequence::{Action, Motion, Sequence};
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::profile::Profile;
use crate::units::Bytes;

/// One life of a storage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IntervalId(u32);
entity_impl!(IntervalId, "interval");

/// The positions of the sequence over which a copy of a storage is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The storage.
    pub storage: StorageId,
    /// Position that produces it or before which it is prefetched; `None` = a placeholder, which
    /// exists before the first position.
    pub born: Option<u32>,
    /// Last position at which it is held.
    pub dies: u32,
    /// It takes over the memory of this interval, which ends where it starts.
    pub in_place_of: Option<IntervalId>,
    /// How it ends.
    pub ends: Ends,
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// With its last access.
    LastAccess,
    /// By a move.
    Released,
    /// It does not end: it is alive when the sequence is over.
    Stays,
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
    /// For each placeholder, in the order of [`Graph::placeholder_storages`]: the interval with
    /// which the sequence begins; `None` if it is away then.
    pub placeholders: Vec<Option<IntervalId>>,
    /// For each move: the interval that is copied or ends, or that begins with a prefetch.
    pub moves: Vec<IntervalId>,
    /// Intervals at the end of the sequence paired with those of the same storage at its beginning,
    /// if these differ: together they are one life across the border.
    pub wraps: Vec<(IntervalId, IntervalId)>,
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

/// Consecutive positions at which more is held than a limit.
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
    /// The intervals over which more than `limit` is held, in order.
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

/// The lives of all storages over a sequence. A storage must have been produced where it is read,
/// be on the device where it is read, offloaded or released, and be away where it is prefetched.
pub fn liveness(graph: &Graph, profile: &Profile, sequence: &Sequence) -> Liveness {
    let runs = sequence.runs();
    let mut lives = Lives {
        graph,
        // After the last run there is one more gap to move in.
        end: (runs.len() + usize::from(sequence.has_moves())).saturating_sub(1) as u32,
        intervals: PrimaryMap::with_capacity(runs.len() * 2),
        current: SecondaryMap::with_capacity(graph.storages().len()),
        moved: Vec::new(),
    };
    let placeholders = lives.begin(sequence);
    let (mut reads, mut fresh) = (Vec::with_capacity(runs.len()), Vec::with_capacity(runs.len()));
    let mut position = 0;
    for action in sequence.actions() {
        match *action {
            Action::Run(node) => {
                reads.push(lives.read(node, position));
                fresh.push(lives.make(node, position));
                position += 1;
            }
            Action::Move(storage, motion) => lives.move_it(storage, motion, position),
        }
    }
    let Lives { intervals, current, moved, .. } = lives;
    let wraps = graph.placeholder_storages().zip(&placeholders).filter_map(|((_, s), &first)| {
        let (first, last) = (first?, current[s]?);
        (first != last && graph.is_kept(s)).then_some((last, first))
    });
    let wraps = wraps.collect();
    let mut liveness = Liveness { intervals, reads, fresh, placeholders, moves: moved, wraps };
    if profile.reuse.is_any() {
        reuse_dying_inputs(graph, profile, &runs, &mut liveness);
    }
    liveness
}

/// The lives so far.
struct Lives<'a> {
    graph: &'a Graph,
    /// The position up to which storages that stay are held.
    end: u32,
    intervals: PrimaryMap<IntervalId, Interval>,
    /// The life to which reads of a storage currently belong.
    current: SecondaryMap<StorageId, Option<IntervalId>>,
    moved: Vec<IntervalId>,
}

impl Lives<'_> {
    fn enter(&mut self, storage: StorageId, born: Option<u32>, stays: bool) -> IntervalId {
        let (dies, ends) = match stays {
            true => (self.end, Ends::Stays),
            false => (born.unwrap_or(0), Ends::LastAccess),
        };
        self.intervals.push(Interval { storage, born, dies, in_place_of: None, ends })
    }

    /// The lives that exist before the first position: placeholders whose first move is not a
    /// prefetch.
    fn begin(&mut self, sequence: &Sequence) -> Vec<Option<IntervalId>> {
        let mut first: SecondaryMap<StorageId, Option<Motion>> = SecondaryMap::new();
        for next in sequence.moves() {
            first[next.storage].get_or_insert(next.motion);
        }
        let graph = self.graph;
        let begin = |(_, storage)| {
            let is_kept = graph.is_kept(storage);
            let is_away = first[storage] == Some(Motion::Prefetch) && is_kept;
            self.current[storage] = (!is_away).then(|| self.enter(storage, None, is_kept));
            self.current[storage]
        };
        graph.placeholder_storages().map(begin).collect()
    }

    fn here(&self, storage: StorageId) -> IntervalId {
        self.current[storage].expect("a sequence brings every storage before it is read")
    }

    /// A move before the run at `before`.
    fn move_it(&mut self, storage: StorageId, motion: Motion, before: u32) {
        let interval = match motion {
            Motion::Offload => self.here(storage),
            Motion::Release => {
                let interval = self.here(storage);
                let life = &mut self.intervals[interval];
                life.dies = before.saturating_sub(1).max(life.born.unwrap_or(0));
                life.ends = Ends::Released;
                self.current[storage] = None;
                interval
            }
            Motion::Prefetch => {
                let interval = self.enter(storage, Some(before), self.graph.is_kept(storage));
                self.current[storage] = Some(interval);
                interval
            }
        };
        self.moved.push(interval);
    }

    fn read(&mut self, node: NodeId, position: u32) -> Vec<IntervalId> {
        let read = self.graph.reads(node).iter().map(|&storage| self.here(storage));
        let read: Vec<IntervalId> = read.collect();
        for &interval in &read {
            let life = &mut self.intervals[interval];
            life.dies = life.dies.max(position);
        }
        read
    }

    fn make(&mut self, node: NodeId, position: u32) -> Vec<IntervalId> {
        let graph = self.graph;
        let make = |&storage: &StorageId| {
            let again = self.current[storage].is_some();
            let kept = graph.is_kept(storage);
            let interval = self.enter(storage, Some(position), kept && !again);
            if !(kept && again) {
                self.current[storage] = Some(interval);
            }
            interval
        };
        graph.fresh(node).iter().map(make).collect()
    }
}

/// Lets an output take over the memory of an input that dies at the same node, if the operator
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
            let life = &liveness.intervals[read];
            let is_last = life.dies == position as u32 && life.ends == Ends::LastAccess;
            let dying = is_last && !graph.is_kept(from);
            (dying && graph.storages()[from] == graph.storages()[storage]).then_some(read)
        });
        liveness.intervals[made].in_place_of = taken;
    }
}

/// The curve of a sequence directly, for planners that need many: the same as [`memory_curve`] of
/// [`liveness`], without a table of lives if nothing moves and no output may take over an input.
pub fn held(graph: &Graph, profile: &Profile, sequence: &Sequence) -> MemoryCurve {
    if profile.reuse.is_any() || sequence.has_moves() {
        return memory_curve(graph, profile, sequence, &liveness(graph, profile, sequence));
    }
    let runs = &sequence.runs()[..];
    // For each storage the last access to its newest copy; `None` before its first run.
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

/// Bytes over a sequence: outputs and workspace are allocated while inputs are still held; what was
/// used for the last time is freed after the node.
pub fn memory_curve(
    graph: &Graph,
    profile: &Profile,
    sequence: &Sequence,
    liveness: &Liveness,
) -> MemoryCurve {
    let runs = &sequence.runs()[..];
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
        // An interval that is taken over is not freed: its successor goes on holding the same
        // bytes.
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
    let (mut peak, mut at) = (Bytes::ZERO, 0);
    for (position, &bytes) in held.iter().enumerate() {
        if bytes > peak || position == 0 {
            (peak, at) = (bytes, position);
        }
    }
    // What was prefetched after the last run counts, too.
    now += born[runs.len()];
    if now > peak {
        (peak, at) = (now, runs.len().saturating_sub(1));
    }
    MemoryCurve { held, peak, at }
}
