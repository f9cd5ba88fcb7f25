//! The budget planner against the exact answer, on graphs so small that every order and every
//! recomputation can be tried. Invariant: its bound is below every legal schedule, its plans are
//! what they claim to be, and where nothing takes over memory they are the fastest; how often all
//! others are optimal, and the bound is, is printed, not asserted.
//!
//! Tier: quick with a part of the cases, 4 s; full with all of them.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tightfit::analysis::Sequence;
use tightfit::effort::Effort;
use tightfit::graph::Graph;
use tightfit::id::NodeId;
use tightfit::plan::{self, BoundOrder, Instance, Search};
use tightfit::profile::Profile;
use tightfit::units::Bytes;
use tightfit_testing::either;

use crate::fixtures::generator::dag::{self, Freedoms};
use crate::fixtures::oracle::any_order::{fastest_any_order, least_budget_any_order};
use crate::fixtures::{generator, oracle};

/// Counts of outcomes over all budgets of all graphs.
#[derive(Debug, Default)]
#[allow(dead_code)] // read by `Debug`
struct Tally {
    budgets: usize,
    infeasible: usize,
    proven_infeasible: usize,
    feasible: usize,
    /// Of those, the cases in which something must run again.
    costs: usize,
    bound_is_optimum: usize,
    plan_is_optimum: usize,
    no_plan: usize,
    /// Of those, the cases with a plan in the given order.
    no_plan_in_order: usize,
    /// Plans that are faster than any in the given order.
    beats_order: usize,
    /// Cases in which the bound of the given order equals the optimum in that order.
    order_bound_is_optimum: usize,
    /// Plans that another one in the given order beats.
    beaten_in_order: usize,
    /// Sums over all feasible budgets with a plan of the time beyond running everything once.
    bound: f64,
    optimum: f64,
    plan: f64,
}

const SLACK: f64 = 1e-9;

/// Budgets from below the least one to the unplanned peak.
fn budgets(least: u64, unplanned: u64) -> Vec<u64> {
    let span = unplanned.saturating_sub(least);
    let mut budgets: Vec<u64> =
        (0..=5).map(|i| least + span * i / 5).chain([least.saturating_sub(1), least / 2]).collect();
    budgets.sort_unstable();
    budgets.dedup();
    budgets
}

