//! Parameters and state that are placed at run time. Invariant: whatever the policy, the budget and
//! the order of graphs, the run computes what one with enough memory computes, bit for bit; and
//! what is moved is what the policy says.
//!
//! Tier: quick with a part of the cases, 12 s; full with all of them.

use std::collections::BTreeMap;
use std::path::Path;

use tightfit::effort::Effort;
use tightfit::graph::{GraphBuilder, Phase};
use tightfit::machine::{Link, Machine, Tier};
use tightfit::plan::Planner;
use tightfit::profile::CallSeconds;
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::residency::{Figures, Policy};
use tightfit_engine::{
    Budget, CompileError, Dataset, FitTask, FittedStep, FittingError, Iterations, PlacementError,
    Session, SessionError, Step, StepError, TierError, TierFolder, Traffic, VERSION, fit_placed,
    fit_step, weights,
};
use tightfit_testing::first;

const POLICIES: [Policy; 3] = [Policy::Auto, Policy::Host, Policy::Device];

fn step() -> Step {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus");
    Step::open(&corpus.join("steps/gpt-nano")).unwrap()
}

fn data(step: &Step) -> Dataset {
    Dataset::open(&step.data, &step.folder, None).unwrap()
}

fn machine() -> Machine {
    let mut machine = Machine::unmeasured_cpu(2);
    let link = Link { latency: Seconds(1e-5), bandwidth: 1e9 };
    let tier = Tier { name: "disk".to_string(), capacity: None, block: Bytes(4096) };
    machine.hierarchy.add(tier, link, link);
    machine
}

fn placed(step: &Step, policy: Policy, budget: Budget) -> Result<FittedStep, FittingError> {
    let machine = machine();
    // Enough that no budget below the smallest one found can be met.
    let effort = Effort::work(1, 400_000);
    let (beside, planner) = (Bytes::ZERO, Planner::Auto);
    let task = FitTask { machine: &machine, budget, beside, planner, effort };
    fit_placed(step, &CallSeconds::new(VERSION, 2), &task, policy)
}

fn in_folder(folder: &Path, overlaps: bool) -> TierFolder {
    let traffic = Traffic { overlaps, ..Traffic::default() };
    TierFolder { folder: folder.to_path_buf(), traffic, size: None }
}

fn started(
    step: &Step,
    plan: &FittedStep,
    tier: Option<&TierFolder>,
) -> Result<Session, SessionError> {
    Session::builder(step, plan.training.fitted.checked())
        .evaluation(plan.evaluation.as_ref())
        .slab(plan.training.slab())
        .tier(tier)
        .region(plan.region.as_ref())
        .threads(2)
        .seed(7)
        .start()
}

fn session(step: &Step, plan: &FittedStep, tier: &TierFolder) -> Session {
    assert!(plan.region.is_some());
    started(step, plan, Some(tier)).unwrap()
}

/// The same with enough memory, and no manager.
fn with_memory_enough(step: &Step) -> Session {
    let machine = Machine::unmeasured_cpu(2);
    let effort = Effort::work(1, 100_000);
    let (budget, planner) = (Budget::Share(1.0), Planner::Auto);
    let task = FitTask { machine: &machine, budget, beside: Bytes::ZERO, planner, effort };
    let plan = fit_step(step, &CallSeconds::new(VERSION, 2), &task).unwrap();
    started(step, &plan, None).unwrap()
}

/// The next action of a run.
#[derive(Clone, Copy)]
enum Turn {
    Train,
    Evaluate,
    /// Everything that stays is read, as by a save in the middle.
    Read,
}

const TURNS: [Turn; 14] = [
    Turn::Train,
    Turn::Evaluate,
    Turn::Train,
    Turn::Read,
    Turn::Evaluate,
    Turn::Evaluate,
    Turn::Train,
    Turn::Train,
    Turn::Read,
    Turn::Train,
    Turn::Evaluate,
    Turn::Train,
    Turn::Evaluate,
    Turn::Read,
];

