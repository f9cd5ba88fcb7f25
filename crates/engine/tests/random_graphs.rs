//! Random steps, executed under random budgets. Invariant: every output and every updated parameter
//! has the same bits as in the unplanned step on one thread, whatever the budget, the planner and
//! the number of threads, step after step.
//!
//! Tier: quick with a part of the cases, 5 s; full with all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use rayon::{ThreadPool, ThreadPoolBuilder};
use tightfit::check::{Checked, check};
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{BufferId, StorageId, ValueId};
use tightfit::machine::Machine;
use tightfit::plan::Planner;
use tightfit::profile::Profile;
use tightfit::schedule::{Instruction, Schedule};
use tightfit::tensor::{Argument, DType};
use tightfit::units::Bytes;
use tightfit::{Goal, Request, fit, unplanned};
use tightfit_engine::philox::{key, philox};
use tightfit_engine::{Executable, Slab, StepSettings, assert_disjoint};
use tightfit_testing::config;

use crate::generator::{Recipe, recipes};

const STEPS: u32 = 2;

/// Where each storage lies at the end of the step.
fn places(graph: &Graph, schedule: &Schedule) -> BTreeMap<StorageId, BufferId> {
    let mut held: BTreeMap<BufferId, StorageId> = BTreeMap::new();
    let storage = |value: ValueId| graph.values()[value].storage;
    for &(node, buffer) in &schedule.placeholders {
        held.insert(buffer, storage(graph.nodes()[node].outputs[0].unwrap()));
    }
    for instruction in &schedule.instructions {
        match instruction {
            Instruction::Run(call) | Instruction::Recompute(call) => {
                let made = graph.nodes()[call.node].outputs.iter().flatten().zip(&call.outputs);
                held.extend(made.map(|(&value, &buffer)| (buffer, storage(value))));
            }
            Instruction::Free(buffer) => drop(held.remove(buffer)),
            Instruction::Start(_) | Instruction::Wait(_) => panic!("this plan moves nothing"),
        }
    }
    held.into_iter().map(|(buffer, storage)| (storage, buffer)).collect()
}

/// Numbers between −1 and 1 that depend on the placeholder and the step alone.
fn fill(out: &mut [u8], node: u32, step: u32) {
    for (i, slot) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let word = philox(key(7), [i as u32, node, step, 0])[0];
        *slot = ((f64::from(word) / f64::from(1u32 << 31) - 1.0) as f32).to_ne_bytes();
    }
}

/// Bytes of all outputs, and of all parameters and states, after each step; storages as a whole,
/// views included.
fn execute(graph: &Graph, profile: &Profile, schedule: &Schedule, threads: usize) -> Vec<Vec<u8>> {
    let checked = Checked::new(graph, profile, schedule.clone()).unwrap();
    assert_disjoint();
    let executable = Executable::compile(graph, &checked, &pool(threads)).unwrap();
    let mut slab = Slab::new(schedule.slab).unwrap();
    // Nothing may depend on the slab's previous content.
    slab.write(0, schedule.slab.0).fill(0xff);
    let places = places(graph, schedule);
    let mut results = Vec::new();
    for step in 0..STEPS {
        for &(id, buffer) in &schedule.placeholders {
            let phase = graph.nodes()[id].phase;
            let value = &graph.values()[graph.nodes()[id].outputs[0].unwrap()];
            if step == 0 || !phase.is_persistent() {
                let out = slab.write(schedule.buffers[buffer].address, value.tensor.bytes().0);
                if phase == Phase::State { out.fill(0) } else { fill(out, id.as_u32(), step) }
            }
        }
        executable.run(&mut slab, &StepSettings { seed: 3, step, learning_rate: 0.01 }).unwrap();
        let outputs = graph.outputs().iter().map(|&value| graph.values()[value].storage);
        let persistent = graph
            .placeholder_storages()
            .filter(|(node, _)| graph.nodes()[*node].phase.is_persistent())
            .map(|(_, storage)| storage);
        for storage in outputs.chain(persistent) {
            results.push(
                slab.read(schedule.buffers[places[&storage]].address, graph.storages()[storage].0)
                    .to_vec(),
            );
        }
    }
    results
}

fn pool(threads: usize) -> Arc<ThreadPool> {
    Arc::new(ThreadPoolBuilder::new().num_threads(threads).build().unwrap())
}

fn profile(graph: &Graph, threads: usize) -> Profile {
    Profile::new(graph, &Machine::unmeasured_cpu(threads as u32))
}

fn as_captured(graph: &Graph) -> Vec<Vec<u8>> {
    let profile = profile(graph, 1).without_reuse();
    let schedule = unplanned(graph, &profile).unwrap().schedule().clone();
    execute(graph, &profile, &schedule, 1)
}

