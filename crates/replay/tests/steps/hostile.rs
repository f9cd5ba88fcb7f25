//! Calls that no caller should make. Nothing that is held is given out again, whatever is called.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.

use std::sync::Arc;

use proptest::prelude::*;
use tightfit_replay::{
    Allocator, MisplacedError, Offset, Placement, ReplayError, Settled, Size, Stream, Thread,
};

use super::device::{OTHER, OWN, Table, address, allocator};
use super::script::{Request, record};

/// An allocator that replays a step of 1,000 bytes that are held to the end, followed by 2,000;
/// nothing was requested yet.
fn replaying() -> Allocator<Table> {
    let (mut allocator, _) = allocator();
    let script = [Request::Allocate(1000), Request::Allocate(2000)];
    let trace = record(&mut allocator, &script, |_| false);
    let settled = Settled::of(&trace, &trace).unwrap();
    let placement = Placement::checked(settled, &[Offset(0), Offset(1024)], Size(3072)).unwrap();
    allocator.reserve(Size(3072)).unwrap();
    allocator.replay(Arc::new(placement)).unwrap();
    allocator.open(OWN.0, OWN.1).unwrap();
    allocator
}

#[track_caller]
fn stops(asked: &[usize], error: &ReplayError) {
    let mut allocator = replaying();
    let (last, before) = asked.split_last().unwrap();
    for &size in before {
        allocator.allocate(Size(size), OWN.0, OWN.1).unwrap();
    }
    let found = allocator.allocate(Size(*last), OWN.0, OWN.1);
    assert_eq!(found, Err(error.clone()));
    // The step is over: the code that handles the failure gets memory elsewhere.
    assert!(allocator.allocate(Size(1000), OWN.0, OWN.1).is_ok());
    assert_eq!(allocator.counters().placed, before.len() as u64);
    assert_eq!(allocator.close(), Err(error.clone()));
    assert_eq!(allocator.close(), Ok(()));
}

#[test]
fn a_step_that_asks_for_something_else_is_stopped() {
    let other = |position, recorded, asked| ReplayError::OtherSize {
        position,
        recorded: Size(recorded),
        asked: Size(asked),
    };
    stops(&[999], &other(0, 1000, 999));
    stops(&[1000, 1000], &other(1, 2000, 1000));
    stops(&[usize::MAX], &other(0, 1000, usize::MAX));
    stops(&[1000, 2000, 1], &ReplayError::OneMore { recorded: 2, asked: Size(1) });
}

#[test]
fn a_step_that_asks_for_less_is_told_so_at_its_end() {
    let mut allocator = replaying();
    allocator.allocate(Size(1000), OWN.0, OWN.1).unwrap();
    assert_eq!(allocator.close(), Err(ReplayError::Fewer { made: 1, recorded: 2 }));
}

#[test]
fn other_threads_and_streams_are_passed_on() {
    let mut allocator = replaying();
    for (thread, stream) in [OTHER, (OWN.0, Stream(8)), (Thread(3), Stream(8))] {
        allocator.allocate(Size(1000), thread, stream).unwrap();
    }
    assert_eq!((allocator.counters().placed, allocator.counters().passed_on), (0, 5));
    allocator.allocate(Size(1000), OWN.0, OWN.1).unwrap();
    assert_eq!(allocator.counters().placed, 1);
}

#[test]
fn no_bytes_have_no_address_and_no_place_in_the_order() {
    let mut allocator = replaying();
    assert_eq!(allocator.allocate(Size::ZERO, OWN.0, OWN.1), Ok(None));
    assert!(allocator.allocate(Size(1000), OWN.0, OWN.1).is_ok());
}

#[test]
fn more_than_there_is_fails_and_changes_nothing() {
    let (mut allocator, out) = allocator();
    for size in [usize::MAX, usize::MAX - 1, isize::MAX as usize, 2 << 30] {
        let found = allocator.allocate(Size(size), OWN.0, OWN.1);
        assert!(matches!(found, Err(ReplayError::OutOfMemory { .. })), "{found:?}");
        assert!(allocator.reserve(Size(size)).is_err());
    }
    assert!(out.borrow().is_empty());
    assert_eq!(allocator.reserved(), Size::ZERO);
}

