//! The judge of moves against each way in which a move may be wrong. Invariant: every kind of
//! violation is found here in books that are otherwise correct.
//!
//! Tier: quick, since it takes less than a second.

use tightfit::id::EntityRef;
use tightfit::units::Bytes;
use tightfit_engine::residency::{
    BlockId, ChunkId, Move, Packing, Place, Purpose, SlotId, TensorId, Verifier, Violation,
};

/// Chunks of 8 bytes: two tensors in the first, one in the next two, one in the last.
fn packing() -> Packing {
    Packing::new(Bytes(8), 1, [3, 5, 16, 8].map(Bytes)).unwrap()
}

/// Slots for four chunks, three of which may be used.
fn verifier() -> Verifier {
    let mut verifier = Verifier::new(&packing(), 4).unwrap();
    verifier.allow(Bytes(24));
    verifier
}

fn tensor(index: usize) -> TensorId {
    TensorId::new(index)
}

fn chunk(index: usize) -> ChunkId {
    ChunkId::new(index)
}

fn slot(index: usize) -> Place {
    Place::Device(SlotId::new(index))
}

/// A copy of one of the three blocks.
fn step(block: usize, from: Place, to: Place) -> Move {
    let (first, chunks) = [(0, 1), (1, 2), (3, 1)][block];
    Move {
        block: BlockId::new(block),
        first: chunk(first),
        chunks,
        from,
        to,
        bytes: Bytes(8 * u64::from(chunks)),
        copies: true,
        purpose: Purpose::Demand,
    }
}

/// Checks that all moves but the last are accepted.
fn check(moves: &[Move], expected: Violation) {
    let mut verifier = verifier();
    let (last, before) = moves.split_last().unwrap();
    for step in before {
        verifier.make(step).unwrap();
    }
    assert_eq!(verifier.make(last), Err(expected));
}

#[test]
fn right_moves_are_made() {
    let mut verifier = verifier();
    verifier.make(&step(1, Place::Host, slot(2))).unwrap();
    verifier.make(&step(0, Place::Host, slot(0))).unwrap();
    verifier.make(&step(1, slot(2), slot(1))).unwrap();
    verifier.compute(&[tensor(1)], &[tensor(2)]).unwrap();
    verifier.release(tensor(1)).unwrap();
    verifier.make(&Move { copies: false, ..step(0, slot(0), Place::Host) }).unwrap();
    verifier.make(&step(2, Place::Host, slot(3))).unwrap();
    verifier.release(tensor(2)).unwrap();
    verifier.make(&step(1, slot(1), Place::Host)).unwrap();
    verifier.compute(&[tensor(3), tensor(3)], &[]).unwrap();
}

#[test]
fn a_move_starts_where_its_chunks_are() {
    let there = step(1, Place::Host, slot(1));
    check(&[step(0, slot(0), Place::Host)], Violation::NotThere { chunk: chunk(0) });
    check(&[there, there], Violation::NotThere { chunk: chunk(1) });
    check(&[there, step(1, slot(0), Place::Host)], Violation::NotThere { chunk: chunk(1) });
    check(&[step(0, Place::Host, Place::Host)], Violation::NotThere { chunk: chunk(0) });
}

#[test]
fn a_move_ends_where_there_is_room() {
    let taken = Violation::Taken { chunk: chunk(2), slot: SlotId::new(2) };
    check(&[step(0, Place::Host, slot(2)), step(1, Place::Host, slot(1))], taken);
    let taken = Violation::Taken { chunk: chunk(1), slot: SlotId::new(2) };
    let first = [step(1, Place::Host, slot(0)), step(0, Place::Host, slot(2))];
    check(&[first[0], first[1], step(1, slot(0), slot(2))], taken);
    check(&[step(1, Place::Host, slot(3))], Violation::Unknown);
    let all = [step(1, Place::Host, slot(0)), step(0, Place::Host, slot(2))];
    let over = Violation::OverCapacity { held: Bytes(32), limit: Bytes(24) };
    check(&[all[0], all[1], step(2, Place::Host, slot(3))], over);
}

