//! When storages lie idle: from one access to the next. Invariant: a storage that is away over an
//! interval is not read during it; persistent storages also lie idle across the border between
//! steps.
//!
//! After the runs of a step there is one more position: its end, where outputs are accessed.

use std::collections::BTreeMap;

use cranelift_entity::SecondaryMap;

use crate::analysis::{liveness, memory_curve};
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::machine::Route;
use crate::plan::quantity::ByteCount;
use crate::profile::Profile;
use crate::tuning::offload::PERSISTENT;
use crate::units::Bytes;

/// A storage that is not accessed for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Idle {
    pub storage: StorageId,
    pub bytes: ByteCount,
    /// The group of its storage.
    pub group: u32,
    /// The position of the access before the interval.
    pub last: u32,
    /// The position of the access after it, counted on into the next step.
    pub next: u32,
    /// The gap after the last preceding write: from there on the contents that leave are final.
    /// Negative if in the step before.
    pub settled: i64,
    /// Seconds of its transfer out, and of the one back.
    pub out: f64,
    pub back: f64,
    /// Seconds of the runs between the two accesses.
    pub seconds: f64,
}

/// A sequence of runs as offloading sees it.
pub(super) struct Course {
    /// Bytes held at each position while nothing is away.
    pub held: Vec<ByteCount>,
    /// Seconds of the runs before each position, and of all.
    pub elapsed: Vec<f64>,
    /// Idle intervals, by storage and then by position.
    pub idle: Vec<Idle>,
    /// The range of idle intervals of each storage: the first, and one past the last.
    pub groups: Vec<(usize, usize)>,
    /// Whether the storage of a group persists from step to step.
    pub is_persistent: Vec<bool>,
    /// Positions at which the storage of a group is overwritten.
    pub written: Vec<Vec<u32>>,
    /// Intervals over which their storages are away in any case.
    pub given: Vec<bool>,
    /// Bytes that the storage of a group takes in the tier.
    pub below: Vec<u64>,
    /// Bytes that the tier holds.
    pub capacity: u64,
}

/// What is already decided about a persistent storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Nothing: it lies where the plan puts it.
    Anywhere,
    /// It never leaves the device.
    Device,
    /// It is away when a step begins.
    Below,
}

struct Access {
    position: u32,
    is_written: bool,
    /// A life begins here, so nothing is idle before it.
    is_made: bool,
}

/// A storage that may leave the device.
struct Movable {
    storage: StorageId,
    bytes: ByteCount,
    home: Home,
    is_persistent: bool,
    /// In order; the last one may be at the end of the step, or counted on into the next.
    accesses: Vec<Access>,
    /// Bytes that are transferred: whole blocks of the tier.
    moved: Bytes,
    /// Seconds of the transfer out, and of the one back.
    out: f64,
    back: f64,
}

impl Movable {
    /// Positions at which it is overwritten, in order.
    fn written(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.accesses.iter().filter(|access| access.is_written).map(|access| access.position)
    }

    /// The gap after the last write before the step's first access: that of the step before if it
    /// persists and is overwritten, otherwise the gap where the step begins.
    fn settled_before(&self, positions: u32) -> i64 {
        match self.written().next_back() {
            Some(position) if self.is_persistent => i64::from(position) + 1 - i64::from(positions),
            Some(_) | None => 0,
        }
    }
}

impl Course {
    /// The course of `runs`; storages smaller than `least` stay where they are, unless `home` says
    /// otherwise; `taken` bytes of the tier are unavailable.
    pub fn new(
        graph: &Graph,
        profile: &Profile,
        runs: &[NodeId],
        route: Route,
        (least, taken): (Bytes, Bytes),
        home: &dyn Fn(StorageId) -> Home,
    ) -> Course {
        let tier = &profile.hierarchy.tiers[route.tier];
        let capacity = tier.capacity.map_or(u64::MAX, |most| most.saturating_sub(taken).0);
        let mut course = Course::without_idle(graph, profile, runs, capacity);
        let block = tier.block.0.max(1);
        let link = |lane| profile.hierarchy.lanes[lane].link;
        let (out, back) = (link(route.out), link(route.back));
        let mut is_output: SecondaryMap<StorageId, bool> = SecondaryMap::new();
        graph.output_storages().for_each(|storage| is_output[storage] = true);
        let positions = course.positions() as u32;
        for (storage, mut accesses) in accesses(graph, runs) {
            let (bytes, home) = (graph.storages()[storage], home(storage));
            let is_small = bytes < least && home != Home::Below;
            if is_small || bytes == Bytes::ZERO || home == Home::Device {
                continue;
            }
            let is_persistent = graph.is_persistent(storage);
            // An output is on the device when a step is over; other persistent storages are when
            // they are read.
            let after = match is_output[storage] {
                true => Some(runs.len() as u32),
                false => is_persistent.then_some(accesses[0].position + positions),
            };
            accesses.extend(after.map(|position| Access {
                position,
                is_written: false,
                is_made: false,
            }));
            let moved = bytes.align_up(block);
            course.add(&Movable {
                storage,
                bytes: ByteCount::of(bytes),
                home,
                is_persistent,
                accesses,
                moved,
                out: out.seconds(moved).0,
                back: back.seconds(moved).0,
            });
        }
        course
    }

