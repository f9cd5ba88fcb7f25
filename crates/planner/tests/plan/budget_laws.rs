//! Laws of the budget planner that need no oracle: between budgets, between runs, under little
//! effort, at the edges of what the format allows. Invariant: a law here is asserted for all graphs
//! of the generators, or names its graph.
//!
//! Tier: quick with a part of the cases, 3 s; full with all of them.

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tightfit::analysis::Sequence;
use tightfit::effort::Effort;
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::ValueId;
use tightfit::machine::Machine;
use tightfit::plan::{self, Answer, Instance, Search};
use tightfit::profile::Profile;
use tightfit::tensor::DType;
use tightfit::units::{Bytes, Seconds};

use crate::fixtures::generator::dag::{self, Freedoms};
use crate::fixtures::{corpus, generator, oracle};

/// Graphs of two generators, too large for an oracle.
fn graphs() -> Vec<Graph> {
    let mut runner = TestRunner::new(tightfit_testing::config(1));
    let recipes = generator::recipes(16);
    let steps = (0..60).map(|_| recipes.new_tree(&mut runner).unwrap().current().graph());
    let dags = (0..120).map(|seed| {
        dag::graph(seed, 40, Freedoms { writes: seed % 2 == 1, uneven: seed % 3 == 1 })
    });
    steps.chain(dags).collect()
}

fn unplanned(graph: &Graph, profile: &Profile) -> u64 {
    plan::simulate(graph, profile, &Sequence::from(&graph.compute_nodes())).curve.peak.0
}

/// Checks that an answer's plan is legal and fits, and that its bound is below it.
fn is_legal(graph: &Graph, profile: &Profile, budget: u64, answer: &Answer) {
    let Some(plan) = &answer.plan else { return };
    let cost = oracle::replay(graph, profile, &plan.runs()).unwrap();
    assert!(cost.peak <= budget, "{} bytes under {budget}", cost.peak);
    let bound = answer.bound.expect("a budget with a plan is not infeasible").0;
    assert!(
        bound <= cost.seconds * (1.0 + 1e-9),
        "a plan of {} s beats the bound, {bound} s",
        cost.seconds
    );
}

fn seconds(profile: &Profile, answer: &Answer) -> f64 {
    answer.plan.as_ref().map_or(f64::INFINITY, |plan| profile.total(&plan.runs()).0)
}

#[test]
fn more_memory_is_never_slower() {
    for graph in graphs() {
        for profile in generator::profiles(&graph) {
            let unplanned = unplanned(&graph, &profile);
            let order = plan::base_order(&graph, &profile);
            let instance = Instance::new(&graph, &profile, &order);
            let mut search = Search::new(instance);
            let mut before = f64::INFINITY;
            for part in [0, 30, 45, 60, 70, 80, 90, 95, 100] {
                let budget = unplanned * part / 100;
                let answer = search.plan(Bytes(budget), &Effort::work(part, 5_000));
                is_legal(&graph, &profile, budget, &answer);
                let now = seconds(&profile, &answer);
                assert!(
                    now <= before * (1.0 + 1e-9),
                    "{part} %: {now} s, but {before} s with less memory"
                );
                before = now;
            }
            // Whatever was learnt before, the bound falls as the budget rises.
            let bounds = (0..=20).map(|i| {
                search.bound(Bytes(unplanned * i / 20)).map_or(f64::INFINITY, |bound| bound.0)
            });
            let bounds: Vec<f64> = bounds.collect();
            assert!(bounds.windows(2).all(|pair| pair[1] <= pair[0]), "{bounds:?}");
            let least = search.least_budget().0;
            assert!(
                search.bound(Bytes(least)).is_some()
                    && (least == 0 || search.bound(Bytes(least - 1)).is_none()),
                "{least}"
            );
        }
    }
}

#[test]
fn names_do_not_matter() {
    let machine = Machine::unmeasured_cpu(2);
    for graph in graphs() {
        let renamed = generator::renamed(&graph);
        let answers = [&graph, &renamed].map(|graph| {
            let profile = Profile::new(graph, &machine);
            let budget = Bytes(unplanned(graph, &profile) * 3 / 4);
            let answer = Search::new(Instance::new(graph, &profile, &graph.compute_nodes()))
                .plan(budget, &Effort::work(7, 5_000));
            (answer.plan, answer.bound)
        });
        assert_eq!(answers[0], answers[1]);
    }
}

