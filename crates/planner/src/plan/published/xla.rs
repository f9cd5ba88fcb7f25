//! XLA's rematerialization: walk along the sequence and, where memory exceeds the limit, make those
//! instructions run again later whose outputs free most. Invariant: decisions are final and only
//! look ahead along uses; a clone comes before every use that it serves, and never after something
//! that overwrites what it reads.
//!
//! Source: OpenXLA, `xla/service/hlo_rematerialization.cc` (recomputation; neither compression nor
//! host offload). Departures: see `doc/theory/xla.md`.

use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};

use crate::effort::Meter;
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::plan::published::family::heeding;
use crate::plan::rematerialize::{legal, may_run_again, mutated_storages};
use crate::plan::{Instance, Plan, PlanError, Planner};
use crate::profile::Profile;
use crate::units::Bytes;

/// Largest block of instructions that is rematerialized at once.
const LARGEST_BLOCK: usize = 32;

/// Most blocks that are examined per instruction of the sequence, in total: the published pass
/// bounds its effort too.
const EFFORT: usize = 100;

/// Most instructions, clones included, in multiples of the sequence: an unreachable limit would
/// clone the clones of clones.
const MOST_INSTRUCTIONS: usize = 3;

/// Most times that the pass runs over its own result while that still exceeds the limit.
const PASSES: usize = 2;

/// Instructions skipped while picking a block that count as one operation.
const LOOKS_PER_OPERATION: u64 = 8;

/// The sequence after XLA's pass with `budget` as its memory limit.
pub fn xla(
    instance: Instance<'_>,
    budget: Bytes,
    meter: &mut Meter<'_>,
) -> Result<Plan, PlanError> {
    let Instance { graph, profile, order } = instance;
    let rule = |limit: Bytes, meter: &mut Meter<'_>| {
        let mut runs = order.to_vec();
        for _ in 0..PASSES {
            let mut tracker = Tracker::new(graph, profile, &runs, limit);
            meter.spend(4 * runs.len() as u64);
            if !tracker.walk(meter) {
                break;
            }
            runs = legal(graph, &tracker.sequence());
        }
        runs
    };
    heeding(instance, budget, Planner::Xla, rule, meter)
}

/// An instruction: one run of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Item(u32);
entity_impl!(Item, "item");

/// One copy of a storage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Buffer(u32);
entity_impl!(Buffer, "buffer");

struct Instruction {
    node: NodeId,
    reads: Vec<Buffer>,
    makes: Vec<Buffer>,
    /// Grows along the sequence.
    key: u64,
    previous: Option<Item>,
    next: Option<Item>,
    placed: bool,
    /// May run again: clones of it are allowed.
    repeatable: bool,
    /// It took over all uses of the instruction that it was cloned from.
    is_move: bool,
}

struct Copy {
    storage: StorageId,
    bytes: u64,
    maker: Option<Item>,
    users: Vec<Item>,
    /// Users that are not placed yet.
    waiting: u32,
    live: bool,
}

struct Tracker<'a> {
    graph: &'a Graph,
    profile: &'a Profile,
    limit: u64,
    items: PrimaryMap<Item, Instruction>,
    buffers: PrimaryMap<Buffer, Copy>,
    first: Option<Item>,
    /// The instructions that write a storage in place, in the order of the sequence.
    writers: SecondaryMap<StorageId, Vec<Item>>,
    held: u64,
    effort: usize,
    most_items: usize,
}

