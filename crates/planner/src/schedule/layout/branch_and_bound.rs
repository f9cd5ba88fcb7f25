//! Exact search for a packing within a capacity. Invariant: it answers `Found` only with a packing, and `Impossible`
//! only where there is none; every choice that it makes is undone by the trail.
//!
//! Blocks are stacked on a skyline, one height for each section of time. A valley of the skyline is a run of sections
//! lower than both neighbours: what covers one of its sections next lies either exactly on its ground, or above all of it.
//! Both are tried, blocks first. Space that no block can use any more is waste, and a section has only so much of it.

use super::sections::Sections;
use super::{Budget, Lifetime};

/// How a search ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// An address for each block, from zero.
    Found(Vec<u64>),
    /// There is no packing within the capacity.
    Impossible,
    /// The nodes are spent.
    Spent,
}

const NOBODY: u32 = u32::MAX;

/// What a change overwrote.
enum Change {
    Floor { section: u32, floor: u64, slack: u64, top: u32 },
    Lowest { block: u32, lowest: u64 },
    Witness { section: u32, witness: u32 },
    Placed { block: u32 },
}

/// A part of time that shares no unplaced block with the rest, and the frame whose choice made it one.
struct Task {
    from: u32,
    to: u32,
    parent: usize,
}

/// One open choice: what comes next on a section.
struct Frame {
    from: u32,
    to: u32,
    parent: usize,
    section: u32,
    /// Where the section's floor rises to if no block is put on it.
    raised: u64,
    /// Blocks to try are `choices[next..end]`; then the floor rises.
    next: usize,
    end: usize,
    raise: bool,
    trail: usize,
    tasks: usize,
}

/// The state of a search.
pub(super) struct Search<'a> {
    blocks: &'a [Lifetime],
    sections: &'a Sections,
    /// Blocks that live at the same time, for each block.
    neighbours: &'a [Vec<u32>],
    /// Position of each block in the order in which they are tried.
    rank: Vec<u32>,
    /// Height below which nothing more is put, by section.
    floor: Vec<u64>,
    /// Bytes that a section can still waste.
    slack: Vec<u64>,
    /// The block whose top is the floor.
    top: Vec<u32>,
    /// A block that can lie on the floor.
    witness: Vec<u32>,
    /// Unplaced blocks in each section, and those alive in it and in the one before.
    waiting: Vec<u32>,
    crossing: Vec<u32>,
    /// Highest floor under each block.
    lowest: Vec<u64>,
    address: Vec<Option<u64>>,
    trail: Vec<Change>,
    dirty: Vec<u32>,
    is_dirty: Vec<bool>,
    pub mode: u32,
    pub any: bool,
    erd: bool,
    sorted: Vec<(u64, u64)>,
}

/// Blocks that live at the same time, for each block.
pub(super) fn neighbours(sections: &Sections) -> Vec<Vec<u32>> {
    let mut neighbours = vec![Vec::new(); sections.range.len()];
    let mut seen = vec![NOBODY; sections.range.len()];
    for (block, &(from, to)) in sections.range.iter().enumerate() {
        seen[block] = block as u32;
        for section in from..to {
            for &other in &sections.live[section as usize] {
                if seen[other as usize] != block as u32 {
                    seen[other as usize] = block as u32;
                    neighbours[block].push(other);
                }
            }
        }
    }
    neighbours
}

