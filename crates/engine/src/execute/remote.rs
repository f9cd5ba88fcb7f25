//! What stays from step to step, on all ranks. Invariant: of a tensor that several ranks hold, the
//! first rank's copy counts; of a divided tensor, each piece is that of the rank that keeps it. All
//! of its bytes reach the leading rank in order, one part of bounded size after the other.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use tightfit::id::RankId;
use tightfit::tensor::DType;

use crate::execute::session::Session;
use crate::transport::{Link, LinkError};

/// Bytes that are sent at once.
const PIECE: usize = 1 << 20;
/// Requested in place of a tensor's number: nothing more is needed.
const ENOUGH: u32 = u32::MAX;

/// A tensor that ranks keep from step to step.
#[derive(Clone, Debug, PartialEq)]
pub struct Everywhere {
    /// Element type.
    pub dtype: DType,
    /// Extent of each dimension.
    pub shape: Vec<usize>,
    /// Its bytes, in their order.
    pieces: Vec<Piece>,
}

/// Bytes of a tensor that one rank keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    rank: RankId,
    /// The tensor's number among those of the rank.
    number: u32,
    bytes: u64,
}

/// What a rank tells about a tensor that it keeps.
#[derive(Deserialize, Serialize)]
struct Said {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    /// First byte of the part it keeps, and the part's bytes.
    from: u64,
    bytes: u64,
}

/// Everything that the ranks keep, by name; all of them must call this.
pub(super) fn everything(
    session: &Session,
    link: &dyn Link,
) -> Result<BTreeMap<String, Everywhere>, LinkError> {
    let said = session.residents().iter().map(|(name, resident)| Said {
        name: name.clone(),
        dtype: resident.dtype.name().to_string(),
        shape: resident.shape.clone(),
        from: resident.kept.start,
        bytes: resident.kept.end - resident.kept.start,
    });
    let said = serde_json::to_vec(&said.collect::<Vec<_>>()).unwrap_or_default();
    let mut all: BTreeMap<String, Everywhere> = BTreeMap::new();
    for (rank, said) in (0..).map(RankId::from_u32).zip(link.gather(&said)?) {
        let said: Vec<Said> = serde_json::from_slice(&said).unwrap_or_default();
        for (number, Said { name, dtype, shape, from, bytes }) in (0..).zip(said) {
            let dtype = DType::from_name(&dtype).unwrap_or(DType::U8);
            let tensor = all.entry(name).or_insert(Everywhere { dtype, shape, pieces: Vec::new() });
            let known: u64 = tensor.pieces.iter().map(|piece| piece.bytes).sum();
            // Earlier ranks have exactly what comes before it; a copy of what one has is left out.
            if from == known && (bytes > 0 || from == 0) {
                tensor.pieces.push(Piece { rank, number, bytes });
            }
        }
    }
    Ok(all)
}

/// Passes on the bytes of a tensor, of which the other ranks [serve](serve) what they keep.
pub(super) fn stream(
    session: &Session,
    link: &dyn Link,
    tensor: &Everywhere,
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    for &piece in &tensor.pieces {
        if piece.rank != link.rank() {
            take(link, piece, sink)?;
        } else if let Some(resident) = session.residents().values().nth(piece.number as usize) {
            session.stream_kept(resident, sink)?;
        }
    }
    Ok(())
}

/// Passes on what another rank keeps.
fn take(
    link: &dyn Link,
    piece: Piece,
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    link.give(piece.rank, &piece.number.to_ne_bytes()).map_err(io::Error::other)?;
    let mut left = piece.bytes as usize;
    let mut part = vec![0; left.min(PIECE)];
    while left > 0 {
        let part = &mut part[..left.min(PIECE)];
        link.take(piece.rank, part).map_err(io::Error::other)?;
        sink(part)?;
        left -= part.len();
    }
    Ok(())
}

/// Sends the leading rank the tensors that it requests, until it has enough.
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
        let given = session.stream_kept(resident, &mut |part| {
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

/// Tells the others that nothing more is requested.
pub(super) fn enough(link: &dyn Link) -> Result<(), LinkError> {
    let ranks = (1..link.ranks()).map(RankId::from_u32);
    ranks.into_iter().try_for_each(|rank| link.give(rank, &ENOUGH.to_ne_bytes()))
}
