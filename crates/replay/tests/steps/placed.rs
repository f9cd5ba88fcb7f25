//! Any step, replayed at any legal offsets, gets them; and no other offsets are legal.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.

use std::sync::Arc;

use proptest::prelude::*;
use tightfit_replay::{ALIGNMENT, Offset, Placement, Settled, Size};

use super::device::{OTHER, OWN, allocator};
use super::script::{Request, Tensor, play, record, scripts};

/// Offsets one by one, each the lowest that overlaps no earlier one held at the same time.
fn first_fit(settled: &Settled) -> (Vec<Offset>, Size) {
    let intervals: Vec<_> = settled.intervals().collect();
    let mut offsets: Vec<usize> = Vec::new();
    for &(first, last, Size(size)) in &intervals {
        let free = |offset: usize| {
            offsets.iter().zip(&intervals).all(|(&other, &(from, to, Size(bytes)))| {
                to < first || last < from || other + bytes <= offset || offset + size <= other
            })
        };
        offsets.push((0..).step_by(ALIGNMENT).find(|&offset| free(offset)).unwrap());
    }
    let ends = offsets.iter().zip(&intervals).map(|(offset, &(.., Size(size)))| offset + size);
    let slab = Size(ends.max().unwrap_or(0));
    (offsets.into_iter().map(Offset).collect(), slab)
}

fn overlap(one: &Tensor, other: &Tensor) -> bool {
    let (from, to) = (one.address.0.get(), other.address.0.get());
    from < to + other.size && to < from + one.size
}

fn settled_of(script: &[Request], is_kept: impl Fn(usize) -> bool) -> Settled {
    let (mut allocator, out) = allocator();
    let first = record(&mut allocator, script, &is_kept);
    let second = record(&mut allocator, script, &is_kept);
    assert!(out.borrow().is_empty());
    Settled::of(&first, &second).unwrap()
}

proptest! {
    #![proptest_config(tightfit_testing::config(96))]

    #[test]
    fn a_replayed_step_gets_its_addresses_and_nothing_overlaps(
        script in scripts(), keep in 1_usize..6,
    ) {
        let is_kept = |position: usize| position.is_multiple_of(keep);
        let settled = settled_of(&script, is_kept);
        let (offsets, slab) = first_fit(&settled);
        let placement = Placement::checked(settled.clone(), &offsets, slab).unwrap();
        let placement = Arc::new(placement);
        let (mut allocator, out) = allocator();
        allocator.reserve(slab).unwrap();
        let base = out.borrow().keys().next().copied();
        for step in 1..=3_u64 {
            allocator.replay(Arc::clone(&placement)).unwrap();
            allocator.reset_peak();
            let played = play(&mut allocator, &script, |out| {
                for (index, one) in out.iter().enumerate() {
                    assert!(out[..index].iter().all(|other| !overlap(one, other)));
                }
            })
            .unwrap();
            let in_slab: Vec<usize> = played
                .made
                .iter()
                .filter_map(|tensor| tensor.address.0.get().checked_sub(base?))
                .filter(|offset| *offset < slab.0)
                .collect();
            prop_assert_eq!(&in_slab, &offsets.iter().map(|offset| offset.0).collect::<Vec<_>>());
            prop_assert_eq!(allocator.counters().placed, step * offsets.len() as u64);
            // There are no static bytes here: only the slab, and what was known to be allocated
            // outside it.
            prop_assert_eq!(allocator.counters().peak, slab.plus(settled.beside()));
            played.out.iter().for_each(|tensor| allocator.free(tensor.address, OWN.0));
            prop_assert_eq!(allocator.reserved(), slab);
        }
        prop_assert_eq!(allocator.counters().strays, 0);
        allocator.reserve(Size::ZERO).unwrap();
        prop_assert!(out.borrow().is_empty());
    }

    #[test]
    fn offsets_are_refused_exactly_where_two_tensors_would_overlap(
        script in scripts(), drawn in prop::collection::vec(0_usize..24, 60),
    ) {
        let settled = settled_of(&script, |_| false);
        let intervals: Vec<_> = settled.intervals().collect();
        let offsets: Vec<usize> =
            drawn.iter().take(intervals.len()).map(|offset| offset * ALIGNMENT).collect();
        let slab = Size(26 * ALIGNMENT);
        let legal = (0..intervals.len()).all(|one| {
            let (first, last, Size(size)) = intervals[one];
            let inside = offsets[one] + size <= slab.0;
            inside && (0..one).all(|other| {
                let (from, to, Size(bytes)) = intervals[other];
                let apart = to < first || last < from;
                apart || offsets[one] + size <= offsets[other]
                    || offsets[other] + bytes <= offsets[one]
            })
        });
        let offsets: Vec<Offset> = offsets.into_iter().map(Offset).collect();
        prop_assert_eq!(Placement::checked(settled, &offsets, slab).is_ok(), legal);
    }

    #[test]
    fn a_peak_is_what_the_device_had_out(script in scripts()) {
        let (mut allocator, out) = allocator();
        let mut most = 0;
        let mut traces = Vec::new();
        for _ in 0..2 {
            allocator.record();
            let played = play(&mut allocator, &script, |_| {
                most = most.max(out.borrow().values().sum::<usize>());
            })
            .unwrap();
            traces.push(allocator.leave().unwrap());
            played.out.iter().for_each(|tensor| allocator.free(tensor.address, OWN.0));
        }
        let settled = Settled::of(&traces[0], &traces[1]).unwrap();
        prop_assert_eq!(settled.peak(), Size(most));
        prop_assert_eq!(allocator.counters().peak, Size(most));
    }
}