/// Every bit of a run's results.
#[derive(Debug, Default, PartialEq)]
struct Bits {
    losses: Vec<u32>,
    evaluations: Vec<u64>,
    kept: Vec<BTreeMap<String, Vec<u8>>>,
}

fn bits(step: &Step, session: &mut Session) -> Bits {
    let mut data = data(step);
    let mut bits = Bits::default();
    for turn in TURNS {
        match turn {
            Turn::Train => bits.losses.push(session.step(&mut data).unwrap().to_bits()),
            Turn::Evaluate => {
                let evaluated = session.evaluate(&mut data, 2).unwrap().unwrap();
                bits.evaluations.push(evaluated.loss.to_bits());
            }
            Turn::Read => bits.kept.push(kept(session)),
        }
    }
    bits
}

fn kept(session: &Session) -> BTreeMap<String, Vec<u8>> {
    let residents = session.residents().iter();
    residents.map(|(name, at)| (name.clone(), session.resident_bytes(at).unwrap())).collect()
}

#[test]
fn graphs_in_turn_compute_the_same_bits_wherever_tensors_lie() {
    let step = step();
    let folder = tempfile::tempdir().unwrap();
    let expected = bits(&step, &mut with_memory_enough(&step));
    for policy in POLICIES {
        let budgets = [Budget::Share(0.5), Budget::Smallest, Budget::Share(0.8)];
        for &budget in first(2, &budgets) {
            let plan = match placed(&step, policy, budget) {
                Ok(plan) => plan,
                Err(error) if policy == Policy::Device && budget == Budget::Share(0.5) => {
                    assert!(matches!(error, FittingError::Placement(PlacementError::Whole { .. })));
                    continue;
                }
                Err(error) => panic!("{policy:?} {budget:?}: {error}"),
            };
            for overlaps in [true, false] {
                let mut session = session(&step, &plan, &in_folder(folder.path(), overlaps));
                assert_eq!(bits(&step, &mut session), expected, "{policy:?} {budget:?}");
            }
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn region_and_schedule_share_the_slab() {
    let step = step();
    for policy in POLICIES {
        for budget in [Budget::Smallest, Budget::Share(0.5), Budget::Share(0.7), Budget::Share(2.0)]
        {
            let Ok(plan) = placed(&step, policy, budget) else {
                assert_eq!((policy, budget), (Policy::Device, Budget::Share(0.5)));
                continue;
            };
            let region = plan.region.as_ref().unwrap();
            let schedule = plan.training.fitted.schedule();
            assert!(region.slab(schedule) <= plan.training.slab(), "{policy:?} {budget:?}");
            assert!(plan.high_water() <= plan.training.slab());
            assert!(plan.peak() <= plan.high_water());
            let most = region.most_at_once(&step.training, schedule).unwrap();
            assert!(most > 0 && most <= region.slots, "{policy:?} {budget:?}");
            assert!(schedule.below.values().all(|&bytes| bytes == Bytes::ZERO));
            let all = region.packing().unwrap().chunks;
            assert!(policy != Policy::Device || region.slots == all);
            assert!(budget != Budget::Share(2.0) || policy == Policy::Host || region.slots == all);
            assert!(region.tensor_bytes() <= region.persistent());
        }
    }
}

/// What each step and each evaluation of a run moves.
fn figures(step: &Step, policy: Policy, budget: Budget) -> (Vec<Figures>, Vec<Figures>) {
    let folder = tempfile::tempdir().unwrap();
    let plan = placed(step, policy, budget).unwrap();
    let mut session = session(step, &plan, &in_folder(folder.path(), true));
    let mut data = data(step);
    let (mut steps, mut evaluations) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        session.step(&mut data).unwrap();
        let [trained, none] = session.take_figures().unwrap();
        assert_eq!((trained.count, none), (1, Iterations::default()));
        steps.push(trained.figures);
        session.evaluate(&mut data, 3).unwrap().unwrap();
        let [none, evaluated] = session.take_figures().unwrap();
        assert_eq!((none, evaluated.count), (Iterations::default(), 3));
        evaluations.push(evaluated.figures);
    }
    (steps, evaluations)
}

#[test]
fn what_is_moved_is_what_the_policy_says() {
    let step = step();
    let tensors = placed(&step, Policy::Device, Budget::Share(1.0)).unwrap();
    let all = tensors.region.unwrap().tensor_bytes();
    let volumes = |figures: &[Figures]| -> Vec<u64> {
        figures.iter().map(|figures| figures.volume().0).collect()
    };
    // Everything comes once and stays.
    let (steps, evaluations) = figures(&step, Policy::Device, Budget::Share(1.0));
    assert!(steps[0].to_device >= all && steps[0].to_host == Bytes::ZERO);
    assert_eq!(volumes(&steps[1..]), [0; 5]);
    assert_eq!(volumes(&evaluations), [0; 6]);
    // Each call brings what it computes with, unless the previous call had it.
    let (host, judged) = figures(&step, Policy::Host, Budget::Share(0.5));
    for moved in host.iter().chain(&judged) {
        assert!(moved.to_device > Bytes::ZERO && moved.layout >= moved.eviction);
    }
    for moved in &host {
        assert!(moved.to_device >= all && moved.to_host > Bytes::ZERO, "state is written");
    }
    // An evaluation writes nothing; what is copied out in it was written by the previous step.
    let least = host.iter().map(|moved| moved.to_host).min().unwrap();
    assert!(judged.iter().all(|moved| moved.to_host < least));
    // Whatever fits stays.
    let (auto, _) = figures(&step, Policy::Auto, Budget::Share(0.5));
    for (auto, host) in auto.iter().zip(&host).skip(1) {
        assert!(auto.volume() <= host.volume(), "{auto} where the host policy has {host}");
    }
}

#[test]
fn a_run_goes_on_from_what_another_one_saved() {
    let step = step();
    let folder = tempfile::tempdir().unwrap();
    let tier = folder.path().join("tier");
    std::fs::create_dir(&tier).unwrap();
    let path = folder.path().join("weights");
    let mut whole = with_memory_enough(&step);
    let mut data = data(&step);
    for _ in 0..2 {
        whole.step(&mut data).unwrap();
    }
    weights::save(&path, &whole, &step.name).unwrap();
    for _ in 0..2 {
        whole.step(&mut data).unwrap();
    }
    for policy in POLICIES {
        let plan = placed(&step, policy, Budget::Share(0.8)).unwrap();
        let mut session = session(&step, &plan, &in_folder(&tier, true));
        // What is loaded replaces what a step has left, wherever that is.
        for _ in 0..3 {
            session.step(&mut data).unwrap();
        }
        weights::load(&path, &mut session, &step.name).unwrap();
        let again = folder.path().join("again");
        weights::save(&again, &session, &step.name).unwrap();
        assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&path).unwrap());
        for _ in 0..2 {
            session.step(&mut data).unwrap();
        }
        assert_eq!(kept(&session), kept(&whole), "{policy:?}");
    }
}

