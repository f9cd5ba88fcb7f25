//! Steps of the corpus on one rank and on several, as threads. Invariant: whatever the schedule,
//! the number of ranks and the plan of each, parameters and state have the same bits after the last
//! update as on one device with accumulation, except where cutting a shared parameter changes the
//! order of a sum; and a rank that fails stops all others with its cause.
//!
//! Tier: quick with a part of the cases, 5 s; full with all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rayon::ThreadPoolBuilder;
use serde_json::json;
use tightfit::check::Checked;
use tightfit::effort::Effort;
use tightfit::graph::{Graph, Phase, read, write};
use tightfit::id::{DEVICE, NodeId, SecondaryMap, StageId};
use tightfit::machine::Machine;
use tightfit::pipeline::{
    Division, Leeway, Message, PipelineSchedule, Ranks, Rows, accumulate, ranks,
};
use tightfit::profile::Profile;
use tightfit::tensor::DType;
use tightfit::{Request, fit, unplanned};
use tightfit_engine::philox::{key, philox};
use tightfit_engine::step::read_graph;
use tightfit_engine::transport::{Link, LinkError, Route, thread_links};
use tightfit_engine::{Executable, Slab, StepError, StepSettings, assert_disjoint};
use tightfit_testing::first;

const STEPS: u32 = 3;

/// What stays after the last step, by name.
type State = BTreeMap<String, Vec<u8>>;

fn step(name: &str) -> Graph {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus/steps");
    read_graph(&corpus.join(name).join("train.json.gz")).unwrap()
}

fn number_of(name: &str) -> u32 {
    name.bytes().fold(17, |number: u32, byte| number.wrapping_mul(31).wrapping_add(byte.into()))
}

/// Numbers that follow from name and step alone; integers are valid classes.
fn fill(out: &mut [u8], (name, dtype): (&str, DType), step: u32) {
    let word = |index: usize| philox(key(7), [index as u32, number_of(name), step, 0])[0];
    match dtype {
        DType::F32 => {
            for (i, slot) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let share = f64::from(word(i)) / f64::from(1u32 << 31) - 1.0;
                *slot = ((share * 0.25) as f32).to_ne_bytes();
            }
        }
        _ => {
            for (i, slot) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *slot = i64::from(word(i) % 10).to_ne_bytes();
            }
        }
    }
}

/// Executes the steps of one rank.
fn run(graph: &Graph, is_planned: bool, link: Option<Arc<dyn Link>>) -> Result<State, StepError> {
    let profile = Profile::new(graph, &Machine::unmeasured_cpu(1));
    let checked = if is_planned {
        let request = Request { effort: Effort::work(1, 1_000), ..Request::default() };
        fit(graph, &profile, &request).unwrap().checked().clone()
    } else {
        let schedule = unplanned(graph, &profile).unwrap().schedule().clone();
        Checked::new(graph, &profile.clone().without_reuse(), schedule).unwrap()
    };
    let schedule = checked.schedule();
    let pool = Arc::new(ThreadPoolBuilder::new().num_threads(1).build().unwrap());
    assert_disjoint();
    let mut executable = Executable::compile(graph, &checked, &pool).unwrap();
    if let Some(link) = link {
        executable.connect(link, 0);
    }
    let mut slab = Slab::new(schedule.slab).unwrap();
    for number in 0..STEPS {
        for &(id, buffer) in &schedule.placeholders {
            let node = &graph.nodes()[id];
            let tensor = &graph.values()[node.outputs[0].unwrap()].tensor;
            if number == 0 || !node.phase.is_persistent() {
                let out = slab.write(schedule.buffers[buffer].address, tensor.bytes().0);
                match node.phase {
                    Phase::State => out.fill(0),
                    _ => fill(out, (&node.name, tensor.dtype), number),
                }
            }
        }
        let settings = StepSettings { seed: 3, step: number, learning_rate: 0.01 };
        executable.run(&mut slab, &settings)?;
    }
    // A persistent tensor lies where it did, or where its last version was made.
    let residencies = &checked.timeline().residencies;
    let places = graph.placeholder_storages().filter(|(_, storage)| graph.is_persistent(*storage));
    Ok(places
        .map(|(id, storage)| {
            let mut held = residencies.iter();
            let held = held
                .find(|held| {
                    held.end.is_none() && held.tier == DEVICE && held.storage == Some(storage)
                })
                .unwrap();
            let buffer = schedule.buffers[held.buffer];
            let bytes = slab.read(buffer.address, graph.storages()[storage].0).to_vec();
            (graph.nodes()[id].name.clone(), bytes)
        })
        .collect())
}

