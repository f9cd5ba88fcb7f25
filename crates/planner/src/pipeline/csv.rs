//! Rows as `torch.distributed.pipelining` reads and writes them: a line for each rank, tokens such
//! as `2F0` with commas between them, nothing where a rank is idle. Invariant: what is written
//! reads back the same; the rank of a stage follows from the lines in which it occurs.

use cranelift_entity::{EntityRef, PrimaryMap};
use thiserror::Error;

use crate::id::{RankId, StageId};
use crate::pipeline::action::{Action, Pass, Rows};
use crate::pipeline::validate::{RowsError, validate};

/// Most tokens of a file.
const MOST_TOKENS: usize = 1 << 22;

/// Why a text does not contain valid rows.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CsvError {
    /// A token is invalid.
    #[error(
        "line {line}: `{found}` is no action; one reads like 2F0: the stage, F, B, I or W, and the \
         micro-batch"
    )]
    Token {
        /// The number of the line, from 1.
        line: usize,
        /// The token.
        found: String,
    },
    /// There are too many tokens.
    #[error("line {line}: more than {most} actions")]
    TooLong {
        /// The number of the line, from 1.
        line: usize,
        /// The most actions of all lines.
        most: usize,
    },
    /// A stage is in no line, although a later one is.
    #[error("stage {stage} stands in no line, but stage {last} does; stages are numbered from 0")]
    NoStage {
        /// The stage that is missing.
        stage: u32,
        /// The last stage.
        last: u32,
    },
    /// The rows are invalid.
    #[error(transparent)]
    Rows(#[from] RowsError),
}

/// The text of rows.
pub fn write_csv(rows: &Rows) -> String {
    let mut text = String::new();
    for row in rows.rows.values() {
        let tokens: Vec<String> = row.iter().map(Action::to_string).collect();
        text += &tokens.join(",");
        text.push('\n');
    }
    text
}

/// The rows of a text, checked against the rules.
pub fn read_csv(text: &str) -> Result<Rows, CsvError> {
    let mut rows: PrimaryMap<RankId, Vec<Action>> = PrimaryMap::new();
    let mut owners: Vec<Option<RankId>> = Vec::new();
    let (mut tokens, mut micro_batches) = (0, 0);
    // As editors save it: a byte order mark at the start, empty lines at the end.
    let text = text.trim_start_matches('\u{feff}').trim_end();
    for (index, line) in text.lines().enumerate() {
        let rank = rows.push(Vec::new());
        for token in line.split(',').map(str::trim).filter(|token| !token.is_empty()) {
            tokens += 1;
            let line = index + 1;
            if tokens > MOST_TOKENS {
                return Err(CsvError::TooLong { line, most: MOST_TOKENS });
            }
            let Some(action) = action(token) else {
                let found = token.chars().take(40).collect();
                return Err(CsvError::Token { line, found });
            };
            let stage = action.stage.index();
            owners.resize(owners.len().max(stage + 1), None);
            owners[stage].get_or_insert(rank);
            micro_batches = micro_batches.max(action.micro_batch.as_u32() + 1);
            rows[rank].push(action);
        }
    }
    let last = owners.len().saturating_sub(1) as u32;
    let mut placement: PrimaryMap<StageId, RankId> = PrimaryMap::new();
    for (stage, owner) in (0..).zip(owners) {
        placement.push(owner.ok_or(CsvError::NoStage { stage, last })?);
    }
    let rows = Rows { placement, rows, micro_batches };
    validate(&rows, false)?;
    Ok(rows)
}

/// The action of a token. Stages and micro-batches are numbered up to a million.
fn action(token: &str) -> Option<Action> {
    let at = token.find(|c: char| !c.is_ascii_digit())?;
    let (stage, rest) = token.split_at(at);
    let mut rest = rest.chars();
    let letter = rest.next()?;
    let (pass, _) = Pass::ALL.into_iter().find(|(_, other)| *other == letter)?;
    let number = |text: &str| {
        let digits =
            !text.is_empty() && text.len() <= 6 && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse().ok()).flatten()
    };
    Some(Action::new(number(stage)?, pass, number(rest.as_str())?))
}
