//! Exact search for a packing within a capacity. Invariant: it answers `Found` only with a packing,
//! and `Impossible` only if there is none; every choice that it makes is undone by the trail.
//!
//! Blocks are stacked on a skyline, one height for each section of time. A valley of the skyline is
//! a run of sections lower than both neighbours: what covers one of its sections next lies either
//! exactly on its floor, or above all of it. Both are tried, blocks first. Space that no block can
//! use any more is waste, and the waste of each section is limited.

use crate::effort::Meter;
use crate::schedule::layout::Lifetime;
use crate::schedule::layout::sections::Sections;

/// How a search ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// An address for each block, from zero.
    Found(Vec<u64>),
    /// There is no packing within the capacity.
    Impossible,
    /// The nodes are used up.
    Spent,
}

/// Stands for the absence of a block.
const NO_BLOCK: u32 = u32::MAX;

/// Stands for the lowest address of a placed block.
const PLACED: u64 = u64::MAX;

/// What a change overwrote.
enum Change {
    Floor { section: u32, floor: u64, slack: u64, top: u32, lying: u32 },
    Lowest { block: u32, lowest: u64 },
    Placed { block: u32, lowest: u64 },
}

/// A part of time that shares no unplaced block with the rest, and the frame whose choice separated
/// it.
struct Task {
    from: u32,
    to: u32,
    parent: usize,
}

/// One open choice: what goes next on a section.
struct Frame {
    from: u32,
    to: u32,
    parent: usize,
    section: u32,
    /// Blocks to try are `choices[next..end]`; then the floor rises.
    next: usize,
    end: usize,
    raise: bool,
    trail: usize,
    tasks: usize,
}

/// Which section of which valley is decided first.
#[derive(Clone, Copy, Debug)]
pub(super) struct BranchingRule {
    /// Of any valley, or of the lowest ones only.
    pub any_valley: bool,
    /// Which of their sections.
    pub choice: SectionChoice,
}

/// Which section of the valleys is decided first; ties go to the earliest.
#[derive(Clone, Copy, Debug)]
pub(super) enum SectionChoice {
    /// One that cannot waste anything, with the fewest blocks that can lie on its floor.
    FullThenFew,
    /// The one that can waste least.
    LeastSlack,
    /// The one with the fewest blocks that can lie on its floor.
    Few,
    /// The earliest.
    First,
}

/// The state of a search.
pub(super) struct ExactSearch<'a> {
    blocks: &'a [Lifetime],
    sections: &'a Sections,
    /// Position of each block in the order in which they are tried.
    rank: Vec<u32>,
    /// The block of the same size and lifetime that comes right before it in that order: it lies
    /// lower.
    equal_before: Vec<u32>,
    /// Height below which nothing more is placed, by section.
    floor: Vec<u64>,
    /// Bytes that a section can still waste.
    slack: Vec<u64>,
    /// The block whose top is the floor.
    top: Vec<u32>,
    /// The number of unplaced blocks that can lie on the floor.
    lying: Vec<u32>,
    /// Unplaced blocks in each section, and those alive both in it and in the one before.
    waiting: Vec<u32>,
    crossing: Vec<u32>,
    /// Highest floor under each block.
    lowest: Vec<u64>,
    address: Vec<Option<u64>>,
    trail: Vec<Change>,
    dirty: Vec<u32>,
    is_dirty: Vec<bool>,
    rule: BranchingRule,
}