#[test]
fn steps_that_ask_for_other_sizes_do_not_settle() {
    let (mut allocator, _) = allocator();
    let first = record(&mut allocator, &[Request::Allocate(8)], |_| false);
    let second = record(&mut allocator, &[Request::Allocate(9)], |_| false);
    let longer = record(&mut allocator, &[Request::Allocate(8), Request::Turn(0)], |_| false);
    assert_eq!(Settled::of(&first, &second), None);
    assert_eq!(Settled::of(&first, &longer), None);
    assert!(Settled::of(&first, &first).is_some());
}

#[test]
fn the_longer_life_counts() {
    let (mut allocator, _) = allocator();
    let script = [Request::Allocate(8), Request::Allocate(16)];
    let frees = [Request::Allocate(8), Request::Free(0), Request::Allocate(16)];
    let held = record(&mut allocator, &script, |_| false);
    let short = record(&mut allocator, &frees, |_| false);
    let kept = record(&mut allocator, &script, |position| position == 0);
    let beside = [Request::Allocate(8), Request::FreeBeside(0), Request::Allocate(16)];
    let unsure = record(&mut allocator, &beside, |_| false);
    let between = [Request::Allocate(8), Request::Turn(0), Request::Allocate(16)];
    let turned = record(&mut allocator, &between, |_| false);
    let intervals = |one, other| Settled::of(one, other).unwrap().intervals().collect::<Vec<_>>();
    assert_eq!(intervals(&short, &short), [(0, 0, Size(8)), (1, 1, Size(16))]);
    assert_eq!(intervals(&unsure, &unsure), [(0, 1, Size(8)), (1, 1, Size(16))]);
    assert_eq!(intervals(&turned, &turned), [(0, 0, Size(8)), (1, 1, Size(16))]);
    assert_eq!(intervals(&held, &short), [(0, 1, Size(8)), (1, 1, Size(16))]);
    assert_eq!(intervals(&held, &kept), [(1, 1, Size(16))]);
    assert_eq!(Settled::of(&held, &kept).unwrap().beside(), Size(8));
}

#[test]
fn what_was_there_before_makes_room_only_where_it_goes_between_passes() {
    for (goes_between, beside) in [(true, Size(0)), (false, Size(60))] {
        let (mut allocator, _) = allocator();
        let before = allocator.allocate(Size(100), OTHER.0, OTHER.1).unwrap().unwrap();
        allocator.record();
        allocator.open(OWN.0, OWN.1).unwrap();
        if goes_between {
            allocator.close().unwrap();
            allocator.free(before, OTHER.0);
        } else {
            allocator.free(before, OTHER.0);
            allocator.close().unwrap();
        }
        allocator.open(OWN.0, OWN.1).unwrap();
        allocator.allocate(Size(60), OTHER.0, OTHER.1).unwrap();
        allocator.close().unwrap();
        let trace = allocator.leave().unwrap();
        let settled = Settled::of(&trace, &trace).unwrap();
        assert_eq!(settled.beside(), beside);
        // Whatever was freed before it, the second pass needs its bytes when it begins.
        assert_eq!(settled.rises(), [Size(0), Size(60)]);
    }
}
