//! Planners when time is up. Invariant: the clocks here are artificial, so that work and checks of
//! the clock are counted, never seconds.
//!
//! Tier: quick, since it takes 4 s.

use std::sync::atomic::{AtomicU64, Ordering};

use tightfit::analysis::Sequence;
use tightfit::effort::{Effort, Meter};
use tightfit::graph::{self, Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{NodeId, ValueId};
use tightfit::machine::Machine;
use tightfit::plan::{self, Instance, PlanError, Planner};
use tightfit::profile::Profile;
use tightfit::tensor::DType;
use tightfit::units::{Bytes, Seconds};
use tightfit::{Request, SecondHalf, fit};

use crate::fixtures::corpus;

/// The planners whose rule visits the step more than once.
const RULES: [Planner; 6] = [
    Planner::Capuchin,
    Planner::CapuchinPublished,
    Planner::Xla,
    Planner::Dtr,
    Planner::Knapsack,
    Planner::Rotor,
];

/// Most operations between two checks of the clock, and to finish what was begun, for each node of
/// a step.
const AFTERWARDS: u64 = 400;

/// A step with its costs, and its budgets as parts of the unplanned peak.
struct Subject {
    graph: Graph,
    profile: Profile,
    order: Vec<NodeId>,
}

impl Subject {
    fn read(name: &str) -> Subject {
        let graph = graph::read(&std::fs::read(corpus::path(name)).unwrap()).unwrap();
        let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
        let order = plan::base_order(&graph, &profile);
        Subject { graph, profile, order }
    }

    fn budget(&self, percent: u64) -> Bytes {
        Bytes(self.peak(&self.order).0 / 100 * percent)
    }

    /// Plans under an effort: the runs, and the work that was counted.
    fn plan(
        &self,
        budget: Bytes,
        planner: Planner,
        effort: &Effort<'_>,
    ) -> (Result<Vec<NodeId>, PlanError>, u64) {
        let mut meter = Meter::new(effort);
        let Subject { graph, profile, order } = self;
        let plan =
            plan::plan_within(Instance::new(graph, profile, order), budget, planner, &mut meter);
        (plan.map(|plan| plan.runs()), meter.spent())
    }

    fn peak(&self, runs: &[NodeId]) -> Bytes {
        plan::simulate(&self.graph, &self.profile, &Sequence::from(runs)).curve.peak
    }
}

/// An effort whose time is up as soon as `floor` operations are done.
fn late<'a>(floor: u64, clock: &'a (dyn Fn() -> Seconds + Sync)) -> Effort<'a> {
    Effort { floor, deadline: Seconds(1.0), clock, ..Effort::work(1, u64::MAX) }
}

/// A clock that reads 0 until it has been checked `after` times, and `to` from then on.
fn jumping(looks: &AtomicU64, after: u64, to: f64) -> impl Fn() -> Seconds + Sync {
    move || {
        let is_over = looks.fetch_add(1, Ordering::Relaxed) >= after;
        Seconds(if is_over { to } else { 0.0 })
    }
}

#[test]
fn a_rule_ends_soon_after_its_floor() {
    for name in ["graphs/mobilenet_v3_large_b64.json.gz", "graphs/llama_1b_b2_s2048.json.gz"] {
        let subject = Subject::read(name);
        let most = AFTERWARDS * subject.order.len() as u64;
        for planner in RULES {
            for floor in [0, 300_000] {
                let looks = AtomicU64::new(0);
                let clock = jumping(&looks, 1, 2.0);
                // No rule meets such a small budget, so each would go on to its end.
                let (answer, spent) = subject.plan(Bytes(1), planner, &late(floor, &clock));
                assert!(spent <= floor + most, "{name} {planner:?}: {spent} after {floor}");
                assert!(answer.is_err(), "{name} {planner:?}");
            }
        }
    }
}

/// A search whose time is up waits for the planners that it calls no longer than it is told to.
#[test]
fn planners_beside_a_search_end_soon_after_their_floor() {
    let Subject { graph, profile, order } = Subject::read("graphs/mobilenet_v3_large_b64.json.gz");
    let looks = |floor_beside| {
        let looks = AtomicU64::new(0);
        let clock = jumping(&looks, 1, 2.0);
        let effort = Effort { floor_beside, ..late(0, &clock) };
        plan::lowest_of_peers(
            Instance::new(&graph, &profile, &order),
            &Meter::new(&effort),
            |_| {},
        );
        looks.load(Ordering::Relaxed)
    };
    // They check the clock as they go along.
    let (none, all) = (looks(0), looks(Effort::FLOOR));
    assert!(none < all / 2, "{none} of {all}");
}