impl<'a> ExactSearch<'a> {
    /// A search with nothing placed, or `None` if the blocks of one section exceed the capacity.
    pub fn new(
        blocks: &'a [Lifetime],
        sections: &'a Sections,
        rank: Vec<u32>,
        rule: BranchingRule,
        capacity: u64,
    ) -> Option<ExactSearch<'a>> {
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
        Some(ExactSearch {
            blocks,
            sections,
            equal_before: previous_equals(blocks, sections, &rank),
            rank,
            floor: vec![0; count],
            slack,
            top: vec![NO_BLOCK; count],
            lying: sections.live.iter().map(|live| live.len() as u32).collect(),
            waiting: sections.live.iter().map(|live| live.len() as u32).collect(),
            crossing,
            lowest: vec![0; blocks.len()],
            address: vec![None; blocks.len()],
            trail: Vec::new(),
            dirty: Vec::new(),
            is_dirty: vec![false; count],
            rule,
        })
    }

    /// Puts blocks at their given addresses, permanently; the space below them stays empty. False
    /// if that leaves more empty than allowed.
    pub fn fix(&mut self, addresses: &[Option<u64>]) -> bool {
        let mut placed: Vec<(u64, u32)> =
            (0..).zip(addresses).filter_map(|(block, at)| Some(((*at)?, block))).collect();
        placed.sort_unstable();
        for (at, block) in placed {
            let (from, to) = self.sections.range[block as usize];
            for s in from as usize..to as usize {
                let Some(left) = self.slack[s].checked_sub(at.saturating_sub(self.floor[s])) else {
                    return false;
                };
                self.slack[s] = left;
            }
            if !self.place(block, at) {
                return false;
            }
            // No block changes places with it.
            (from..to).for_each(|section| self.top[section as usize] = NO_BLOCK);
        }
        self.trail.clear();
        true
    }

    /// Searches for at most `nodes` placements.
    pub fn run(&mut self, mut nodes: u64, meter: &mut Meter<'_>) -> Outcome {
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
                let (from, to, section) = (frame.from, frame.to, frame.section);
                tasks.truncate(frame.tasks);
                let mark = frame.trail;
                self.undo(mark);
                let fits = if frame.next < frame.end {
                    let block = choices[frame.next];
                    frame.next += 1;
                    choices.truncate(frame.end);
                    if nodes == 0 || !meter.take(1) {
                        return Outcome::Spent;
                    }
                    nodes -= 1;
                    self.place(block, self.floor[section as usize])
                } else if frame.raise {
                    frame.raise = false;
                    choices.truncate(frame.end);
                    self.raise(section, from, to) && self.settle()
                } else {
                    // Nothing fits here, whatever happens in parts that share no block with this
                    // one.
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

    /// The parts of `from..to` that share no unplaced block with each other, each as a task.
    fn split(&self, from: u32, to: u32, parent: usize, tasks: &mut Vec<Task>) {
        let first = tasks.len();
        let mut start = from;
        for section in from + 1..=to {
            if section == to || self.crossing[section as usize] == 0 {
                // Without blocks that cross, a part is one section wide or all its sections are
                // connected.
                if self.waiting[start as usize] > 0 {
                    tasks.push(Task { from: start, to: section, parent });
                }
                start = section;
            }
        }
        // The last is taken first: the one that may waste least.
        tasks[first..].sort_by_key(|task| {
            std::cmp::Reverse(
                (task.from..task.to).map(|section| self.slack[section as usize]).min(),
            )
        });
    }

    /// Chooses the section to decide next, and what may lie on its floor.
    fn open(&self, task: Task, choices: &mut Vec<u32>, tasks: usize) -> Frame {
        let Task { from, to, parent } = task;
        let lowest = (from..to).map(|section| self.floor[section as usize]).min().unwrap_or(0);
        let mut best: Option<(u64, u64, u32)> = None;
        let mut left = from;
        while left < to {
            let (_, right) = self.level(left, from, to);
            let level = self.floor[left as usize];
            let higher = |neighbour: u32| self.floor[neighbour as usize] > level;
            let is_valley = (left == from || higher(left - 1)) && (right == to || higher(right));
            if is_valley && (self.rule.any_valley || level == lowest) {
                for section in left..right {
                    let (slack, lying) =
                        (self.slack[section as usize], u64::from(self.lying[section as usize]));
                    let key = match self.rule.choice {
                        SectionChoice::FullThenFew => (slack.min(1), lying, section),
                        SectionChoice::LeastSlack => (slack, lying, section),
                        SectionChoice::Few => (lying, slack, section),
                        SectionChoice::First => (0, 0, section),
                    };
                    best = Some(best.map_or(key, |known| known.min(key)));
                }
            }
            left = right;
        }
        let section = best.map_or(from, |(_, _, section)| section);
        let level = self.floor[section as usize];
        let next = choices.len();
        choices.extend(
            self.sections.live[section as usize]
                .iter()
                .filter(|&&block| self.may_lie(block, level)),
        );
        choices[next..].sort_by_key(|&block| self.rank[block as usize]);
        Frame {
            from,
            to,
            parent,
            section,
            next,
            end: choices.len(),
            raise: true,
            trail: self.trail.len(),
            tasks,
        }
    }

    /// The sections around one, within `from..to`, that are as high as it is.
    fn level(&self, section: u32, from: u32, to: u32) -> (u32, u32) {
        let same = |other: &u32| self.floor[*other as usize] == self.floor[section as usize];
        let left = (from..section).rev().take_while(same).last().unwrap_or(section);
        let right = (section..to).take_while(same).last().unwrap_or(section) + 1;
        (left, right)
    }

    /// Whether an unplaced block can lie at `level`, its lowest address.
    fn may_lie(&self, block: u32, level: u64) -> bool {
        let b = block as usize;
        if self.lowest[b] != level
            || (self.equal_before[b] != NO_BLOCK
                && self.address[self.equal_before[b] as usize].is_none())
        {
            return false;
        }
        // Two blocks with the same lifetime, one upon the other: one order is enough.
        let below = self.top[self.sections.range[b].0 as usize];
        below == NO_BLOCK
            || self.sections.range[below as usize] != self.sections.range[b]
            || self.rank[below as usize] < self.rank[b]
    }

    fn place(&mut self, block: u32, at: u64) -> bool {
        let b = block as usize;
        let (from, to) = self.sections.range[b];
        let height = at + self.blocks[b].bytes.0;
        self.address[b] = Some(at);
        self.trail.push(Change::Placed { block, lowest: self.lowest[b] });
        self.lowest[b] = PLACED;
        for section in from..to {
            let s = section as usize;
            self.trail.push(self.before(section));
            self.floor[s] = height;
            self.top[s] = block;
            self.waiting[s] -= 1;
            if section > from {
                self.crossing[s] -= 1;
            }
            self.mark(section);
        }
        let sections = self.sections;
        for other in sections.together(block) {
            self.lift(other, height);
        }
        self.settle()
    }

    fn before(&self, section: u32) -> Change {
        let s = section as usize;
        Change::Floor {
            section,
            floor: self.floor[s],
            slack: self.slack[s],
            top: self.top[s],
            lying: self.lying[s],
        }
    }

    /// Leaves the floor of a section empty: what goes next on it rests on a neighbour of the
    /// valley, or on something in the valley that does not cover the section.
    fn raise(&mut self, section: u32, from: u32, to: u32) -> bool {
        let s = section as usize;
        let (left, right) = self.level(section, from, to);
        let mut height = u64::MAX;
        if left > from {
            height = height.min(self.floor[left as usize - 1]);
        }
        if right < to {
            height = height.min(self.floor[right as usize]);
        }
        for &block in (left..right).flat_map(|other| &self.sections.live[other as usize]) {
            let (first, behind) = self.sections.range[block as usize];
            if self.lowest[block as usize] != PLACED && !(first..behind).contains(&section) {
                height =
                    height.min(self.lowest[block as usize] + self.blocks[block as usize].bytes.0);
            }
        }
        let waste = height - self.floor[s];
        if waste > self.slack[s] {
            return false;
        }
        self.trail.push(self.before(section));
        self.floor[s] = height;
        self.slack[s] -= waste;
        self.top[s] = NO_BLOCK;
        let sections = self.sections;
        for &block in &sections.live[s] {
            self.lift(block, height);
        }
        self.mark(section);
        true
    }

    /// Raises the lowest address of a block to `to`.
    fn lift(&mut self, block: u32, to: u64) {
        let b = block as usize;
        let was = self.lowest[b];
        if was >= to {
            return;
        }
        self.trail.push(Change::Lowest { block, lowest: was });
        self.lowest[b] = to;
        let (first, behind) = self.sections.range[b];
        for section in first..behind {
            let s = section as usize;
            if self.floor[s] == was {
                self.lying[s] -= 1;
                if self.lying[s] == 0 {
                    self.mark(section);
                }
            } else if self.floor[s] == to {
                self.lying[s] += 1;
            }
        }
    }

    fn mark(&mut self, section: u32) {
        if !self.is_dirty[section as usize] {
            self.is_dirty[section as usize] = true;
            self.dirty.push(section);
        }
    }

    /// Counts what can lie on changed floors, and raises those on which nothing can; false if a
    /// section wastes more than it may. All blocks of a raised section lie at least that high
    /// already, so no other section changes.
    fn settle(&mut self) -> bool {
        let mut fits = true;
        while let Some(section) = self.dirty.pop() {
            let s = section as usize;
            self.is_dirty[s] = false;
            if !fits || self.waiting[s] == 0 {
                continue;
            }
            let (mut lowest, mut lying) = (u64::MAX, 0);
            for &block in &self.sections.live[s] {
                let b = block as usize;
                let own = self.lowest[b];
                if own < lowest {
                    (lowest, lying) = (own, 1);
                } else {
                    lying += u32::from(own == lowest);
                }
            }
            let waste = lowest - self.floor[s];
            if waste > self.slack[s] {
                fits = false;
                continue;
            }
            self.trail.push(self.before(section));
            self.lying[s] = lying;
            if waste > 0 {
                self.floor[s] = lowest;
                self.slack[s] -= waste;
                self.top[s] = NO_BLOCK;
            }
        }
        fits
    }

    fn undo(&mut self, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop() {
                Some(Change::Floor { section, floor, slack, top, lying }) => {
                    let s = section as usize;
                    (self.floor[s], self.slack[s], self.top[s], self.lying[s]) =
                        (floor, slack, top, lying);
                }
                Some(Change::Lowest { block, lowest: was }) => {
                    let b = block as usize;
                    let to = self.lowest[b];
                    self.lowest[b] = was;
                    let (first, behind) = self.sections.range[b];
                    for s in first as usize..behind as usize {
                        if self.floor[s] == was {
                            self.lying[s] += 1;
                        } else if self.floor[s] == to {
                            self.lying[s] -= 1;
                        }
                    }
                }
                Some(Change::Placed { block, lowest }) => {
                    self.lowest[block as usize] = lowest;
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

/// For each block, the one before it in the order that is its equal.
fn previous_equals(blocks: &[Lifetime], sections: &Sections, rank: &[u32]) -> Vec<u32> {
    let kind = |block: u32| (sections.range[block as usize], blocks[block as usize].bytes);
    let mut order: Vec<u32> = (0..blocks.len() as u32).collect();
    order.sort_unstable_by_key(|&block| (kind(block), rank[block as usize]));
    let mut equal_before = vec![NO_BLOCK; blocks.len()];
    for pair in order.windows(2).filter(|pair| kind(pair[0]) == kind(pair[1])) {
        equal_before[pair[1] as usize] = pair[0];
    }
    equal_before
}
