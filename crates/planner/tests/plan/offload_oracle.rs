//! Plans that move what they hold against the oracle, on graphs small enough for the exact answer.
//! Invariant: no plan is faster than the oracle, no bound and no proof of a refusal is above it,
//! and the oracle's own answer is a schedule that passes the checker and takes as long as it says.
//! How often plans are as fast as it is printed.
//!
//! With `PROPTEST_CASES=1000` it takes some twenty minutes in a release build, and with
//! `--nocapture` it prints in full the cases that are worse. `TIGHTFIT_FIRST_CASE=n` begins there.
//!
//! Tier: quick with a part of the cases, 5 s; full with all of them.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use tightfit::analysis::Sequence;
use tightfit::check::held;
use tightfit::effort::Effort;
use tightfit::graph::Graph;
use tightfit::id::{BufferId, DEVICE};
use tightfit::machine::Machine;
use tightfit::plan;
use tightfit::profile::Profile;
use tightfit::schedule::{Instruction, Lifetime, Schedule, Shelf, pack};
use tightfit::units::{Bytes, Seconds};
use tightfit::{FitError, Fitted, Goal, Request, fit};

use crate::fixtures::generator::dag;
use crate::fixtures::generator::small_steps::{self, UNIT};
use crate::fixtures::moves::with_host;
use crate::fixtures::oracle::with_moves::{
    Optimum, fastest_all_ways, fastest_in_order, fastest_with_moves, speaks_of,
};

/// Rates of the lanes out and back, in units a second, and their latency in seconds: from lanes
/// that hide little to lanes that hide nearly everything.
const LANES: [(f64, f64, f64); 5] =
    [(2.0, 2.0, 0.0), (4.0, 4.0, 0.0), (4.0, 2.0, 0.0), (8.0, 8.0, 0.25), (1.0, 1.0, 0.0)];
/// Number of budgets between the largest working set and the unplanned peak.
const BUDGETS: u64 = 5;
const ROUNDING: f64 = 1e-9;

struct Case {
    seed: u64,
    graph: Graph,
    profile: Profile,
    budget: u64,
}

fn case(seed: u64) -> Option<Case> {
    let graph = if is_dag(seed) {
        let freedoms = dag::Freedoms { writes: false, uneven: false };
        small_steps::in_units(&dag::graph(seed, 7, freedoms))
    } else {
        small_steps::graph(seed)
    };
    let profile = Profile::new(&graph, &machine(LANES[(seed / 3) as usize % LANES.len()]));
    if graph.compute_nodes().is_empty() || !speaks_of(&graph, &profile) || !is_read(&graph) {
        return None;
    }
    let order = graph.compute_nodes();
    let peak = plan::simulate(&graph, &profile, &Sequence::from(&order)).curve.peak.0;
    let least = working_set(&graph, &profile);
    let budget = least + peak.saturating_sub(least) * (seed / 15 % BUDGETS) / BUDGETS;
    (budget < peak).then_some(Case { seed, graph, profile, budget })
}

/// Whether a case is a graph of no particular shape; the others are training steps.
fn is_dag(seed: u64) -> bool {
    seed.is_multiple_of(4)
}

/// Whether everything that a step begins with is read.
fn is_read(graph: &Graph) -> bool {
    let nodes = graph.compute_nodes();
    let reads = |storage| nodes.iter().any(|&node| graph.reads(node).contains(&storage));
    graph.placeholder_storages().all(|(_, storage)| reads(storage))
}

fn machine((out, back, latency): (f64, f64, f64)) -> Machine {
    let mut machine = with_host(Machine::preset("a100-80gb").unwrap(), 1.0, UNIT);
    for (lane, rate) in machine.hierarchy.lanes.values_mut().zip([out, back]) {
        lane.link.bandwidth = rate * UNIT as f64;
        lane.link.latency = Seconds(latency);
    }
    machine
}

/// The largest working set of one node.
fn working_set(graph: &Graph, profile: &Profile) -> u64 {
    let of = |node| {
        let storages = graph.reads(node).iter().chain(graph.fresh(node));
        let bytes: u64 = storages.map(|&storage| graph.storages()[storage].0).sum();
        bytes + profile.workspace[node].0
    };
    graph.compute_nodes().into_iter().map(of).max().unwrap_or(0)
}

