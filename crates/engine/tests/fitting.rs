//! Whole budgets. Invariant: slab and reserve are the budget, and a refusal speaks of whole
//! budgets.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::path::Path;

use tightfit::FitError;
use tightfit::effort::Effort;
use tightfit::machine::Machine;
use tightfit::plan::{PlanError, Planner};
use tightfit::profile::{CallSeconds, Profile};
use tightfit::units::Bytes;
use tightfit_engine::{
    Budget, BudgetError, FitTask, FittedStep, FittingError, Step, VERSION, fit_graph, fit_step,
    reserve,
};

fn step() -> Step {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus");
    Step::open(&corpus.join("steps/gpt-nano")).unwrap()
}

fn task(machine: &Machine, budget: Budget) -> FitTask<'_> {
    FitTask { machine, budget, planner: Planner::Capuchin, effort: Effort::work(1, 100_000) }
}

fn fitted(budget: Budget) -> Result<FittedStep, FittingError> {
    let machine = Machine::unmeasured_cpu(2);
    fit_step(&step(), &CallSeconds::new(VERSION, 2), &task(&machine, budget))
}

#[test]
fn slab_and_reserve_are_the_budget() {
    let whole = fitted(Budget::Share(1.0)).unwrap();
    assert_eq!(whole.training.reserve, reserve(&step().training, &Machine::unmeasured_cpu(2)));
    assert!(whole.training.reserve > Bytes::ZERO);
    assert_eq!(whole.training.slab() + whole.training.reserve, whole.training.budget);
    assert!(whole.training.fitted.schedule().slab <= whole.training.slab());
    assert_eq!(whole.training.fitted.schedule().recomputed(), 0);
    let evaluation = whole.evaluation.unwrap();
    assert!(evaluation.schedule().slab <= whole.training.budget - whole.training.reserve);
}

#[test]
fn the_smallest_budget_can_be_asked_for() {
    let smallest = fitted(Budget::Smallest).unwrap().training;
    assert!(smallest.fitted.schedule().slab < smallest.unplanned.schedule().slab);
    let again = fitted(Budget::Absolute(smallest.budget)).unwrap().training;
    assert_eq!(again.fitted.schedule().slab, smallest.fitted.schedule().slab);
}

#[test]
fn a_refusal_names_whole_budgets() {
    let least = fitted(Budget::Smallest).unwrap().training.budget;
    let asked = Bytes(least.0 - 1);
    match fitted(Budget::Absolute(asked)) {
        Err(FittingError::Fit(FitError::Plan(PlanError::Infeasible(proof)))) => {
            assert_eq!((proof.budget, proof.reached), (asked, least));
            assert!(proof.needed <= least);
            assert_eq!(proof.live.iter().filter(|live| live.phase == "reserve").count(), 1);
        }
        other => panic!("{:?}", other.map(|fitted| fitted.training.budget)),
    }
}

#[test]
fn budgets_that_make_no_sense_are_told_apart() {
    let refused = |budget: Budget| match fitted(budget) {
        Err(FittingError::Budget(error)) => error,
        other => panic!("{:?}", other.map(|fitted| fitted.training.budget)),
    };
    assert_eq!(refused(Budget::Absolute(Bytes::ZERO)), BudgetError::Zero);
    assert_eq!(refused(Budget::Share(1e-12)), BudgetError::Zero);
    let few = refused(Budget::Absolute(Bytes(1)));
    assert!(matches!(few, BudgetError::BelowReserve { budget: Bytes(1), .. }), "{few}");
    let many = refused(Budget::Absolute(Bytes::LIMIT));
    assert!(matches!(many, BudgetError::BeyondMemory { budget: Bytes::LIMIT, .. }), "{many}");
}

#[test]
fn a_graph_for_another_machine_has_no_reserve() {
    let (step, machine) = (step(), Machine::preset("a100-80gb").unwrap());
    let profile = Profile::new(&step.training, &machine);
    let fitted = fit_graph(&step.training, &profile, &task(&machine, Budget::Share(0.9))).unwrap();
    assert_eq!(fitted.reserve, Bytes::ZERO);
    assert_eq!(fitted.slab(), fitted.budget);
}
