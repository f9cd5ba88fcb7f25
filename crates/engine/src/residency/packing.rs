//! Which tensor lies in which chunk. Invariant: tensors are packed in the order of registration, no
//! two share a byte, and a tensor larger than a chunk has consecutive chunks of its own.
//!
//! Source: Fang et al., "PatrickStar", IEEE TPDS 34(1), 2023, on the mapping of tensors to chunks;
//! there a chunk is at least as large as every tensor.

use cranelift_entity::{EntityRef, PrimaryMap};
use tightfit::units::Bytes;

use super::error::ResidencyError;
use super::id::{BlockId, ChunkId, TensorId};

/// Most slots of a region and most chunks of a model, so that tables by chunk stay small.
pub const MOST_CHUNKS: u32 = 1 << 22;

/// Where a tensor lies within the chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its bytes.
    pub bytes: Bytes,
    /// The block that it is part of; absent for a tensor of no bytes.
    pub block: Option<BlockId>,
    /// Its first chunk; meaningless for a tensor of no bytes.
    pub first: ChunkId,
    /// From the beginning of its first chunk to its own.
    pub offset: Bytes,
}

/// Consecutive chunks that move together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first of its chunks.
    pub first: ChunkId,
    /// Number of chunks, at least one.
    pub chunks: u32,
    /// The bytes from the beginning of the first chunk to the end of the last tensor, which have to
    /// be copied.
    pub bytes: Bytes,
}

/// All tensors in their chunks.
#[derive(Clone, Debug)]
pub struct Packing {
    /// The bytes of each chunk.
    pub chunk: Bytes,
    /// The number of chunks.
    pub chunks: u32,
    /// Where each tensor lies.
    pub tensors: PrimaryMap<TensorId, Span>,
    /// The chunks that move together.
    pub blocks: PrimaryMap<BlockId, Block>,
    several_sizes: bool,
}

impl Packing {
    /// Packs tensors of the given bytes into chunks, at multiples of `alignment`.
    ///
    /// # Errors
    /// A chunk has no bytes, `alignment` is not a power of two or does not divide it, a tensor is
    /// larger than [`Bytes::LIMIT`], or there are more than [`MOST_CHUNKS`] chunks.
    pub fn new(
        chunk: Bytes,
        alignment: u64,
        sizes: impl IntoIterator<Item = Bytes>,
    ) -> Result<Packing, ResidencyError> {
        let whole = alignment.is_power_of_two() && chunk.0.is_multiple_of(alignment);
        if chunk == Bytes::ZERO || chunk > Bytes::LIMIT || !whole {
            return Err(ResidencyError::Chunk { chunk, alignment });
        }
        let mut packing = Packing {
            chunk,
            chunks: 0,
            tensors: PrimaryMap::new(),
            blocks: PrimaryMap::new(),
            several_sizes: false,
        };
        for bytes in sizes {
            let tensor = packing.tensors.next_key();
            if bytes > Bytes::LIMIT {
                return Err(ResidencyError::Tensor { tensor, bytes });
            }
            let span = packing.place(bytes, alignment)?;
            packing.tensors.push(span);
        }
        Ok(packing)
    }

    /// The block of a tensor that has bytes.
    pub fn block(&self, tensor: TensorId) -> Option<BlockId> {
        self.tensors.get(tensor).and_then(|span| span.block)
    }

    /// The bytes of the device that a block takes: all of its chunks.
    pub fn footprint(&self, block: BlockId) -> Bytes {
        Bytes(self.chunk.0.saturating_mul(u64::from(self.blocks[block].chunks)))
    }

    /// Whether some blocks have more chunks than others.
    pub fn has_several_sizes(&self) -> bool {
        self.several_sizes
    }

    /// After the previous tensor if it fits there, else at the beginning of a new chunk.
    fn place(&mut self, bytes: Bytes, alignment: u64) -> Result<Span, ResidencyError> {
        let new = ChunkId::new(self.chunks as usize);
        if bytes == Bytes::ZERO {
            return Ok(Span { bytes, block: None, first: new, offset: Bytes::ZERO });
        }
        if let Some((block, last)) = self.blocks.iter_mut().next_back()
            && last.chunks == 1
        {
            let offset = last.bytes.align_up(alignment);
            if bytes <= self.chunk.saturating_sub(offset) {
                last.bytes = offset + bytes;
                return Ok(Span { bytes, block: Some(block), first: last.first, offset });
            }
        }
        let chunks = bytes.0.div_ceil(self.chunk.0);
        let left = u64::from(MOST_CHUNKS - self.chunks);
        let chunks = u32::try_from(chunks).ok().filter(|&chunks| u64::from(chunks) <= left);
        let chunks = chunks.ok_or(ResidencyError::TooManyChunks {
            tensor: self.tensors.next_key(),
            chunk: self.chunk,
            most: MOST_CHUNKS,
        })?;
        self.chunks += chunks;
        self.several_sizes |= self.blocks.values().next().is_some_and(|it| it.chunks != chunks);
        let block = self.blocks.push(Block { first: new, chunks, bytes });
        Ok(Span { bytes, block: Some(block), first: new, offset: Bytes::ZERO })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(chunk: u64, sizes: &[u64], expected: &[(Option<usize>, u64)], chunks: u32) {
        let sizes = sizes.iter().copied().map(Bytes);
        let packing = Packing::new(Bytes(chunk), 4, sizes).unwrap();
        let found: Vec<(Option<usize>, u64)> = packing
            .tensors
            .values()
            .map(|span| (span.block.map(|block| block.index()), span.offset.0))
            .collect();
        assert_eq!((&found[..], packing.chunks), (expected, chunks));
    }

    #[test]
    fn small_tensors_share_a_chunk_and_large_ones_have_several() {
        check(16, &[3, 5, 4], &[(Some(0), 0), (Some(0), 4), (Some(0), 12)], 1);
        check(16, &[9, 9], &[(Some(0), 0), (Some(1), 0)], 2);
        check(16, &[4, 33, 4], &[(Some(0), 0), (Some(1), 0), (Some(2), 0)], 5);
        check(16, &[0, 16, 0, 1], &[(None, 0), (Some(0), 0), (None, 0), (Some(1), 0)], 2);
    }

    #[test]
    fn hostile_sizes_are_errors() {
        let pack = |chunk, alignment, sizes: &[u64]| {
            Packing::new(Bytes(chunk), alignment, sizes.iter().copied().map(Bytes)).map(|_| ())
        };
        let chunk =
            |chunk, alignment| Err(ResidencyError::Chunk { chunk: Bytes(chunk), alignment });
        assert_eq!(pack(0, 1, &[1]), chunk(0, 1));
        assert_eq!(pack(16, 0, &[1]), chunk(16, 0));
        assert_eq!(pack(24, 16, &[1]), chunk(24, 16));
        assert_eq!(pack(u64::MAX, 1, &[1]), chunk(u64::MAX, 1));
        assert!(matches!(pack(16, 1, &[u64::MAX]), Err(ResidencyError::Tensor { .. })));
        assert!(matches!(pack(1, 1, &[1 << 59]), Err(ResidencyError::TooManyChunks { .. })));
    }
}