impl Case {
    /// The oracle's answer is legal, and takes as long as it says.
    fn judge(&self, optimum: &Optimum) {
        let Case { seed, graph, profile, budget } = self;
        let schedule = optimum.schedule(graph, profile);
        let timeline = held(graph, profile, &schedule, Bytes(*budget))
            .unwrap_or_else(|violation| panic!("case {seed}: {violation}"));
        assert!(
            (timeline.seconds.0 - optimum.seconds).abs() <= ROUNDING * optimum.seconds,
            "case {seed}: the oracle says {} s, the timeline {:?}\n{}",
            optimum.seconds,
            timeline.seconds,
            optimum.words(graph, profile)
        );
    }

    /// The plan is not faster than the oracle, and what it claims is true.
    fn compare(&self, optimum: Option<&Optimum>, plan: &Result<Fitted, FitError>) -> Verdict {
        let seed = self.seed;
        match (optimum, plan) {
            (None, Ok(_)) => panic!("case {seed}: a plan where the oracle has none"),
            (None, Err(_)) => Verdict::Equal,
            (Some(_), Err(error)) => {
                let proof = error.infeasible();
                let proof = proof.unwrap_or_else(|| panic!("case {seed}: {error}"));
                let needed = proof.needed.0;
                assert!(needed <= self.budget, "case {seed}: {needed} bytes are not needed");
                Verdict::Refused
            }
            (Some(optimum), Ok(fitted)) => {
                let seconds = fitted.timeline().seconds.0;
                assert!(
                    seconds >= optimum.bound * (1.0 - ROUNDING),
                    "case {seed}: a plan of {seconds} s, though nothing is below {} s",
                    optimum.bound
                );
                let bound = fitted.bound().map_or(0.0, |bound| bound.seconds.0);
                assert!(
                    bound <= optimum.seconds * (1.0 + ROUNDING),
                    "case {seed}: {bound} s is no bound: {} s",
                    optimum.seconds
                );
                match seconds <= optimum.seconds * (1.0 + ROUNDING) {
                    true => Verdict::Equal,
                    false => Verdict::Slower(seconds / optimum.seconds.max(ROUNDING) - 1.0),
                }
            }
        }
    }

    /// Seconds of the fastest step whose first runs come in an order from which planners may start;
    /// `None` if that is not known.
    fn least_in_order(&self) -> Option<f64> {
        let Case { graph, profile, budget, .. } = self;
        let orders = [graph.compute_nodes(), plan::base_order(graph, profile)];
        let seconds = orders.iter().map(|order| {
            let optimum = fastest_in_order(graph, profile, *budget, order).ok()?;
            Some(optimum.map_or(f64::INFINITY, |optimum| optimum.seconds))
        });
        seconds.collect::<Option<Vec<f64>>>()?.into_iter().min_by(f64::total_cmp)
    }

    /// Everything relevant about the case, as text.
    fn words(&self) -> String {
        let Case { seed, graph, profile, budget } = self;
        let mut text = format!("case {seed}: budget {}", budget / UNIT);
        for lane in profile.hierarchy.lanes.values() {
            let rate = lane.link.bandwidth / UNIT as f64;
            write!(text, ", lane {rate}/s + {} s", lane.link.latency.0).unwrap();
        }
        let name = |storage| graph.producer(storage).map_or("?", |node| &graph.nodes()[node].name);
        for (id, node) in graph.nodes() {
            let reads: Vec<&str> = graph.reads(id).iter().map(|&storage| name(storage)).collect();
            let makes: Vec<String> = graph
                .fresh(id)
                .iter()
                .map(|&storage| {
                    let bytes = graph.storages()[storage].0 as f64 / UNIT as f64;
                    format!("{bytes}{}", if graph.is_kept(storage) { " kept" } else { "" })
                })
                .collect();
            let writes: Vec<&str> =
                graph.mutated(id).iter().map(|&storage| name(storage)).collect();
            write!(
                text,
                "\n  {} {} s, workspace {}",
                node.name,
                profile.seconds[id].0,
                profile.workspace[id].0 / UNIT
            )
            .unwrap();
            write!(text, ", reads {reads:?}, makes {makes:?}, writes {writes:?}").unwrap();
        }
        text
    }

