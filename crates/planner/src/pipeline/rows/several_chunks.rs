//! Several stages on each rank, in turn.
//!
//! Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
//! Megatron-LM", SC 2021, section 2.2. Invariant: the bubble is (p − 1)(F + B)/v with v stages on
//! each rank.

use crate::pipeline::action::{Pass, Rows};
use crate::pipeline::rows::{PipelineSchedule, Row, Unsuited, in_turn, rows_of, within_limits};

/// `chunks` stages on each rank. Micro-batches go through them in rounds: all of a round through
/// one stage, then all of them through the next.
///
/// # Errors
/// [`Unsuited`] if there is nothing to do, or rounds would not be equally long.
pub fn interleaved(ranks: u32, micro_batches: u32, chunks: u32) -> Result<Rows, Unsuited> {
    within_limits(ranks, micro_batches, chunks)?;
    let rounds = (micro_batches / ranks).max(1);
    if !micro_batches.is_multiple_of(rounds) {
        let schedule = PipelineSchedule::Interleaved.name();
        return Err(Unsuited::Rounds { schedule, ranks, micro_batches });
    }
    let of_a_round = micro_batches / rounds;
    let passes = micro_batches * chunks;
    let chunk = |turn: u32| turn / of_a_round % chunks;
    Ok(rows_of(in_turn(ranks, chunks), ranks, micro_batches, |rank| {
        let mut row = Row::default();
        let mut done = vec![[0; 2]; chunks as usize];
        let mut turn = |chunk: u32, pass: Pass| {
            let number = &mut done[chunk as usize][usize::from(pass == Pass::Backward)];
            row.push(chunk * ranks + rank, pass, *number);
            *number += 1;
        };
        let ahead = ((chunks - 1) * of_a_round + 2 * (ranks - 1 - rank)).min(passes);
        (0..ahead).for_each(|index| turn(chunk(index), Pass::Forward));
        for index in 0..passes {
            if ahead + index < passes {
                turn(chunk(ahead + index), Pass::Forward);
            }
            turn(chunks - 1 - chunk(index), Pass::Backward);
        }
        row
    }))
}