/// Checks everything that an answer promises, at several budgets in falling order.
fn answers_are_true(
    graph: &Graph,
    profile: &Profile,
    order: &[NodeId],
    tally: &mut Tally,
) -> Result<(), String> {
    let unplanned = plan::simulate(graph, profile, &Sequence::from(order)).curve.peak.0;
    let least = least_budget_any_order(graph, profile, unplanned);
    let once: f64 = profile.total(order).0;
    let mut search = Search::new(Instance::new(graph, profile, order));
    let budgets: Vec<(u64, Option<f64>)> = budgets(least, unplanned)
        .into_iter()
        .rev()
        .map(|budget| (budget, fastest_any_order(graph, profile, budget)))
        .collect();
    for &(budget, optimum) in &budgets {
        let at = |what: String| {
            format!("budget {budget} (least {least}, unplanned {unplanned}): {what}")
        };
        let answer = search.plan(Bytes(budget), &Effort::work(1, 20_000));
        match (answer.bound, optimum) {
            (None, Some(optimum)) => {
                return Err(at(format!("said to be infeasible, but {optimum} s are possible")));
            }
            (Some(bound), Some(optimum)) if bound.0 > optimum * (1.0 + SLACK) => {
                return Err(at(format!("bound {} s, but {optimum} s are possible", bound.0)));
            }
            _ => {}
        }
        tally.budgets += 1;
        let Some(optimum) = optimum else {
            tally.infeasible += 1;
            tally.proven_infeasible += usize::from(answer.bound.is_none());
            if answer.plan.is_some() {
                return Err(at("a plan where no schedule fits".to_string()));
            }
            continue;
        };
        tally.feasible += 1;
        tally.costs += usize::from(optimum > once * (1.0 + SLACK));
        let bound = answer.bound.unwrap().0;
        tally.bound_is_optimum += usize::from(bound >= optimum * (1.0 - SLACK));
        let in_order = oracle::fastest(graph, profile, order, budget).map(|cost| cost.seconds);
        let effort = Effort::work(1, 20_000);
        let given = plan::lower_bound(
            Instance::new(graph, profile, order),
            BoundOrder::Given,
            Bytes(budget),
            &[],
            &effort,
        );
        if in_order
            .is_some_and(|in_order| given.is_none_or(|given| given.0 > in_order * (1.0 + SLACK)))
        {
            return Err(at(format!(
                "bound in the given order {given:?}, but {in_order:?} s are possible"
            )));
        }
        let is_tight = in_order
            .zip(given)
            .is_some_and(|(in_order, given)| given.0 >= in_order * (1.0 - SLACK));
        tally.order_bound_is_optimum += usize::from(is_tight);
        let Some(plan) = answer.plan else {
            tally.no_plan += 1;
            tally.no_plan_in_order += usize::from(in_order.is_some());
            continue;
        };
        let cost = oracle::replay(graph, profile, &plan.runs()).map_err(at)?;
        let simulated = plan::simulate(graph, profile, &plan.sequence);
        if cost.peak > budget
            || simulated.curve.peak.0 != cost.peak
            || (simulated.seconds.0 - cost.seconds).abs() > SLACK * cost.seconds
        {
            return Err(at(format!(
                "replayed {cost:?}, simulated {} bytes in {} s",
                simulated.curve.peak.0, simulated.seconds.0
            )));
        }
        if cost.seconds < optimum * (1.0 - SLACK) {
            return Err(at(format!(
                "the plan takes {} s: less than the optimum, {optimum} s",
                cost.seconds
            )));
        }
        tally.plan_is_optimum += usize::from(cost.seconds <= optimum * (1.0 + SLACK));
        tally.beats_order +=
            usize::from(in_order.is_none_or(|in_order| cost.seconds < in_order * (1.0 - SLACK)));
        tally.beaten_in_order +=
            usize::from(in_order.is_some_and(|in_order| cost.seconds > in_order * (1.0 + SLACK)));
        tally.bound += bound - once;
        tally.optimum += optimum - once;
        tally.plan += cost.seconds - once;
    }
    // What was learnt at one budget holds in general.
    for &(budget, optimum) in &budgets {
        let bound = search.bound(Bytes(budget));
        if optimum
            .is_some_and(|optimum| bound.is_none_or(|bound| bound.0 > optimum * (1.0 + SLACK)))
        {
            return Err(format!(
                "budget {budget}: {bound:?} by all cuts, but {optimum:?} is possible"
            ));
        }
    }
    match search.least_budget() {
        Bytes(claimed) if claimed > least => {
            Err(format!("no schedule is said to need less than {claimed}, but {least} suffice"))
        }
        _ => Ok(()),
    }
}

fn is_small(graph: &Graph) -> bool {
    let droppable = graph.storages().keys().filter(|&storage| !graph.is_kept(storage)).count();
    graph.compute_nodes().len() <= 10 && droppable <= 14
}

/// A plan holds a batch that is not read until the first node has run; a schedule may free it
/// before. If there is one, plans miss budgets for that reason alone.
fn has_unread_batch(graph: &Graph) -> bool {
    let is_read = |storage| {
        graph.compute_nodes().into_iter().any(|node| graph.reads(node).contains(&storage))
    };
    graph.placeholder_storages().any(|(_, storage)| !graph.is_kept(storage) && !is_read(storage))
}

