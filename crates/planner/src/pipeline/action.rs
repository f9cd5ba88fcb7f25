//! What the ranks of a pipeline do, and in which order. Invariant: plain data, which anyone may
//! make; [`validate`](crate::pipeline::validate) decides whether rows are valid.
//!
//! A stage is a part of the model that one rank computes; a rank may have several. Stages are
//! numbered in the order of the forward pass. A layer that is visited several times is several
//! stages, which share its parameters.

use std::fmt;

use cranelift_entity::PrimaryMap;

use crate::id::{MicroBatchId, RankId, StageId};

/// What is computed of a stage for a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// Activations.
    Forward,
    /// All gradients.
    Backward,
    /// The part of the backward pass that the stage before waits for.
    InputGradient,
    /// The rest of it.
    WeightGradient,
}

impl Pass {
    /// Every pass with its letter in the tokens of `torch.distributed.pipelining`.
    pub const ALL: [(Pass, char); 4] = [
        (Pass::Forward, 'F'),
        (Pass::Backward, 'B'),
        (Pass::InputGradient, 'I'),
        (Pass::WeightGradient, 'W'),
    ];

    /// Its letter.
    pub fn letter(self) -> char {
        Self::ALL[self as usize].1
    }

    /// Whether it makes the gradients of the stage's inputs.
    pub fn makes_input_gradients(self) -> bool {
        matches!(self, Pass::Backward | Pass::InputGradient)
    }

    /// Whether it makes the gradients of the stage's parameters, and is the last to read what the
    /// forward pass has left.
    pub fn makes_weight_gradients(self) -> bool {
        matches!(self, Pass::Backward | Pass::WeightGradient)
    }
}

/// A pass of a stage over a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Action {
    /// The stage.
    pub stage: StageId,
    /// The pass.
    pub pass: Pass,
    /// The micro-batch.
    pub micro_batch: MicroBatchId,
}

impl Action {
    /// A pass of a stage over a micro-batch, by their numbers.
    pub fn new(stage: u32, pass: Pass, micro_batch: u32) -> Action {
        let (stage, micro_batch) = (StageId::from_u32(stage), MicroBatchId::from_u32(micro_batch));
        Action { stage, pass, micro_batch }
    }
}

/// As `torch.distributed.pipelining` writes it: `2F0` is the forward pass of stage 2 over
/// micro-batch 0.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = self.pass.letter();
        write!(f, "{}{letter}{}", self.stage.as_u32(), self.micro_batch.as_u32())
    }
}

/// The actions of each rank, in the order in which it performs them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The rank of each stage.
    pub placement: PrimaryMap<StageId, RankId>,
    /// What each rank does.
    pub rows: PrimaryMap<RankId, Vec<Action>>,
    /// The micro-batches of an update.
    pub micro_batches: u32,
}

impl Rows {
    /// One forward pass of each stage and no backward pass, for this placement.
    pub fn forward(placement: &PrimaryMap<StageId, RankId>, ranks: usize) -> Rows {
        let mut rows: PrimaryMap<RankId, Vec<Action>> = (0..ranks).map(|_| Vec::new()).collect();
        for (stage, &rank) in placement {
            rows[rank].push(Action::new(stage.as_u32(), Pass::Forward, 0));
        }
        Rows { placement: placement.clone(), rows, micro_batches: 1 }
    }

    /// Whether no stage performs a backward pass.
    pub fn is_forward(&self) -> bool {
        self.rows.values().flatten().all(|action| action.pass == Pass::Forward)
    }

    /// The stages of a rank, in the order of the forward pass.
    pub fn stages_of(&self, rank: RankId) -> Vec<StageId> {
        let own = self.placement.iter().filter(|&(_, &owner)| owner == rank);
        own.map(|(stage, _)| stage).collect()
    }

    /// Whether the backward pass of some stage is divided in two.
    pub fn splits_backward(&self) -> bool {
        self.rows.values().flatten().any(|action| action.pass == Pass::InputGradient)
    }
}
