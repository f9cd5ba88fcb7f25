//! Plans that move what they hold. Invariant: whatever is away between two accesses, the schedule
//! is legal, and holds on the device the bytes given by the analysis of the sequence.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.

use proptest::prelude::*;
use tightfit::analysis::Sequence;
use tightfit::check::Checked;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::{Instance, Planner};
use tightfit::profile::Profile;
use tightfit::schedule::{self, Lowering, lower};
use tightfit::units::Bytes;
use tightfit::{Goal, plan};

use crate::fixtures::generator;
use crate::fixtures::moves::{moves, with_host};

/// The checked schedule of random moves, with the peak that was expected.
fn checked(graph: &Graph, machine: Machine, block: u64, seed: u64) -> Result<(), TestCaseError> {
    let mut random = fastrand::Rng::with_seed(seed);
    let profile = Profile::new(graph, &with_host(machine, 1e6, block));
    let order = plan::base_order(graph, &profile);
    let instance = Instance::new(graph, &profile, &order);
    // Sometimes with recomputations.
    let budget = Bytes(instance.peak(&order).0 / 100 * random.u64(60..110));
    let runs = plan::plan(instance, budget, Planner::Capuchin);
    let runs = runs.map_or(order.clone(), |plan| plan.runs());
    let moves = moves(graph, &runs, &mut |below| random.u64(0..below));
    let plan = instance.plan(Planner::None, Sequence::with_moves(&runs, &moves));
    prop_assert_eq!(plan.sequence.moves(), &moves[..]);
    let schedule = lower(graph, &profile, &plan, &Lowering::to(Goal::Smallest));
    let text = schedule::write(graph, &schedule).to_string();
    prop_assert_eq!(&schedule::read(graph, text.as_bytes()).unwrap(), &schedule);
    let checked = Checked::new(graph, &profile, schedule);
    let checked = checked.map_err(|violation| TestCaseError::fail(violation.to_string()))?;
    if block == 1 {
        prop_assert!(checked.timeline().peak <= plan.peak);
    }
    Ok(())
}

proptest! {
    #![proptest_config(tightfit_testing::config(256))]

    #[test]
    fn what_moves_is_legal(graph in generator::graphs(12), seed in any::<u64>()) {
        for machine in generator::machines() {
            checked(&graph, machine.clone(), 1, seed)?;
            checked(&graph, machine, 4096, seed)?;
        }
    }
}
