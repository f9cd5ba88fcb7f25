//! The oracle over all orders. Invariant: it allows whatever the checker allows, so no legal
//! schedule is faster; it shares no code with planners, liveness or checker.
//!
//! The board shows which nodes ran, in whatever order, and which copies are there. A copy is a
//! storage at a version. Any node may run as soon as all that it reads is there, each at its
//! version; one that does not write in place may run again, backward nodes and random ones too.
//! Running again brings version 0 of what the node makes back, although a later version may be
//! there as well; and of a storage that is written in place later, version 0 may be there twice, so
//! that one copy can be written and the other still be read.
//!
//! Where it is not exact, it is more generous than the checker: an output that takes over an input
//! of another size saves the bytes of the smaller one, and what lies in a buffer counts with its
//! own bytes.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use tightfit::graph::Graph;
use tightfit::id::{NodeId, StorageId, ValueId};
use tightfit::profile::Profile;

/// Seconds of the fastest schedule within `budget` bytes, in any order; `None` where no schedule
/// fits.
pub fn fastest_any_order(graph: &Graph, profile: &Profile, budget: u64) -> Option<f64> {
    Rules::new(graph, profile).fastest(budget)
}

/// The smallest budget that any schedule needs; `enough` is one that suffices.
pub fn least_budget_any_order(graph: &Graph, profile: &Profile, enough: u64) -> u64 {
    let rules = Rules::new(graph, profile);
    let (mut low, mut high) = (0, enough);
    while low < high {
        let middle = low.midpoint(high);
        if rules.fastest(middle).is_some() { high = middle } else { low = middle + 1 }
    }
    high
}

/// A storage at a version; `second` is another one of version 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Copy {
    storage: StorageId,
    version: u32,
    second: bool,
}

/// A set of copies, one bit each.
type Set = u64;

/// Which nodes ran (a bit each), and what is there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Board {
    ran: u32,
    there: Set,
}

#[derive(Clone, Copy, PartialEq)]
struct Seconds(f64);

impl Eq for Seconds {}