#[test]
fn what_comes_back_twice_or_was_never_out_is_counted_and_left_alone() {
    let mut allocator = replaying();
    let placed = allocator.allocate(Size(1000), OWN.0, OWN.1).unwrap().unwrap();
    let passed = allocator.allocate(Size(10), OTHER.0, OTHER.1).unwrap().unwrap();
    for block in [placed, passed] {
        allocator.free(block, OWN.0);
        assert_eq!(allocator.counters().strays, if block == placed { 0 } else { 1 });
        allocator.free(block, OWN.0);
    }
    let inside = address(placed.0.get() + 8);
    for stray in [inside, address(1), address(usize::MAX)] {
        allocator.free(stray, OWN.0);
    }
    assert_eq!(allocator.counters().strays, 5);
    assert_eq!(allocator.held(), Size::ZERO);
}

#[test]
fn a_step_does_not_begin_while_something_lies_in_the_slab() {
    let mut allocator = replaying();
    let kept = allocator.allocate(Size(1000), OWN.0, OWN.1).unwrap().unwrap();
    let gone = allocator.allocate(Size(2000), OWN.0, OWN.1).unwrap().unwrap();
    allocator.close().unwrap();
    allocator.free(gone, OTHER.0);
    let trace = record(&mut allocator, &[Request::Allocate(10)], |_| false);
    let settled = Settled::of(&trace, &trace).unwrap();
    let placement = Arc::new(Placement::checked(settled, &[Offset(0)], Size(512)).unwrap());
    let held = Err(ReplayError::StillHeld(Size(1000)));
    assert_eq!(allocator.replay(Arc::clone(&placement)), held);
    assert_eq!(allocator.reserve(Size(1 << 20)), held);
    assert_eq!(allocator.slab(), Size(3072));
    allocator.free(kept, OTHER.0);
    assert_eq!(allocator.replay(placement), Ok(()));
}

#[test]
fn a_place_is_not_given_out_while_a_tensor_is_kept_there_longer_than_recorded() {
    let (mut allocator, _) = allocator();
    let script = [Request::Allocate(1000), Request::Free(0), Request::Allocate(900)];
    let trace = record(&mut allocator, &script, |_| false);
    let settled = Settled::of(&trace, &trace).unwrap();
    let placement = Placement::checked(settled, &[Offset(0), Offset(0)], Size(1024)).unwrap();
    allocator.reserve(Size(1024)).unwrap();
    allocator.replay(Arc::new(placement)).unwrap();
    allocator.open(OWN.0, OWN.1).unwrap();
    allocator.allocate(Size(1000), OWN.0, OWN.1).unwrap();
    let second = allocator.allocate(Size(900), OWN.0, OWN.1);
    assert_eq!(second, Err(ReplayError::Occupied { position: 1 }));
}

#[test]
fn a_slab_that_is_too_small_and_a_pass_too_many_are_refused() {
    let mut allocator = replaying();
    assert_eq!(allocator.open(OWN.0, OWN.1), Err(ReplayError::PassInPass));
    allocator.allocate(Size(1000), OWN.0, OWN.1).unwrap();
    allocator.allocate(Size(2000), OWN.0, OWN.1).unwrap();
    allocator.close().unwrap();
    assert_eq!(allocator.open(OWN.0, OWN.1), Err(ReplayError::OneMorePass(1)));
    let trace = record(&mut allocator, &[Request::Allocate(1), Request::Free(0)], |_| false);
    let settled = Settled::of(&trace, &trace).unwrap();
    let placement = Placement::checked(settled, &[Offset(512)], Size(513)).unwrap();
    let (mut fresh, _) = super::device::allocator();
    let small = ReplayError::SlabTooSmall { needed: Size(513), slab: Size::ZERO };
    assert_eq!(fresh.replay(Arc::new(placement)), Err(small));
}