#[test]
fn an_interruption_is_heeded_below_the_floor() {
    let subject = Subject::read("graphs/mobilenet_v3_large_b64.json.gz");
    let most = AFTERWARDS * subject.order.len() as u64;
    for planner in RULES {
        for after in [1, 20] {
            let looks = AtomicU64::new(0);
            let clock = jumping(&looks, after, f64::INFINITY);
            let endless = Effort { deadline: Seconds(f64::INFINITY), ..late(u64::MAX, &clock) };
            let (answer, spent) = subject.plan(Bytes(1), planner, &endless);
            // Between two checks a rule does no more work than it may do afterwards.
            assert!(spent <= (after + 1) * most, "{planner:?}: {spent}");
            // Walking on to the end, twice at most, a rule checks the clock once for each node.
            let looks = looks.load(Ordering::Relaxed).saturating_sub(after);
            assert!(looks <= 4 * subject.order.len() as u64, "{planner:?} goes on: {looks}");
            assert!(answer.is_err(), "{planner:?}");
        }
    }
}

#[test]
fn the_floor_is_enough_for_every_rule_on_real_graphs() {
    for name in corpus::GRAPHS {
        let subject = Subject::read(&format!("graphs/{name}.json.gz"));
        for planner in [Planner::None, Planner::Chen].into_iter().chain(RULES) {
            for percent in [70, 45] {
                let budget = subject.budget(percent);
                let looks = AtomicU64::new(0);
                let clock = jumping(&looks, 1, 2.0);
                let (answer, spent) = subject.plan(budget, planner, &late(Effort::FLOOR, &clock));
                println!("{name} {planner:?} at {percent} %: {spent} operations");
                assert!(spent < Effort::FLOOR, "{name} {planner:?}: {spent}");
                let endless = plan::plan(
                    Instance::new(&subject.graph, &subject.profile, &subject.order),
                    budget,
                    planner,
                );
                assert_eq!(
                    answer.ok(),
                    endless.map(|plan| plan.runs()).ok(),
                    "{name} {planner:?} at {percent} %"
                );
            }
        }
    }
}

#[test]
fn what_a_rule_answers_when_time_is_up_fits_or_proves_nothing() {
    let subject = Subject::read("graphs/resnet50_b32.json.gz");
    let budget = subject.budget(45);
    let mut cut = 0;
    for planner in RULES {
        for floor in (0..16).map(|power| 1 << (power + 6)) {
            let looks = AtomicU64::new(0);
            let clock = jumping(&looks, 1, 2.0);
            match subject.plan(budget, planner, &late(floor, &clock)).0 {
                Ok(runs) => assert!(subject.peak(&runs) <= budget, "{planner:?} after {floor}"),
                Err(PlanError::NotFound(ended)) => {
                    cut += 1;
                    assert_eq!(ended.reached, subject.peak(&ended.plan.runs()));
                    assert!(ended.reached > budget && ended.tried > 0, "{planner:?}");
                    assert!(ended.to_string().contains("does not prove"), "{ended}");
                }
                // The published rule predicts that its plan fits, but it does not.
                Err(PlanError::Infeasible(proof)) => assert!(!proof.is_proven(), "{planner:?}"),
                Err(error) => panic!("{planner:?}: {error}"),
            }
        }
    }
    assert!(cut > 20, "{cut} searches ran out of time");
}

#[test]
fn a_family_that_was_cut_short_gives_the_best_so_far() {
    let subject = Subject::read("graphs/resnet50_b32.json.gz");
    let budget = subject.budget(70);
    let seconds = |runs: &[NodeId]| subject.profile.total(runs);
    let (whole, work) = subject.plan(budget, Planner::Knapsack, &Effort::work(1, u64::MAX));
    let whole = whole.unwrap();
    let mut slower = 0;
    for share in 1..20 {
        let looks = AtomicU64::new(0);
        let clock = jumping(&looks, 1, 2.0);
        let effort = late(work / 20 * share, &clock);
        if let Ok(runs) = subject.plan(budget, Planner::Knapsack, &effort).0 {
            assert!(subject.peak(&runs) <= budget && seconds(&runs) >= seconds(&whole));
            slower += u32::from(seconds(&runs) > seconds(&whole));
        }
    }
    assert!(slower > 0, "no answer was cut short");
}

#[test]
fn a_decision_about_modules_that_was_cut_short_fits() {
    let subject = Subject::read("graphs/resnet50_b32.json.gz");
    let budget = subject.budget(70);
    let mut answers = [0; 3];
    for after in [1, 4, 8, 16, 24, 32, 1000] {
        let looks = AtomicU64::new(0);
        let clock = jumping(&looks, after, 2.0);
        match subject.plan(budget, Planner::Sac, &late(0, &clock)).0 {
            Ok(runs) => {
                answers[0] += 1;
                assert!(subject.peak(&runs) <= budget);
            }
            Err(PlanError::NotFound(ended)) => {
                answers[1] += 1;
                assert!(ended.reached > budget && ended.tried > 0);
            }
            Err(PlanError::Unsolved { .. }) => answers[2] += 1,
            Err(error) => panic!("{error}"),
        }
    }
    println!("{answers:?} of plans, of searches without and of solvers that were cut short");
    assert!(answers[0] > 0 && answers[2] > 0, "{answers:?}");
}

