//! Best fit in a given order. Invariant: a block is placed where it overlaps none of those placed
//! before it that live at the same time, and only the addresses that they occupy are examined.
//!
//! Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020
//! (greedy by size).

use crate::effort::Meter;
use crate::schedule::layout::Lifetime;

/// Addresses, and the first byte that none of the blocks uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    pub addresses: Vec<u64>,
    pub end: u64,
}

/// Places the same blocks in one order after another.
pub(super) struct BestFit<'a> {
    pub blocks: &'a [Lifetime],
    placed: &'a [Option<u64>],
    occupied: Occupied,
}

impl<'a> BestFit<'a> {
    /// Some blocks may be placed already.
    pub fn new(blocks: &'a [Lifetime], placed: &'a [Option<u64>]) -> BestFit<'a> {
        BestFit { blocks, placed, occupied: Occupied::new(blocks) }
    }

    /// Each block of `order` goes into the smallest gap that holds it among the blocks already
    /// placed that are alive with it; if no gap is large enough, above them all. `None` if the
    /// effort ends first.
    pub fn place(&mut self, order: &[u32], meter: &mut Meter<'_>) -> Option<Placement> {
        let BestFit { blocks, placed, ref mut occupied } = *self;
        let mut addresses: Vec<u64> =
            placed.iter().map(|address| address.unwrap_or_default()).collect();
        let mut end = 0;
        occupied.clear();
        for (i, block) in blocks.iter().enumerate().filter(|&(i, _)| placed[i].is_some()) {
            let top = addresses[i] + block.bytes.0;
            end = end.max(top);
            occupied.insert(i, (addresses[i], top));
        }
        let mut near = Union::default();
        for &block in order {
            let i = block as usize;
            let bytes = blocks[i].bytes.0;
            if placed[i].is_some() {
                continue;
            }
            if !meter.take(1) {
                return None;
            }
            near.runs.clear();
            occupied.during(i, &mut near);
            addresses[i] = smallest_gap(&near.runs, bytes);
            end = end.max(addresses[i] + bytes);
            occupied.insert(i, (addresses[i], addresses[i] + bytes));
        }
        Some(Placement { addresses, end })
    }
}

/// The start of the smallest sufficient gap between `taken` ranges, by address, or the end of them
/// all.
fn smallest_gap(taken: &[(u64, u64)], bytes: u64) -> u64 {
    let (mut free_from, mut best) = (0, None::<(u64, u64)>);
    for &(address, behind) in taken {
        let gap = address.saturating_sub(free_from);
        if gap >= bytes && best.is_none_or(|(smallest, _)| gap < smallest) {
            best = Some((gap, free_from));
        }
        free_from = free_from.max(behind);
    }
    best.map_or(free_from, |(_, address)| address)
}

/// Taken addresses by time: a binary tree over the positions at which a block is born. A life is
/// the union of a few nodes; its addresses are recorded there, and in all nodes above them.
/// Adjacent ranges are merged, so if blocks are packed well a node has few.
struct Occupied {
    /// For each life, the first and last birth within it: two lives meet if and only if these
    /// ranges do.
    births: Vec<(usize, usize)>,
    /// Number of leaves, a power of two; node 1 is the root, and node `n` has the children `2n` and
    /// `2n + 1`.
    leaves: usize,
    /// Taken all the time of a node, by a life that the node is a part of.
    whole: Vec<Runs>,
    /// Taken at some time of a node, by a life that the node or one below it is a part of.
    some: Vec<Runs>,
}

/// Ranges of addresses, increasing, with gaps between them.
type Runs = Vec<(u64, u64)>;

impl Occupied {
    fn new(lifetimes: &[Lifetime]) -> Occupied {
        let mut births: Vec<u32> = lifetimes.iter().map(|lifetime| lifetime.first).collect();
        births.sort_unstable();
        births.dedup();
        let leaves = births.len().next_power_of_two();
        let within = |lifetime: &Lifetime| {
            let first = births.partition_point(|&birth| birth < lifetime.first);
            let later = births.partition_point(|&birth| birth <= lifetime.last);
            (first, later.max(first + 1) - 1)
        };
        Occupied {
            births: lifetimes.iter().map(within).collect(),
            leaves,
            whole: vec![Vec::new(); leaves * 2],
            some: vec![Vec::new(); leaves * 2],
        }
    }

