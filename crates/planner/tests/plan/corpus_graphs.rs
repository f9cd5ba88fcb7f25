//! The seven planning graphs: read, written, profiled and planned. Their peaks and times are facts
//! that were verified against PyTorch's own liveness and are checked to the byte.
//!
//! Tier: quick, since it takes 2 s.

use tightfit::machine::Machine;
use tightfit::plan::Planner;
use tightfit::profile::Profile;
use tightfit::units::Bytes;
use tightfit::{Goal, Request, graph, schedule};

use crate::fixtures::corpus;

/// Name, unplanned peak in bytes, static gigabytes, milliseconds on an a100-80gb.
const FACTS: [(&str, u64, f64, f64); 7] = [
    ("gpt2_small_b8_s512", 4852660744, 0.249, 35.64),
    ("gpt2_medium_b4_s1024", 8849360904, 0.710, 86.44),
    ("llama_1b_b2_s2048", 19606495368, 2.472, 198.09),
    ("bert_base_drop_b16_s512", 11745389692, 0.219, 110.08),
    ("resnet50_b32", 2877730200, 0.122, 24.08),
    ("vit_b16_b32", 2371928996, 0.183, 38.34),
    ("mobilenet_v3_large_b64", 2884439724, 0.061, 24.75),
];

#[test]
fn peaks_are_exact_and_times_within_a_thousandth() {
    let machine = Machine::preset("a100-80gb").unwrap();
    for (name, peak, static_gigabytes, milliseconds) in FACTS {
        let graph = corpus::graph(name);
        let profile = Profile::new(&graph, &machine);
        let step = tightfit::unplanned(&graph, &profile).unwrap();
        assert_eq!(step.timeline().peak, Bytes(peak), "{name}");
        let gigabytes = graph.static_bytes().0 as f64 / 1e9;
        assert!((gigabytes - static_gigabytes).abs() < 0.001, "{name}: {gigabytes} GB");
        let ratio = step.timeline().seconds.0 * 1e3 / milliseconds;
        assert!((ratio - 1.0).abs() < 1e-3, "{name}: {ratio} of the published time");
    }
}

#[test]
fn reading_what_was_written_gives_the_same_graph() {
    for (name, ..) in FACTS {
        let graph = corpus::graph(name);
        let again = graph::read(graph::write(&graph).to_string().as_bytes()).unwrap();
        assert_eq!(graph, again, "{name}");
        assert_eq!(graph.hash(), again.hash());
    }
}

#[test]
fn every_planner_meets_its_budget_on_every_graph() {
    let machine = Machine::preset("a100-80gb").unwrap();
    for (name, peak, ..) in FACTS {
        let graph = corpus::graph(name);
        let profile = Profile::new(&graph, &machine);
        for planner in [Planner::Capuchin, Planner::Chen, Planner::None] {
            let budget = Bytes(peak / 10 * 9);
            match tightfit::fit(
                &graph,
                &profile,
                &Request { goal: Goal::Within(budget), planner, ..Request::default() },
            ) {
                Ok(fitted) => {
                    assert!(
                        fitted.timeline().peak <= budget && fitted.schedule().slab <= budget,
                        "{name}"
                    );
                    let text = schedule::write(&graph, fitted.schedule()).to_string();
                    assert_eq!(
                        &schedule::read(&graph, text.as_bytes()).unwrap(),
                        fitted.schedule(),
                        "{name}"
                    );
                }
                Err(tightfit::FitError::Plan(_)) => {}
                Err(error) => panic!("{name}: {error}"),
            }
        }
    }
}

#[test]
fn planning_twice_gives_the_same_schedule() {
    let graph = corpus::graph("gpt2_small_b8_s512");
    let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
    let fit = || {
        tightfit::fit(
            &graph,
            &profile,
            &Request {
                goal: Goal::Within(Bytes(3_000_000_000)),
                planner: Planner::Auto,
                ..Request::default()
            },
        )
        .unwrap()
        .schedule()
        .clone()
    };
    assert_eq!(fit(), fit());
}

/// Steps as CUDA runs them.
const ON_CUDA: [&str; 7] = [
    "gpt2_small_b8_s512",
    "gpt2_medium_b4_s1024",
    "llama_1b_b2_s2048",
    "bert_base_b16_s512",
    "resnet50_b32",
    "vit_b16_b32",
    "mobilenet_v3_large_b64",
];

#[test]
fn steps_on_cuda_are_whole_and_fit() {
    let machine = Machine::preset("h100-80gb").unwrap();
    for name in ON_CUDA {
        let graph = corpus::graph(&format!("cuda/{name}"));
        let ops = || graph.nodes().values().map(|node| node.op.as_str());
        assert!(ops().all(|op| !op.contains("_for_cpu")), "{name}");
        let attends = !["resnet50_b32", "mobilenet_v3_large_b64"].contains(&name);
        let is_flash = |op: &str| op.starts_with("aten._scaled_dot_product_flash_attention.");
        assert_eq!(ops().any(is_flash), attends, "{name}");
        assert!(ops().any(|op| op == "tightfit.adamw"), "{name}");
        let profile = Profile::new(&graph, &machine);
        let unplanned = tightfit::unplanned(&graph, &profile).unwrap();
        // Parameters and their state stay, so a share of the rest is requested.
        let rest = unplanned.timeline().peak - graph.static_bytes();
        let budget = graph.static_bytes() + Bytes(rest.0 / 10 * 8);
        let request = Request { goal: Goal::Within(budget), ..Request::default() };
        let fitted = tightfit::fit(&graph, &profile, &request).unwrap();
        assert!(fitted.timeline().peak <= budget && fitted.schedule().slab <= budget, "{name}");
    }
}