#[test]
fn offsets_that_are_none_are_refused() {
    let (mut allocator, _) = allocator();
    let trace = record(&mut allocator, &[Request::Allocate(8), Request::Allocate(8)], |_| false);
    let settled = Settled::of(&trace, &trace).unwrap();
    let check = |offsets: &[usize], error| {
        let offsets: Vec<Offset> = offsets.iter().copied().map(Offset).collect();
        let found = Placement::checked(settled.clone(), &offsets, Size(1024));
        assert_eq!(found.map(|placement| placement.placed()), error);
    };
    check(&[0, 512], Ok(2));
    check(&[0], Err(MisplacedError::Count { offsets: 1, allocations: 2 }));
    check(&[0, 8], Err(MisplacedError::Misaligned(1)));
    check(&[0, 1024], Err(MisplacedError::Outside(1)));
    check(&[0, usize::MAX - 511], Err(MisplacedError::Outside(1)));
    check(&[512, 512], Err(MisplacedError::Overlap(1)));
}

/// Anything that can be called.
#[derive(Clone, Copy, Debug)]
enum Call {
    Allocate(usize, bool),
    Free(usize),
    FreeAnything(usize),
    Record,
    Replay,
    Leave,
    Stop,
    Open,
    Close,
    Reserve(usize),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        4 => (prop_oneof![Just(1000_usize), Just(2000), 0_usize..4000, Just(usize::MAX)],
              any::<bool>()).prop_map(|(size, is_own)| Call::Allocate(size, is_own)),
        3 => any::<usize>().prop_map(Call::Free),
        1 => (1_usize..2 << 20).prop_map(Call::FreeAnything),
        1 => Just(Call::Record),
        2 => Just(Call::Replay),
        1 => Just(Call::Leave),
        1 => Just(Call::Stop),
        2 => Just(Call::Open),
        1 => Just(Call::Close),
        1 => (0_usize..8000).prop_map(Call::Reserve),
    ];
    prop::collection::vec(call, 1..80)
}

proptest! {
    #![proptest_config(tightfit_testing::config(256))]

    #[test]
    fn whatever_is_called_nothing_that_is_out_is_given_out_again(calls in calls()) {
        let (mut allocator, out) = allocator();
        let script = [Request::Allocate(1000), Request::Allocate(2000), Request::Free(0)];
        let trace = record(&mut allocator, &script, |_| false);
        let settled = Settled::of(&trace, &trace).unwrap();
        let offsets = [Offset(0), Offset(1024)];
        let placement = Arc::new(Placement::checked(settled, &offsets, Size(3072)).unwrap());
        let mut held: Vec<(usize, usize)> = Vec::new();
        for call in calls {
            match call {
                Call::Allocate(size, is_own) => {
                    let (thread, stream) = if is_own { OWN } else { OTHER };
                    if let Ok(Some(found)) = allocator.allocate(Size(size), thread, stream) {
                        let from = found.0.get();
                        let apart = |&(to, bytes): &(usize, usize)| {
                            from + size <= to || to + bytes <= from
                        };
                        prop_assert!(held.iter().all(apart));
                        held.push((from, size));
                    }
                }
                Call::Free(index) if !held.is_empty() => {
                    let (from, _) = held.swap_remove(index % held.len());
                    allocator.free(address(from), OWN.0);
                }
                Call::Free(_) => {}
                Call::FreeAnything(place) => {
                    if held.iter().all(|(from, _)| *from != place) {
                        allocator.free(address(place), OWN.0);
                    }
                }
                Call::Record => allocator.record(),
                Call::Replay => drop(allocator.replay(Arc::clone(&placement))),
                Call::Leave => drop(allocator.leave()),
                Call::Stop => drop(allocator.stop()),
                Call::Open => drop(allocator.open(OWN.0, OWN.1)),
                Call::Close => drop(allocator.close()),
                Call::Reserve(size) => drop(allocator.reserve(Size(size))),
            }
            let bytes: usize = out.borrow().values().sum();
            prop_assert_eq!(allocator.reserved(), Size(bytes));
        }
    }
}
