//! Judges every move before it is returned. Invariant: it shares no code with the code that decides
//! on moves, and keeps its own books: a slot has at most one chunk, a chunk that is computed with
//! is on the device and does not leave its slot, and the newest bytes of a chunk are never dropped.

use cranelift_entity::EntityRef;
use tightfit::units::Bytes;

use super::id::{ChunkId, SlotId, TensorId};
use super::moves::{Move, Place};
use super::packing::Packing;
use super::violation::Violation;

#[derive(Clone, Copy, Default)]
struct ChunkBook {
    /// The number of its slot, which is its id plus one; zero if it lies in the host tier.
    slot: u32,
    /// Acquisitions of its tensors that have not ended.
    users: u64,
    /// Number of its tensors that are not free.
    live: u32,
    /// Whether only the device has its newest bytes.
    newer: bool,
}

#[derive(Clone, Copy, Default)]
struct TensorBook {
    first: usize,
    end: usize,
    is_free: bool,
}

/// The judge's own books.
#[derive(Clone)]
pub struct Verifier {
    slot_bytes: u64,
    chunks: Vec<ChunkBook>,
    tensors: Vec<TensorBook>,
    /// For each slot, whether it has a chunk.
    slots: Vec<bool>,
    taken: u64,
    limit: Bytes,
}

impl Verifier {
    /// Everything lies in the host tier, and every tensor has bytes.
    ///
    /// # Errors
    /// A tensor lies outside its chunks, or over the one before it.
    pub fn new(packing: &Packing, slots: u32) -> Result<Verifier, Violation> {
        let mut verifier = Verifier {
            slot_bytes: packing.chunk.0,
            chunks: vec![ChunkBook::default(); packing.chunks as usize],
            tensors: Vec::with_capacity(packing.tensors.len()),
            slots: vec![false; slots as usize],
            taken: 0,
            limit: Bytes::ZERO,
        };
        let chunk = u128::from(packing.chunk.0);
        let mut end_before = 0;
        for (tensor, span) in &packing.tensors {
            let mut book = TensorBook::default();
            if span.bytes > Bytes::ZERO {
                let begin = span.first.index() as u128 * chunk + u128::from(span.offset.0);
                let end = begin + u128::from(span.bytes.0);
                let whole = u128::from(span.offset.0) + u128::from(span.bytes.0) <= chunk
                    || span.offset == Bytes::ZERO;
                let inside = end <= verifier.chunks.len() as u128 * chunk;
                if begin < end_before || !whole || !inside {
                    return Err(Violation::Packing { tensor });
                }
                book.first = span.first.index();
                book.end = end.div_ceil(chunk) as usize;
                end_before = end;
                for chunk in &mut verifier.chunks[book.first..book.end] {
                    chunk.live += 1;
                }
            }
            verifier.tensors.push(book);
        }
        Ok(verifier)
    }

    /// Sets how many bytes of the device chunks may take from here on.
    pub fn allow(&mut self, limit: Bytes) {
        self.limit = limit;
    }

    /// Makes a move.
    ///
    /// # Errors
    /// The move must not be made; the books are unchanged.
    pub fn make(&mut self, step: &Move) -> Result<(), Violation> {
        let first = step.first.index();
        let end = first.checked_add(step.chunks as usize).ok_or(Violation::Unknown)?;
        if self.chunks.get(first..end).is_none() {
            return Err(Violation::Unknown);
        }
        for (index, number) in (first..end).zip(0..) {
            self.leave(index, number, step)?;
        }
        let Place::Device(to) = step.to else {
            self.evict(first..end);
            return Ok(());
        };
        let begin = to.index();
        let slots = begin.checked_add(step.chunks as usize).map(|end| begin..end);
        let slots = slots.filter(|slots| slots.end <= self.slots.len());
        let slots = slots.ok_or(Violation::Unknown)?;
        let own = match step.from {
            Place::Device(from) => from.index()..from.index() + step.chunks as usize,
            Place::Host => 0..0,
        };
        for (slot, chunk) in slots.clone().zip(step.first.as_u32()..) {
            if self.slots[slot] && !own.contains(&slot) {
                let chunk = ChunkId::from_u32(chunk);
                return Err(Violation::Taken { chunk, slot: SlotId::new(slot) });
            }
        }
        if step.from == Place::Host {
            self.hold(self.taken + u64::from(step.chunks))?;
            self.taken += u64::from(step.chunks);
        }
        for slot in own {
            self.slots[slot] = false;
        }
        for (slot, chunk) in slots.zip(&mut self.chunks[first..end]) {
            self.slots[slot] = true;
            chunk.slot = slot as u32 + 1;
        }
        Ok(())
    }