fn agrees(recipe: &Recipe, part: f64) -> Result<usize, TestCaseError> {
    let graph = recipe.graph();
    let expected = as_captured(&graph);
    prop_assert!(expected.iter().any(|bytes| bytes.iter().any(|&byte| byte != 0)));
    let mut recomputed = 0;
    for planner in [Planner::Chen, Planner::Capuchin, Planner::Auto] {
        for threads in [1, 3] {
            let profile = profile(&graph, threads);
            let least = tightfit::fit(
                &graph,
                &profile,
                &Request {
                    goal: Goal::Smallest,
                    planner,
                    effort: tightfit::effort::Effort::work(1, 3_000),
                    ..Request::default()
                },
            )
            .unwrap();
            let most = unplanned(&graph, &profile).unwrap().schedule().slab;
            let (low, high) = (least.schedule().slab, most.max(least.schedule().slab));
            let budget = low + Bytes(((high - low).0 as f64 * part) as u64);
            let between = fit(
                &graph,
                &profile,
                &Request {
                    goal: Goal::Within(budget),
                    planner,
                    effort: tightfit::effort::Effort::work(1, 3_000),
                    ..Request::default()
                },
            );
            prop_assert!(
                between.is_ok(),
                "{planner:?}: {budget} of {low} to {high}: {}",
                between.unwrap_err()
            );
            for fitted in [least, between.unwrap()] {
                recomputed += fitted.schedule().recomputed();
                prop_assert!(
                    execute(&graph, &profile, fitted.schedule(), threads) == expected,
                    "{planner:?} on {threads} threads, {budget}"
                );
            }
        }
    }
    Ok(recomputed)
}

#[test]
fn every_plan_computes_what_the_step_computes() {
    let mut runner = proptest::test_runner::TestRunner::new(config(200));
    let recomputed = std::cell::Cell::new(0);
    runner
        .run(&(recipes(14), 0.0..1.0f64), |(recipe, part)| {
            recomputed.set(recomputed.get() + agrees(&recipe, part)?);
            Ok(())
        })
        .unwrap();
    assert!(
        recomputed.get() > 1000,
        "only {} recomputations: the generator makes no trade-offs",
        recomputed.get()
    );
}

/// A schedule of some random step that recomputes something.
fn recomputing() -> (Graph, Profile, Schedule) {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::new(config(1));
    loop {
        let recipe = recipes(14).new_tree(&mut runner).unwrap().current();
        let graph = recipe.graph();
        let profile = profile(&graph, 1);
        let schedule = tightfit::fit(
            &graph,
            &profile,
            &Request {
                goal: Goal::Smallest,
                planner: Planner::Capuchin,
                effort: tightfit::effort::Effort::work(1, 3_000),
                ..Request::default()
            },
        )
        .unwrap()
        .schedule()
        .clone();
        if schedule.recomputed() > 2 {
            return (graph, profile, schedule);
        }
    }
}

#[test]
fn a_wrong_schedule_is_never_executed() {
    let (graph, profile, schedule) = recomputing();
    let checked = Checked::new(&graph, &profile, schedule.clone()).unwrap();
    assert!(Executable::compile(&graph, &checked, &pool(1)).is_ok());
    let refused = |schedule: &Schedule| Checked::new(&graph, &profile, schedule.clone()).is_err();
    for index in 0..schedule.instructions.len() {
        let mut left_out = schedule.clone();
        left_out.instructions.remove(index);
        assert!(refused(&left_out), "without instruction {index}");
        let mut twice = schedule.clone();
        twice.instructions.insert(index, schedule.instructions[index].clone());
        assert!(refused(&twice), "instruction {index} twice");
    }
    let mut small = schedule.clone();
    small.slab =
        Bytes(check(&graph, &profile, &schedule, schedule.budget).unwrap().high_water.0 - 1);
    assert!(refused(&small), "a byte less");
    let mut of_another = schedule.clone();
    of_another.graph = "0".repeat(64);
    assert!(refused(&of_another));
    for buffer in schedule.buffers.keys() {
        let mut outside = schedule.clone();
        outside.buffers[buffer].address = schedule.slab.0;
        assert!(refused(&outside), "{buffer} outside of the slab");
    }
    let first_again = schedule
        .instructions
        .iter()
        .position(|instruction| matches!(instruction, Instruction::Recompute(_)))
        .unwrap();
    let Instruction::Recompute(call) = &schedule.instructions[first_again] else { unreachable!() };
    let mut mislabelled = schedule.clone();
    mislabelled.instructions[first_again] = Instruction::Run(call.clone());
    assert!(refused(&mislabelled));
}

/// Two dropouts of the same input with slots of their own; outputs and masks are outputs of the
/// graph.
fn dropouts(elements: u64, p: f64) -> Graph {
    let mut builder = GraphBuilder::new("dropouts");
    let storage = builder.storage(Bytes(4 * elements));
    let x = builder.node(
        NodeSpec::new("x", "placeholder", Phase::Input),
        &[Some(ValueSpec::contiguous(&[elements], DType::F32, storage))],
    )[0];
    for slot in [4, 9] {
        let (out, mask) = (builder.storage(Bytes(4 * elements)), builder.storage(Bytes(elements)));
        let node = NodeSpec {
            inputs: vec![x],
            args: vec![Argument::Value(x), Argument::Float(p), Argument::Bool(true)],
            random: true,
            seed_slot: Some(slot),
            ..NodeSpec::new(
                format!("dropout_{slot}"),
                "aten.native_dropout.default",
                Phase::Forward,
            )
        };
        let outputs = [
            ValueSpec::contiguous(&[elements], DType::F32, out),
            ValueSpec::contiguous(&[elements], DType::Bool, mask),
        ];
        for value in builder.node(node, &outputs.map(Some)) {
            builder.output(value);
        }
    }
    builder.build().unwrap()
}