/// Weights that are damaged in part leave the session as it was, including those before the damage.
#[test]
fn damaged_weights_change_nothing() {
    let step = step();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    let mut session = with_memory_enough(&step);
    let mut data = data(&step);
    session.step(&mut data).unwrap();
    weights::save(&path, &session, &step.name).unwrap();
    session.step(&mut data).unwrap();
    let before = kept(&session);
    let saved = std::fs::read(&path).unwrap();
    for at in [saved.len() / 2, saved.len() - 1] {
        let mut damaged = saved.clone();
        damaged[at] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        let refused = weights::load(&path, &mut session, &step.name).unwrap_err();
        assert!(refused.to_string().contains("is damaged"), "{refused}");
        assert_eq!(kept(&session), before);
    }
}

#[test]
fn what_has_no_room_is_refused_with_what_would_do() {
    let step = step();
    for policy in POLICIES {
        let smallest = placed(&step, policy, Budget::Smallest).unwrap().training.budget;
        let mut refused = 0;
        for part in [2u64, 4, 8, 16, 32] {
            let budget = Bytes(smallest.0 - smallest.0 / part / 16);
            let reached = match placed(&step, policy, Budget::Absolute(budget)) {
                Err(FittingError::Placement(
                    PlacementError::Whole { reached, .. } | PlacementError::Region { reached, .. },
                )) => reached,
                Err(FittingError::Budget(_)) => continue,
                Err(error) => panic!("{error}"),
                Ok(_) => panic!("{budget} is less than the smallest budget, {smallest}"),
            };
            refused += 1;
            assert!(reached > budget);
            placed(&step, policy, Budget::Absolute(reached)).unwrap();
        }
        assert!(refused > 0, "{policy:?}");
    }
}