#[test]
fn what_does_not_exist_does_not_move() {
    let beyond = Move { first: chunk(4), ..step(0, Place::Host, slot(0)) };
    check(&[beyond], Violation::Unknown);
    let too_long = Move { chunks: u32::MAX, ..step(0, Place::Host, slot(0)) };
    check(&[too_long], Violation::Unknown);
    assert_eq!(verifier().compute(&[tensor(4)], &[]), Err(Violation::Unknown));
}

#[test]
fn what_is_computed_with_stays() {
    let mut verifier = verifier();
    verifier.make(&step(0, Place::Host, slot(0))).unwrap();
    verifier.compute(&[tensor(0), tensor(1)], &[]).unwrap();
    verifier.release(tensor(0)).unwrap();
    let in_use = Err(Violation::InUse { chunk: chunk(0) });
    assert_eq!(verifier.make(&step(0, slot(0), Place::Host)), in_use);
    assert_eq!(verifier.make(&step(0, slot(0), slot(1))), in_use);
    assert_eq!(verifier.release(tensor(0)), Ok(()), "its chunk is still in use");
    assert_eq!(verifier.release(tensor(1)), Err(Violation::Absent { tensor: tensor(1) }));
}

#[test]
fn the_newest_bytes_are_kept() {
    let mut verifier = verifier();
    let drop = Move { copies: false, ..step(0, slot(0), Place::Host) };
    verifier.make(&step(0, Place::Host, slot(0))).unwrap();
    verifier.compute(&[], &[tensor(0)]).unwrap();
    verifier.release(tensor(0)).unwrap();
    let lost = Err(Violation::Lost { chunk: chunk(0) });
    assert_eq!(verifier.make(&drop), lost);
    verifier.set_free(tensor(0), true).unwrap();
    assert_eq!(verifier.make(&drop), lost, "the other tensor has bytes");
    verifier.set_free(tensor(1), true).unwrap();
    verifier.make(&drop).unwrap();
    let unread = Move { copies: false, ..step(2, Place::Host, slot(0)) };
    assert_eq!(verifier.make(&unread), Err(Violation::Lost { chunk: chunk(3) }));
}

#[test]
fn what_is_computed_with_is_there_in_one_piece() {
    let mut verifier = verifier();
    let absent = Err(Violation::Absent { tensor: tensor(2) });
    assert_eq!(verifier.compute(&[tensor(2)], &[]), absent);
    let half =
        |first, to| Move { first: chunk(first), chunks: 1, ..step(1, Place::Host, slot(to)) };
    verifier.make(&half(1, 0)).unwrap();
    assert_eq!(verifier.compute(&[tensor(2)], &[]), absent);
    verifier.make(&half(2, 2)).unwrap();
    assert_eq!(verifier.compute(&[tensor(2)], &[]), absent);
    verifier.allow(Bytes(8));
    let over = Err(Violation::OverCapacity { held: Bytes(16), limit: Bytes(8) });
    assert_eq!(verifier.compute(&[], &[]), over);
}

#[test]
fn tensors_do_not_share_bytes() {
    let damaged = |index: usize, offset| {
        let mut packing = packing();
        packing.tensors[tensor(index)].offset = Bytes(offset);
        Verifier::new(&packing, 4).map(|_| ())
    };
    assert_eq!(damaged(1, 3), Ok(()));
    assert_eq!(damaged(1, 2), Err(Violation::Packing { tensor: tensor(1) }));
    assert_eq!(damaged(1, 4), Err(Violation::Packing { tensor: tensor(1) }));
    assert_eq!(damaged(3, 1), Err(Violation::Packing { tensor: tensor(3) }));
    assert_eq!(damaged(2, 1), Err(Violation::Packing { tensor: tensor(2) }));
}
