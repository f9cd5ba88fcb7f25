//! Steps at another size: what is made of them is what they would be captured as there, or refused.
//!
//! Tier: quick, 0.1 s.

mod program;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use proptest::prelude::*;
use tightfit::graph::{self, Graph, GraphBuilder};
use tightfit::sizes::{Dimension, Sizes, difference, seen};
use tightfit_testing::config;

/// How many programs were right at another size, and how many were refused.
struct Outcomes {
    right: AtomicU64,
    refused: AtomicU64,
}

impl Outcomes {
    const fn none() -> Outcomes {
        Outcomes { right: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }

    /// Counts what a program is at another size, which is to be what is expected.
    fn count(&self, found: Option<Graph>, expected: &Graph) -> Result<(), TestCaseError> {
        let Some(found) = found else {
            self.refused.fetch_add(1, Relaxed);
            return Ok(());
        };
        let difference = difference(&found, expected);
        prop_assert!(difference.is_none(), "{}", difference.unwrap());
        self.right.fetch_add(1, Relaxed);
        Ok(())
    }

    fn assert_right(&self, times: u64) {
        let (right, refused) = (self.right.load(Relaxed), self.refused.load(Relaxed));
        assert!(right * times > refused, "{right} were right, {refused} were refused");
    }
}

static ONCE: Outcomes = Outcomes::none();
static TWICE: Outcomes = Outcomes::none();

/// The numbers of programs are often the size, a multiple of it, or close to it.
#[test]
fn programs_at_another_size_are_right_or_refused() {
    programs();
    ONCE.assert_right(4);
}

/// More of them are right if they were captured twice: then it is known which numbers are which.
#[test]
fn programs_that_were_captured_twice_are_right_or_refused() {
    programs_captured_twice();
    TWICE.assert_right(1);
}

proptest! {
    #![proptest_config(config(1000))]

    fn programs(steps in program::steps(), captured in 4i64..9, size in 2i64..20) {
        let Some(graph) = program::made(&steps, captured, captured) else { return Ok(()) };
        let Some(expected) = program::made(&steps, captured, size) else { return Ok(()) };
        let resized = Sizes::along(&graph, Dimension::Batch).and_then(|it| it.at(size as u64));
        ONCE.count(resized.ok(), &expected)?;
    }

    fn programs_captured_twice(
        steps in program::steps(),
        captured in 4i64..9,
        more in 11i64..30,
        size in 2i64..20,
    ) {
        let Some(graph) = program::made(&steps, captured, captured) else { return Ok(()) };
        let Some(other) = program::made(&steps, captured, captured + more) else { return Ok(()) };
        let Some(expected) = program::made(&steps, captured, size) else { return Ok(()) };
        let seen = seen(&graph, &other, Dimension::Batch, 1);
        let resized = seen.ok().and_then(|seen| {
            let mut builder = GraphBuilder::from_graph(&graph);
            builder.recapture(Dimension::Batch, seen);
            let graph = builder.build().unwrap();
            let written = graph::write_file(&graph, false);
            assert_eq!(graph, graph::read(&written).unwrap());
            Sizes::along(&graph, Dimension::Batch).and_then(|it| it.at(size as u64)).ok()
        });
        TWICE.count(resized, &expected)?;
    }
}
