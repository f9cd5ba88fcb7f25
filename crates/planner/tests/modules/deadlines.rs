//! Planners of modules when time is up. Invariant: the clocks here are artificial: each check of
//! one advances it by a hundredth of a second, so that checks are counted, never seconds.
//!
//! Tier: quick, since it takes less than a second.

use std::sync::atomic::{AtomicU64, Ordering};

use tightfit::analysis::modules::ModuleInfo;
use tightfit::machine::Link;
use tightfit::plan::SolverLimits;
use tightfit::plan::modules::{ModulePlanError, ShardTask, ShardVariant, shard_on};
use tightfit::units::{Bytes, Seconds};

use crate::fixtures::module_tree;

/// Checks of the clock in a second.
const LOOKS: f64 = 100.0;

/// Equal layers: the solver tries assignments among them for longer than any test waits.
fn task(info: &ModuleInfo, seconds: f64) -> ShardTask {
    let link = Link { latency: Seconds(1e-5), bandwidth: 1e11 };
    ShardTask {
        budget: Bytes(info.baseline_peak().0 / 2),
        world_size: 8,
        all_gather: link,
        reduce_scatter: link,
        variant: ShardVariant::Ours,
        units: None,
        checkpointing: true,
        host: Some(link),
        limits: SolverLimits { gap: 0.0, seconds: Some(Seconds(seconds)) },
    }
}

/// Plans, and returns the number of checks of the clock, which jumps to infinity at one of them.
fn looks(info: &ModuleInfo, seconds: f64, interrupted: u64) -> u64 {
    let looks = AtomicU64::new(0);
    let clock = || {
        let look = looks.fetch_add(1, Ordering::Relaxed);
        Seconds(if look < interrupted { look as f64 / LOOKS } else { f64::INFINITY })
    };
    match shard_on(info, &task(info, seconds), &clock) {
        Ok(plan) => assert_ne!(plan.gap, Some(0.0), "this is not proven so soon"),
        Err(error) => assert!(matches!(error, ModulePlanError::Unsolved { .. }), "{error}"),
    }
    looks.load(Ordering::Relaxed)
}

#[test]
fn all_programs_of_a_plan_share_one_deadline() {
    let info = module_tree::transformer(12, 0.0, 1);
    // Several programs, each of which would take all of the time by itself; then some checks of a
    // clock that has run out.
    let looks = looks(&info, 1.0, u64::MAX);
    assert!((50..150).contains(&looks), "{looks}");
}

#[test]
fn an_interruption_ends_all_programs() {
    let info = module_tree::transformer(12, 0.0, 1);
    let looks = looks(&info, 1e6, 20);
    assert!((20..60).contains(&looks), "{looks}");
}
