//! The dynamic program over parts of the chain and memory. Invariant: a part's cost is the least of
//! saving its first block and of every checkpoint, each within the same slots.

use crate::plan::published::rotor::{Blocks, Move, SLOTS};

/// Cells of the table that are filled in the time of one operation.
const CELLS_PER_OPERATION: usize = 32;

/// The decision about a part of the chain.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PartChoice {
    Infeasible,
    /// The first block leaves everything.
    Save,
    /// The blocks before this one leave nothing but its input.
    Checkpoint(u8),
}

/// cost(first, last, memory): fewest seconds of forward passes for the part `first..=last` of the
/// chain within `memory` slots; its input exists and is not counted.
pub struct CostTable<'a> {
    blocks: &'a Blocks,
    length: usize,
    memory: usize,
    cost: Vec<f64>,
    choice: Vec<PartChoice>,
}

impl CostTable<'_> {
    /// Fills the table, shorter parts first.
    pub fn new(blocks: &Blocks) -> CostTable<'_> {
        let length = blocks.forward.len();
        // Because of rounding, saving everything may take some more slots than it really does.
        let memory = SLOTS + SLOTS / 10 + 2 * length;
        let size = length * (length + 1) / 2 * (memory + 1);
        let mut table = CostTable {
            blocks,
            length,
            memory,
            cost: vec![f64::INFINITY; size],
            choice: vec![PartChoice::Infeasible; size],
        };
        for width in 0..length {
            for first in 0..length - width {
                table.fill(first, first + width);
            }
        }
        table
    }

    /// Operations that filling took; one operation fills several cells.
    pub fn work(&self) -> u64 {
        (self.length.pow(3) / 6 * self.memory / CELLS_PER_OPERATION) as u64
    }

    /// The cell of a part; no part ends before it begins, so the parts form a triangle.
    fn at(&self, first: usize, last: usize, memory: usize) -> usize {
        let before = first * (2 * self.length - first + 1) / 2;
        (before + last - first) * (self.memory + 1) + memory
    }

    fn fill(&mut self, first: usize, last: usize) {
        let blocks = self.blocks;
        let end = self.memory + 1;
        let mut best = vec![(f64::INFINITY, PartChoice::Infeasible); end];
        let all = blocks.held(blocks.all[first]);
        let least = blocks
            .needed(
                (blocks.all[first] + blocks.backward[first])
                    .max(blocks.saving[first] + blocks.before[last]),
            )
            .max(all);
        for (memory, best) in best.iter_mut().enumerate().skip(least) {
            let rest =
                if first == last { 0.0 } else { self.cost[self.at(first + 1, last, memory - all)] };
            if rest < f64::INFINITY {
                *best = (blocks.forward[first] + rest, PartChoice::Save);
            }
        }
        let (mut pass, mut peak) = (0.0, 0);
        for border in first + 1..=last {
            let passed = border - 1;
            let input = if passed > first { blocks.output[passed - 1] } else { 0 };
            pass += blocks.forward[passed];
            peak = peak.max(input + blocks.passing[passed]);
            let output = blocks.held(blocks.output[passed]);
            let least = blocks.needed(peak + blocks.before[last]).max(output).min(end);
            let (right, left) = (self.at(border, last, 0), self.at(first, passed, 0));
            let (right, left) = (
                &self.cost[right + least - output..right + end - output],
                &self.cost[left + least..left + end],
            );
            for ((best, right), left) in best[least..].iter_mut().zip(right).zip(left) {
                let cost = pass + right + left;
                if cost < best.0 {
                    *best = (cost, PartChoice::Checkpoint(border as u8));
                }
            }
        }
        let now = self.at(first, last, 0);
        for (memory, (cost, choice)) in best.into_iter().enumerate() {
            (self.cost[now + memory], self.choice[now + memory]) = (cost, choice);
        }
    }

    /// The amounts of memory at which the whole chain gets faster, increasing.
    pub fn amounts(&self) -> Vec<usize> {
        let whole = self.at(0, self.length - 1, 0);
        let cost = &self.cost[whole..=whole + self.memory];
        (0..=self.memory)
            .filter(|&memory| {
                cost[memory] < if memory == 0 { f64::INFINITY } else { cost[memory - 1] }
            })
            .collect()
    }

    /// The schedule of the whole chain in that much memory.
    pub fn schedule(&self, memory: usize) -> Vec<Move> {
        enum Pending {
            Part(usize, usize, usize),
            Backward(usize),
        }
        let mut schedule = Vec::new();
        let mut pending = vec![Pending::Part(0, self.length - 1, memory)];
        while let Some(next) = pending.pop() {
            let (first, last, memory) = match next {
                Pending::Backward(block) => {
                    schedule.push(Move::Backward(block));
                    continue;
                }
                Pending::Part(first, last, memory) => (first, last, memory),
            };
            match self.choice[self.at(first, last, memory)] {
                PartChoice::Infeasible => {}
                PartChoice::Save => {
                    schedule.push(Move::Forward(first));
                    pending.push(Pending::Backward(first));
                    if first < last {
                        pending.push(Pending::Part(
                            first + 1,
                            last,
                            memory - self.blocks.held(self.blocks.all[first]),
                        ));
                    }
                }
                PartChoice::Checkpoint(border) => {
                    let border = usize::from(border);
                    schedule.extend((first..border).map(Move::Forward));
                    pending.push(Pending::Part(first, border - 1, memory));
                    pending.push(Pending::Part(
                        border,
                        last,
                        memory - self.blocks.held(self.blocks.output[border - 1]),
                    ));
                }
            }
        }
        schedule
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bytes;

    /// Equal blocks of one second whose output takes one slot and everything three, with nothing
    /// else held.
    fn equal(length: usize) -> Blocks {
        let mut blocks = Blocks::new(length, Bytes(1));
        blocks.forward.fill(1.0);
        blocks.output.fill(1);
        blocks.all.fill(3);
        blocks.passing.fill(2);
        blocks.saving.fill(3);
        blocks
    }

    fn recomputed(length: usize, memory: usize) -> f64 {
        let blocks = equal(length);
        let table = CostTable::new(&blocks);
        table.cost[table.at(0, length - 1, memory)] - length as f64
    }

    #[test]
    fn a_chain_pays_for_what_it_cannot_save() {
        assert_eq!(recomputed(4, 12), 0.0);
        // One checkpoint fewer than all: the first block runs twice.
        assert_eq!(recomputed(4, 11), 1.0);
        assert_eq!(recomputed(2, 4), 1.0);
        assert_eq!(recomputed(2, 3), f64::INFINITY);
    }

    #[test]
    fn a_schedule_comes_back_to_what_it_passed() {
        use Move::{Backward as B, Forward as F};
        let blocks = equal(3);
        let table = CostTable::new(&blocks);
        assert_eq!(table.schedule(9), [F(0), F(1), F(2), B(2), B(1), B(0)]);
        assert_eq!(table.schedule(7), [F(0), F(1), F(2), B(2), F(1), B(1), B(0)]);
        assert_eq!(table.schedule(5), [F(0), F(1), F(2), B(2), F(1), B(1), F(0), B(0)]);
    }
}