#[test]
fn the_same_seed_gives_the_same_plan() {
    let machine = Machine::preset("a100-80gb").unwrap();
    for name in ["mobilenet_v3_large_b64", "gpt2_small_b8_s512"] {
        let graph = corpus::graph(name);
        let profile = Profile::new(&graph, &machine);
        let order = plan::base_order(&graph, &profile);
        let instance = Instance::new(&graph, &profile, &order);
        let resting = graph.static_bytes().0;
        let budget = Bytes(resting + (unplanned(&graph, &profile) - resting) * 2 / 3);
        let answers = [(); 2].map(|()| {
            let answer = Search::new(instance).plan(budget, &Effort::work(3, 1_000_000));
            is_legal(&graph, &profile, budget.0, &answer);
            (answer.plan.expect("half the activations"), answer.bound)
        });
        println!("{name}: {:?}, bound {:?}", profile.total(&answers[0].0.runs()), answers[0].1);
        assert_eq!(answers[0], answers[1]);
    }
}

#[test]
fn next_to_no_effort_is_no_error() {
    for graph in graphs() {
        for profile in generator::profiles(&graph) {
            let unplanned = unplanned(&graph, &profile);
            for work in [0, 1, 10, 100] {
                for budget in [0, unplanned / 2, unplanned * 9 / 10, unplanned, u64::MAX] {
                    let order = graph.compute_nodes();
                    let instance = Instance::new(&graph, &profile, &order);
                    let mut search = Search::new(instance);
                    is_legal(
                        &graph,
                        &profile,
                        budget,
                        &search.plan(Bytes(budget), &Effort::work(work, work)),
                    );
                }
            }
        }
    }
}

struct Step(GraphBuilder);

impl Step {
    fn new() -> Step {
        Step(GraphBuilder::new("edge"))
    }

    fn node(
        &mut self,
        name: &str,
        phase: Phase,
        inputs: &[ValueId],
        bytes: u64,
        seconds: f64,
    ) -> ValueId {
        let mut node = NodeSpec::new(
            name,
            if phase.is_placeholder() { "placeholder" } else { "test.node" },
            phase,
        );
        node.inputs = inputs.to_vec();
        node.seconds = Some(Seconds(seconds));
        let storage = self.0.storage(Bytes(bytes));
        self.0.node(node, &[Some(ValueSpec::contiguous(&[bytes], DType::U8, storage))])[0]
    }

    /// A forward chain, and a backward chain that reads what it made.
    fn chain(length: usize, bytes: u64, seconds: f64) -> Graph {
        let mut step = Step::new();
        let mut made = vec![step.node("x", Phase::Input, &[], bytes, 0.0)];
        for index in 0..length {
            let value =
                step.node(&format!("f{index}"), Phase::Forward, &[made[index]], bytes, seconds);
            made.push(value);
        }
        let mut gradient = made[length];
        for index in (0..length).rev() {
            let inputs: Vec<ValueId> =
                if gradient == made[index] { vec![gradient] } else { vec![gradient, made[index]] };
            gradient = step.node(&format!("b{index}"), Phase::Backward, &inputs, bytes, seconds);
        }
        step.0.output(gradient);
        step.0.build().unwrap()
    }
}

/// Every part of the unplanned peak, with both profiles.
fn answers(graph: &Graph, parts: &[u64]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for profile in generator::profiles(graph) {
        let unplanned = unplanned(graph, &profile);
        let order = graph.compute_nodes();
        let instance = Instance::new(graph, &profile, &order);
        let mut search = Search::new(instance);
        for part in parts {
            let budget = (unplanned as u128 * u128::from(*part) / 100) as u64;
            let answer = search.plan(Bytes(budget), &Effort::work(1, 20_000));
            is_legal(graph, &profile, budget, &answer);
            answers.push(answer);
        }
    }
    answers
}

#[test]
fn a_step_without_nodes_is_planned_as_it_is() {
    let graph = Step::new().0.build().unwrap();
    assert!(
        answers(&graph, &[100])
            .iter()
            .all(|answer| answer.plan.as_ref().is_some_and(|plan| plan.runs().is_empty()))
    );
    let mut step = Step::new();
    step.node("x", Phase::Input, &[], 100, 0.0);
    step.node("w", Phase::Parameter, &[], 28, 0.0);
    let graph = step.0.build().unwrap();
    let answers = answers(&graph, &[50, 100]);
    assert!(
        answers.iter().enumerate().all(|(index, answer)| answer.plan.is_some() == (index % 2 == 1))
    );
}

#[test]
fn one_node_runs_once() {
    let mut step = Step::new();
    let x = step.node("x", Phase::Input, &[], 4, 0.0);
    step.node("f", Phase::Forward, &[x], 4, 1.0);
    let answers = answers(&step.0.build().unwrap(), &[0, 50, 99, 100]);
    assert!(answers.iter().enumerate().all(|(index, answer)| (
        answer.plan.is_some(),
        answer.bound.is_some()
    ) == (
        (index % 4 == 3),
        (index % 4 == 3)
    )));
}

#[test]
fn weightless_tensors_fit_into_nothing() {
    let answers = answers(&Step::chain(8, 0, 1.0), &[100]);
    assert!(
        answers
            .iter()
            .all(|answer| answer.plan.as_ref().is_some_and(|plan| plan.runs().len() == 16))
    );
}