impl<'a> Tracker<'a> {
    fn new(graph: &'a Graph, profile: &'a Profile, runs: &[NodeId], limit: Bytes) -> Tracker<'a> {
        let is_mutated = mutated_storages(graph);
        let mut tracker = Tracker {
            graph,
            profile,
            limit: limit.0,
            items: PrimaryMap::with_capacity(runs.len() * 2),
            buffers: PrimaryMap::with_capacity(runs.len() * 2),
            first: None,
            writers: SecondaryMap::new(),
            held: 0,
            effort: runs.len() * EFFORT,
            most_items: runs.len() * MOST_INSTRUCTIONS,
        };
        let mut current: SecondaryMap<StorageId, Option<Buffer>> = SecondaryMap::new();
        for (_, storage) in graph.placeholder_storages() {
            let buffer = tracker.buffer(storage, None);
            tracker.buffers[buffer].live = true;
            tracker.held += tracker.buffers[buffer].bytes;
            current[storage] = Some(buffer);
        }
        let mut last = None;
        for &node in runs {
            let repeatable = may_run_again(graph, &is_mutated, node)
                && !graph.fresh(node).iter().any(|&storage| graph.is_kept(storage));
            let reads = graph.reads(node).iter().filter_map(|&storage| current[storage]).collect();
            let item = tracker.item(node, reads, repeatable);
            for (&storage, &buffer) in graph.fresh(node).iter().zip(&tracker.items[item].makes) {
                // A kept storage stays from its first run, and serves all reads.
                if current[storage].is_none() || !graph.is_kept(storage) {
                    current[storage] = Some(buffer);
                }
            }
            for &storage in graph.mutated(node) {
                tracker.writers[storage].push(item);
            }
            tracker.link(item, last, None);
            last = Some(item);
        }
        tracker.number();
        tracker
    }

    fn buffer(&mut self, storage: StorageId, maker: Option<Item>) -> Buffer {
        let bytes = self.graph.storages()[storage].0;
        self.buffers.push(Copy {
            storage,
            bytes,
            maker,
            users: Vec::new(),
            waiting: 0,
            live: false,
        })
    }

    fn item(&mut self, node: NodeId, reads: Vec<Buffer>, repeatable: bool) -> Item {
        let item = self.items.next_key();
        for &read in &reads {
            self.buffers[read].users.push(item);
            self.buffers[read].waiting += 1;
        }
        let makes = self
            .graph
            .fresh(node)
            .iter()
            .map(|&storage| self.buffer(storage, Some(item)))
            .collect();
        self.items.push(Instruction {
            node,
            reads,
            makes,
            key: 0,
            previous: None,
            next: None,
            placed: false,
            repeatable,
            is_move: false,
        })
    }

    fn link(&mut self, item: Item, previous: Option<Item>, next: Option<Item>) {
        (self.items[item].previous, self.items[item].next) = (previous, next);
        match previous {
            Some(previous) => self.items[previous].next = Some(item),
            None => self.first = Some(item),
        }
        if let Some(next) = next {
            self.items[next].previous = Some(item);
        }
    }

    /// Numbers the sequence with gaps, so that inserted items get a number in between.
    fn number(&mut self) {
        let (mut cursor, mut key) = (self.first, 0);
        while let Some(item) = cursor {
            key += 1 << 32;
            self.items[item].key = key;
            cursor = self.items[item].next;
        }
    }

    fn insert_before(&mut self, item: Item, next: Item) {
        let previous = self.items[next].previous;
        self.link(item, previous, Some(next));
        let before = previous.map_or(0, |previous| self.items[previous].key);
        self.items[item].key = before.midpoint(self.items[next].key);
        if self.items[item].key == before {
            self.number();
        }
    }

    fn is_kept(&self, buffer: Buffer) -> bool {
        self.graph.is_kept(self.buffers[buffer].storage)
    }

    /// Walks along the sequence; returns whether that changed it. Once time is up it only walks.
    fn walk(&mut self, meter: &mut Meter<'_>) -> bool {
        let before = self.items.len();
        let mut cursor = self.first;
        while let Some(item) = cursor {
            self.items[item].placed = true;
            for buffer in self.items[item].makes.clone() {
                self.revive(buffer);
            }
            let workspace = self.profile.workspace[self.items[item].node].0;
            while self.held + workspace > self.limit
                && self.items.len() < self.most_items
                && !meter.is_late()
                && self.rematerialize_best(item, meter)
            {}
            for buffer in self.items[item].reads.clone() {
                self.buffers[buffer].waiting -= 1;
                self.release(buffer);
            }
            for buffer in self.items[item].makes.clone() {
                self.release(buffer);
            }
            cursor = self.items[item].next;
        }
        self.items.len() > before
    }

    fn revive(&mut self, buffer: Buffer) {
        let copy = &mut self.buffers[buffer];
        if !copy.live {
            copy.live = true;
            self.held += copy.bytes;
        }
    }

    /// Frees a buffer that no user waits for.
    fn release(&mut self, buffer: Buffer) {
        // A clone's copy of a kept storage dies at once; the copy that is kept has no waiting users
        // either.
        if self.is_kept(buffer) {
            return;
        }
        let copy = &mut self.buffers[buffer];
        if copy.live && copy.waiting == 0 {
            copy.live = false;
            self.held -= copy.bytes;
        }
    }

    /// Rematerializes the block that costs least: single instructions first, then larger and larger
    /// blocks.
    fn rematerialize_best(&mut self, current: Item, meter: &mut Meter<'_>) -> bool {
        let (mut least, mut most) = (1, 1);
        while most <= LARGEST_BLOCK && !meter.is_late() {
            if let Some(block) = self.pick(current, least, most, meter) {
                for &item in block.iter().rev() {
                    self.clone_item(item);
                }
                return true;
            }
            (least, most) = (most + 1, most * 2);
        }
        false
    }

    /// The block of `least` to `most` placed instructions in a row that frees most while `current`
    /// runs. The published cost is the inverse of what is freed: ⌈limit / bytes⌉; the first block
    /// in the sequence wins a tie.
    fn pick(
        &mut self,
        current: Item,
        least: usize,
        most: usize,
        meter: &mut Meter<'_>,
    ) -> Option<Vec<Item>> {
        let mut looks = 0;
        let mut best: Option<(u64, Vec<Item>)> = None;
        let mut block = Vec::new();
        let mut cursor = self.first;
        while let Some(start) = cursor.filter(|&start| start != current) {
            cursor = self.items[start].next;
            looks += 1;
            if !self.items[start].repeatable
                || (most == 1
                    && !self.items[start].makes.iter().any(|&buffer| self.buffers[buffer].live))
            {
                continue;
            }
            if most > 1 {
                if self.effort == 0 {
                    break;
                }
                self.effort -= 1;
            }
            block.clear();
            let (mut reduced, mut end) = (0i64, Some(start));
            while let Some(item) = end.filter(|&item| item != current && block.len() < most) {
                looks += 2;
                let Some(more) = self.reduced_by(item, &block, current) else { break };
                reduced += more;
                block.push(item);
                if block.len() >= least && reduced > 0 {
                    let cost = self.limit.div_ceil(reduced as u64);
                    if best.as_ref().is_none_or(|(lowest, _)| cost < *lowest) {
                        best = Some((cost, block.clone()));
                    }
                }
                end = self.items[item].next;
            }
        }
        meter.spend(1 + looks / LOOKS_PER_OPERATION);
        best.map(|(_, block)| block)
    }

    /// Bytes that are freed now if `item` runs again later, after the instructions of `block`: its
    /// outputs, less those of its operands that are no longer held. `None` if it may not.
    fn reduced_by(&self, item: Item, block: &[Item], current: Item) -> Option<i64> {
        let instruction = &self.items[item];
        let overwritten = |&read: &Buffer| {
            let writers = self.writers[self.buffers[read].storage].iter();
            writers
                .rev()
                .take_while(|&&writer| self.items[writer].key > instruction.key)
                .any(|&writer| self.items[writer].placed)
        };
        if !instruction.repeatable || instruction.reads.iter().any(overwritten) {
            return None;
        }
        let mut bytes = 0;
        for &buffer in &instruction.makes {
            if self.items[current].reads.contains(&buffer) {
                return None;
            }
            bytes += if self.buffers[buffer].live { self.buffers[buffer].bytes as i64 } else { 0 };
        }
        for &buffer in instruction.reads.iter().filter(|&&buffer| !self.buffers[buffer].live) {
            if self.buffers[buffer].maker.is_none_or(|maker| !block.contains(&maker)) {
                bytes -= self.buffers[buffer].bytes as i64;
            }
        }
        Some(bytes)
    }

    /// Clones an instruction: the clone serves all uses that are still to come, and comes before
    /// the first of them, the next use of any of its operands, and anything that overwrites those.
    fn clone_item(&mut self, best: Item) {
        let (node, reads, makes) =
            (self.items[best].node, self.items[best].reads.clone(), self.items[best].makes.clone());
        let waits = |tracker: &Tracker<'_>, item: &Item| !tracker.items[*item].placed;
        let mut anchors: Vec<Item> =
            makes.iter().flat_map(|&made| &self.buffers[made].users).copied().collect();
        anchors.retain(|user| waits(self, user));
        if anchors.is_empty() {
            return;
        }
        for &read in &reads {
            anchors.extend(self.buffers[read].users.iter().filter(|user| waits(self, user)));
            anchors.extend(
                self.writers[self.buffers[read].storage]
                    .iter()
                    .filter(|writer| waits(self, writer)),
            );
        }
        let Some(anchor) = anchors.into_iter().min_by_key(|&anchor| self.items[anchor].key) else {
            return;
        };
        let clone = self.item(node, reads.clone(), true);
        for (old, new) in makes.iter().copied().zip(self.items[clone].makes.clone()) {
            let (placed, waiting): (Vec<Item>, Vec<Item>) =
                self.buffers[old].users.iter().partition(|&&user| self.items[user].placed);
            for &user in &waiting {
                for read in self.items[user].reads.iter_mut().filter(|read| **read == old) {
                    *read = new;
                }
            }
            (self.buffers[new].waiting, self.buffers[new].users) = (waiting.len() as u32, waiting);
            (self.buffers[old].waiting, self.buffers[old].users) = (0, placed);
            self.release(old);
        }
        for &read in &reads {
            self.revive(read);
        }
        self.insert_before(clone, anchor);
        // A clone that takes over every use only moves the instruction. A move of a move does not
        // run again, so that nothing is moved forever.
        if makes.iter().all(|&made| self.buffers[made].users.is_empty()) {
            self.items[clone].is_move = true;
            self.items[clone].repeatable = !self.items[best].is_move;
        }
    }

    fn sequence(&self) -> Vec<NodeId> {
        std::iter::successors(self.first, |&last| self.items[last].next)
            .map(|item| self.items[item].node)
            .collect()
    }
}