    /// Clears the tree, and keeps its memory.
    fn clear(&mut self) {
        self.whole.iter_mut().chain(&mut self.some).for_each(Vec::clear);
    }

    /// Adds what a life takes.
    fn insert(&mut self, life: usize, run: (u64, u64)) {
        self.insert_below(1, (0, self.leaves - 1), self.births[life], run);
    }

    fn insert_below(
        &mut self,
        node: usize,
        span: (usize, usize),
        wanted: (usize, usize),
        run: (u64, u64),
    ) {
        if wanted.1 < span.0 || span.1 < wanted.0 {
            return;
        }
        add(&mut self.some[node], run);
        if wanted.0 <= span.0 && span.1 <= wanted.1 {
            add(&mut self.whole[node], run);
            return;
        }
        let middle = (span.0 + span.1) / 2;
        self.insert_below(node * 2, (span.0, middle), wanted, run);
        self.insert_below(node * 2 + 1, (middle + 1, span.1), wanted, run);
    }

    /// Adds what is taken at some time of a life.
    fn during(&self, life: usize, taken: &mut Union) {
        self.during_below(1, (0, self.leaves - 1), self.births[life], taken);
    }

    fn during_below(
        &self,
        node: usize,
        span: (usize, usize),
        wanted: (usize, usize),
        taken: &mut Union,
    ) {
        if wanted.1 < span.0 || span.1 < wanted.0 {
            return;
        }
        if wanted.0 <= span.0 && span.1 <= wanted.1 {
            taken.add(&self.some[node]);
            return;
        }
        taken.add(&self.whole[node]);
        let middle = (span.0 + span.1) / 2;
        self.during_below(node * 2, (span.0, middle), wanted, taken);
        self.during_below(node * 2 + 1, (middle + 1, span.1), wanted, taken);
    }
}

/// The union of several sets of ranges.
#[derive(Default)]
struct Union {
    runs: Runs,
    /// A part of it while a set is added, kept for its memory.
    merged: Runs,
}

impl Union {
    /// Adds ranges that increase.
    fn add(&mut self, more: &[(u64, u64)]) {
        let (Some(first), Some(last)) = (more.first(), more.last()) else { return };
        // Only these can meet them.
        let from = self.runs.partition_point(|run| run.1 < first.0);
        let to = from + self.runs[from..].partition_point(|run| run.0 <= last.1);
        if from == to {
            self.runs.splice(from..to, more.iter().copied());
            return;
        }
        self.merged.clear();
        let (mut ours, mut theirs) = (&self.runs[from..to], more);
        let start = first.0.min(ours[0].0);
        let mut open = (start, start);
        loop {
            let next = match (ours, theirs) {
                ([one, rest @ ..], [other, ..]) if one.0 <= other.0 => {
                    ours = rest;
                    one
                }
                (_, [other, rest @ ..]) => {
                    theirs = rest;
                    other
                }
                ([one, rest @ ..], []) => {
                    ours = rest;
                    one
                }
                ([], []) => break,
            };
            if next.0 <= open.1 {
                open.1 = open.1.max(next.1);
            } else {
                self.merged.push(open);
                open = *next;
            }
        }
        self.merged.push(open);
        self.runs.splice(from..to, self.merged.iter().copied());
    }
}

/// Adds a range, which may overlap others.
fn add(runs: &mut Runs, (start, end): (u64, u64)) {
    let from = runs.partition_point(|run| run.1 < start);
    let to = from + runs[from..].partition_point(|run| run.0 <= end);
    if from == to {
        runs.insert(from, (start, end));
        return;
    }
    runs[from] = (start.min(runs[from].0), end.max(runs[to - 1].1));
    runs.drain(from + 1..to);
}