/// The routes of all messages.
fn routes(ranks: &Ranks) -> Vec<Route> {
    let route = |message: &Message| Route {
        from: message.from,
        to: message.to,
        what: message.value.to_string(),
    };
    ranks.messages.iter().map(route).collect()
}

/// Messages arrive early.
const POSTED: Leeway = Leeway { ahead: 1, behind: 2 };

/// Executes all ranks in parallel; returns what stays, on which ranks that share it must agree.
fn run_ranks(graph: &Graph, rows: &Rows, is_planned: bool) -> State {
    let division = Division::new(graph, &evenly(graph, rows.placement.len() as u32)).unwrap();
    let ranks = ranks(&division, rows, if is_planned { POSTED } else { Leeway::NONE }).unwrap();
    let links = thread_links(ranks.graphs.len() as u32, routes(&ranks), Duration::from_secs(600));
    let states: Vec<State> = thread::scope(|scope| {
        let running: Vec<_> = ranks
            .graphs
            .values()
            .zip(links)
            .map(|(graph, link)| {
                scope.spawn(move || run(graph, is_planned, Some(Arc::new(link))).unwrap())
            })
            .collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let mut all = State::new();
    for (name, bytes) in states.into_iter().flatten() {
        let other = all.entry(name.clone()).or_insert_with(|| bytes.clone());
        assert!(*other == bytes, "ranks disagree about {name}");
    }
    all
}

/// Forward nodes in this many stages of as many nodes each.
fn evenly(graph: &Graph, stages: u32) -> SecondaryMap<NodeId, StageId> {
    let forward: Vec<NodeId> =
        graph.nodes().keys().filter(|&id| graph.nodes()[id].phase.is_forward()).collect();
    let mut of_forward = SecondaryMap::with_default(StageId::from_u32(0));
    for (index, &id) in forward.iter().enumerate() {
        of_forward[id] = StageId::from_u32((index * stages as usize / forward.len()) as u32);
    }
    of_forward
}

const MICRO_BATCHES: u32 = 4;

fn schedules() -> impl Iterator<Item = (PipelineSchedule, &'static str)> {
    let others = |&(schedule, _): &(PipelineSchedule, _)| schedule != PipelineSchedule::AsyncPipe;
    PipelineSchedule::ALL.into_iter().filter(others)
}

#[test]
fn every_schedule_computes_what_one_device_does() {
    let graph = step("mlp-digits");
    let whole = accumulate(&graph, MICRO_BATCHES).unwrap();
    let expected = run(&whole, false, None).unwrap();
    assert!(run(&whole, true, None).unwrap() == expected, "planned on one device");
    for (schedule, name) in schedules() {
        let runs = [(2, false), (4, true), (1, false), (2, true)];
        for &(count, is_planned) in first(2, &runs) {
            let rows = schedule.rows(count, MICRO_BATCHES).unwrap();
            let state = run_ranks(&graph, &rows, is_planned);
            assert!(state == expected, "{name} on {count} ranks, planned: {is_planned}");
        }
    }
}

/// The embedding is the head too, so the first and the last stage have it. Each sums its gradients
/// over the micro-batches, and the two sums are added then: other bits than on one device, where
/// each micro-batch adds them, but the same whatever the schedule and the number of ranks.
#[test]
fn a_shared_parameter_is_exchanged_once_an_update() {
    let graph = step("gpt-nano-dropout");
    let alone = run(&accumulate(&graph, MICRO_BATCHES).unwrap(), false, None).unwrap();
    let mut earliest: Option<State> = None;
    for (schedule, name) in schedules() {
        for &count in first(1, &[4, 2]) {
            let rows = schedule.rows(count, MICRO_BATCHES).unwrap();
            let state = run_ranks(&graph, &rows, count == 4);
            let has_head_elsewhere =
                rows.placement.values().next() != rows.placement.values().last();
            if has_head_elsewhere {
                let earliest = earliest.get_or_insert_with(|| state.clone());
                assert!(state == *earliest, "{name} on {count} ranks");
            }
            for (name, bytes) in &state {
                let floats = |bytes: &[u8]| -> Vec<f32> {
                    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_ne_bytes(*word)).collect()
                };
                let (ours, theirs) = (floats(bytes), floats(&alone[name]));
                let largest = theirs.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
                let apart = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs());
                let apart = apart.fold(0.0f32, f32::max) / largest;
                // AdamW divides by the usual size of a gradient: if that is next to nothing, the
                // last bits of a sum matter.
                assert!(apart <= 1e-3, "{name}: {apart}");
            }
        }
    }
}

