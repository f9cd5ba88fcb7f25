//! Steps at another size: what is made of them is what they would be captured as there, or refused.
//!
//! Tier: quick, 0.1 s.

mod program;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use proptest::prelude::*;
use tightfit::sizes::{Dimension, Sizes, difference};
use tightfit_testing::config;

static RIGHT: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// The numbers of programs are often the size, a multiple of it, or close to it.
#[test]
fn programs_at_another_size_are_right_or_refused() {
    programs();
    let (right, refused) = (RIGHT.load(Relaxed), REFUSED.load(Relaxed));
    assert!(right > refused / 4, "{right} were right, {refused} were refused");
}

proptest! {
    #![proptest_config(config(1000))]

    fn programs(steps in program::steps(), captured in 4i64..9, size in 2i64..20) {
        let Some(graph) = program::made(&steps, captured, captured) else { return Ok(()) };
        let Some(expected) = program::made(&steps, captured, size) else { return Ok(()) };
        let resized = Sizes::along(&graph, Dimension::Batch).and_then(|it| it.at(size as u64));
        match resized {
            Err(_) => REFUSED.fetch_add(1, Relaxed),
            Ok(resized) => {
                let found = difference(&resized, &expected);
                prop_assert!(found.is_none(), "{}", found.unwrap());
                RIGHT.fetch_add(1, Relaxed)
            }
        };
    }
}
