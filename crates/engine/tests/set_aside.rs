//! Another plan in the middle of a run. Invariant: whichever schedules take turns, and wherever
//! they keep parameters and state, the run computes what one with a single plan computes, bit for
//! bit; and what cannot be taken up leaves the run as it was.
//!
//! Tier: quick, since it takes 3 s.

use std::collections::BTreeMap;
use std::path::Path;

use tightfit::effort::Effort;
use tightfit::machine::{Link, Machine, Tier};
use tightfit::plan::Planner;
use tightfit::profile::CallSeconds;
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{
    Budget, Dataset, FitTask, FittedStep, Session, SessionError, Step, TierError, TierFolder,
    Timings, Traffic, VERSION, fit_step, replan,
};

const STEPS: usize = 6;

fn step() -> Step {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus");
    Step::open(&corpus.join("steps/gpt-nano")).unwrap()
}

fn machine(has_tier: bool) -> Machine {
    let mut machine = Machine::unmeasured_cpu(2);
    if has_tier {
        let link = Link { latency: Seconds(1e-5), bandwidth: 1e9 };
        let tier = Tier { name: "disk".to_string(), capacity: None, block: Bytes(4096) };
        machine.hierarchy.add(tier, link, link);
    }
    machine
}

fn task(machine: &Machine, budget: Budget) -> FitTask<'_> {
    let effort = Effort::work(1, 100_000);
    FitTask { machine, budget, beside: Bytes::ZERO, planner: Planner::Auto, effort }
}

fn fitted(step: &Step, has_tier: bool, budget: Budget) -> FittedStep {
    let machine = machine(has_tier);
    fit_step(step, &CallSeconds::new(VERSION, 2), &task(&machine, budget)).unwrap()
}

fn in_folder(folder: &Path, size: Option<Bytes>) -> TierFolder {
    TierFolder { folder: folder.to_path_buf(), traffic: Traffic::default(), size }
}

/// A run with memory for the largest of some plans.
fn session(step: &Step, plans: &[&FittedStep], tier: Option<&TierFolder>) -> Session {
    let slab = plans.iter().map(|plan| plan.training.slab()).max().unwrap();
    Session::builder(step, plans[0].training.fitted.checked())
        .evaluation(plans[0].evaluation.as_ref())
        .slab(slab)
        .tier(tier)
        .threads(2)
        .seed(7)
        .start()
        .unwrap()
}

fn data(step: &Step) -> Dataset {
    Dataset::open(&step.data, &step.folder, None).unwrap()
}

fn take_up(
    session: &mut Session,
    step: &Step,
    plan: &FittedStep,
    tier: Option<&TierFolder>,
) -> Result<(), SessionError> {
    let aside = session.set_aside(tier)?;
    let schedules = (plan.training.fitted.checked(), plan.evaluation.as_ref());
    let taken = session.take_up(step, schedules, tier, &aside);
    if taken.is_err() && !session.has_failed() {
        session.put_back(&aside)?;
    }
    taken
}

/// Every bit of a run: losses of steps and of evaluations, and all that stays.
type Bits = (Vec<u32>, Vec<u64>, BTreeMap<String, Vec<u8>>);

/// Runs with plans in turn, another one before each step.
fn bits(plans: &[&FittedStep], tier: Option<&TierFolder>) -> Bits {
    let step = step();
    let (mut session, mut data) = (session(&step, plans, tier), data(&step));
    let (mut losses, mut evaluations) = (Vec::new(), Vec::new());
    for number in 0..STEPS {
        if number > 0 && plans.len() > 1 {
            take_up(&mut session, &step, plans[number % plans.len()], tier).unwrap();
        }
        losses.push(session.step(&mut data).unwrap().to_bits());
        let evaluated = session.evaluate(&mut data, 1).unwrap();
        evaluations.extend(evaluated.map(|evaluation| evaluation.loss.to_bits()));
    }
    let kept = session.residents().iter();
    let kept = kept.map(|(name, at)| (name.clone(), session.resident_bytes(at).unwrap()));
    (losses, evaluations, kept.collect())
}