    /// The course of `runs`, no idle interval added yet.
    fn without_idle(graph: &Graph, profile: &Profile, runs: &[NodeId], capacity: u64) -> Course {
        let sequence = runs.into();
        let lives = liveness(graph, profile, &sequence);
        let curve = memory_curve(graph, profile, &sequence, &lives);
        let stays = graph.storages().iter().filter(|&(storage, _)| graph.is_kept(storage));
        let stays: Bytes = stays.map(|(_, &bytes)| bytes).sum();
        let mut elapsed = vec![0.0; runs.len() + 1];
        for (position, &node) in runs.iter().enumerate() {
            elapsed[position + 1] = elapsed[position] + profile.seconds[node].0;
        }
        elapsed.push(elapsed[runs.len()]);
        Course {
            held: curve.held.iter().chain([&stays]).map(|&bytes| ByteCount::of(bytes)).collect(),
            elapsed,
            idle: Vec::new(),
            groups: Vec::new(),
            is_persistent: Vec::new(),
            written: Vec::new(),
            given: Vec::new(),
            below: Vec::new(),
            capacity,
        }
    }

    /// Adds the idle intervals of a storage, as a group if there are any.
    fn add(&mut self, movable: &Movable) {
        let &Movable { storage, bytes, home, is_persistent, moved, out, back, .. } = movable;
        let positions = self.positions() as u32;
        let (from, group) = (self.idle.len(), self.groups.len() as u32);
        let mut settled = movable.settled_before(positions);
        for pair in movable.accesses.windows(2) {
            let (last, next) = (pair[0].position, pair[1].position);
            if pair[0].is_written || pair[0].is_made {
                settled = i64::from(last) + 1;
            }
            let is_given = home == Home::Below && next >= positions;
            // The end alone is not long enough to be away.
            let is_idle = last + 1 < next && (last + 2, next) != (positions, positions);
            if is_given || !pair[1].is_made && is_idle {
                let seconds = self.elapsed_at(next) - self.elapsed_at(last + 1);
                let idle = Idle { storage, bytes, group, last, next, settled, out, back, seconds };
                self.idle.push(idle);
                self.given.push(is_given);
            }
        }
        if self.idle.len() > from {
            self.groups.push((from, self.idle.len()));
            self.is_persistent.push(is_persistent);
            self.written.push(movable.written().collect());
            // A storage that is always below has its place already.
            self.below.push(if home == Home::Below { 0 } else { moved.0 });
        }
    }

    /// The number of runs plus one.
    pub fn positions(&self) -> usize {
        self.held.len()
    }

    /// Bytes held at each position if everything chosen is away from access to access.
    pub fn held_without(&self, is_chosen: &[bool]) -> Vec<ByteCount> {
        let mut change = vec![ByteCount::ZERO; self.positions() + 1];
        for (idle, _) in self.idle.iter().zip(is_chosen).filter(|&(_, &is_chosen)| is_chosen) {
            for (from, to) in self.away(idle) {
                change[from] -= idle.bytes;
                change[to] += idle.bytes;
            }
        }
        let mut away = ByteCount::ZERO;
        let held = self.held.iter().zip(change).map(|(&bytes, change)| {
            away += change;
            bytes + away
        });
        held.collect()
    }

    /// Seconds of the runs before a position, counted on into the next step.
    fn elapsed_at(&self, position: u32) -> f64 {
        let (positions, position) = (self.positions(), position as usize);
        self.elapsed[positions] * (position / positions) as f64 + self.elapsed[position % positions]
    }

    /// The longest range of positions over which a storage can be away, in one piece or two: each
    /// as its first position and one past its last.
    pub fn away(&self, idle: &Idle) -> impl Iterator<Item = (usize, usize)> + use<> {
        let end = self.positions();
        let (from, to) = (idle.last as usize + 1, idle.next as usize);
        let pieces = [(from.min(end), to.min(end)), (from.max(end) - end, to.max(end) - end)];
        pieces.into_iter().filter(|(from, to)| from < to)
    }

    /// Seconds of the lanes for an interval, both ways; more for persistent storages, which have
    /// the same address at both ends of a step.
    pub fn burden(&self, index: usize) -> f64 {
        let idle = &self.idle[index];
        let weight = if self.is_persistent[idle.group as usize] { PERSISTENT.get() } else { 1.0 };
        (idle.out + idle.back) * weight
    }

    /// Which of the chosen intervals are written out: those for which the copy left by the
    /// preceding chosen interval is out of date. Both `chosen` and the answer have an entry for
    /// each interval.
    pub fn writes(&self, chosen: &[bool]) -> Vec<bool> {
        let mut writes = vec![false; self.idle.len()];
        let positions = self.positions() as u32;
        for (group, &(from, to)) in self.groups.iter().enumerate() {
            let mine = || (from..to).filter(|&index| chosen[index]);
            let is_persistent = self.is_persistent[group];
            // The copy of the previous step.
            let of_before = |last: usize| i64::from(self.idle[last].next) - i64::from(positions);
            let mut since = mine().next_back().filter(|_| is_persistent).map(of_before);
            for index in mine() {
                let idle = &self.idle[index];
                let within =
                    |at: i64| since.is_some_and(|since| since <= at) && at <= i64::from(idle.last);
                let changes =
                    |&at: &u32| within(at.into()) || within(i64::from(at) - i64::from(positions));
                writes[index] = since.is_none() || self.written[group].iter().any(changes);
                since = Some(idle.next.into());
            }
        }
        writes
    }
}

fn accesses(graph: &Graph, runs: &[NodeId]) -> BTreeMap<StorageId, Vec<Access>> {
    let mut accesses: BTreeMap<StorageId, Vec<Access>> = BTreeMap::new();
    for (position, &node) in (0..).zip(runs) {
        for &storage in graph.reads(node) {
            let is_written = graph.mutated(node).contains(&storage);
            let access = Access { position, is_written, is_made: false };
            accesses.entry(storage).or_default().push(access);
        }
        for &storage in graph.fresh(node) {
            let access = Access { position, is_written: false, is_made: true };
            accesses.entry(storage).or_default().push(access);
        }
    }
    accesses
}
