//! The smallest budget, and the effect of more work on it. Invariant: no planner reaches less, more
//! work is never worse, a proof of infeasibility is true; the distance from the least possible
//! budget is printed, not asserted.
//!
//! Tier: quick with a part of the cases, 8 s; full with all of them.

use proptest::prelude::*;
use tightfit::analysis::Sequence;
use tightfit::effort::Effort;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::{self, PlanError, Planner};
use tightfit::profile::Profile;
use tightfit::schedule::ALIGNMENT;
use tightfit::units::Bytes;
use tightfit::{FitError, Fitted, Goal, HoldRequest, Request, fit, hold};
use tightfit_testing::either;

use crate::fixtures::generator::dag::{self, Freedoms};
use crate::fixtures::oracle::any_order::least_budget_any_order;
use crate::fixtures::{corpus, generator, oracle};

/// Small graphs of the corpus; on some of them a cut, on others an eviction or a greedy rule gets
/// furthest.
const SMALL: [&str; 5] = ["chain24", "chain50", "tf2", "unet2_1", "unet3_1"];

fn planned(
    graph: &Graph,
    profile: &Profile,
    goal: Goal,
    planner: Planner,
    work: u64,
) -> Result<Fitted, FitError> {
    let effort = Effort::work(1, work);
    fit(graph, profile, &Request { goal, planner, effort, ..Request::default() })
}

fn smallest(graph: &Graph, profile: &Profile, planner: Planner, work: u64) -> Bytes {
    planned(graph, profile, Goal::Smallest, planner, work).unwrap().schedule().slab
}

/// The time of a step, in picoseconds; seconds are sums in the order of the runs, which ends in
/// another last digit for another order. A refusal takes for ever.
fn picoseconds(fitted: Result<Fitted, FitError>) -> u64 {
    fitted.map_or(u64::MAX, |fitted| (fitted.timeline().seconds.0 * 1e12).round() as u64)
}

fn synthetic(name: &str) -> Graph {
    corpus::graph(&format!("../synthetic/{name}"))
}

/// Planners that accept steps of any size, with modules or without.
fn peers() -> impl Iterator<Item = Planner> {
    Planner::ALL
        .into_iter()
        .map(|(planner, _)| planner)
        .filter(|planner| ![Planner::Auto, Planner::Exact, Planner::Sac].contains(planner))
        .chain([Planner::CapuchinPublished])
}

#[test]
fn no_planner_reaches_less_on_graphs_of_the_corpus() {
    for name in SMALL {
        let graph = synthetic(name);
        for profile in generator::profiles(&graph) {
            let auto = smallest(&graph, &profile, Planner::Auto, 100_000);
            for planner in peers() {
                let other = smallest(&graph, &profile, planner, 100_000);
                assert!(auto <= other, "{name}: {auto}, but {planner:?} reaches {other}");
            }
        }
    }
}

#[test]
fn a_budget_that_a_refusal_names_is_planned() {
    let mut named = 0;
    for name in SMALL {
        let graph = synthetic(name);
        for profile in generator::profiles(&graph) {
            let unplanned = tightfit::unplanned(&graph, &profile).unwrap().schedule().slab;
            for (planner, percent) in peers().flat_map(|planner| [(planner, 30), (planner, 60)]) {
                let budget = Bytes(unplanned.0 * percent / 100);
                let plan =
                    |budget| planned(&graph, &profile, Goal::Within(budget), planner, 10_000);
                let Err(refused) = plan(budget) else { continue };
                let Some(proof) = refused.infeasible() else { continue };
                let again = plan(proof.reached);
                assert!(again.is_ok(), "{name} {planner:?} {percent}%: {refused} Then: {again:?}");
                named += 1;
            }
        }
    }
    assert!(named > 20, "{named}");
}

#[test]
fn more_work_is_never_worse() {
    for name in SMALL {
        let graph = synthetic(name);
        let profile = Profile::new(&graph, &Machine::unmeasured_cpu(1));
        let works = [1_000, 2_000, 4_000, 8_000, 16_000, 64_000, 256_000];
        let slabs = works.map(|work| smallest(&graph, &profile, Planner::Auto, work));
        assert!(slabs.is_sorted_by(|less, more| less >= more), "{name}: {slabs:?}");
        let unplanned = tightfit::unplanned(&graph, &profile).unwrap().schedule().slab;
        for part in [0.3, 0.5, 0.7, 0.9] {
            let room = (unplanned - slabs[6]).0 as f64;
            let budget = slabs[6] + Bytes((room * part) as u64);
            let times = works.map(|work| {
                let goal = Goal::Within(budget);
                picoseconds(planned(&graph, &profile, goal, Planner::Auto, work))
            });
            assert!(times.is_sorted_by(|less, more| less >= more), "{name}: {times:?}");
        }
    }
}