/// Outputs and masks of both dropouts; the input is 1.5 everywhere.
fn drop_out(
    elements: u64,
    p: f64,
    settings: StepSettings,
    threads: usize,
) -> [(Vec<f32>, Vec<u8>); 2] {
    let graph = dropouts(elements, p);
    let profile = profile(&graph, threads);
    let schedule = unplanned(&graph, &profile).unwrap().schedule().clone();
    let checked = Checked::new(&graph, &profile, schedule.clone()).unwrap();
    assert_disjoint();
    let executable = Executable::compile(&graph, &checked, &pool(threads)).unwrap();
    let mut slab = Slab::new(schedule.slab).unwrap();
    let input = schedule.buffers[schedule.placeholders[0].1].address;
    slab.write(input, 4 * elements).as_chunks_mut::<4>().0.fill(1.5f32.to_ne_bytes());
    executable.run(&mut slab, &settings).unwrap();
    let places = places(&graph, &schedule);
    let bytes = |output: usize| {
        let storage = graph.values()[graph.outputs()[output]].storage;
        slab.read(schedule.buffers[places[&storage]].address, graph.storages()[storage].0).to_vec()
    };
    let floats =
        |bytes: Vec<u8>| bytes.as_chunks::<4>().0.iter().map(|&x| f32::from_ne_bytes(x)).collect();
    [(floats(bytes(0)), bytes(1)), (floats(bytes(2)), bytes(3))]
}

#[test]
fn dropout_keeps_its_rate_and_its_scale() {
    let elements = 1_000_003;
    for p in [0.0, 0.1, 0.5, 0.9, 1.0] {
        let settings = StepSettings { seed: 11, step: 2, learning_rate: 0.0 };
        for (out, mask) in drop_out(elements, p, settings, 2) {
            let kept = mask.iter().filter(|&&kept| kept == 1).count() as f64;
            assert!(mask.iter().all(|&kept| kept <= 1));
            let (mean, sigma) =
                (elements as f64 * (1.0 - p), (elements as f64 * p * (1.0 - p)).sqrt());
            assert!(
                (kept - mean).abs() <= 4.0 * sigma,
                "p = {p}: {kept} kept, expected {mean} ± {sigma}"
            );
            let scaled = 1.5 * (1.0 / (1.0 - p)) as f32;
            assert!(
                out.iter()
                    .zip(&mask)
                    .all(|(&out, &kept)| out == if kept == 1 { scaled } else { 0.0 }),
                "p = {p}"
            );
        }
    }
}

#[test]
fn dropout_draws_are_independent_along_the_tensor() {
    let elements = 1 << 20;
    let [(_, mask), _] =
        drop_out(elements, 0.5, StepSettings { seed: 5, step: 0, learning_rate: 0.0 }, 2);
    for lag in [1, 2, 3, 4, 16, 64, 1024, 4096] {
        let same = mask.iter().zip(&mask[lag..]).filter(|(a, b)| a == b).count() as f64;
        let pairs = (mask.len() - lag) as f64;
        assert!(
            (same - pairs / 2.0).abs() <= 4.0 * (pairs / 4.0).sqrt(),
            "lag {lag}: {same} of {pairs}"
        );
    }
}

#[test]
fn masks_differ_by_slot_step_and_seed_and_are_replayed() {
    let elements = 4099;
    let base = StepSettings { seed: 1, step: 0, learning_rate: 0.0 };
    let drawn = |settings: StepSettings, threads: usize| drop_out(elements, 0.5, settings, threads);
    let [first, second] = drawn(base, 1);
    let unlike = |a: &[u8], b: &[u8]| {
        let same = a.iter().zip(b).filter(|(a, b)| a == b).count() as f64;
        let (mean, sigma) = (elements as f64 / 2.0, (elements as f64 / 4.0).sqrt());
        assert!((same - mean).abs() <= 4.0 * sigma, "{same} of {elements} are the same");
    };
    unlike(&first.1, &second.1);
    for other in [
        StepSettings { step: 1, ..base },
        StepSettings { seed: 2, ..base },
        StepSettings { seed: 1 << 32 | 1, ..base },
    ] {
        let [other, _] = drawn(other, 1);
        unlike(&first.1, &other.1);
    }
    for threads in [1, 2, 3] {
        assert_eq!(
            drawn(base, threads),
            [first.clone(), second.clone()],
            "replayed on {threads} threads"
        );
    }
}
