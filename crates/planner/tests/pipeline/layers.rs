//! Where steps are cut, and how long the ranks take together.
//!
//! Tier: quick, since it takes less than a second.

use proptest::prelude::*;
use tightfit::graph::Graph;
use tightfit::id::{NodeId, SecondaryMap, StageId};
use tightfit::machine::Machine;
use tightfit::pipeline::{
    Division, Layer, Leeway, PipelineError, PipelineSchedule, at_modules, beginnings, cut_evenly,
    ends, is_within, layers, layers_beginning_with, ranks, simulate, span, together,
};
use tightfit::profile::Profile;
use tightfit::units::{Bytes, Seconds};
use tightfit::{Fitted, unplanned};

use crate::fixtures::corpus::{graph, step};

fn on_a_gpu(graph: &Graph) -> Profile {
    Profile::new(graph, &Machine::preset("a100-80gb").unwrap())
}

/// The layers at which each stage begins.
fn cuts(graph: &Graph, stages: usize) -> Vec<String> {
    let layers = layers(graph, &on_a_gpu(graph), stages).unwrap();
    let of_forward = cut_evenly(&layers, stages).unwrap();
    let stage = |layer: &Layer| of_forward[layer.nodes[0]];
    let name = |index: usize| span(graph, &layers, index..index + 1);
    for (index, layer) in layers.iter().enumerate() {
        let is_whole = layer.nodes.iter().all(|&node| of_forward[node] == stage(layer));
        assert!(is_whole, "{}", name(index));
    }
    let begins = (1..layers.len()).filter(|&at| stage(&layers[at - 1]) != stage(&layers[at]));
    let begins = begins.map(|at| format!("{} ({})", name(at), layers[at - 1].leaves));
    begins.collect()
}