#[test]
fn what_takes_no_time_is_made_again_for_nothing() {
    for answer in answers(&Step::chain(12, 10, 0.0), &[40, 60, 80, 100]) {
        assert!(answer.bound.is_some_and(|bound| bound.0 == 0.0) && answer.plan.is_some());
    }
}

#[test]
fn enormous_bytes_do_not_wrap_around() {
    assert!(
        answers(&Step::chain(20, 1 << 54, 1.0), &[0, 30, 50, 80, 100])
            .iter()
            .any(|answer| answer.plan.is_some())
    );
}

#[test]
fn enormous_times_do_not_wrap_around() {
    // The chain has forty nodes, and no step takes longer than the limit.
    for seconds in [1e6, Seconds::LIMIT.0 / 41.0] {
        assert!(
            answers(&Step::chain(20, 10, seconds), &[0, 30, 50, 80, 100])
                .iter()
                .any(|answer| answer.plan.is_some())
        );
    }
}

/// A clock that advances by a millisecond each time it is checked.
fn ends_soon_after(deadline: Seconds, graph: &Graph, budget: u64) -> u64 {
    let profile = Profile::new(graph, &Machine::preset("a100-80gb").unwrap());
    let asked = AtomicU64::new(0);
    let clock = || Seconds(asked.fetch_add(1, Ordering::Relaxed) as f64 * 1e-3);
    let order = graph.compute_nodes();
    let instance = Instance::new(graph, &profile, &order);
    let mut search = Search::new(instance);
    let answer = search
        .plan(Bytes(budget), &Effort { deadline, clock: &clock, ..Effort::work(1, u64::MAX) });
    is_legal(graph, &profile, budget, &answer);
    asked.load(Ordering::Relaxed)
}

#[test]
fn a_deadline_ends_the_search() {
    let graph = Step::chain(2500, 1000, 1.0);
    let asked = ends_soon_after(Seconds(0.05), &graph, 700_000);
    assert!(
        asked < 350,
        "the clock was asked {asked} times, though the deadline was over after 50"
    );
}

#[test]
fn an_interruption_ends_the_search() {
    let graph = Step::chain(200, 1000, 1.0);
    let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
    for calls in [0, 1, 2, 5, 20, 100] {
        let asked = AtomicU64::new(0);
        let clock = || {
            Seconds(if asked.fetch_add(1, Ordering::Relaxed) < calls { 0.0 } else { f64::INFINITY })
        };
        let order = graph.compute_nodes();
        let instance = Instance::new(&graph, &profile, &order);
        let mut search = Search::new(instance);
        let deadline = Seconds(f64::INFINITY);
        let answer = search
            .plan(Bytes(60_000), &Effort { deadline, clock: &clock, ..Effort::work(1, u64::MAX) });
        is_legal(&graph, &profile, 60_000, &answer);
        assert!(asked.load(Ordering::Relaxed) < calls + 300);
    }
}

/// Chunks that nothing orders: each leaves a part of what comes last, which also reads what was
/// saved before.
fn in_chunks(chunks: u64) -> Graph {
    let mut step = Step::new();
    let x = step.node("x", Phase::Input, &[], 8, 0.0);
    let saved = step.node("saved", Phase::Forward, &[x], 64, 1.0);
    let hidden = step.node("hidden", Phase::Forward, &[saved], 8, 1.0);
    let part = |chunk: u64, step: &mut Step| {
        let name = |what| format!("{what}.chunk{chunk}");
        let wide = step.node(&name("wide"), Phase::Forward, &[hidden], 64, 10.0);
        step.node(&name("part"), Phase::Forward, &[wide], 32, 10.0)
    };
    let parts: Vec<ValueId> = (0..chunks).map(|chunk| part(chunk, &mut step)).collect();
    let sum = step.node("sum", Phase::Backward, &parts, 8, 1.0);
    let gradient = step.node("gradient", Phase::Backward, &[sum, saved], 8, 1.0);
    step.0.output(gradient);
    step.0.build().unwrap()
}

/// At the first run of any chunk by itself, the others may still be to come.
#[test]
fn whichever_chunk_is_last_finds_the_parts_of_the_others() {
    let graph = in_chunks(4);
    let order = graph.compute_nodes();
    for profile in generator::profiles(&graph) {
        let instance = Instance::new(&graph, &profile, &order);
        let mut search = Search::new(instance);
        let budget = Bytes(unplanned(&graph, &profile) - 32);
        let answer = search.plan(budget, &Effort::work(1, 100_000));
        is_legal(&graph, &profile, budget.0, &answer);
        // What was saved is made again: that is the cheapest.
        let total = profile.total(&order).0;
        assert!((seconds(&profile, &answer) - (total + 1.0)).abs() < 1e-9);
        // A line between making nothing again, and that.
        assert!(answer.bound.unwrap().0 > total + 0.5, "{:?} of {total}", answer.bound);
    }
}