impl<'a> Search<'a> {
    /// A search with nothing placed, or `None` where the blocks of one section exceed the capacity.
    pub fn new(
        blocks: &'a [Lifetime],
        sections: &'a Sections,
        neighbours: &'a [Vec<u32>],
        rank: Vec<u32>,
        capacity: u64,
    ) -> Option<Search<'a>> {
        let count = sections.live.len();
        let mut slack = Vec::with_capacity(count);
        for live in &sections.live {
            let total: u64 = live.iter().map(|&block| blocks[block as usize].bytes.0).sum();
            slack.push(capacity.checked_sub(total)?);
        }
        let mut crossing = vec![0; count + 1];
        for &(from, to) in &sections.range {
            (from + 1..to).for_each(|section| crossing[section as usize] += 1);
        }
        Some(Search {
            blocks,
            sections,
            neighbours,
            rank,
            floor: vec![0; count],
            slack,
            top: vec![NOBODY; count],
            witness: sections.live.iter().map(|live| live[0]).collect(),
            waiting: sections.live.iter().map(|live| live.len() as u32).collect(),
            crossing,
            lowest: vec![0; blocks.len()],
            address: vec![None; blocks.len()],
            trail: Vec::new(),
            dirty: Vec::new(),
            is_dirty: vec![false; count],
            mode: 0,
            any: false,
            erd: std::env::var("ERD").is_ok(),
            sorted: vec![],
        })
    }

    /// Searches for at most `nodes` placements.
    pub fn run(&mut self, mut nodes: u64, budget: &mut Budget) -> Outcome {
        let mut choices: Vec<u32> = Vec::new();
        let mut frames: Vec<Frame> = Vec::new();
        let mut tasks: Vec<Task> = Vec::new();
        self.split(0, self.floor.len() as u32, usize::MAX, &mut tasks);
        while let Some(task) = tasks.pop() {
            let frame = self.open(task, &mut choices, tasks.len());
            frames.push(frame);
            loop {
                let top = frames.len() - 1;
                let frame = &mut frames[top];
                let (from, to, section, raised) = (frame.from, frame.to, frame.section, frame.raised);
                tasks.truncate(frame.tasks);
                let mark = frame.trail;
                self.undo(mark);
                let fits = if frame.next < frame.end {
                    let block = choices[frame.next];
                    frame.next += 1;
                    choices.truncate(frame.end);
                    if nodes == 0 || !budget.spend(1) {
                        return Outcome::Spent;
                    }
                    nodes -= 1;
                    self.place(block, self.floor[section as usize])
                } else if frame.raise {
                    frame.raise = false;
                    choices.truncate(frame.end);
                    self.raise(section, raised) && self.settle()
                } else {
                    // Nothing fits here, whatever happens in parts that share no block with this one.
                    let parent = frame.parent;
                    if parent == usize::MAX {
                        return Outcome::Impossible;
                    }
                    frames.truncate(parent + 1);
                    continue;
                };
                if fits {
                    self.split(from, to, top, &mut tasks);
                    break;
                }
            }
        }
        let addresses = self.address.iter().map(|address| address.unwrap_or(0)).collect();
        Outcome::Found(addresses)
    }

    /// The parts of `from..to` that share no unplaced block, each as a task.
    fn split(&self, from: u32, to: u32, parent: usize, tasks: &mut Vec<Task>) {
        let first = tasks.len();
        let mut start = from;
        for section in from + 1..=to {
            if section == to || self.crossing[section as usize] == 0 {
                // Without blocks that cross, a part is one section wide or all its sections are connected.
                if self.waiting[start as usize] > 0 {
                    tasks.push(Task { from: start, to: section, parent });
                }
                start = section;
            }
        }
        // The last is taken first: the one with the least to waste.
        tasks[first..].sort_by_key(|task| {
            std::cmp::Reverse((task.from..task.to).map(|section| self.slack[section as usize]).min())
        });
    }

    /// Chooses the section to settle next, and what may lie on its floor.
    fn open(&self, task: Task, choices: &mut Vec<u32>, tasks: usize) -> Frame {
        let Task { from, to, parent } = task;
        // The lowest valley; of its sections the one with the fewest blocks that can lie on its ground.
        let lowest = (from..to).map(|section| self.floor[section as usize]).min().unwrap_or(0);
        let mut left = (from..to).find(|&section| self.floor[section as usize] == lowest).unwrap_or(from);
        let mut best: Option<(u64, u64, u32, u32, u32)> = None;
        if self.any { left = from; }
        while left < to {
            let level = self.floor[left as usize];
            let right = (left..to).find(|&section| self.floor[section as usize] != level).unwrap_or(to);
            let valley = (left == from || self.floor[left as usize - 1] > level) && (right == to || self.floor[right as usize] > level);
            if !valley || !self.any && level != lowest {
                left = right;
                continue;
            }
            for section in left..right {
                let candidates = self.sections.live[section as usize].iter().filter(|&&b| self.may_lie(b, level)).count();
                let slack = self.slack[section as usize];
                let key = match self.mode {
                    0 => (slack.min(1), candidates as u64, section, left, right),
                    1 => (slack, candidates as u64, section, left, right),
                    2 => (candidates as u64, slack, section, left, right),
                    3 => (0, 0, section, left, right),
                    _ => {
                        let first = self.sections.live[section as usize].iter().filter(|&&b| self.may_lie(b, level)).map(|&b| self.rank[b as usize]).min().unwrap_or(0);
                        if self.mode == 4 { (u64::from(first), candidates as u64, section, left, right) } else { (slack.min(1), u64::from(first), section, left, right) }
                    }
                };
                if best.is_none_or(|known| key < known) {
                    best = Some(key);
                }
            }
            left = right;
        }
        let (_, _, section, left, right) = best.unwrap_or((0, 0, from, from, to));
        let next = choices.len();
        let level = self.floor[section as usize];
        choices.extend(self.sections.live[section as usize].iter().filter(|&&block| self.may_lie(block, level)));
        choices[next..].sort_by_key(|&block| self.rank[block as usize]);
        // What is not on the ground rests on a neighbour of the valley or on something in it.
        let mut raised = u64::MAX;
        if left > from {
            raised = raised.min(self.floor[left as usize - 1]);
        }
        if right < to {
            raised = raised.min(self.floor[right as usize]);
        }
        for &block in (left..right).flat_map(|other| &self.sections.live[other as usize]) {
            let b = block as usize;
            let (first, behind) = self.sections.range[b];
            if self.address[b].is_none() && !(first..behind).contains(&section) {
                raised = raised.min(self.lowest[b] + self.blocks[b].bytes.0);
            }
        }
        Frame { from, to, parent, section, raised, next, end: choices.len(), raise: true, trail: self.trail.len(), tasks }
    }

    /// Whether an unplaced block can lie at `level`, its lowest address.
    fn may_lie(&self, block: u32, level: u64) -> bool {
        let b = block as usize;
        if self.address[b].is_some() || self.lowest[b] != level {
            return false;
        }
        // Two blocks with the same lifetime, one upon the other: one order is enough.
        let below = self.top[self.sections.range[b].0 as usize];
        below == NOBODY || self.sections.range[below as usize] != self.sections.range[b] || self.rank[below as usize] < self.rank[b]
    }

    fn place(&mut self, block: u32, at: u64) -> bool {
        let b = block as usize;
        let (from, to) = self.sections.range[b];
        let height = at + self.blocks[b].bytes.0;
        self.address[b] = Some(at);
        self.trail.push(Change::Placed { block });
        for section in from..to {
            let s = section as usize;
            self.trail.push(Change::Floor { section, floor: self.floor[s], slack: self.slack[s], top: self.top[s] });
            self.floor[s] = height;
            self.top[s] = block;
            self.waiting[s] -= 1;
            if section > from {
                self.crossing[s] -= 1;
            }
            self.mark(section);
        }
        for &other in &self.neighbours[b] {
            self.lift(other, height);
        }
        self.settle()
    }

    /// Nothing more is put on a section below `to`.
    fn raise(&mut self, section: u32, to: u64) -> bool {
        let s = section as usize;
        let waste = to - self.floor[s];
        if waste > self.slack[s] {
            return false;
        }
        self.trail.push(Change::Floor { section, floor: self.floor[s], slack: self.slack[s], top: self.top[s] });
        self.floor[s] = to;
        self.slack[s] -= waste;
        self.top[s] = NOBODY;
        for &block in &self.sections.live[s] {
            self.lift(block, to);
        }
        self.mark(section);
        true
    }

    fn lift(&mut self, block: u32, to: u64) {
        let b = block as usize;
        if self.address[b].is_some() || self.lowest[b] >= to {
            return;
        }
        self.trail.push(Change::Lowest { block, lowest: self.lowest[b] });
        self.lowest[b] = to;
        let (from, end) = self.sections.range[b];
        for section in from..end {
            if self.erd || self.witness[section as usize] == block {
                self.mark(section);
            }
        }
    }

    fn mark(&mut self, section: u32) {
        if !self.is_dirty[section as usize] {
            self.is_dirty[section as usize] = true;
            self.dirty.push(section);
        }
    }

    /// Raises floors on which no block can lie any more; false where one wastes more than it may.
    fn settle(&mut self) -> bool {
        let mut fits = true;
        while let Some(section) = self.dirty.pop() {
            let s = section as usize;
            self.is_dirty[s] = false;
            if !fits || self.waiting[s] == 0 {
                continue;
            }
            let (mut lowest, mut witness) = (u64::MAX, NOBODY);
            for &block in &self.sections.live[s] {
                let b = block as usize;
                if self.address[b].is_none() && self.lowest[b] < lowest {
                    (lowest, witness) = (self.lowest[b], block);
                    if lowest == self.floor[s] {
                        break;
                    }
                }
            }
            if witness != self.witness[s] {
                self.trail.push(Change::Witness { section, witness: self.witness[s] });
                self.witness[s] = witness;
            }
            let waste = lowest - self.floor[s];
            if waste > self.slack[s] {
                fits = false;
            } else if waste > 0 {
                self.trail.push(Change::Floor { section, floor: self.floor[s], slack: self.slack[s], top: self.top[s] });
                self.floor[s] = lowest;
                self.slack[s] -= waste;
                self.top[s] = NOBODY;
            }
            if fits && self.erd {
                self.sorted.clear();
                for &block in &self.sections.live[s] {
                    let b = block as usize;
                    if self.address[b].is_none() { self.sorted.push((self.lowest[b], self.blocks[b].bytes.0)); }
                }
                self.sorted.sort_unstable();
                let mut at = self.floor[s];
                let mut waste = 0;
                for &(low, bytes) in &self.sorted {
                    if low > at { waste += low - at; at = low; }
                    at += bytes;
                }
                if waste > self.slack[s] { fits = false; }
            }
        }
        fits
    }

    fn undo(&mut self, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop() {
                Some(Change::Floor { section, floor, slack, top }) => {
                    let s = section as usize;
                    (self.floor[s], self.slack[s], self.top[s]) = (floor, slack, top);
                }
                Some(Change::Lowest { block, lowest }) => self.lowest[block as usize] = lowest,
                Some(Change::Witness { section, witness }) => self.witness[section as usize] = witness,
                Some(Change::Placed { block }) => {
                    let (from, to) = self.sections.range[block as usize];
                    self.address[block as usize] = None;
                    (from..to).for_each(|section| self.waiting[section as usize] += 1);
                    (from + 1..to).for_each(|section| self.crossing[section as usize] += 1);
                }
                None => {}
            }
        }
    }
}