#[test]
fn runs_of_layers_are_called_by_what_is_theirs_alone() {
    let names = |graph: &Graph, ends: &[usize]| {
        let layers = layers(graph, &on_a_gpu(graph), 24).unwrap();
        let ends: Vec<usize> = [0].iter().chain(ends).copied().chain([layers.len()]).collect();
        let names = ends.windows(2).map(|pair| span(graph, &layers, pair[0]..pair[1]));
        names.collect::<Vec<_>>().join("\n")
    };
    let gpt = graph("gpt2_small_b8_s512");
    expect_test::expect!["model"].assert_eq(&names(&gpt, &[]));
    expect_test::expect![[r#"
        model.transformer.wte … model.transformer.wpe
        model.transformer.h.0.ln_1 … model.transformer.h.0.attn
        model.transformer.h.0.ln_2 … model.transformer.h.2
        model.transformer.h.3 … model.transformer.h.5.attn
        model.transformer.h.5.ln_2 … model.transformer.h.5.mlp
        model.transformer.h.6 … model.lm_head"#]]
    .assert_eq(&names(&gpt, &[1, 2, 7, 12, 13]));
    expect_test::expect![[r#"
        model.conv1 … model.layer1.0
        model.layer1.1.conv1 … model.layer1.1.bn3
        model.layer1.1.relu … model.layer2.0.bn2
        model.layer2.0.relu … model.fc"#]]
    .assert_eq(&names(&graph("resnet50_b32"), &[3, 4, 9]));
}

#[test]
fn models_are_cut_between_their_blocks() {
    expect_test::expect![[r#"
        model.transformer.h.6 (10.0 MiB)
        model.transformer.ln_f (6.0 MiB)
        model.lm_head (6.0 MiB)"#]]
    .assert_eq(&cuts(&graph("gpt2_small_b8_s512"), 4).join("\n"));
    expect_test::expect![[r#"
        model.model.layers.1 (32.5 MiB)
        model.model.layers.4 (32.5 MiB)
        model.model.layers.7 (32.5 MiB)
        model.model.layers.10 (32.5 MiB)
        model.model.layers.13 (32.5 MiB)
        model.model.norm (16.0 MiB)
        model.lm_head (16.0 MiB)"#]]
    .assert_eq(&cuts(&graph("llama_1b_b2_s2048"), 8).join("\n"));
    expect_test::expect![[r#"
        model.layer1.2 (98.0 MiB)
        model.layer2.1 (49.0 MiB)
        model.layer3.1 (24.5 MiB)"#]]
    .assert_eq(&cuts(&graph("resnet50_b32"), 4).join("\n"));
}

/// Whatever is requested, layers that begin with calls are whole, in order, and can be found again.
#[test]
fn layers_begin_with_calls_of_modules() {
    for name in ["gpt2_small_b8_s512", "resnet50_b32", "llama_1b_b2_s2048"] {
        let graph = graph(name);
        for stages in [2, 7, 30] {
            let layers = layers(&graph, &on_a_gpu(&graph), stages).unwrap();
            let nodes = |layers: &[Layer]| -> Vec<NodeId> {
                layers.iter().flat_map(|layer| layer.nodes.clone()).collect()
            };
            let forward = nodes(&layers);
            let whole = at_modules(layers);
            assert_eq!(nodes(&whole), forward, "{name}");
            assert_eq!(whole[0].begins, None);
            for layer in &whole[1..] {
                let entry = layer.begins.as_ref().unwrap();
                let is_in = |&node: &NodeId| is_within(graph.module_of(node), &entry.module);
                let at = forward.iter().position(|&node| node == layer.nodes[0]).unwrap();
                let entered = (0..=at)
                    .filter(|&at| is_in(&forward[at]) && (at == 0 || !is_in(&forward[at - 1])));
                assert_eq!(entered.clone().next_back(), Some(at), "{name}: {entry:?}");
                assert_eq!(entered.count(), entry.call + 1, "{name}: {entry:?}");
            }
        }
    }
}

#[test]
fn stages_that_are_cut_by_hand_are_the_forward_pass_from_module_to_module() {
    for (name, modules) in [
        (
            "gpt2_small_b8_s512",
            ["model.transformer.h.3.mlp", "model.transformer.h.7", "model.lm_head"],
        ),
        ("resnet50_b32", ["model.layer1.1.conv2", "model.layer2", "model.fc"]),
    ] {
        let graph = graph(name);
        let begin = beginnings(&graph, &modules.map(String::from)).unwrap();
        let forward = nodes(&layers(&graph, &on_a_gpu(&graph), 1).unwrap());
        for (stages, whole) in [(4, false), (24, false), (24, true)] {
            let found = layers_beginning_with(&graph, &on_a_gpu(&graph), stages, &begin).unwrap();
            let found = if whole { at_modules(found) } else { found };
            assert_eq!(nodes(&found), forward, "{name}");
            let ends = ends(&found, &begin);
            assert_eq!((ends.len(), ends[3]), (4, found.len()), "{name}");
            for (end, module) in ends.iter().zip(modules) {
                let path = |at: usize| graph.module_of(found[at].nodes[0]);
                assert!(is_within(path(*end), module), "{name}: {module}");
                let before = found[..*end].iter().flat_map(|layer| &layer.nodes);
                let mut before = before.map(|&node| graph.module_of(node));
                assert!(!before.any(|path| is_within(path, module)), "{name}: {module}");
            }
        }
    }
}

/// All nodes of layers, in the order of the program.
fn nodes(layers: &[Layer]) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> = layers.iter().flat_map(|layer| layer.nodes.clone()).collect();
    nodes.sort();
    nodes
}

#[test]
fn there_are_as_many_stages_as_nodes_at_most() {
    let graph = step("mlp-digits");
    let forward = graph.nodes().values().filter(|node| node.phase.is_forward()).count();
    let profile = on_a_gpu(&graph);
    let finest = layers(&graph, &profile, forward).unwrap();
    assert_eq!(finest.len(), forward);
    cut_evenly(&finest, forward).unwrap();
    let error = layers(&graph, &profile, forward + 1).unwrap_err();
    assert_eq!(error, PipelineError::TooManyStages { stages: forward + 1, layers: forward });
    assert!(cut_evenly(&finest, 0).is_err());
}

proptest! {
    #[test]
    fn no_cut_is_more_even(
        times in prop::collection::vec((0u32..9, 0u64..4), 1..9),
        stages in 1usize..5,
    ) {
        let layer = |(index, &(seconds, leaves)): (usize, &(u32, u64))| Layer {
            begins: None,
            nodes: vec![NodeId::from_u32(index as u32)],
            seconds: Seconds(seconds.into()),
            leaves: Bytes(leaves),
        };
        let layers: Vec<Layer> = times.iter().enumerate().map(layer).collect();
        let Ok(of_forward) = cut_evenly(&layers, stages) else {
            prop_assert!(stages > layers.len());
            return Ok(());
        };
        let cost = |stage_of: &dyn Fn(usize) -> usize| {
            let mut seconds = vec![0.0; stages];
            let mut sent = 0;
            for (index, layer) in layers.iter().enumerate() {
                seconds[stage_of(index)] += layer.seconds.0;
                if index + 1 < layers.len() && stage_of(index) != stage_of(index + 1) {
                    sent += layer.leaves.0;
                }
            }
            (seconds.into_iter().fold(0.0, f64::max), sent)
        };
        let ours = cost(&|index| of_forward[NodeId::from_u32(index as u32)].as_u32() as usize);
        // Every way to begin a stage at some of the layers.
        for begins in 0u32..1 << (layers.len() - 1) {
            if begins.count_ones() as usize + 1 != stages {
                continue;
            }
            let theirs =
                cost(&|index| (begins & ((1 << index) - 1)).count_ones() as usize);
            prop_assert!(ours <= theirs, "{ours:?} {theirs:?}");
        }
    }
}

/// Every rank's graph without further planning, and the time of the whole step.
fn fitted(rows: &tightfit::pipeline::Rows) -> (Vec<(Graph, Fitted)>, Seconds) {
    let graph = step("gpt-nano");
    let stages = rows.placement.len();
    let machine = Machine::unmeasured_cpu(1);
    let profile = Profile::new(&graph, &machine);
    let of_forward = cut_evenly(&layers(&graph, &profile, stages).unwrap(), stages).unwrap();
    let division = Division::new(&graph, &of_forward).unwrap();
    let makespan = simulate(rows, &division.costs(&profile)).unwrap().makespan;
    let graphs = ranks(&division, rows, Leeway::OF_SENDERS).unwrap().graphs;
    let each = graphs.values().map(|graph| {
        let fitted = unplanned(graph, &Profile::new(graph, &machine)).unwrap();
        (graph.clone(), fitted)
    });
    (each.collect(), makespan)
}

#[test]
fn ranks_take_together_what_their_rows_do() {
    for (schedule, name) in PipelineSchedule::ALL {
        let rows = schedule.rows(2, 4).unwrap();
        let (fitted, simulated) = fitted(&rows);
        let pairs = || fitted.iter().map(|(graph, fitted)| (graph, fitted.timeline()));
        let times = together(pairs(), &[]).unwrap();
        let mut latest = 0.0;
        for (time, (_, timeline)) in times.values().zip(pairs()) {
            assert_eq!(time.starts.len(), timeline.calls.len());
            let busy = time.end.0 - time.waiting.0;
            assert!((busy - timeline.seconds.0).abs() < 1e-9, "{name}");
            latest = f64::max(latest, time.end.0);
        }
        // Rows do not include messages, sums and updates.
        let ratio = latest / simulated.0;
        assert!((1.0..1.5).contains(&ratio), "{name}: {ratio}");
    }
    let (mut alone, _) = fitted(&PipelineSchedule::OneFOneB.rows(2, 4).unwrap());
    alone.truncate(1);
    let pairs = alone.iter().map(|(graph, fitted)| (graph, fitted.timeline()));
    assert_eq!(together(pairs, &[]), None, "what the other one sends never comes");
}

/// A message that takes a second arrives a second later; one that is not waited for does not.
#[test]
fn messages_take_the_time_that_they_are_given() {
    let (fitted, _) = fitted(&PipelineSchedule::GPipe.rows(2, 1).unwrap());
    let pairs = || fitted.iter().map(|(graph, fitted)| (graph, fitted.timeline()));
    let end = |transfers: &[Seconds]| {
        let times = together(pairs(), transfers).unwrap();
        times.values().map(|time| time.end.0).fold(0.0, f64::max)
    };
    let at_once = end(&[]);
    assert!((end(&[Seconds(1.0); 2]) - at_once - 2.0).abs() < 0.1, "there and back");
    assert!((end(&[Seconds(0.0), Seconds(0.0)]) - at_once).abs() < 1e-12);
}

/// A graph without messages takes as long as its timeline says.
#[test]
fn one_rank_waits_for_nobody() {
    let graph = step("gpt-nano");
    let fitted = unplanned(&graph, &on_a_gpu(&graph)).unwrap();
    let times = together([(&graph, fitted.timeline())], &[]).unwrap();
    let time = times.values().next().unwrap();
    assert_eq!(time.waiting, Seconds(0.0));
    assert!((time.end.0 - fitted.timeline().seconds.0).abs() < 1e-12);
    let of_forward = SecondaryMap::with_default(StageId::from_u32(0));
    assert_eq!(
        Division::new(&graph, &of_forward).unwrap().costs(&on_a_gpu(&graph)).keys().count(),
        1
    );
}
