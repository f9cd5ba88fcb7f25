//! Two stages on each rank, the second half of them in the opposite order: the rank that begins a
//! micro-batch also ends it.
//!
//! Sources: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 6 (ZB-V); Qi et al.,
//! "Pipeline Parallelism with Controllable Memory", NeurIPS 2024 (V-Min, V-Half). Invariant: with
//! equal stages ZB-V holds at most as much as 1F1B, V-Half half of it and V-Min a third, up to a
//! constant.
//!
//! V-Min and V-Half repeat one pattern, a micro-batch every six time steps. Its four passes on a
//! rank begin at offsets that leave each other's time steps free; second parts of backward passes
//! fill the free ones, first in, first out.

use std::collections::{BTreeMap, VecDeque};

use cranelift_entity::PrimaryMap;

use crate::id::{RankId, StageId};
use crate::pipeline::action::Rows;
use crate::pipeline::rows::{Row, rows_of};

/// Down the ranks and up again.
pub(super) fn placement(ranks: u32) -> PrimaryMap<StageId, RankId> {
    (0..ranks).chain((0..ranks).rev()).map(RankId::from_u32).collect()
}

/// A rank's stages, with the micro-batch that comes next in each pass.
struct Turns {
    row: Row,
    stages: [u32; 2],
    micro_batches: u32,
    forward: [u32; 2],
    input: [u32; 2],
    weight: [u32; 2],
}

impl Turns {
    /// The next micro-batch of a pass; micro-batches beyond the last one take no time.
    fn next(of: &mut u32, micro_batches: u32) -> Option<u32> {
        *of += 1;
        Some(*of - 1).filter(|&number| number < micro_batches)
    }

    fn forward(&mut self, chunk: usize) {
        if let Some(number) = Turns::next(&mut self.forward[chunk], self.micro_batches) {
            self.row.forward(self.stages[chunk], number);
        }
    }

    fn input(&mut self, chunk: usize) {
        if let Some(number) = Turns::next(&mut self.input[chunk], self.micro_batches) {
            self.row.input(self.stages[chunk], number);
        }
    }

    fn weight(&mut self, chunk: usize) {
        if let Some(number) = Turns::next(&mut self.weight[chunk], self.micro_batches) {
            self.row.weight(self.stages[chunk], number);
        }
    }

    fn backward(&mut self, chunk: usize) {
        self.input(chunk);
        self.weight(chunk);
    }
}

/// ZB-V: forward passes until the last stage is reached, then a forward and a backward pass of each
/// stage in turn; second parts are deferred only at the end. With fewer micro-batches than fill the
/// pipeline, the missing ones are left out.
pub(super) fn zb_v(ranks: u32, micro_batches: u32) -> Rows {
    let all = micro_batches.max(2 * ranks - 1);
    rows_of(placement(ranks), ranks, micro_batches, |rank| {
        let behind = ranks - rank;
        let mut turns = Turns {
            row: Row::default(),
            stages: [rank, 2 * ranks - 1 - rank],
            micro_batches,
            forward: [0; 2],
            input: [0; 2],
            weight: [0; 2],
        };
        (0..2 * behind - 1).for_each(|_| turns.forward(0));
        for _ in 0..rank {
            turns.forward(1);
            turns.forward(0);
        }
        for _ in 0..behind {
            turns.forward(1);
            turns.backward(1);
        }
        while turns.forward[1] < turns.forward[0] || turns.forward[0] < all {
            if turns.forward[0] < all {
                turns.forward(0);
            }
            turns.backward(0);
            turns.forward(1);
            turns.backward(1);
        }
        // So far both parts came together; from here on the first ones run ahead.
        for _ in 0..rank {
            turns.input(0);
            turns.input(1);
        }
        for _ in 0..behind {
            turns.input(0);
            turns.weight(0);
        }
        for chunk in [1, 0] {
            while turns.weight[chunk] < turns.input[chunk] {
                turns.weight(chunk);
            }
        }
        turns.row
    })
}

/// Time steps from one micro-batch to the next.
const PERIOD: u32 = 6;

/// V-Min: every pass begins as soon as it can.
pub(super) fn v_min(ranks: u32, micro_batches: u32) -> Rows {
    let put_off = if ranks.is_multiple_of(3) { 2 } else { 0 };
    repeated(ranks, micro_batches, |rank| Pattern {
        forward: [rank, 2 * ranks - 1 - rank],
        input: [4 * ranks + put_off - 1 - rank, 2 * ranks + put_off + rank],
    })
}

/// V-Half: each stage takes two time steps on the way up, and again on the way down.
pub(super) fn v_half(ranks: u32, micro_batches: u32) -> Rows {
    let put_off = if ranks.is_multiple_of(2) { 3 } else { 0 };
    repeated(ranks, micro_batches, |rank| Pattern {
        forward: [2 * rank, 3 * ranks - 2 - rank],
        input: [6 * ranks + put_off - 2 - rank, 3 * ranks + put_off + 2 * rank - 1],
    })
}

/// When the passes of the first micro-batch begin on a rank, by its stages.
struct Pattern {
    forward: [u32; 2],
    input: [u32; 2],
}

fn repeated(ranks: u32, micro_batches: u32, pattern: impl Fn(u32) -> Pattern) -> Rows {
    rows_of(placement(ranks), ranks, micro_batches, |rank| {
        let pattern = pattern(rank);
        let stages = [rank, 2 * ranks - 1 - rank];
        // By time step: an action, its stage and its micro-batch.
        let mut steps: BTreeMap<u32, (bool, u32, u32)> = BTreeMap::new();
        for number in 0..micro_batches {
            for (chunk, stage) in stages.into_iter().enumerate() {
                let later = PERIOD * number;
                steps.insert(pattern.forward[chunk] + later, (true, stage, number));
                steps.insert(pattern.input[chunk] + later, (false, stage, number));
            }
        }
        let mut row = Row::default();
        let mut put_off: VecDeque<(u32, u32)> = VecDeque::new();
        let mut free = steps.keys().next().copied().unwrap_or(0);
        for (step, (is_forward, stage, number)) in steps {
            while free < step
                && let Some((stage, number)) = put_off.pop_front()
            {
                row.weight(stage, number);
                free += 1;
            }
            free = step + 1;
            if is_forward {
                row.forward(stage, number);
            } else {
                row.input(stage, number);
                put_off.push_back((stage, number));
            }
        }
        put_off.into_iter().for_each(|(stage, number)| row.weight(stage, number));
        row
    })
}