/// If addresses are the constraint, plans within a budget are many, and few of them pack.
#[test]
fn where_addresses_bind_more_work_is_never_worse_and_no_planner_is_faster() {
    for (name, budget) in [("tight-1", 73_216), ("tight-2", 53_696)] {
        let graph = synthetic(name);
        let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
        let time = |budget, planner, work| {
            picoseconds(planned(&graph, &profile, Goal::Within(budget), planner, work))
        };
        let lowest = peers().map(|planner| smallest(&graph, &profile, planner, 10_000));
        for budget in lowest.chain([Bytes(budget)]) {
            let works = [1, 1_000, 3_000, 10_000, 30_000, 100_000];
            let auto = works.map(|work| time(budget, Planner::Auto, work));
            assert!(auto.is_sorted_by(|less, more| less >= more), "{name}, {budget}: {auto:?}");
            for planner in peers() {
                let other = time(budget, planner, 100_000);
                assert!(other >= auto[5], "{name}, {budget}: {auto:?}, {planner:?} {other}");
            }
        }
    }
}

/// The smallest slab is the end of its own addresses, requesting it with at least as much work
/// gives a plan, and it is what refusals name.
#[test]
fn the_smallest_budget_is_found_again_and_is_the_one_that_refusals_name() {
    let mut below_the_lowest = 0;
    for name in SMALL.into_iter().chain(["tight-1", "tight-2"]) {
        let graph = synthetic(name);
        let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
        for work in [3_000, 5_000, 10_000, 40_000] {
            let within =
                |budget, work| planned(&graph, &profile, Goal::Within(budget), Planner::Auto, work);
            let found = planned(&graph, &profile, Goal::Smallest, Planner::Auto, work).unwrap();
            let schedule = found.schedule();
            let ends = schedule.buffers.values().map(|buffer| buffer.address + buffer.bytes.0);
            let named = Bytes(ends.max().unwrap().next_multiple_of(ALIGNMENT));
            assert_eq!((schedule.slab, schedule.budget), (named, named), "{name}, {work}");
            for times in [1, 2, 3] {
                let again = within(named, times * work).map(|fitted| fitted.schedule().slab);
                assert!(again.is_ok(), "{name}, {times} * {work}: {named} is refused: {again:?}");
            }
            let refused = within(Bytes(named.0 / 2), work).unwrap_err();
            let proof = refused.infeasible().expect("the budget is the reason");
            assert_eq!(proof.reached, named, "{name}, {work}");
            let rules = peers().map(|planner| smallest(&graph, &profile, planner, work));
            below_the_lowest += usize::from(rules.min().unwrap() > named);
        }
    }
    assert!(below_the_lowest > 0, "the rules alone would do");
}

/// The process has memory for the tables of 256 repeated calls, and of half as many as there are
/// nodes; each further one takes 1.25 KiB, which the slab leaves to it.
#[test]
fn the_slab_has_room_for_the_tables_of_very_many_repeated_calls() {
    let graph = synthetic("chain50");
    let profile = Profile::new(&graph, &Machine::unmeasured_cpu(1));
    let found = planned(&graph, &profile, Goal::Smallest, Planner::Dtr, 10_000).unwrap();
    let schedule = found.schedule();
    let charged = schedule.recomputed().saturating_sub(graph.compute_nodes().len() / 2 + 256);
    assert!(charged > 0, "{} repeated calls", schedule.recomputed());
    let tables = charged as u64 * 1280;
    let ends = schedule.buffers.values().map(|buffer| buffer.address + buffer.bytes.0);
    let used = ends.max().unwrap();
    assert!(used + tables <= schedule.slab.0, "{used} and {tables} of {}", schedule.slab.0);
}

proptest! {
    #![proptest_config(tightfit_testing::config(40))]

    #[test]
    fn no_planner_reaches_less(graph in generator::graphs(16)) {
        for profile in generator::profiles(&graph) {
            let auto = smallest(&graph, &profile, Planner::Auto, 3_000);
            let held = |planner| {
                let effort = Effort::work(1, 3_000);
                let request = HoldRequest { planner, effort, ..HoldRequest::default() };
                hold(&graph, &profile, &request).unwrap().budget()
            };
            for planner in peers() {
                let other = smallest(&graph, &profile, planner, 3_000);
                prop_assert!(auto <= other, "{auto}, but {planner:?} reaches {other}");
                prop_assert!(held(Planner::Auto) <= held(planner));
            }
        }
    }

    #[test]
    fn more_work_is_never_worse_on_random_graphs(graph in generator::graphs(16)) {
        for profile in generator::profiles(&graph) {
            let works = [0, 500, 1_000, 2_000, 4_000, 8_000];
            let slabs = works.map(|work| smallest(&graph, &profile, Planner::Auto, work));
            prop_assert!(slabs.is_sorted_by(|less, more| less >= more), "{slabs:?}");
            let unplanned = tightfit::unplanned(&graph, &profile).unwrap().schedule().slab;
            for part in [0.0, 0.2, 0.5, 0.8] {
                let room = unplanned.saturating_sub(slabs[5]).0 as f64;
                let budget = slabs[5] + Bytes((room * part) as u64);
                let times = works.map(|work| {
                    let goal = Goal::Within(budget);
                    picoseconds(planned(&graph, &profile, goal, Planner::Auto, work))
                });
                prop_assert!(times.is_sorted_by(|less, more| less >= more), "{times:?}");
            }
        }
    }
}