#[test]
fn plans_with_and_without_a_tier_take_turns() {
    let step = step();
    let folder = tempfile::tempdir().unwrap();
    let tier = in_folder(folder.path(), None);
    let whole = fitted(&step, false, Budget::Share(1.0));
    let half = fitted(&step, true, Budget::Share(0.6));
    let least = fitted(&step, true, Budget::Share(0.45));
    let moved = |plan: &FittedStep| plan.training.fitted.schedule().moved();
    assert_ne!(moved(&least), moved(&whole));
    assert!(least.evaluation.is_some());
    let expected = bits(&[&whole], None);
    for plans in [vec![&least, &half, &whole], vec![&whole, &least], vec![&half, &least]] {
        assert_eq!(bits(&plans, Some(&tier)), expected);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn without_a_tier_everything_stays_where_it_is() {
    let step = step();
    let whole = fitted(&step, false, Budget::Share(1.0));
    let part = fitted(&step, false, Budget::Share(0.8));
    assert!(part.training.fitted.schedule().recomputed() > 0);
    assert_eq!(bits(&[&part, &whole], None), bits(&[&whole], None));
}

#[test]
fn what_has_no_room_leaves_the_run_as_it_was() {
    let step = step();
    let folder = tempfile::tempdir().unwrap();
    let tier = in_folder(folder.path(), None);
    let whole = fitted(&step, false, Budget::Share(1.0));
    let least = fitted(&step, true, Budget::Share(0.45));
    let expected = bits(&[&whole], None);
    let taken: Bytes = least.training.fitted.schedule().below.values().copied().sum();
    // Space not even for what is in the slab; or for that, but not for a second tier.
    let (mut session, mut data) = (session(&step, &[&least, &whole], Some(&tier)), data(&step));
    let mut losses = Vec::new();
    for number in 0..STEPS {
        let size = if number % 2 == 0 { Bytes(4096) } else { Bytes(taken.0 * 3 / 2) };
        let small = in_folder(folder.path(), Some(size));
        let refused = take_up(&mut session, &step, &least, Some(&small)).unwrap_err();
        assert!(matches!(refused, SessionError::Tier(TierError::Room { .. })), "{refused}");
        // Nor is a plan accepted for which this slab is too small.
        let mut tiny = Session::builder(&step, least.training.fitted.checked())
            .slab(least.training.slab())
            .tier(Some(&tier))
            .threads(2)
            .seed(7)
            .start()
            .unwrap();
        let refused = take_up(&mut tiny, &step, &whole, Some(&tier)).unwrap_err();
        assert!(matches!(refused, SessionError::Slab(_)), "{refused}");
        losses.push(session.step(&mut data).unwrap().to_bits());
    }
    assert_eq!(losses, expected.0);
    let kept = session.residents().iter();
    let kept = kept.map(|(name, at)| (name.clone(), session.resident_bytes(at).unwrap()));
    assert_eq!(kept.collect::<BTreeMap<_, _>>(), expected.2);
}

#[test]
fn what_is_planned_again_is_faster_by_what_was_measured() {
    let step = step();
    let folder = tempfile::tempdir().unwrap();
    let tier = in_folder(folder.path(), None);
    for (has_tier, share) in [(true, 0.6), (true, 0.45), (false, 0.8), (false, 1.0)] {
        let machine = machine(has_tier);
        let task = task(&machine, Budget::Share(share));
        let plan = fitted(&step, has_tier, Budget::Share(share));
        let tier = has_tier.then_some(&tier);
        let (mut session, mut data) = (session(&step, &[&plan], tier), data(&step));
        let mut measured = Timings::default();
        for _ in 0..3 {
            session.step_timed(&mut data, &mut |executed| measured.add(&executed)).unwrap();
            measured.end(1.0);
        }
        let again = replan(&step, &plan, &measured, &task).unwrap();
        // Steps of a second each, whatever was estimated.
        assert!(again.before.seconds.0 > 0.5, "{share}: {}", again.before.seconds.0);
        let Ok(found) = again.found else { continue };
        let (fitted, slab) = (&found.training.fitted, found.training.slab());
        assert!(fitted.timeline().seconds < again.before.seconds, "{share}");
        assert!(fitted.schedule().slab <= slab && slab == plan.training.slab(), "{share}");
        assert!(found.evaluation.is_some() || plan.evaluation.is_none(), "{share}");
        take_up(&mut session, &step, &found, tier).unwrap();
        session.step(&mut data).unwrap();
    }
}