    /// All moves that the access demands are made, and these tensors are computed with from here
    /// on.
    ///
    /// # Errors
    /// A tensor is not there, or the device holds more than allowed.
    pub fn compute(&mut self, reads: &[TensorId], writes: &[TensorId]) -> Result<(), Violation> {
        self.hold(self.taken)?;
        for &tensor in reads.iter().chain(writes) {
            let book = self.book(tensor)?;
            let chunks = &mut self.chunks[book.first..book.end];
            let slot = chunks.first().map_or(1, |chunk| chunk.slot);
            let mut expected = slot..;
            let in_one_piece = chunks.iter().all(|chunk| Some(chunk.slot) == expected.next());
            if slot == 0 || !in_one_piece || book.is_free {
                return Err(Violation::Absent { tensor });
            }
            chunks.iter_mut().for_each(|chunk| chunk.users += 1);
        }
        for &tensor in writes {
            let book = self.book(tensor)?;
            self.chunks[book.first..book.end].iter_mut().for_each(|chunk| chunk.newer = true);
        }
        Ok(())
    }

    /// A tensor is no longer computed with.
    ///
    /// # Errors
    /// It was not.
    pub fn release(&mut self, tensor: TensorId) -> Result<(), Violation> {
        let book = self.book(tensor)?;
        for chunk in &mut self.chunks[book.first..book.end] {
            chunk.users = chunk.users.checked_sub(1).ok_or(Violation::Absent { tensor })?;
        }
        Ok(())
    }

    /// A tensor gives up its bytes, or gets some again.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn set_free(&mut self, tensor: TensorId, is_free: bool) -> Result<(), Violation> {
        let book = self.book(tensor)?;
        if book.is_free == is_free {
            return Ok(());
        }
        self.tensors[tensor.index()].is_free = is_free;
        for chunk in &mut self.chunks[book.first..book.end] {
            chunk.live =
                if is_free { chunk.live.saturating_sub(1) } else { chunk.live.saturating_add(1) };
        }
        Ok(())
    }

    /// Whether a chunk may leave its place by a move.
    fn leave(&self, index: usize, number: u64, step: &Move) -> Result<(), Violation> {
        let (book, chunk) = (self.chunks[index], ChunkId::new(index));
        let from = match step.from {
            Place::Host => 0,
            Place::Device(slot) => u64::from(slot.as_u32()) + number + 1,
        };
        if u64::from(book.slot) != from {
            return Err(Violation::NotThere { chunk });
        }
        if from != 0 && book.users > 0 {
            return Err(Violation::InUse { chunk });
        }
        match (step.from, step.to) {
            (Place::Host, Place::Host) => Err(Violation::NotThere { chunk }),
            (Place::Device(_), Place::Host) if !step.copies && book.newer && book.live > 0 => {
                Err(Violation::Lost { chunk })
            }
            (Place::Host, Place::Device(_)) | (Place::Device(_), Place::Device(_))
                if !step.copies =>
            {
                Err(Violation::Lost { chunk })
            }
            (Place::Host | Place::Device(_), Place::Device(_))
            | (Place::Device(_), Place::Host) => Ok(()),
        }
    }

    fn evict(&mut self, chunks: std::ops::Range<usize>) {
        for chunk in &mut self.chunks[chunks] {
            if let Some(slot) = self.slots.get_mut((chunk.slot as usize).wrapping_sub(1)) {
                *slot = false;
            }
            *chunk = ChunkBook { slot: 0, newer: false, ..*chunk };
            self.taken = self.taken.saturating_sub(1);
        }
    }

    fn hold(&self, taken: u64) -> Result<(), Violation> {
        let held = Bytes(taken.saturating_mul(self.slot_bytes));
        if held > self.limit {
            return Err(Violation::OverCapacity { held, limit: self.limit });
        }
        Ok(())
    }

    fn book(&self, tensor: TensorId) -> Result<TensorBook, Violation> {
        self.tensors.get(tensor.index()).copied().ok_or(Violation::Unknown)
    }
}
