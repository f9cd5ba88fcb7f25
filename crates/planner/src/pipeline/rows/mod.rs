//! The orders in which ranks perform their actions, by name. Invariant: whatever the number of
//! ranks and micro-batches, rows made by this module are [valid](crate::pipeline::validate), except
//! those of [`PipelineSchedule::AsyncPipe`], whose gradients are summed in another order.

mod greedy;
mod one_chunk;
mod several_chunks;
mod v_shape;

use cranelift_entity::{EntityRef, PrimaryMap};
use thiserror::Error;

use crate::exit::coded;
use crate::id::{RankId, StageId};
use crate::pipeline::action::{Action, Pass, Rows};

pub use greedy::greedy;
pub use several_chunks::interleaved;

/// An order by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PipelineSchedule {
    /// All forward passes, then all backward passes.
    GPipe,
    /// One forward pass, one backward pass, in turn.
    OneFOneB,
    /// The same with two stages on each rank.
    Interleaved,
    /// One forward pass, one backward pass, whose second part fills gaps.
    ZbH1,
    /// Two stages on each rank, the second half of them in the opposite order, so that no rank
    /// waits.
    ZbV,
    /// The same placement, with half of the activations.
    VHalf,
    /// The same placement, with as few activations as it allows.
    VMin,
    /// The same placement; each rank performs whatever is ready, as long as it holds no more than
    /// the activations of one micro-batch for each rank.
    GreedyV,
    /// One stage on each rank, scheduled in the same way.
    Greedy,
    /// The order of the asynchronous pipeline of fairscale: all forward passes, then the backward
    /// passes, the newest first.
    AsyncPipe,
}

/// Why an order has no rows.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsuited {
    /// There is nothing to do.
    #[error("{ranks} ranks and {micro_batches} micro-batches: at least one of each is needed")]
    Nothing {
        /// The number of ranks.
        ranks: u32,
        /// The number of micro-batches.
        micro_batches: u32,
    },
    /// The rows would be too long.
    #[error("{ranks} ranks and {micro_batches} micro-batches are too many: rows would be too long")]
    TooLong {
        /// The number of ranks.
        ranks: u32,
        /// The number of micro-batches.
        micro_batches: u32,
    },
    /// The micro-batches do not divide into rounds of equal length.
    #[error(
        "{schedule} takes micro-batches in rounds of the number of ranks or more, all alike, but \
         {micro_batches} micro-batches on {ranks} ranks do not divide so; take a multiple of \
         {ranks}"
    )]
    Rounds {
        /// The name of the schedule.
        schedule: &'static str,
        /// The number of ranks.
        ranks: u32,
        /// The number of micro-batches.
        micro_batches: u32,
    },
}

coded!(Usage: Unsuited);

/// Most actions of all rows together.
const MOST_ACTIONS: u64 = 1 << 22;

