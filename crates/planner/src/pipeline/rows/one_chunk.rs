//! Orders with one stage on each rank.
//!
//! Sources: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream", SOSP 2019, and
//! "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021 (1F1B with one update for all
//! micro-batches); Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (ZB-H1). Invariant: the
//! bubble of GPipe and 1F1B is (p − 1)(F + B), that of ZB-H1 (p − 1)(F + I − W).

use crate::pipeline::action::Rows;
use crate::pipeline::rows::{Row, in_turn, rows_of};

/// All forward passes, then all backward passes, the newest first if `descends`.
pub(super) fn gpipe(ranks: u32, micro_batches: u32, descends: bool) -> Rows {
    rows_of(in_turn(ranks, 1), ranks, micro_batches, |rank| {
        let mut row = Row::default();
        (0..micro_batches).for_each(|number| row.forward(rank, number));
        for number in 0..micro_batches {
            row.backward(rank, if descends { micro_batches - 1 - number } else { number });
        }
        row
    })
}

/// As many forward passes as there are later ranks, then a forward and a backward pass in turn.
pub(super) fn one_f_one_b(ranks: u32, micro_batches: u32) -> Rows {
    rows_of(in_turn(ranks, 1), ranks, micro_batches, |rank| {
        let mut row = Row::default();
        let ahead = (ranks - 1 - rank).min(micro_batches);
        (0..ahead).for_each(|number| row.forward(rank, number));
        for number in 0..micro_batches {
            if ahead + number < micro_batches {
                row.forward(rank, ahead + number);
            }
            row.backward(rank, number);
        }
        row
    })
}

/// As 1F1B, with the second part of each backward pass delayed by as many micro-batches as there
/// are earlier ranks: so all ranks hold the same, and the gap at the end is filled.
pub(super) fn zb_h1(ranks: u32, micro_batches: u32) -> Rows {
    rows_of(in_turn(ranks, 1), ranks, micro_batches, |rank| {
        let mut row = Row::default();
        let ahead = (ranks - 1 - rank).min(micro_batches);
        (0..ahead).for_each(|number| row.forward(rank, number));
        for number in 0..micro_batches {
            if ahead + number < micro_batches {
                row.forward(rank, ahead + number);
            }
            row.input(rank, number);
            if let Some(late) = number.checked_sub(rank) {
                row.weight(rank, late);
            }
        }
        (micro_batches.saturating_sub(rank)..micro_batches)
            .for_each(|number| row.weight(rank, number));
        row
    })
}