#[test]
fn what_has_no_folder_and_what_has_no_plan() {
    let step = step();
    let folder = tempfile::tempdir().unwrap();
    let plan = placed(&step, Policy::Auto, Budget::Share(0.5)).unwrap();
    let tier = in_folder(folder.path(), true);
    let refused = session(&step, &plan, &tier).set_aside(Some(&tier)).err().unwrap();
    assert!(matches!(refused, SessionError::Placed), "{refused}");
    let region = plan.region.as_ref().unwrap();
    let whole = region.whole().unwrap();
    for (size, fits) in [(Bytes(whole.0 - 1), false), (whole, true)] {
        let tier = TierFolder { size: Some(size), ..tier.clone() };
        let made = Session::builder(&step, plan.training.fitted.checked())
            .slab(plan.training.slab())
            .tier(Some(&tier))
            .region(Some(region))
            .threads(2);
        match made.start() {
            Ok(_) => assert!(fits),
            Err(SessionError::Tier(TierError::Room { needed, .. })) => {
                assert!(!fits && needed == whole);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn an_output_that_is_a_parameter_has_to_be_planned() {
    let mut step = step();
    let graph = &step.training;
    let mut updates = graph.nodes().values().filter(|node| node.phase == Phase::Optimizer);
    let updated = updates.find_map(|node| *node.outputs.first()?).unwrap();
    let mut builder = GraphBuilder::from_graph(graph);
    builder.output(updated);
    step.training = builder.build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let tier = in_folder(folder.path(), true);
    let plan = placed(&step, Policy::Auto, Budget::Share(0.8)).unwrap();
    let refused = started(&step, &plan, Some(&tier)).err();
    assert!(matches!(refused, Some(SessionError::Compile(CompileError::EndsPlaced { .. }))));
}

/// Changes every byte of the tier that this process has in a folder.
#[cfg(target_os = "linux")]
fn damage(folder: &Path) {
    use std::os::unix::fs::FileExt;
    let mut damaged = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        if !std::fs::read_link(&path).is_ok_and(|to| to.starts_with(folder)) {
            continue;
        }
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes.iter_mut().for_each(|byte| *byte ^= 0x5A);
        file.write_all_at(&bytes, 0).unwrap();
        damaged += 1;
        break;
    }
    assert_eq!(damaged, 1);
}

#[cfg(target_os = "linux")]
#[test]
fn what_was_damaged_ends_the_run_wherever_it_is_noticed() {
    let step = step();
    let is_damage = |error: &SessionError| {
        matches!(
            error,
            SessionError::Step { error: StepError::Tier(TierError::Damaged { .. }), .. }
        )
    };
    for notices_in_evaluation in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let plan = placed(&step, Policy::Host, Budget::Share(0.8)).unwrap();
        let mut session = session(&step, &plan, &in_folder(folder.path(), true));
        let mut data = data(&step);
        session.step(&mut data).unwrap();
        let name = session.residents().keys().next().unwrap().clone();
        damage(folder.path());
        let noticed = match notices_in_evaluation {
            true => session.evaluate(&mut data, 1).map(drop),
            false => session.step(&mut data).map(drop),
        };
        let noticed = noticed.unwrap_err();
        assert!(is_damage(&noticed), "{noticed}");
        assert!(session.has_failed());
        session.step(&mut data).unwrap_err();
        let resident = &session.residents()[&name];
        session.resident_bytes(resident).unwrap_err();
    }
}