#[test]
fn a_rank_that_fails_stops_the_others() {
    let graph = step("mlp-digits");
    let rows = PipelineSchedule::OneFOneB.rows(3, MICRO_BATCHES).unwrap();
    let division = Division::new(&graph, &evenly(&graph, 3)).unwrap();
    let ranks = ranks(&division, &rows, Leeway::OF_SENDERS).unwrap();
    let links = thread_links(3, routes(&ranks), Duration::from_secs(600));
    let failing = links[1].clone();
    let results: Vec<Result<State, StepError>> = thread::scope(|scope| {
        let pairs = ranks.graphs.values().zip(links).enumerate().filter(|(rank, _)| *rank != 1);
        let running: Vec<_> = pairs
            .map(|(_, (graph, link))| scope.spawn(move || run(graph, false, Some(Arc::new(link)))))
            .collect();
        failing.abort("out of paper");
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for result in results {
        let error = result.unwrap_err();
        assert_eq!(error.to_string(), "rank1 failed: out of paper");
        assert!(matches!(error, StepError::Link(LinkError::Aborted { .. })));
    }
    let alone = run(&ranks.graphs[tightfit::id::RankId::from_u32(0)], false, None);
    assert!(matches!(alone, Err(StepError::NoLink)));
}

/// Each argument of each call that sends or receives, replaced by something else.
#[test]
fn changed_calls_are_refused() {
    let step = step("mlp-digits");
    let rows = PipelineSchedule::GPipe.rows(2, 1).unwrap();
    let division = Division::new(&step, &evenly(&step, 2)).unwrap();
    let mut refused = 0;
    for graph in ranks(&division, &rows, POSTED).unwrap().graphs.values() {
        let text = write(graph);
        let mut seen = BTreeSet::new();
        for (index, node) in text["nodes"].as_array().unwrap().iter().enumerate() {
            let op = node["op"].as_str().unwrap();
            let is_first = op.starts_with("tightfit.") && seen.insert(op.to_string());
            if !is_first || op == "tightfit.adamw" {
                continue;
            }
            for argument in 0..node["args"].as_array().unwrap().len() {
                let others = [
                    json!(null),
                    json!(-1),
                    json!(1.5),
                    json!("x"),
                    json!([-3]),
                    json!(1u64 << 40),
                ];
                for other in others {
                    let mut changed = text.clone();
                    changed["nodes"][index]["args"][argument] = other.clone();
                    let what = format!("{op}, argument {argument} is {other}");
                    let Ok(graph) = read(changed.to_string().as_bytes()) else { continue };
                    let result = Executable::admits(&graph).and_then(|()| {
                        let profile = Profile::new(&graph, &Machine::unmeasured_cpu(1));
                        let schedule = unplanned(&graph, &profile).unwrap().schedule().clone();
                        let profile = profile.without_reuse();
                        let checked = Checked::new(&graph, &profile, schedule).unwrap();
                        let pool = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
                        Executable::compile(&graph, &checked, &Arc::new(pool)).map(drop)
                    });
                    let error = result.expect_err(&what).to_string();
                    assert!(error.contains(node["name"].as_str().unwrap()), "{what}: {error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 20, "{refused}");
}