impl PartialOrd for Seconds {
    fn partial_cmp(&self, other: &Seconds) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Seconds {
    fn cmp(&self, other: &Seconds) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// One node as the game sees it.
struct Play {
    seconds: f64,
    /// Bytes that it makes, workspace included.
    adds: u64,
    reads: Set,
    /// Version 0 of each fresh storage.
    makes: Set,
    /// Each copy that it writes in place, and what the copy becomes.
    writes: Vec<(Set, Set)>,
    /// Inputs that its first output may take over, and the bytes that this saves.
    takes: Vec<(Set, u64)>,
    may_repeat: bool,
}

struct Rules {
    copies: Vec<Copy>,
    bytes: Vec<u64>,
    /// Copies of storages that stay to the end.
    kept: Set,
    /// Of those, the versions that must be there in the end.
    last: Set,
    start: Set,
    plays: Vec<Play>,
}

impl Rules {
    fn new(graph: &Graph, profile: &Profile) -> Rules {
        let mut versions = vec![0; graph.storages().len()];
        for value in graph.values().values() {
            let version = &mut versions[value.storage.as_u32() as usize];
            *version = value.version.max(*version);
        }
        let mut copies = Vec::new();
        let (mut kept, mut last) = (0, 0);
        for storage in graph.storages().keys() {
            let newest = versions[storage.as_u32() as usize];
            let from = copies.len();
            copies.extend((0..=newest).map(|version| Copy { storage, version, second: false }));
            if graph.is_kept(storage) {
                last |= 1 << (copies.len() - 1);
            }
            if newest > 0 && graph.producer(storage).is_some_and(|node| graph.runs(node)) {
                copies.push(Copy { storage, version: 0, second: true });
            }
            if graph.is_kept(storage) {
                kept |= (from..copies.len()).fold(0, |set, index| set | 1 << index);
            }
        }
        assert!(
            copies.len() <= 64 && graph.compute_nodes().len() <= 32,
            "the oracle is for small graphs"
        );
        let bytes = copies.iter().map(|copy| graph.storages()[copy.storage].0).collect();
        let mut rules = Rules { copies, bytes, kept, last, start: 0, plays: Vec::new() };
        rules.start =
            graph.placeholder_storages().fold(0, |set, (_, storage)| set | rules.bit(storage, 0));
        rules.plays = graph
            .compute_nodes()
            .into_iter()
            .map(|node| rules.play(graph, profile, node))
            .collect();
        rules
    }

    fn bit(&self, storage: StorageId, version: u32) -> Set {
        let copy = Copy { storage, version, second: false };
        1 << self
            .copies
            .iter()
            .position(|other| *other == copy)
            .expect("every version has its copy")
    }

    /// The second copy of a version 0, if there may be one.
    fn second(&self, copy: Set) -> Set {
        let first = self.copies[copy.trailing_zeros() as usize];
        let second = self.copies.iter().position(|other| *other == Copy { second: true, ..first });
        second.filter(|_| first.version == 0).map_or(0, |index| 1 << index)
    }

    fn play(&self, graph: &Graph, profile: &Profile, node: NodeId) -> Play {
        let call = &graph.nodes()[node];
        let copy_of = |value: &ValueId| {
            self.bit(graph.values()[*value].storage, graph.values()[*value].version)
        };
        let reads = call.inputs.iter().fold(0, |set, input| set | copy_of(input));
        let writes = graph.mutated(node).iter().map(|&storage| {
            let output = call
                .outputs
                .iter()
                .flatten()
                .find(|&&value| graph.values()[value].storage == storage);
            let version = graph.values()[*output.expect("what is written is an output")].version;
            (self.bit(storage, version - 1), self.bit(storage, version))
        });
        let fresh = graph.fresh(node);
        let mut takes = Vec::new();
        if let (Some(_), Some(Some(output)), true) =
            (call.operator, call.outputs.first(), profile.in_place)
        {
            let made = graph.values()[*output].storage;
            for input in graph.overwritable(node).into_iter().filter(|_| fresh.contains(&made)) {
                let from = graph.values()[input].storage;
                if !graph.is_kept(from) {
                    takes.push((
                        copy_of(&input),
                        graph.storages()[from].min(graph.storages()[made]).0,
                    ));
                }
            }
        }
        Play {
            seconds: profile.seconds[node].0,
            adds: fresh.iter().map(|&storage| graph.storages()[storage].0).sum::<u64>()
                + profile.workspace[node].0,
            reads,
            makes: fresh.iter().fold(0, |set, &storage| set | self.bit(storage, 0)),
            writes: writes.collect(),
            takes,
            may_repeat: !call.mutates,
        }
    }

    fn size(&self, set: Set) -> u64 {
        members(set).map(|copy| self.bytes[copy.trailing_zeros() as usize]).sum()
    }

    /// Dijkstra over the boards; the cost is what is run again.
    fn fastest(&self, budget: u64) -> Option<f64> {
        if self.size(self.start) > budget {
            return None;
        }
        let everything = self.plays.iter().enumerate().fold(0, |ran, (index, _)| ran | 1 << index);
        let start = Board { ran: 0, there: self.start };
        let mut wanted: HashMap<u32, Set> = HashMap::new();
        let mut reached: HashMap<Board, f64> = HashMap::from([(start, 0.0)]);
        let mut open = BinaryHeap::from([Reverse((Seconds(0.0), start))]);
        let mut moves = Vec::new();
        while let Some(Reverse((Seconds(again), board))) = open.pop() {
            if board.ran == everything {
                return Some(again + self.plays.iter().map(|play| play.seconds).sum::<f64>());
            }
            if reached[&board] < again {
                continue;
            }
            for (index, play) in self.plays.iter().enumerate() {
                let is_first = board.ran >> index & 1 == 0;
                let ran = board.ran | 1 << index;
                if board.there & play.reads != play.reads || !(is_first || play.may_repeat) {
                    continue;
                }
                let useful = *wanted.entry(ran).or_insert_with(|| self.wanted(ran));
                moves.clear();
                self.run(board.there, play, budget, &mut moves);
                let again = again + if is_first { 0.0 } else { play.seconds };
                for &there in &moves {
                    let next = Board { ran, there: there & useful };
                    if next != board && reached.get(&next).is_none_or(|known| again < *known) {
                        reached.insert(next, again);
                        open.push(Reverse((Seconds(again), next)));
                    }
                }
            }
        }
        None
    }

    /// What anybody may still read, and what must be there in the end. (More is never worse, so the
    /// rest may go.)
    fn wanted(&self, ran: u32) -> Set {
        let waits = |index: usize| ran >> index & 1 == 0;
        let mut wanted = self.last;
        loop {
            let before = wanted;
            for (index, play) in self.plays.iter().enumerate() {
                if waits(index) || play.may_repeat && play.makes & wanted != 0 {
                    wanted |= play.reads;
                }
            }
            if wanted == before {
                break;
            }
        }
        // Two copies are better than one while somebody will write over one of them.
        let to_be_written = self
            .plays
            .iter()
            .enumerate()
            .filter(|(index, _)| waits(*index))
            .flat_map(|(_, play)| &play.writes);
        wanted
            | to_be_written.fold(0, |set, (from, _)| set | self.second(*from))
            | members(wanted).fold(0, |set, copy| set | self.second(copy))
    }

    /// What may be there after a node ran: one set for each way to make room. What need not go
    /// stays, because it can still go later.
    fn run(&self, there: Set, play: &Play, budget: u64, after: &mut Vec<Set>) {
        let mut droppable: Vec<Set> = members(there & !play.reads)
            .filter(|&copy| self.may_go(there, copy) && self.size(copy) > 0)
            .collect();
        droppable.sort_by_key(|&copy| Reverse(self.size(copy)));
        let nothing = (0, 0);
        for &(taken, saved) in play.takes.iter().chain([&nothing]) {
            let needs = (self.size(there) + play.adds - saved) as i64;
            self.make_room(there, &droppable, needs - budget as i64, &mut |mut left| {
                left = self.without_one(left, taken);
                for &(from, to) in &play.writes {
                    left = self.without_one(left, from) | to;
                }
                for made in members(play.makes) {
                    left |= if left & made == 0 { made } else { self.second(made) };
                }
                after.push(left);
            });
        }
    }

    /// One copy less: the second one, if it is there.
    fn without_one(&self, there: Set, copy: Set) -> Set {
        if copy == 0 {
            return there;
        }
        let second = self.second(copy);
        there & !(if there & second != 0 { second } else { copy })
    }

    /// Of what is kept the newest version stays. (An older one could stay in its place, but then
    /// the newest would be missing in the end.)
    fn may_go(&self, there: Set, copy: Set) -> bool {
        let rank = |copy: &Copy| (copy.version, !copy.second);
        let this = self.copies[copy.trailing_zeros() as usize];
        let newer = |other: Set| {
            let other = self.copies[other.trailing_zeros() as usize];
            other.storage == this.storage && rank(&other) > rank(&this)
        };
        self.kept & copy == 0 || members(there).any(newer)
    }

    /// Every way to let go of at least `excess` bytes without letting go of anything needlessly at
    /// the end.
    fn make_room(&self, there: Set, droppable: &[Set], excess: i64, then: &mut impl FnMut(Set)) {
        if excess <= 0 {
            return then(there);
        }
        if (droppable.iter().map(|&copy| self.size(copy)).sum::<u64>() as i64) < excess {
            return;
        }
        for (index, &copy) in droppable.iter().enumerate() {
            self.make_room(
                there & !copy,
                &droppable[index + 1..],
                excess - self.size(copy) as i64,
                then,
            );
        }
    }
}

fn members(mut set: Set) -> impl Iterator<Item = Set> {
    std::iter::from_fn(move || {
        let copy = set & set.wrapping_neg();
        set &= !copy;
        (copy != 0).then_some(copy)
    })
}