    fn instructions(&self, schedule: &Schedule) -> String {
        let graph = &self.graph;
        let mut lies = BTreeMap::new();
        for &(node, buffer) in &schedule.placeholders {
            lies.insert(buffer, graph.nodes()[node].name.clone());
        }
        for transfer in schedule.crossing() {
            let [from, to] = transfer.movement.buffers();
            let name = lies.get(&from).cloned().unwrap_or_default();
            lies.insert(to, name);
        }
        let mut text = String::new();
        for instruction in &schedule.instructions {
            let line = match instruction {
                Instruction::Run(call) | Instruction::Recompute(call) => {
                    let name = &graph.nodes()[call.node].name;
                    for &output in &call.outputs {
                        lies.insert(output, name.clone());
                    }
                    format!("{} {name}", instruction.verb())
                }
                Instruction::Free(buffer) => format!("    free {}", lies[buffer]),
                Instruction::Start(transfer) => {
                    let [from, to] = transfer.movement.buffers();
                    let name = lies[&from].clone();
                    lies.insert(to, name.clone());
                    let way = if transfer.lane.as_u32() == 0 { "out" } else { "back" };
                    format!("    {} {way} {name}", transfer.id)
                }
                Instruction::Wait(id) => format!("    wait {id}"),
            };
            text += &format!("  {line}\n");
        }
        text
    }
}

/// A plan compared with the oracle.
#[derive(Clone, Copy, PartialEq)]
enum Verdict {
    Equal,
    /// Slower, by this share of the optimum.
    Slower(f64),
    /// Refused, although there is a step that holds no more.
    Refused,
}

/// Whether what an optimum holds has addresses within a budget. Whatever is on the device at both
/// ends of the step has the same address there.
fn packs(schedule: &Schedule, budget: u64) -> bool {
    let lives = lives(schedule);
    let end = lives.iter().map(|(_, life)| life.last).max().unwrap_or(0);
    let ends = |index: usize, is_end: &dyn Fn(&Lifetime) -> bool| {
        let (buffer, _) = lives[index];
        let same = |&other: &usize| lives[other].0 == buffer && is_end(&lives[other].1);
        (0..lives.len()).find(same)
    };
    let pairs: Vec<[usize; 2]> = (0..lives.len())
        .filter(|&first| lives[first].1.first == 0 && lives[first].1.last < end)
        .filter_map(|first| Some([first, ends(first, &|life| life.last == end)?]))
        .collect();
    let lives: Vec<Lifetime> = lives.into_iter().map(|(_, life)| life).collect();
    packs_around(&lives, &pairs, &mut vec![None; lives.len()], budget)
}

/// The same if the remaining pairs have one address each, whichever it is.
fn packs_around(
    lives: &[Lifetime],
    pairs: &[[usize; 2]],
    fixed: &mut Vec<Option<u64>>,
    budget: u64,
) -> bool {
    let Some((&[first, last], rest)) = pairs.split_first() else {
        let (floor, alignment, enough) = (0, UNIT, Bytes::ZERO);
        let shelf = Shelf { fixed, floor, alignment, goal: Goal::Within(Bytes(budget)), enough };
        return pack(lives, &shelf, &Effort::work(1, 20_000)).end.0 <= budget;
    };
    let bytes = lives[first].bytes.0;
    (0..=budget.saturating_sub(bytes) / UNIT).any(|unit| {
        let meets = |&(other, at): &(usize, u64)| {
            let (a, b) = (&lives[other], at + lives[other].bytes.0);
            let together = |c: &Lifetime| a.first <= c.last && c.first <= a.last;
            let overlap = unit * UNIT < b && at < unit * UNIT + bytes;
            overlap && (together(&lives[first]) || together(&lives[last]))
        };
        let placed: Vec<(usize, u64)> =
            fixed.iter().enumerate().filter_map(|(i, at)| Some((i, (*at)?))).collect();
        if placed.iter().any(meets) {
            return false;
        }
        (fixed[first], fixed[last]) = (Some(unit * UNIT), Some(unit * UNIT));
        let found = packs_around(lives, rest, fixed, budget);
        (fixed[first], fixed[last]) = (None, None);
        found
    })
}

/// When everything on the device is held, by instruction; workspaces too.
fn lives(schedule: &Schedule) -> Vec<(BufferId, Lifetime)> {
    let mut held = BTreeMap::new();
    let mut lives = Vec::new();
    let is_here = |buffer: BufferId| schedule.buffers[buffer].tier == DEVICE;
    let mut end = 0;
    for &(_, buffer) in schedule.placeholders.iter().filter(|&&(_, buffer)| is_here(buffer)) {
        held.insert(buffer, 0);
    }
    for transfer in schedule.crossing() {
        let to = transfer.movement.target();
        if is_here(to) {
            held.insert(to, 0);
        }
    }
    let life = |buffer, first, last| {
        (buffer, Lifetime { first, last, bytes: schedule.buffers[buffer].bytes })
    };
    for (at, instruction) in (1..).zip(&schedule.instructions) {
        end = at;
        match instruction {
            Instruction::Run(call) | Instruction::Recompute(call) => {
                for &output in &call.outputs {
                    held.entry(output).or_insert(at);
                }
                lives.extend(call.workspace.map(|workspace| life(workspace, at, at)));
            }
            Instruction::Free(buffer) => {
                if let Some(first) = held.remove(buffer) {
                    lives.push(life(*buffer, first, at - 1));
                }
            }
            Instruction::Start(transfer) => {
                let to = transfer.movement.target();
                if is_here(to) {
                    held.insert(to, at);
                }
            }
            Instruction::Wait(_) => {}
        }
    }
    lives.extend(held.into_iter().map(|(buffer, first)| life(buffer, first, end)));
    lives
}