#[test]
fn a_solver_that_does_not_end_is_left_alone() {
    let subject = Subject::read("synthetic/chain24.json.gz");
    let budget = subject.budget(30);
    for (to, deadline) in [(f64::INFINITY, f64::INFINITY), (2.0, 1.0)] {
        let looks = AtomicU64::new(0);
        let clock = jumping(&looks, 5, to);
        let effort = Effort { deadline: Seconds(deadline), ..late(1, &clock) };
        let (answer, _) = subject.plan(budget, Planner::Exact, &effort);
        assert!(matches!(answer, Err(PlanError::Unsolved { .. })), "{answer:?}");
        assert!(looks.load(Ordering::Relaxed) < 20);
    }
}

/// Every node reads the two dozen before it: to follow inputs of inputs, level by level, would take
/// longer than anybody waits.
#[test]
fn estimates_of_a_dense_graph_end() {
    const NODES: u64 = 1_000;
    let (kib, mut builder) = (1 << 10, GraphBuilder::new("dense"));
    let mut values: Vec<ValueId> = Vec::new();
    for number in 0..NODES {
        let (op, phase) = match number {
            0 => ("placeholder", Phase::Input),
            _ => ("test.node", Phase::Forward),
        };
        let inputs = values.iter().rev().take(24).copied().collect();
        let storage = builder.storage(Bytes(kib * (1 + number % 7)));
        let value = ValueSpec::contiguous(&[kib * (1 + number % 7)], DType::U8, storage);
        let seconds = Some(Seconds(1e-6));
        let node = NodeSpec { inputs, seconds, ..NodeSpec::new(format!("n{number}"), op, phase) };
        values.push(builder.node(node, &[Some(value)])[0]);
    }
    // At the end, all of them are read once more.
    for (number, &value) in values.clone().iter().enumerate().rev().skip(1) {
        let name = format!("again{number}");
        let last = *values.last().unwrap();
        let storage = builder.storage(Bytes(kib));
        let out = ValueSpec::contiguous(&[kib], DType::U8, storage);
        let node = NodeSpec {
            inputs: vec![value, last],
            seconds: Some(Seconds(1e-6)),
            ..NodeSpec::new(name, "test.node", Phase::Backward)
        };
        values.push(builder.node(node, &[Some(out)])[0]);
    }
    builder.output(*values.last().unwrap());
    let graph = builder.build().unwrap();
    let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
    let order = plan::base_order(&graph, &profile);
    let peak = plan::simulate(&graph, &profile, &Sequence::from(&order)).curve.peak;
    let effort = Effort::work(1, 100_000);
    let request = Request { effort, ..Request::within(Bytes(peak.0 / 10 * 7)) };
    let _either = fit(&graph, &profile, &request);
}

/// What the second half of a search found is what its own record of plans says.
#[test]
fn the_second_half_of_a_search_is_that_of_its_record() {
    let subject = Subject::read("graphs/resnet50_b32.json.gz");
    let budget = subject.budget(40);
    for ticks in [40.0, 400.0, 4_000.0] {
        let looks = AtomicU64::new(0);
        let clock = || Seconds(looks.fetch_add(1, Ordering::Relaxed) as f64);
        let effort = Effort { clock: &clock, deadline: Seconds(ticks), ..late(0, &clock) };
        let request = Request { effort, ..Request::within(budget) };
        let fitted = fit(&subject.graph, &subject.profile, &request).unwrap();
        let record = fitted.improvements();
        assert!(record.is_sorted_by(|one, next| one.at <= next.at && one.seconds > next.seconds));
        let last = record.last().unwrap();
        // The record counts whole picoseconds.
        let seconds = fitted.timeline().seconds.0;
        assert!((last.seconds.0 - seconds).abs() < 1e-6 * seconds);
        match fitted.second_half().unwrap() {
            SecondHalf::First => assert!(record[0].at.0 > 0.0),
            SecondHalf::Faster(gain) => {
                assert!(record.iter().any(|it| it.seconds.0 - last.seconds.0 == gain.0));
            }
        }
    }
    let request = Request { effort: Effort::work(1, 10_000), ..Request::within(budget) };
    let untimed = fit(&subject.graph, &subject.profile, &request).unwrap();
    assert!(!untimed.improvements().is_empty() && untimed.second_half().is_none());
}
