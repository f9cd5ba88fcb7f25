//! What stays from step to step, on all ranks of a pipeline. Invariant: a tensor that several ranks
//! hold is that of the first of them, and all of its bytes reach the leading rank in their order,
//! one piece of bounded size after the other.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use tightfit::id::RankId;
use tightfit::tensor::DType;

use crate::execute::session::Session;
use crate::transport::{Link, LinkError};

/// Bytes that are given at once.
const PIECE: usize = 1 << 20;
/// Asked for in place of a tensor's number: that is all.
const ENOUGH: u32 = u32::MAX;

/// A tensor that a rank keeps from step to step.
#[derive(Clone, Debug, PartialEq)]
pub struct Remote {
    /// The first rank that has it.
    pub rank: RankId,
    /// Its number among those of the rank.
    number: u32,
    /// Its size in bytes.
    bytes: u64,
    /// Element type.
    pub dtype: DType,
    /// Extent of each dimension.
    pub shape: Vec<usize>,
}

/// What a rank says of a tensor that it keeps.
#[derive(Deserialize, Serialize)]
struct Said {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    bytes: u64,
}

/// Everything that the ranks keep, by name; all of them ask.
pub(super) fn everything(
    session: &Session,
    link: &dyn Link,
) -> Result<BTreeMap<String, Remote>, LinkError> {
    let said = session.residents().iter().map(|(name, resident)| Said {
        name: name.clone(),
        dtype: resident.dtype.name().to_string(),
        shape: resident.shape.clone(),
        bytes: resident.bytes,
    });
    let said = serde_json::to_vec(&said.collect::<Vec<_>>()).unwrap_or_default();
    let mut all = BTreeMap::new();
    for (rank, said) in (0..).map(RankId::from_u32).zip(link.gather(&said)?) {
        let said: Vec<Said> = serde_json::from_slice(&said).unwrap_or_default();
        for (number, Said { name, dtype, shape, bytes }) in (0..).zip(said) {
            let dtype = DType::from_name(&dtype).unwrap_or(DType::U8);
            all.entry(name).or_insert(Remote { rank, number, bytes, dtype, shape });
        }
    }
    Ok(all)
}

/// Hands the bytes of a tensor on that another rank [serves](serve).
pub(super) fn stream(
    link: &dyn Link,
    remote: &Remote,
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    link.give(remote.rank, &remote.number.to_ne_bytes()).map_err(io::Error::other)?;
    let mut left = remote.bytes as usize;
    let mut piece = vec![0; left.min(PIECE)];
    while left > 0 {
        let piece = &mut piece[..left.min(PIECE)];
        link.take(remote.rank, piece).map_err(io::Error::other)?;
        sink(piece)?;
        left -= piece.len();
    }
    Ok(())
}

/// Gives the leading rank the tensors that it asks for, until it has enough.
pub(super) fn serve(session: &Session, link: &dyn Link) -> Result<(), LinkError> {
    let leader = RankId::from_u32(0);
    loop {
        let mut asked = [0; 4];
        link.take(leader, &mut asked)?;
        let number = u32::from_ne_bytes(asked);
        if number == ENOUGH {
            return Ok(());
        }
        let Some(resident) = session.residents().values().nth(number as usize) else { continue };
        let mut failed = None;
        let given = session.stream(resident, &mut |part| {
            for piece in part.chunks(PIECE) {
                if let Err(error) = link.give(leader, piece) {
                    failed = Some(error);
                    return Err(io::Error::other("not taken"));
                }
            }
            Ok(())
        });
        if let Err(error) = given {
            let failure = failed.unwrap_or_else(|| {
                let cause = error.to_string();
                link.abort(&cause);
                LinkError::Aborted { rank: link.rank(), cause }
            });
            return Err(failure);
        }
    }
}

/// Tells the others that nothing more is asked for.
pub(super) fn enough(link: &dyn Link) -> Result<(), LinkError> {
    let ranks = (1..link.ranks()).map(RankId::from_u32);
    ranks.into_iter().try_for_each(|rank| link.give(rank, &ENOUGH.to_ne_bytes()))
}
