//! Validates rows: each stage runs each of its passes once for each micro-batch, on one rank, and
//! no rank waits forever. Invariant: rows that pass run to their end in any execution that performs
//! each row in its order and sends results as soon as they are made; and every sum over
//! micro-batches has one order.

use std::collections::BTreeSet;
use std::fmt;

use cranelift_entity::{EntityRef, SecondaryMap};
use thiserror::Error;

use crate::id::{MicroBatchId, RankId, StageId};
use crate::pipeline::action::{Action, Pass, Rows};

/// Why rows are invalid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowsError {
    /// There is nothing to do.
    #[error("there are {stages} stages and {micro_batches} micro-batches; at least one of each")]
    Nothing {
        /// The number of stages.
        stages: usize,
        /// The number of micro-batches.
        micro_batches: u32,
    },
    /// A stage lies on a rank that has no row.
    #[error("{stage} is placed on {rank}, but there are {ranks} rows")]
    NoRow {
        /// The stage.
        stage: StageId,
        /// Its rank.
        rank: RankId,
        /// The number of rows.
        ranks: usize,
    },
    /// A rank has a stage that does not exist.
    #[error("{rank} performs {action}, but there are {stages} stages")]
    UnknownStage {
        /// The rank.
        rank: RankId,
        /// The action that it performs.
        action: Action,
        /// The number of stages.
        stages: usize,
    },
    /// An action is on a micro-batch that does not exist.
    #[error("{rank} performs {action}, but there are {micro_batches} micro-batches")]
    UnknownMicroBatch {
        /// The rank.
        rank: RankId,
        /// The action that it performs.
        action: Action,
        /// The number of micro-batches.
        micro_batches: u32,
    },
    /// A stage is computed by a rank that does not have it.
    #[error("{rank} performs {action}, but the stage is {owner}'s")]
    TwoOwners {
        /// The rank.
        rank: RankId,
        /// The action that it performs.
        action: Action,
        /// The rank of the stage.
        owner: RankId,
    },
    /// An action occurs twice.
    #[error("{rank} performs {action} twice")]
    Duplicate {
        /// The rank.
        rank: RankId,
        /// The action that it performs.
        action: Action,
    },
    /// A backward pass occurs both whole and in parts.
    #[error("{rank} performs {action} as a whole and in parts")]
    WholeAndParts {
        /// The rank.
        rank: RankId,
        /// The backward pass.
        action: Action,
    },
    /// An action is missing.
    #[error("{rank} never performs {action}")]
    Missing {
        /// The rank.
        rank: RankId,
        /// The action that it does not perform.
        action: Action,
    },
    /// Statistics would be taken, or gradients summed, in another order than that of the
    /// micro-batches.
    #[error(
        "{rank} performs {action} after micro-batch {after}; statistics are taken and gradients \
         summed in the order of the micro-batches"
    )]
    Descending {
        /// The rank.
        rank: RankId,
        /// The action that it performs.
        action: Action,
        /// The number of the micro-batch before it.
        after: u32,
    },
    /// Ranks wait for each other.
    #[error("deadlock: {0}")]
    Deadlock(Waiting),
}

/// Which rank waits for which action, when no rank can go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting(pub Vec<(RankId, Action, Action)>);

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (rank, action, missing)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{rank} waits with {action} for {missing}")?;
        }
        Ok(())
    }
}

/// Checks rows against the rules; if `descends`, except for the order in which gradients are
/// summed. Rows without any backward pass are those of an evaluation.
pub fn validate(rows: &Rows, descends: bool) -> Result<(), RowsError> {
    let Rows { placement, rows: actions, micro_batches } = rows;
    let (stages, micro_batches) = (placement.len(), *micro_batches);
    if stages == 0 || micro_batches == 0 {
        return Err(RowsError::Nothing { stages, micro_batches });
    }
    for (stage, &rank) in placement {
        if !actions.is_valid(rank) {
            return Err(RowsError::NoRow { stage, rank, ranks: actions.len() });
        }
    }
    // No table of stages and micro-batches: a few tokens may name a million of each.
    let mut seen: BTreeSet<Action> = BTreeSet::new();
    let mut last: SecondaryMap<StageId, [Option<u32>; 4]> = SecondaryMap::new();
    for (rank, row) in actions {
        for &action in row {
            let Action { stage, pass, micro_batch } = action;
            let number = micro_batch.as_u32();
            let Some(&owner) = placement.get(stage) else {
                return Err(RowsError::UnknownStage { rank, action, stages });
            };
            if number >= micro_batches {
                return Err(RowsError::UnknownMicroBatch { rank, action, micro_batches });
            }
            if owner != rank {
                return Err(RowsError::TwoOwners { rank, action, owner });
            }
            if !seen.insert(action) {
                return Err(RowsError::Duplicate { rank, action });
            }
            if let Some(after) = last[stage][pass as usize].replace(number)
                && after > number
                && (pass == Pass::Forward || pass.makes_weight_gradients() && !descends)
            {
                return Err(RowsError::Descending { rank, action, after });
            }
        }
    }
    let evaluates = rows.is_forward();
    for (stage, &rank) in placement {
        for micro_batch in (0..micro_batches).map(MicroBatchId::from_u32) {
            let action = |pass| Action { stage, pass, micro_batch };
            let has = |pass| seen.contains(&action(pass));
            let (whole, input) = (Pass::Backward, Pass::InputGradient);
            let parts = has(input) || has(Pass::WeightGradient);
            if has(whole) && parts {
                return Err(RowsError::WholeAndParts { rank, action: action(whole) });
            }
            let needed: &[Pass] = match parts {
                _ if evaluates => &[Pass::Forward],
                true => &[Pass::Forward, input, Pass::WeightGradient],
                false => &[Pass::Forward, whole],
            };
            if let Some(&pass) = needed.iter().find(|&&pass| !has(pass)) {
                return Err(RowsError::Missing { rank, action: action(pass) });
            }
        }
    }
    goes_on(rows)
}