/// The failing case, as text.
fn describe(graph: &Graph, profile: &Profile) -> String {
    let mut text = format!("in place: {}\n", profile.reuse.is_any());
    for (id, node) in graph.nodes() {
        let value = |&value: &tightfit::id::ValueId| {
            let v = &graph.values()[value];
            let kept = if graph.is_kept(v.storage) { " kept" } else { "" };
            format!("{}[{} B v{}{kept}]", v.storage, graph.storages()[v.storage].0, v.version)
        };
        let inputs: Vec<String> = node.inputs.iter().map(value).collect();
        let outputs: Vec<String> = node.outputs.iter().flatten().map(value).collect();
        let (seconds, workspace) = (profile.seconds[id].0, profile.workspace[id].0);
        text += &format!(
            "  {} {} ({seconds} s, workspace {workspace}): {inputs:?} -> {outputs:?}\n",
            node.name,
            node.phase.name()
        );
    }
    text
}

/// Returns what happened where nothing takes over memory and every batch is read.
fn all_answers_are_true(what: &str, graphs: impl Iterator<Item = (String, Graph)>) -> Tally {
    let mut tallies = [Tally::default(), Tally::default()];
    let mut with_unread = Tally::default();
    let (mut count, mut failures) = (0, Vec::new());
    for (name, graph) in graphs.filter(|(_, graph)| is_small(graph)) {
        count += 1;
        for profile in generator::profiles(&graph) {
            let order = plan::base_order(&graph, &profile);
            let tally = if has_unread_batch(&graph) {
                &mut with_unread
            } else {
                &mut tallies[usize::from(profile.reuse.is_any())]
            };
            if let Err(why) = answers_are_true(&graph, &profile, &order, tally) {
                failures.push((
                    graph.compute_nodes().len(),
                    format!("{name}: {why}\n{}", describe(&graph, &profile)),
                ));
            }
        }
    }
    println!(
        "{what}, {count} graphs\nseparate: {:?}\nin place: {:?}\nwith a batch that nothing reads: \
         {with_unread:?}",
        tallies[0], tallies[1]
    );
    failures.sort_by_key(|(nodes, _)| *nodes);
    let shown: Vec<&str> = failures.iter().take(3).map(|(_, text)| text.as_str()).collect();
    assert!(
        failures.is_empty(),
        "{} failures; the smallest:\n{}",
        failures.len(),
        shown.join("\n")
    );
    let [separate, _] = tallies;
    separate
}

/// The same, and every plan is the fastest of all schedules.
fn all_plans_are_optimal(what: &str, graphs: impl Iterator<Item = (String, Graph)>) {
    let tally = all_answers_are_true(what, graphs);
    assert_eq!(tally.plan_is_optimum, tally.feasible, "{what}");
}

fn dags(count: u64, most: usize, freedoms: Freedoms) -> impl Iterator<Item = (String, Graph)> {
    (0..count).map(move |seed| (format!("seed {seed}"), dag::graph(seed, most, freedoms)))
}

#[test]
fn answers_are_true_of_plain_graphs() {
    all_plans_are_optimal(
        "plain",
        dags(either(400, 1500), 9, Freedoms { writes: false, uneven: false }),
    );
}

#[test]
fn answers_are_true_where_storages_are_written() {
    all_answers_are_true(
        "written",
        dags(either(250, 1000), 8, Freedoms { writes: true, uneven: false }),
    );
}

#[test]
fn answers_are_true_where_sizes_differ() {
    all_answers_are_true(
        "uneven",
        dags(either(250, 1000), 8, Freedoms { writes: true, uneven: true }),
    );
}

#[test]
fn answers_are_true_where_branches_are_alike() {
    all_plans_are_optimal(
        "alike",
        (0..either(250, 1000)).map(|seed| (format!("seed {seed}"), dag::branches(seed))),
    );
}

#[test]
fn answers_are_true_of_training_steps() {
    let mut runner = TestRunner::new(tightfit_testing::config(1));
    let recipes = generator::recipes(3);
    all_plans_are_optimal(
        "steps",
        (0..either(400, 1500)).map(|case| {
            (format!("case {case}"), recipes.new_tree(&mut runner).unwrap().current().graph())
        }),
    );
}
