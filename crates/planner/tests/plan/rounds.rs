//! Rounds of planning a budget. Invariant: a result that is made only of certain plans shows which
//! plans were tried; the clocks are artificial.
//!
//! Tier: quick, since it takes 2 s.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};

use tightfit::effort::{Effort, Meter};
use tightfit::machine::Machine;
use tightfit::plan::{self, Instance, Plan, Planner, Realize, Rounds, Search};
use tightfit::profile::Profile;
use tightfit::units::{Bytes, Seconds};

use crate::fixtures::corpus;

/// Has results only for given plans, once the smallest plan was asked for.
struct Picky<'a> {
    accepted: &'a [Plan],
    was_asked: bool,
}

impl Realize for Picky<'_> {
    type Made = Plan;
    type Refusal = Infallible;
    const MAY_MISS: bool = true;

    fn realize(&mut self, plan: &Plan, _: Bytes, _: &Effort<'_>) -> Result<Plan, Bytes> {
        let is_accepted = self.accepted.iter().any(|other| other.sequence == plan.sequence);
        if self.was_asked && is_accepted { Ok(plan.clone()) } else { Err(Bytes(1 << 20)) }
    }

    fn smallest(
        &mut self,
        search: &mut Search<'_>,
        _: Bytes,
        meter: &Meter<'_>,
    ) -> Result<(Plan, Plan), Infallible> {
        self.was_asked = true;
        let lowest = search.lowest(&meter.round(10_000, 0.1));
        Ok((lowest.clone(), lowest))
    }
}

/// While nothing fits, other planners have no time. Once the smallest plan does, what they plan may
/// be much faster.
#[test]
fn other_planners_are_asked_once_something_fits() {
    let graph = corpus::graph("resnet50_b32");
    let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
    let order = plan::base_order(&graph, &profile);
    let instance = Instance::new(&graph, &profile, &order);
    let budget = Bytes(instance.peak(&order).0 / 100 * 60);
    let accepted: Vec<Plan> = [Planner::Xla, Planner::Dtr]
        .map(|planner| plan::plan(instance, budget, planner).unwrap())
        .to_vec();
    let fastest = accepted.iter().map(|plan| plan.seconds.0).fold(f64::INFINITY, f64::min);

    let (looks, own) = (AtomicU64::new(0), std::thread::current().id());
    let clock = || match std::thread::current().id() == own {
        true => Seconds(looks.fetch_add(1, Ordering::Relaxed) as f64 * 1e-3),
        // On a second thread there is no time.
        false => Effort::LATE,
    };
    let effort = Effort {
        deadline: Seconds(100.0),
        floor_beside: 0,
        clock: &clock,
        ..Effort::work(1, u64::MAX)
    };
    let mut search = Search::new(instance);
    let mut picky = Picky { accepted: &accepted, was_asked: false };
    let Ok(made) = Rounds::new(&mut search, budget, &mut picky).run(&effort).made;
    assert!(made.seconds.0 <= fastest, "{} > {fastest}", made.seconds.0);
}