/// Compared with the least budget of any legal schedule.
#[test]
fn a_proof_is_true_and_what_is_named_exists() {
    let (mut graphs, mut exact, mut refused, mut wrongly, mut above) = (0, 0, 0, 0, 0.0);
    for seed in 0..either(50, 200) {
        let freedoms = Freedoms { writes: seed % 2 == 1, uneven: seed % 3 == 1 };
        let graph = dag::graph(seed, 10, freedoms);
        for profile in generator::profiles(&graph) {
            let order = plan::base_order(&graph, &profile);
            let unplanned = plan::simulate(&graph, &profile, &Sequence::from(&order)).curve.peak;
            let least = Bytes(least_budget_any_order(&graph, &profile, unplanned.0));
            let of = |goal| {
                let effort = Effort::work(1, 20_000);
                hold(&graph, &profile, &HoldRequest { goal, effort, ..HoldRequest::default() })
            };
            let lowest = of(Goal::Smallest).unwrap();
            let cost = oracle::replay(&graph, &profile, &lowest.sequence().runs()).unwrap();
            assert_eq!(Bytes(cost.peak), lowest.budget());
            assert!(lowest.budget() >= least);
            graphs += 1;
            exact += usize::from(lowest.budget() == least);
            above += lowest.budget().0 as f64 / least.0.max(1) as f64 - 1.0;
            for budget in [least, Bytes(least.0.saturating_sub(1)), Bytes(least.0 / 2)] {
                let within = Goal::Within(budget);
                match of(within) {
                    Ok(held) => assert!(held.timeline().peak <= budget && budget >= least),
                    Err(FitError::Plan(PlanError::Infeasible(proof))) => {
                        assert!(!proof.is_proven() || budget < least, "{proof}");
                        assert!(proof.needed <= least, "{proof}");
                        let named = Goal::Within(proof.reached);
                        of(named).unwrap();
                        refused += 1;
                        wrongly += usize::from(budget >= least);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
    println!(
        "of {graphs} graphs {exact} reach the least budget, all together {:.2} % above it; \
         {wrongly} of {refused} refusals were of a budget that suffices",
        100.0 * above / f64::from(graphs)
    );
}

/// The smallest says what limits it: a bound that the oracle confirms, and where the plan peaks; if
/// that proves the smallest, nothing less is planned.
#[test]
fn the_smallest_says_why_it_is_no_smaller() {
    let mut proven = 0;
    for seed in 0..60 {
        let graph = generator::small_steps::graph(seed);
        let profile = Profile::new(&graph, &Machine::unmeasured_cpu(1));
        for planner in [Planner::Auto, Planner::Chen] {
            let found = planned(&graph, &profile, Goal::Smallest, planner, 4_000).unwrap();
            let (slab, peak) = (found.schedule().slab, found.timeline().peak);
            let limit = found.limit().expect("nothing moves");
            assert_eq!((limit.reached, limit.budget), (slab, slab.saturating_sub(Bytes(1))));
            assert_eq!(limit.peak, peak, "{seed}: of the schedule itself");
            let alive: Bytes = limit.live.iter().map(|tensor| tensor.bytes).sum();
            assert_eq!(alive, peak, "{seed}: what is alive there is what is held");
            let least = least_budget_any_order(&graph, &profile, slab.0);
            assert!(limit.needed.0 <= least, "{seed}: {} of {least}", limit.needed);
            if limit.is_proven() {
                proven += 1;
                let less = Goal::Within(limit.budget);
                let refused = planned(&graph, &profile, less, planner, 4_000);
                assert!(refused.is_err_and(|error| error.infeasible().is_some()), "{seed}");
            }
        }
    }
    assert!(proven > 20, "{proven}");
}

/// A plan that the budget planner took from a rule is that rule's own.
#[test]
fn an_adopted_plan_is_the_rules_own() {
    let mut adopted = 0;
    for name in SMALL {
        let graph = synthetic(name);
        let profile = Profile::new(&graph, &Machine::unmeasured_cpu(1));
        let peak = tightfit::unplanned(&graph, &profile).unwrap().timeline().peak;
        for percent in [50, 60, 70, 80, 90] {
            let goal = Goal::Within(Bytes(peak.0 * percent / 100));
            let Ok(found) = planned(&graph, &profile, goal, Planner::Auto, 1_000) else { continue };
            let Some(rule) = found.adopted() else { continue };
            adopted += 1;
            assert!(peers().any(|peer| peer == rule), "{name}: {rule:?}");
            // With addresses of its own, a rule may have to hold less, which takes longer.
            let own = planned(&graph, &profile, goal, rule, 1_000).unwrap();
            assert!(found.timeline().seconds.0 <= own.timeline().seconds.0 + 1e-12, "{name}");
        }
    }
    assert!(adopted > 0);
}
