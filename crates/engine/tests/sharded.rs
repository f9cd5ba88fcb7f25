//! Steps that ranks share, as threads. Invariant: whatever the number of ranks and the plan, losses
//! and weights are those of one device with all micro-batches, except for the order of sums; what
//! is saved is whole, and can be resumed on any number of ranks.
//!
//! Tier: quick with a part of the cases, 8 s; full with all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rayon::ThreadPoolBuilder;
use safetensors::SafeTensors;
use serde_json::json;
use tightfit::effort::Effort;
use tightfit::graph::{read as read_graph, write};
use tightfit::machine::Machine;
use tightfit::operator::Operator;
use tightfit::plan::Planner;
use tightfit::profile::{CallSeconds, Profile};
use tightfit::sharded::Reductions;
use tightfit::units::Bytes;
use tightfit::unplanned;
use tightfit_engine::step::{Divided, Sharing};
use tightfit_engine::transport::{Link, thread_links};
use tightfit_engine::{
    Budget, Dataset, Evaluation, Executable, FitTask, Session, Step, VERSION, assert_disjoint,
    fit_step, weights,
};
use tightfit_testing::first;

const MICRO_BATCHES: u32 = 8;
const STEPS: usize = 4;

/// The results of a run.
#[derive(Debug)]
struct Ran {
    losses: Vec<f32>,
    evaluation: Option<Evaluation>,
    /// Elements of everything that was saved, by name.
    weights: BTreeMap<String, Vec<f32>>,
    /// The largest slab.
    slab: Bytes,
}

fn step(name: &str) -> Step {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus/steps");
    Step::open(&corpus.join(name)).unwrap()
}

/// A session in the slab of a budget.
fn session(step: &Step, budget: Budget, link: Option<Arc<dyn Link>>, first: u32) -> Session {
    let machine = Machine::unmeasured_cpu(1);
    let task = FitTask {
        machine: &machine,
        budget,
        beside: Bytes::ZERO,
        planner: Planner::Auto,
        effort: Effort::work(1, 3_000),
    };
    let fitted = fit_step(step, &CallSeconds::new(VERSION, 1), &task).unwrap();
    let (training, evaluation) = (&fitted.training, fitted.evaluation.as_ref());
    let checked = training.fitted.checked();
    assert_disjoint();
    let session = Session::builder(step, checked).evaluation(evaluation).slab(training.slab());
    let mut session = session.seed(3).start().unwrap();
    if let Some(link) = link {
        session.connect(link, first).unwrap();
    }
    session
}

/// Trains, from what was saved before if that is given.
fn train(session: &mut Session, step: &Step, paths: (&Path, Option<&Path>)) -> Ran {
    let (save, resume) = paths;
    if let Some(path) = resume {
        weights::load(path, session, &step.name).unwrap();
    }
    let mut data = Dataset::open(&step.data, &step.folder, None).unwrap();
    let losses = (0..STEPS).map(|_| session.step(&mut data).unwrap()).collect();
    let evaluation = session.evaluate(&mut data, 5).unwrap();
    weights::save(save, session, &step.name).unwrap();
    Ran { losses, evaluation, weights: read(save), slab: session.slab_bytes() }
}

fn read(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |bytes: &[u8]| {
        bytes.as_chunks::<4>().0.iter().map(|word| f32::from_ne_bytes(*word)).collect()
    };
    let tensors = tensors.tensors().into_iter();
    tensors.map(|(name, tensor)| (name, floats(tensor.data()))).collect()
}

