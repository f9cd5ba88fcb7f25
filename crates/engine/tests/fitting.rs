//! Whole budgets. Invariant: slab and reserve are the budget, and a refusal is in terms of whole
//! budgets.
//!
//! Tier: quick, since it takes less than a second.

use std::path::Path;

use tightfit::FitError;
use tightfit::effort::Effort;
use tightfit::machine::Machine;
use tightfit::plan::{PlanError, Planner};
use tightfit::profile::{CallSeconds, Profile};
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{
    Budget, BudgetError, FitTask, FittedStep, FittingError, Reserve, Step, VERSION, fit_graph,
    fit_step, reserve,
};

fn step() -> Step {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus");
    Step::open(&corpus.join("steps/gpt-nano")).unwrap()
}

fn task(machine: &Machine, budget: Budget) -> FitTask<'_> {
    let (beside, planner, effort) = (Bytes::ZERO, Planner::Capuchin, Effort::work(1, 100_000));
    FitTask { machine, budget, beside, planner, effort }
}

fn fitted(budget: Budget) -> Result<FittedStep, FittingError> {
    let machine = Machine::unmeasured_cpu(2);
    fit_step(&step(), &CallSeconds::new(VERSION, 2), &task(&machine, budget))
}

#[test]
fn slab_and_reserve_are_the_budget() {
    let whole = fitted(Budget::Share(1.0)).unwrap();
    assert_eq!(whole.training.reserve, reserve(&step().training, &Machine::unmeasured_cpu(2)));
    let Reserve { base, packing } = whole.training.reserve;
    assert!(base > Bytes::ZERO && packing > Bytes::ZERO);
    assert_eq!(whole.training.slab() + base + packing, whole.training.budget);
    assert!(whole.training.fitted.schedule().slab <= whole.training.slab());
    assert_eq!(whole.training.fitted.schedule().recomputed(), 0);
    let evaluation = whole.evaluation.unwrap();
    assert!(evaluation.schedule().slab <= whole.training.slab());
}

#[test]
fn a_share_is_the_base_and_a_share_of_what_a_plan_can_save() {
    let machine = Machine::unmeasured_cpu(2);
    let reserve = reserve(&step().training, &machine);
    for share in [0.8, 0.9] {
        let fitted = fitted(Budget::Share(share)).unwrap().training;
        let peak = fitted.unplanned.timeline().peak + reserve.packing;
        assert_eq!(fitted.budget, reserve.base + Bytes((peak.0 as f64 * share) as u64));
    }
    let smallest = fitted(Budget::Smallest).unwrap().training;
    assert_eq!(smallest.budget, reserve.total() + smallest.fitted.schedule().slab);
}

#[test]
fn what_a_process_holds_beside_counts_to_the_base() {
    let (step, machine, more) = (step(), Machine::unmeasured_cpu(2), Bytes(12_345));
    let profile = Profile::new(&step.training, &machine);
    let fit = |beside| {
        let task = FitTask { beside, ..task(&machine, Budget::Smallest) };
        fit_graph(&step.training, &profile, &task).unwrap()
    };
    let (without, with) = (fit(Bytes::ZERO), fit(more));
    assert_eq!(with.reserve.base, without.reserve.base + more);
    assert_eq!(with.budget, without.budget + more);
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
            assert_eq!(proof.live.iter().filter(|live| live.phase == "reserve").count(), 2);
        }
        other => panic!("{:?}", other.map(|fitted| fitted.training.budget)),
    }
}

/// A planner whose time is up before it has searched.
#[test]
fn a_search_that_ended_too_soon_speaks_of_whole_budgets() {
    let (step, machine) = (step(), Machine::unmeasured_cpu(2));
    let profile = Profile::new(&step.training, &machine);
    let whole = fitted(Budget::Share(1.0)).unwrap().training;
    let peak = whole.fitted.timeline().peak;
    let asked = whole.reserve.total() + Bytes(peak.0 / 10 * 9);
    let effort = Effort { deadline: Seconds(0.0), ..Effort::work(1, u64::MAX) };
    let task = FitTask { effort, ..task(&machine, Budget::Absolute(asked)) };
    match fit_graph(&step.training, &profile, &task) {
        Err(FittingError::Fit(FitError::Plan(PlanError::NotFound(found)))) => {
            assert_eq!(found.budget, asked);
            // The named budget has addresses, and is enough.
            assert!(found.reached >= whole.reserve.total() + peak);
            let task = FitTask { budget: Budget::Absolute(found.reached), ..task };
            assert!(fit_graph(&step.training, &profile, &task).is_ok(), "{found}");
            assert!(found.to_string().contains(&format!("({} bytes) before", asked.0)), "{found}");
        }
        other => panic!("{:?}", other.map(|fitted| fitted.budget)),
    }
}

#[test]
fn budgets_that_make_no_sense_are_told_apart() {
    let refused = |budget: Budget| match fitted(budget) {
        Err(FittingError::Budget(error)) => error,
        other => panic!("{:?}", other.map(|fitted| fitted.training.budget)),
    };
    assert_eq!(refused(Budget::Absolute(Bytes::ZERO)), BudgetError::Zero);
    // A budget below the reserve is refused like any other, with a budget that is enough.
    match fitted(Budget::Absolute(Bytes(1))) {
        Err(FittingError::Fit(FitError::Plan(PlanError::Infeasible(proof)))) => {
            assert!(proof.is_proven() && proof.budget == Bytes(1), "{proof}");
        }
        other => panic!("{:?}", other.map(|fitted| fitted.training.budget)),
    }
    let many = refused(Budget::Absolute(Bytes::LIMIT));
    assert!(matches!(many, BudgetError::BeyondMemory { budget: Bytes::LIMIT, .. }), "{many}");
}

#[test]
fn a_graph_for_another_machine_has_no_reserve() {
    let (step, machine) = (step(), Machine::preset("a100-80gb").unwrap());
    let profile = Profile::new(&step.training, &machine);
    let fitted = fit_graph(&step.training, &profile, &task(&machine, Budget::Share(0.9))).unwrap();
    assert_eq!(fitted.reserve, Reserve::default());
    assert_eq!(fitted.slab(), fitted.budget);
}