impl PipelineSchedule {
    /// Every order with its name.
    pub const ALL: [(PipelineSchedule, &'static str); 10] = [
        (PipelineSchedule::GPipe, "gpipe"),
        (PipelineSchedule::OneFOneB, "1f1b"),
        (PipelineSchedule::Interleaved, "interleaved"),
        (PipelineSchedule::ZbH1, "zb-h1"),
        (PipelineSchedule::ZbV, "zb-v"),
        (PipelineSchedule::VHalf, "v-half"),
        (PipelineSchedule::VMin, "v-min"),
        (PipelineSchedule::GreedyV, "greedy-v"),
        (PipelineSchedule::Greedy, "greedy"),
        (PipelineSchedule::AsyncPipe, "asyncpipe"),
    ];

    /// Every order whose sums over micro-batches are the same, bit for bit: all except the
    /// asynchronous pipeline's, whose backward passes come in descending order.
    pub fn with_equal_sums() -> impl Iterator<Item = PipelineSchedule> {
        let all = Self::ALL.into_iter().map(|(schedule, _)| schedule);
        all.filter(|&schedule| schedule != PipelineSchedule::AsyncPipe)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// The order called `name`.
    pub fn from_name(name: &str) -> Option<PipelineSchedule> {
        Self::ALL.iter().find(|(_, other)| *other == name).map(|(order, _)| *order)
    }

    /// Stages on each rank.
    pub fn chunks(self) -> u32 {
        match self {
            PipelineSchedule::GPipe
            | PipelineSchedule::OneFOneB
            | PipelineSchedule::ZbH1
            | PipelineSchedule::Greedy
            | PipelineSchedule::AsyncPipe => 1,
            PipelineSchedule::Interleaved
            | PipelineSchedule::ZbV
            | PipelineSchedule::VHalf
            | PipelineSchedule::VMin
            | PipelineSchedule::GreedyV => 2,
        }
    }

    /// The rows for these numbers of ranks and micro-batches.
    ///
    /// # Errors
    /// [`Unsuited`] if the order has none for them.
    pub fn rows(self, ranks: u32, micro_batches: u32) -> Result<Rows, Unsuited> {
        within_limits(ranks, micro_batches, self.chunks())?;
        Ok(match self {
            PipelineSchedule::GPipe => one_chunk::gpipe(ranks, micro_batches, false),
            PipelineSchedule::AsyncPipe => one_chunk::gpipe(ranks, micro_batches, true),
            PipelineSchedule::OneFOneB => one_chunk::one_f_one_b(ranks, micro_batches),
            PipelineSchedule::ZbH1 => one_chunk::zb_h1(ranks, micro_batches),
            PipelineSchedule::Interleaved => {
                several_chunks::interleaved(ranks, micro_batches, self.chunks())?
            }
            PipelineSchedule::ZbV => v_shape::zb_v(ranks, micro_batches),
            PipelineSchedule::VHalf => v_shape::v_half(ranks, micro_batches),
            PipelineSchedule::VMin => v_shape::v_min(ranks, micro_batches),
            PipelineSchedule::GreedyV => {
                greedy::of_equal_stages(v_shape::placement(ranks), ranks, micro_batches)
            }
            PipelineSchedule::Greedy => {
                greedy::of_equal_stages(in_turn(ranks, 1), ranks, micro_batches)
            }
        })
    }
}

/// Checks that there is something to do, and not too much.
fn within_limits(ranks: u32, micro_batches: u32, chunks: u32) -> Result<(), Unsuited> {
    if ranks == 0 || micro_batches == 0 || chunks == 0 {
        return Err(Unsuited::Nothing { ranks, micro_batches });
    }
    let of_each = u64::from(ranks) * u64::from(micro_batches);
    if of_each.saturating_mul(3 * u64::from(chunks)) > MOST_ACTIONS {
        return Err(Unsuited::TooLong { ranks, micro_batches });
    }
    Ok(())
}

/// Stages in turn: rank 0, 1, …, and again from the first rank on, `chunks` times.
pub fn in_turn(ranks: u32, chunks: u32) -> PrimaryMap<StageId, RankId> {
    (0..chunks).flat_map(|_| (0..ranks).map(RankId::from_u32)).collect()
}

/// The row of one rank under construction.
#[derive(Default)]
struct Row {
    actions: Vec<Action>,
}

impl Row {
    fn push(&mut self, stage: u32, pass: Pass, micro_batch: u32) {
        self.actions.push(Action::new(stage, pass, micro_batch));
    }

    fn forward(&mut self, stage: u32, micro_batch: u32) {
        self.push(stage, Pass::Forward, micro_batch);
    }

    fn backward(&mut self, stage: u32, micro_batch: u32) {
        self.push(stage, Pass::Backward, micro_batch);
    }

    fn input(&mut self, stage: u32, micro_batch: u32) {
        self.push(stage, Pass::InputGradient, micro_batch);
    }

    fn weight(&mut self, stage: u32, micro_batch: u32) {
        self.push(stage, Pass::WeightGradient, micro_batch);
    }
}

/// One row for each rank, made by `row`.
fn rows_of(
    placement: PrimaryMap<StageId, RankId>,
    ranks: u32,
    micro_batches: u32,
    row: impl Fn(u32) -> Row,
) -> Rows {
    let rows: PrimaryMap<RankId, Vec<Action>> = (0..ranks).map(|rank| row(rank).actions).collect();
    debug_assert!(placement.values().all(|rank| rank.index() < rows.len()));
    Rows { placement, rows, micro_batches }
}
