//! Layouts: judged by code that shares nothing with the code that makes them, on the public hard
//! set, on random buffers against brute force, and with fixed addresses.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.

use proptest::prelude::*;
use tightfit::Goal;
use tightfit::effort::Effort;
use tightfit::schedule::{ALIGNMENT, Lifetime, Packing, Shelf, pack};
use tightfit::units::Bytes;

use crate::fixtures::corpus;

fn life(first: u32, last: u32, bytes: u64) -> Lifetime {
    Lifetime { first, last, bytes: Bytes(bytes) }
}

/// Panics if two buffers overlap, or if one lies at an address that is not allowed.
fn judge(lifetimes: &[Lifetime], fixed: &[Option<u64>], floor: u64, packing: &Packing) {
    assert_eq!(packing.addresses.len(), lifetimes.len());
    assert!(packing.bound <= packing.end);
    for (i, (a, &at)) in lifetimes.iter().zip(&packing.addresses).enumerate() {
        match fixed[i] {
            Some(address) => assert_eq!(at, address),
            None => assert!(at >= floor && at.is_multiple_of(ALIGNMENT)),
        }
        assert!(at + a.bytes.0 <= packing.end.0);
        for (b, &other) in lifetimes.iter().zip(&packing.addresses).take(i) {
            let together = a.first <= b.last && b.first <= a.last && a.bytes.0 > 0 && b.bytes.0 > 0;
            assert!(
                !together || at + a.bytes.0 <= other || other + b.bytes.0 <= at,
                "{a:?} at {at}, {b:?} at {other}"
            );
        }
    }
}

/// The least end: over every order of placement, each buffer as low as possible on top of those
/// before it.
fn least_end(lifetimes: &[Lifetime], placed: &mut Vec<(usize, u64)>) -> u64 {
    if placed.len() == lifetimes.len() {
        return placed.iter().map(|&(i, at)| at + lifetimes[i].bytes.0).max().unwrap_or(0);
    }
    let mut least = u64::MAX;
    for i in 0..lifetimes.len() {
        if placed.iter().any(|&(other, _)| other == i) {
            continue;
        }
        let meets = |other: usize| {
            lifetimes[other].first <= lifetimes[i].last
                && lifetimes[i].first <= lifetimes[other].last
        };
        let below = placed
            .iter()
            .filter(|&&(other, _)| meets(other))
            .map(|&(other, at)| at + lifetimes[other].bytes.0);
        let at = below.max().unwrap_or(0);
        placed.push((i, at));
        least = least.min(least_end(lifetimes, placed));
        placed.pop();
    }
    least
}

#[test]
fn the_hard_set_is_packed_into_its_capacity() {
    const CAPACITY: u64 = 1 << 20;
    for name in ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K"] {
        let text = std::fs::read_to_string(corpus::path(&format!("buffers/{name}.{CAPACITY}.csv")))
            .unwrap();
        let row = |line: &str| {
            let columns: Vec<u32> = line.split(',').map(|column| column.parse().unwrap()).collect();
            life(columns[1], columns[2] - 1, u64::from(columns[3]))
        };
        let lifetimes: Vec<Lifetime> = text.lines().skip(1).map(row).collect();
        let fixed = vec![None; lifetimes.len()];
        let packing = pack(
            &lifetimes,
            &Shelf {
                fixed: &fixed,
                floor: 0,
                alignment: ALIGNMENT,
                goal: Goal::Within(Bytes(CAPACITY)),
                enough: Bytes::ZERO,
            },
            &Effort::default(),
        );
        judge(&lifetimes, &fixed, 0, &packing);
        assert!(packing.end <= Bytes(CAPACITY), "{name}: {}", packing.end);
    }
}

#[test]
fn without_work_there_is_still_a_packing() {
    let lifetimes: Vec<Lifetime> = (0..200)
        .map(|i| life(i * 7 % 100, i * 7 % 100 + i * 13 % 50, u64::from(i * 29 % 37) * 64))
        .collect();
    let fixed = vec![None; lifetimes.len()];
    judge(
        &lifetimes,
        &fixed,
        0,
        &pack(
            &lifetimes,
            &Shelf {
                fixed: &fixed,
                floor: 0,
                alignment: ALIGNMENT,
                goal: Goal::Smallest,
                enough: Bytes::ZERO,
            },
            &Effort::work(1, 0),
        ),
    );
}

#[test]
fn what_never_fits_is_proven() {
    // Two lives of 2 and 3 units next to each other need 5, whatever the capacity.
    let packing = pack(
        &[life(0, 2, 128), life(1, 3, 192)],
        &Shelf {
            fixed: &[None; 2],
            floor: 0,
            alignment: ALIGNMENT,
            goal: Goal::Within(Bytes(64)),
            enough: Bytes::ZERO,
        },
        &Effort::default(),
    );
    assert_eq!((packing.end, packing.is_optimal()), (Bytes(320), true));
}

fn lifetimes(most: usize) -> impl Strategy<Value = Vec<Lifetime>> {
    let one = (0..12u32, 0..6u32, 0..6u64)
        .prop_map(|(first, length, units)| life(first, first + length, units * 64));
    prop::collection::vec(one, 0..=most)
}

proptest! {
    #![proptest_config(tightfit_testing::config(300))]

    #[test]
    fn few_buffers_are_packed_as_brute_force_packs_them(lifetimes in lifetimes(7)) {
        let fixed = vec![None; lifetimes.len()];
        let (goal, enough) = (Goal::Smallest, Bytes::ZERO);
        let shelf = Shelf { fixed: &fixed, floor: 0, alignment: ALIGNMENT, goal, enough };
        let packing = pack(&lifetimes, &shelf, &Effort::default());
        judge(&lifetimes, &fixed, 0, &packing);
        prop_assert_eq!(packing.end, Bytes(least_end(&lifetimes, &mut Vec::new())));
        prop_assert!(packing.is_optimal());
    }

    #[test]
    fn fixed_addresses_and_the_floor_are_kept(
        lifetimes in lifetimes(40),
        kept in 0..5usize,
        floor in 0..4u64,
        seed in 0..4u64,
    ) {
        // The first few are fixed one after another, below the floor or above it.
        let mut next = 0;
        let fixed: Vec<Option<u64>> = lifetimes.iter().enumerate().map(|(i, life)| {
            let here = next;
            next += life.bytes.0;
            (i < kept).then_some(here)
        }).collect();
        let floor = floor * 320;
        for capacity in [0, 2048, u64::MAX] {
            let effort = Effort::work(seed, 20_000);
            let (goal, enough) = (Goal::Within(Bytes(capacity)), Bytes::ZERO);
            let shelf = Shelf { fixed: &fixed, floor, alignment: ALIGNMENT, goal, enough };
            let packing = pack(&lifetimes, &shelf, &effort);
            judge(&lifetimes, &fixed, floor, &packing);
            prop_assert_eq!(pack(&lifetimes, &shelf, &effort), packing);
        }
    }
}