/// Where a run saves.
fn save(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sharded");
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

fn alone(name: &str, budget: Budget) -> Ran {
    let step = step(name).accumulated(MICRO_BATCHES).unwrap();
    let path = save(&format!("{name}-alone.safetensors"));
    train(&mut session(&step, budget, None, 0), &step, (&path, None))
}

fn shared(
    name: &str,
    (ranks, reductions): (u32, Reductions),
    budget: Budget,
    resume: Option<&Path>,
) -> Ran {
    let sharing = Sharing { ranks, micro_batches: MICRO_BATCHES, reductions };
    let Divided { ranks: steps, routes, first_of_evaluation, .. } =
        step(name).sharded(sharing).unwrap();
    let links = thread_links(ranks, routes, Duration::from_secs(600));
    let what = format!("{name}-{ranks}-{reductions:?}-{budget:?}");
    let path = save(&format!("{what}-{}.safetensors", resume.is_some()));
    let runs: Vec<Ran> = thread::scope(|scope| {
        let running: Vec<_> = steps
            .values()
            .zip(links)
            .map(|(step, link)| {
                let path = &path;
                scope.spawn(move || {
                    let link = Arc::new(link);
                    let mut own = session(step, budget, Some(link), first_of_evaluation);
                    train(&mut own, step, (path, resume))
                })
            })
            .collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let mut runs = runs.into_iter();
    let first = runs.next().unwrap();
    for other in runs {
        assert_eq!(first.losses, other.losses, "all ranks say the same");
        assert_eq!(first.evaluation, other.evaluation);
    }
    first
}

#[track_caller]
fn near(ours: &[f32], theirs: &[f32], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (our, their) in ours.iter().zip(theirs) {
        assert!((our - their).abs() <= 1e-5, "{what}: {our} and {their}");
    }
}

#[track_caller]
fn alike(ours: &Ran, theirs: &Ran) {
    near(&ours.losses, &theirs.losses, "losses");
    let (ours_judged, theirs_judged) = (ours.evaluation.unwrap(), theirs.evaluation.unwrap());
    assert!((ours_judged.loss - theirs_judged.loss).abs() < 1e-5);
    assert_eq!(ours_judged.accuracy, theirs_judged.accuracy);
    assert_eq!(ours_judged.batches, theirs_judged.batches);
    assert!(ours.weights.keys().eq(theirs.weights.keys()));
    for (name, own) in &ours.weights {
        near(own, &theirs.weights[name], name);
    }
}

#[test]
fn ranks_that_share_a_step_compute_what_one_device_does() {
    // Dropout of a micro-batch is that of one device, too.
    for name in ["mlp-digits", "gpt-nano-dropout"] {
        let whole = alone(name, Budget::Share(1.0));
        for &ranks in first(1, &[4, 2]) {
            for reductions in [Reductions::Once, Reductions::EachMicroBatch] {
                let ran = shared(name, (ranks, reductions), Budget::Smallest, None);
                alike(&ran, &whole);
                assert!(ran.slab < whole.slab);
                alike(&shared(name, (ranks, reductions), Budget::Share(1.0), None), &whole);
            }
        }
    }
}

#[test]
fn what_is_saved_goes_on_on_any_number_of_ranks() {
    let path = save("gpt-nano-begun.safetensors");
    let step = step("gpt-nano");
    let accumulated = step.clone().accumulated(MICRO_BATCHES).unwrap();
    let mut own = session(&accumulated, Budget::Share(1.0), None, 0);
    train(&mut own, &accumulated, (&path, None));
    let expected = save("gpt-nano-on.safetensors");
    let on = train(&mut own, &accumulated, (&expected, None));
    for ranks in [2, 8] {
        let how = (ranks, Reductions::EachMicroBatch);
        alike(&shared("gpt-nano", how, Budget::Share(1.0), Some(&path)), &on);
    }
}

/// Each argument of each collective, replaced by something else.
#[test]
fn changed_calls_are_refused() {
    let sharing = Sharing { ranks: 2, micro_batches: 2, reductions: Reductions::Once };
    let divided = step("mlp-digits").sharded(sharing).unwrap();
    let text = write(&divided.ranks.values().next().unwrap().training);
    let (mut seen, mut refused) = (BTreeSet::new(), 0);
    for (index, node) in text["nodes"].as_array().unwrap().iter().enumerate() {
        let op = node["op"].as_str().unwrap();
        let is_of_ranks =
            |operator: Operator| operator.is_collective() || operator == Operator::MeanPieces;
        if !Operator::from_name(op).is_some_and(is_of_ranks) || !seen.insert(op.to_string()) {
            continue;
        }
        for argument in 0..node["args"].as_array().unwrap().len() {
            let others = [
                json!(null),
                json!(-1),
                json!(1.5),
                json!("x"),
                json!([-3]),
                json!([3]),
                json!(1u64 << 40),
            ];
            for other in others {
                let mut changed = text.clone();
                changed["nodes"][index]["args"][argument] = other.clone();
                let what = format!("{op}, argument {argument} is {other}");
                let Ok(graph) = read_graph(changed.to_string().as_bytes()) else { continue };
                let result = Executable::admits(&graph).and_then(|()| {
                    let profile = Profile::new(&graph, &Machine::unmeasured_cpu(1));
                    let schedule = unplanned(&graph, &profile).unwrap();
                    let pool = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
                    Executable::compile(&graph, schedule.checked(), &Arc::new(pool)).map(drop)
                });
                let error = result.expect_err(&what).to_string();
                assert!(error.contains(node["name"].as_str().unwrap()), "{what}: {error}");
                refused += 1;
            }
        }
    }
    assert!(seen.len() == 3 && refused > 20, "{seen:?}, {refused}");
}

/// All ranks that share a step end with the error of the rank that failed.
#[test]
fn a_rank_that_fails_stops_all_others() {
    let sharing = Sharing { ranks: 3, micro_batches: 3, reductions: Reductions::Once };
    let Divided { ranks: steps, routes, first_of_evaluation, .. } =
        step("mlp-digits").sharded(sharing).unwrap();
    let links = thread_links(3, routes, Duration::from_secs(600));
    let failing = links[1].clone();
    thread::scope(|scope| {
        let pairs = steps.values().zip(links).enumerate().filter(|(rank, _)| *rank != 1);
        let running: Vec<_> = pairs
            .map(|(_, (step, link))| {
                scope.spawn(move || {
                    let mut own = session(step, Budget::Share(1.0), None, 0);
                    let mut data = Dataset::open(&step.data, &step.folder, None).unwrap();
                    own.connect(Arc::new(link), first_of_evaluation)
                        .and_then(|()| own.step(&mut data))
                })
            })
            .collect();
        failing.abort("out of paper");
        for rank in running {
            let error = rank.join().unwrap().unwrap_err();
            assert!(error.to_string().contains("rank1 failed: out of paper"), "{error}");
        }
    });
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let refused = |ranks, micro_batches| {
        let sharing = Sharing { ranks, micro_batches, reductions: Reductions::Once };
        step("mlp-digits").sharded(sharing).unwrap_err().to_string()
    };
    assert_eq!(
        refused(2, 3),
        "2 ranks share the micro-batches of an update evenly: take a multiple of 2, not 3"
    );
    assert_eq!(refused(1, 3), "a step is sharded among at least two ranks, and 1 is asked for");
    assert!(refused(0, 3).contains("0 ranks"));
    assert!(refused(3, 0).contains("not 0"));
}