/// The cases of a test, in the order of their numbers.
fn cases(count: u32) -> impl Iterator<Item = Case> {
    let first = std::env::var("TIGHTFIT_FIRST_CASE").map_or(0, |first| first.parse().unwrap());
    let count = tightfit_testing::cases(count) as usize;
    (first..).filter_map(case).take(count)
}

/// Results of plans for one kind of graph.
#[derive(Default)]
struct Tally {
    equal: usize,
    /// The shares of the optimum by which the others are slower.
    slower: Vec<f64>,
    refused: usize,
    /// Of those that are not equal, the number that are as fast as any step whose first runs come
    /// in the order of the program, or in the one that planners start from.
    equal_in_order: usize,
    /// Of those that are not equal, the number of optima for which no addresses are found within
    /// the budget.
    without_addresses: usize,
    too_large: usize,
}

impl Tally {
    fn count(&self) -> usize {
        self.equal + self.slower.len() + self.refused
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { equal, slower, refused, equal_in_order, without_addresses, too_large } = self;
        let mean = 100.0 * slower.iter().sum::<f64>() / slower.len().max(1) as f64;
        let worst = 100.0 * slower.iter().copied().fold(0.0, f64::max);
        write!(
            f,
            "{} with an optimum ({too_large} are too large): {equal} equal, {} where first runs \
             come in order; {} slower (mean {mean:.1} %, worst {worst:.1} %), {refused} refused; \
             for {without_addresses} of the optima that were not reached no addresses are found",
            self.count(),
            equal + equal_in_order,
            slower.len(),
        )
    }
}

#[test]
fn no_plan_beats_the_oracle() {
    let mut tallies = [Tally::default(), Tally::default()];
    for case in cases(8) {
        let Case { seed, graph, profile, budget } = &case;
        let tally = &mut tallies[usize::from(is_dag(*seed))];
        let Ok(optimum) = fastest_with_moves(graph, profile, *budget) else {
            tally.too_large += 1;
            continue;
        };
        let effort = Effort::work(1, 100_000);
        let request = Request { effort, ..Request::within(Bytes(*budget)) };
        let plan = fit(graph, profile, &request);
        let verdict = case.compare(optimum.as_ref(), &plan);
        let Some(optimum) = optimum else { continue };
        case.judge(&optimum);
        match verdict {
            Verdict::Equal => {
                tally.equal += 1;
                continue;
            }
            Verdict::Slower(share) => tally.slower.push(share),
            Verdict::Refused => tally.refused += 1,
        }
        let seconds = plan.as_ref().map_or(f64::INFINITY, |plan| plan.timeline().seconds.0);
        if let Some(least) = case.least_in_order() {
            tally.equal_in_order += usize::from(seconds <= least * (1.0 + ROUNDING));
        }
        let has_addresses = packs(&optimum.schedule(graph, profile), *budget);
        tally.without_addresses += usize::from(!has_addresses);
        let words = optimum.words(graph, profile);
        println!("{}\noptimum, {} s:\n{words}", case.words(), optimum.seconds);
        match plan {
            Ok(plan) => {
                let instructions = case.instructions(plan.schedule());
                println!("plan, {} s:\n{instructions}", plan.timeline().seconds.0);
            }
            Err(error) => println!("refused: {error}"),
        }
    }
    let [steps, dags] = &tallies;
    println!("steps: {steps}\nother graphs: {dags}");
    let (equal, all) = (steps.equal, steps.count());
    assert!(equal * 3 >= all, "{equal} of {all} plans of steps are as fast as the oracle");
}

#[test]
fn shortcuts_miss_nothing() {
    for case in cases(3) {
        let Case { seed, graph, profile, budget } = &case;
        let all = fastest_all_ways(graph, profile, *budget);
        let (Ok(all), Ok(some)) = (all, fastest_with_moves(graph, profile, *budget)) else {
            continue;
        };
        let seconds = |optimum: Option<Optimum>| optimum.map(|optimum| optimum.seconds);
        assert_eq!(seconds(all), seconds(some), "case {seed}");
    }
}
