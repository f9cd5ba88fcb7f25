//! Explanations of Capuchin's plans, on random graphs and both kinds of machine. Invariant: an
//! explanation is judged by replaying it, and by the plan that it explains.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.

use proptest::prelude::*;
use tightfit::analysis::Sequence;
use tightfit::effort::Effort;
use tightfit::graph::Graph;
use tightfit::id::NodeId;
use tightfit::plan::published::capuchin::{Explanation, Rule, explain};
use tightfit::plan::{self, Instance, PlanError, Planner, Retentions, rematerialize, simulate};
use tightfit::profile::Profile;
use tightfit::units::Bytes;
use tightfit::{FitError, Goal, Request};

use crate::fixtures::generator;

const MOST_LAYERS: usize = 24;

/// A rule of the planner that has to save `need` bytes of the peak.
fn rule(planner: Planner, unplanned: Bytes, need: Bytes) -> Rule {
    match planner {
        Planner::CapuchinPublished => Rule::Published { need },
        _ => Rule::Ours { budget: unplanned.saturating_sub(need) },
    }
}

/// Peaks and seconds of the choices are those of the sequences that they make.
fn replays(
    graph: &Graph,
    profile: &Profile,
    order: &[NodeId],
    explanation: &Explanation,
) -> Result<(), TestCaseError> {
    let (mut retentions, mut runs) = (Retentions::new(), order.to_vec());
    let mut peak = simulate(graph, profile, &Sequence::from(order)).curve.peak;
    prop_assert_eq!(explanation.unplanned_peak, peak);
    for choice in &explanation.choices {
        retentions[choice.node] = choice.retention;
        runs = rematerialize(graph, order, &retentions);
        let after = simulate(graph, profile, &Sequence::from(&runs));
        prop_assert_eq!((choice.peak_before, choice.peak), (peak, after.curve.peak));
        prop_assert_eq!(choice.step, after.seconds);
        peak = after.curve.peak;
    }
    prop_assert_eq!(explanation.peak(), peak);
    prop_assert_eq!(&explanation.runs, &runs);
    Ok(())
}

proptest! {
    #![proptest_config(tightfit_testing::config(150))]

    /// With addresses too: if they take more than the budget, the planner is asked for less.
    #[test]
    fn a_plan_is_what_its_explanation_ends_with(
        recipe in generator::recipes(MOST_LAYERS),
        part in 0.5..1.0f64,
    ) {
        let graph = recipe.graph();
        for profile in generator::profiles(&graph) {
            let order = plan::base_order(&graph, &profile);
            let instance = Instance::new(&graph, &profile, &order);
            let unplanned = simulate(&graph, &profile, &Sequence::from(&order)).curve.peak;
            let budget = Bytes((unplanned.0 as f64 * part) as u64);
            for planner in [Planner::Capuchin, Planner::CapuchinPublished] {
                for goal in [Goal::Within(budget), Goal::Smallest] {
                    let effort = Effort::work(1, 3_000);
                    let request = Request { goal, planner, effort, ..Request::default() };
                    let Ok(fitted) = tightfit::fit(&graph, &profile, &request) else { continue };
                    let schedule = fitted.schedule();
                    prop_assert_eq!(&schedule.planner, planner.name());
                    let runs = schedule.runs();
                    let need = unplanned.saturating_sub(schedule.slab);
                    let rule = rule(planner, unplanned, need);
                    let explanation = explain(instance, rule, Some(&runs));
                    prop_assert_eq!(&explanation.runs, &runs);
                    prop_assert_eq!(explanation.peak(), fitted.timeline().peak);
                    replays(&graph, &profile, &order, &explanation)?;
                }
            }
        }
    }

    /// A refusal of the published rule says what was predicted and what happens, and names the next
    /// budget at which both agree.
    #[test]
    fn the_published_rule_is_refused_where_it_is_wrong(
        recipe in generator::recipes(MOST_LAYERS),
        part in 0.0..1.0f64,
    ) {
        let graph = recipe.graph();
        for profile in generator::profiles(&graph) {
            let order = plan::base_order(&graph, &profile);
            let instance = Instance::new(&graph, &profile, &order);
            let unplanned = simulate(&graph, &profile, &Sequence::from(&order)).curve.peak;
            let plan = |budget| {
                plan::plan(instance, budget, Planner::CapuchinPublished)
            };
            let budget = Bytes((unplanned.0 as f64 * part) as u64);
            let need = unplanned - budget;
            let explanation = explain(instance, Rule::Published { need }, None);
            replays(&graph, &profile, &order, &explanation)?;
            let last = explanation.choices.last();
            let remaining = last.map_or(need, |last| last.remaining.unwrap());
            match plan(budget) {
                Ok(plan) => {
                    prop_assert!(remaining == Bytes::ZERO && explanation.peak() <= budget);
                    prop_assert_eq!(plan.runs(), explanation.runs);
                }
                Err(PlanError::Infeasible(proof)) => {
                    prop_assert!(remaining > Bytes::ZERO || explanation.peak() > budget);
                    let said = proof.prediction.unwrap();
                    prop_assert_eq!((said.need, said.choices), (need, explanation.choices.len()));
                    let predicted = last.map_or(unplanned, |last| last.predicted.unwrap());
                    let said = (said.predicted, said.simulated);
                    prop_assert_eq!(said, (predicted, explanation.peak()));
                    prop_assert!(proof.needed <= proof.reached && budget < proof.reached);
                    prop_assert_eq!(plan(proof.reached).unwrap().runs(), proof.plan.runs());
                    let less = proof.reached - Bytes(1);
                    prop_assert!(plan(less).is_err());
                }
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
    }

    /// No other plan replaces a refused one, whatever happens to fit.
    #[test]
    fn a_refusal_of_the_published_rule_stays_one(recipe in generator::recipes(MOST_LAYERS)) {
        let graph = recipe.graph();
        for profile in generator::profiles(&graph) {
            let order = plan::base_order(&graph, &profile);
            let instance = Instance::new(&graph, &profile, &order);
            let unplanned = simulate(&graph, &profile, &Sequence::from(&order)).curve.peak;
            for part in [0.9, 0.7, 0.5] {
                let budget = Bytes((unplanned.0 as f64 * part) as u64);
                let planner = Planner::CapuchinPublished;
                let refused = plan::plan(instance, budget, planner).is_err();
                let effort = Effort::work(1, 3_000);
                let goal = Goal::Within(budget);
                let request = Request { goal, planner, effort, ..Request::default() };
                match tightfit::fit(&graph, &profile, &request) {
                    Ok(_) => prop_assert!(!refused),
                    Err(FitError::Plan(PlanError::Infeasible(proof))) => {
                        prop_assert!(proof.prediction.is_some());
                        prop_assert!(proof.budget == budget && proof.reached > budget);
                    }
                    Err(error) => prop_assert!(false, "{error}"),
                }
            }
        }
    }
}
