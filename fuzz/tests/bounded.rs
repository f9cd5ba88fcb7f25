//! A bounded campaign against every target. Invariant: nothing is found, and enough cases get far:
//! a campaign whose input is refused at once finds nothing either.
//!
//! Tier: quick with a part of the cases, 11 s; full with all of them.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::path::Path;
use std::time::Duration;

use tightfit_fuzz::campaign::{Campaign, Outcome, run};
use tightfit_fuzz::child::Workers;
use tightfit_fuzz::target::Target;
use tightfit_testing::either;

/// A campaign of the first cases of seed 1.
fn campaign(target: Target, cases: u64, limit: u64, findings: &Path) -> Outcome {
    let program = env!("CARGO_BIN_EXE_tightfit-fuzz").into();
    let workers = Workers { program, target, seed: 1, limit: Duration::from_secs(limit) };
    run(&Campaign { workers, first: 0, cases, jobs: 2, findings }, &|_| {}).unwrap()
}

/// `cases` cases without a finding, of which `far` are not refused; in the quick tier a fifth of
/// both.
#[track_caller]
fn holds(target: Target, cases: u64, far: u64) {
    let [cases, far] = [cases, far].map(|count| count / either(5, 1));
    let folder = tempfile::tempdir().unwrap();
    let outcome = campaign(target, cases, 120, folder.path());
    assert!(outcome.findings.is_empty(), "{:#?}", outcome.findings);
    let judged: u64 =
        ["refused", "accepted", "executed", "skipped"].map(|kind| outcome.count(kind)).iter().sum();
    assert_eq!(judged, cases, "{:?}", outcome.counts);
    let got = outcome.count("accepted") + outcome.count("executed");
    assert!(got >= far, "only {got} of {cases} got far: {:?}", outcome.counts);
    assert!(outcome.count("refused") > 0, "nothing was refused: {:?}", outcome.counts);
}

#[test]
fn graphs_are_read_or_refused() {
    holds(Target::Graph, 1000, 200);
}

#[test]
fn steps_are_read_or_refused() {
    holds(Target::Step, 1000, 100);
}

#[test]
fn plans_are_read_or_refused() {
    holds(Target::Plan, 1000, 400);
}

#[test]
fn module_statistics_are_read_or_refused() {
    holds(Target::Modules, 1000, 80);
}

#[test]
fn weights_are_read_whole_or_refused() {
    holds(Target::Weights, 1000, 20);
}

#[test]
fn what_the_checker_lets_pass_computes_what_the_step_computes() {
    holds(Target::Check, 1000, 200);
}

#[test]
fn an_accepted_step_trains_alike_at_both_budgets() {
    holds(Target::Execute, either(500, 1000), either(200, 400));
}

#[test]
fn planted_faults_are_found_made_small_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = campaign(Target::Planted, 5, 2, folder.path());
    for kind in ["accepted", "panic", "died", "hang", "wrong"] {
        assert_eq!(outcome.count(kind), 1, "{kind}: {:?}", outcome.counts);
    }
    assert_eq!(outcome.findings.len(), 4);
    for (cause, (count, folders)) in &outcome.findings {
        let [kept] = folders.as_slice() else { panic!("{cause}: {folders:?}") };
        let fault = std::fs::read_to_string(kept.join("fault")).unwrap();
        let command = std::fs::read_to_string(kept.join("verdict.txt")).unwrap();
        assert_eq!(*count, 1);
        assert!(command.contains("cargo run -p tightfit-fuzz --release -- planted --seed 1"));
        // A hang costs its limit at each attempt, so its bytes are not minimised.
        if !cause.starts_with("hang") {
            assert!(["panic", "abort", "wrong"].contains(&fault.as_str()), "{cause}: {fault}");
        }
    }
}