/// What an action waits for: outputs of others, by the pass that makes them. A backward pass makes
/// gradients whether it is divided or not.
pub(super) fn needs(stages: usize, action: Action) -> impl Iterator<Item = (bool, Action)> {
    let Action { stage, pass, micro_batch } = action;
    let number = stage.as_u32();
    let at = |stage: u32, pass| Action { stage: StageId::from_u32(stage), pass, micro_batch };
    let is_last = stage.index() + 1 == stages;
    let (own, other) = match pass {
        Pass::Forward => (None, number.checked_sub(1).map(|before| at(before, Pass::Forward))),
        Pass::Backward | Pass::InputGradient => {
            let behind = (!is_last).then(|| at(number + 1, Pass::InputGradient));
            (Some(at(number, Pass::Forward)), behind)
        }
        Pass::WeightGradient => (Some(at(number, Pass::InputGradient)), None),
    };
    own.map(|own| (false, own)).into_iter().chain(other.map(|other| (true, other)))
}

/// What exists, for each stage, pass and micro-batch: a value, once it was made. A whole backward
/// pass makes what its first part makes.
#[derive(Clone, Debug)]
pub(super) struct Made<T: Clone>(SecondaryMap<StageId, [Vec<Option<T>>; 3]>);

impl<T: Copy> Made<T> {
    pub fn new() -> Made<T> {
        Made(SecondaryMap::new())
    }

    /// The table of a pass.
    fn table(pass: Pass) -> usize {
        match pass {
            Pass::Forward => 0,
            Pass::Backward | Pass::InputGradient => 1,
            Pass::WeightGradient => 2,
        }
    }

    pub fn insert(&mut self, action: Action, value: T) {
        let table = &mut self.0[action.stage][Self::table(action.pass)];
        let index = action.micro_batch.index();
        if table.len() <= index {
            table.resize(index + 1, None);
        }
        table[index] = Some(value);
    }

    pub fn get(&self, action: Action) -> Option<T> {
        let table = &self.0.get(action.stage)?[Self::table(action.pass)];
        table.get(action.micro_batch.index()).copied().flatten()
    }
}

/// Performs all actions, each as soon as its inputs exist.
fn goes_on(rows: &Rows) -> Result<(), RowsError> {
    let stages = rows.placement.len();
    let mut made = Made::new();
    let mut next: SecondaryMap<RankId, usize> = SecondaryMap::new();
    loop {
        let mut has_moved = false;
        let mut waiting = Vec::new();
        for (rank, row) in &rows.rows {
            while let Some(&action) = row.get(next[rank]) {
                let missing = needs(stages, action).find(|&(_, need)| made.get(need).is_none());
                if let Some((_, missing)) = missing {
                    waiting.push((rank, action, as_performed(rows, missing)));
                    break;
                }
                made.insert(action, ());
                next[rank] += 1;
                has_moved = true;
            }
        }
        match (waiting.is_empty(), has_moved) {
            (true, _) => return Ok(()),
            (false, true) => {}
            (false, false) => return Err(RowsError::Deadlock(Waiting(waiting))),
        }
    }
}

/// The action that makes what `need` makes: a whole backward pass if it is not divided.
fn as_performed(rows: &Rows, need: Action) -> Action {
    let whole = Action { pass: Pass::Backward, ..need };
    let is_whole =
        need.pass == Pass::InputGradient && rows.rows[rows.placement[need.stage]].contains(&whole);
    if is_whole { whole } else { need }
}
