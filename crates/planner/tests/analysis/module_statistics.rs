//! Statistics of modules, measured on graphs. Invariant: the oracle states the definitions of
//! `doc/theory/modules.md` set by set and shares no code with what it judges.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.

use std::collections::BTreeSet;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use tightfit::analysis::modules::{ModuleInfo, ModuleStats, measure};
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::NodeId;
use tightfit::machine::Machine;
use tightfit::profile::Profile;
use tightfit::tensor::{Argument, DType};
use tightfit::units::{Bytes, Seconds};

use crate::fixtures::corpus::{GRAPHS, profile, step};
use crate::fixtures::oracle::passes::{below, phases};
use crate::fixtures::{corpus, generator};

/// One storage: when it is made and read, by index of nodes; placeholders exist from the start.
struct Life {
    bytes: u64,
    maker: usize,
    readers: BTreeSet<usize>,
    kept: bool,
}

impl Life {
    fn alive_at(&self, nodes: &Nodes<'_>, node: usize) -> bool {
        let born = nodes.phase(self.maker).is_placeholder() || self.maker <= node;
        let last = self.readers.iter().next_back().map_or(0, |&last| last);
        born && (self.kept
            || node
                <= last.max(if nodes.phase(self.maker).is_placeholder() {
                    nodes.first()
                } else {
                    self.maker
                }))
    }

    fn alive_behind(&self, node: usize) -> bool {
        self.maker <= node && (self.kept || self.readers.iter().any(|&reader| reader > node))
    }
}

/// A graph and the phases of its nodes.
struct Nodes<'a>(&'a Graph, Vec<Phase>);

impl Nodes<'_> {
    fn id(&self, node: usize) -> NodeId {
        NodeId::from_u32(node as u32)
    }

    fn phase(&self, node: usize) -> Phase {
        self.1[node]
    }

    fn path(&self, node: usize) -> &str {
        self.0.module_of(self.id(node))
    }

    /// Whether a node writes into what belongs to the model.
    fn updates(&self, node: usize) -> bool {
        let node = &self.0.nodes()[self.id(node)];
        let of_model = |storage| {
            let makers = self.0.nodes().values().filter(|other| {
                other.outputs.iter().flatten().any(|&v| self.0.values()[v].storage == storage)
            });
            makers.into_iter().next().is_some_and(|maker| {
                matches!(maker.phase, Phase::Parameter | Phase::Buffer | Phase::State)
            })
        };
        node.mutates
            && node.outputs.iter().flatten().any(|&value| of_model(self.0.values()[value].storage))
    }

    /// The first node that runs.
    fn first(&self) -> usize {
        (0..self.0.nodes().len()).find(|&node| self.0.runs(self.id(node))).unwrap_or(0)
    }
}

fn lives(graph: &Graph) -> Vec<Life> {
    let of = |value: &tightfit::id::ValueId| graph.values()[*value].storage.as_u32() as usize;
    let mut made: Vec<Option<usize>> = vec![None; graph.storages().len()];
    let mut lives: Vec<Life> = graph
        .storages()
        .values()
        .map(|bytes| Life {
            bytes: bytes.0,
            maker: usize::MAX,
            readers: BTreeSet::new(),
            kept: false,
        })
        .collect();
    for (index, node) in graph.nodes().values().enumerate() {
        for storage in node.outputs.iter().flatten().map(of) {
            made[storage].get_or_insert(index);
            lives[storage].kept |=
                matches!(node.phase, Phase::Parameter | Phase::Buffer | Phase::State);
        }
        if graph.runs(NodeId::from_u32(index as u32)) {
            for storage in node.inputs.iter().map(of) {
                lives[storage].readers.insert(index);
            }
        }
    }
    graph.outputs().iter().for_each(|value| lives[of(value)].kept = true);
    for (life, made) in lives.iter_mut().zip(made) {
        life.maker = made.unwrap_or(usize::MAX);
    }
    lives.retain(|life| life.maker != usize::MAX);
    lives
}

/// A module's figures by definition, except those of checkpointing.
fn defined(graph: &Graph, profile: &Profile, module: &str) -> ModuleStats {
    let (nodes, lives) = (Nodes(graph, phases(graph)), lives(graph));
    let all = 0..graph.nodes().len();
    let inside: Vec<usize> =
        all.filter(|&node| graph.runs(nodes.id(node)) && below(nodes.path(node), module)).collect();
    let forward: Vec<usize> = inside
        .iter()
        .copied()
        .filter(|&node| nodes.phase(node).is_forward() && !nodes.updates(node))
        .collect();
    let backward: Vec<usize> =
        inside.iter().copied().filter(|&node| nodes.phase(node) == Phase::Backward).collect();
    let sum = |of: &dyn Fn(&Life) -> bool| {
        Bytes(lives.iter().filter(|life| of(life)).map(|life| life.bytes).sum())
    };
    let held =
        |node: usize| sum(&|life| life.alive_at(&nodes, node)) + profile.workspace[nodes.id(node)];
    let peak = backward.iter().copied().rev().max_by_key(|&node| held(node));
    let by_forward = |life: &Life| nodes.phase(life.maker).is_forward();
    let leaves_backward = |life: &Life| {
        life.kept || life.readers.iter().any(|&reader| nodes.phase(reader) == Phase::Optimizer)
    };
    let by_backward = |life: &Life| nodes.phase(life.maker) == Phase::Backward;
    let at_peak = |of: &dyn Fn(&Life) -> bool| {
        peak.map_or(Bytes(0), |peak| sum(&|life| of(life) && life.alive_at(&nodes, peak)))
    };
    let workspace = peak.map_or(Bytes(0), |peak| profile.workspace[nodes.id(peak)]);
    let backward_activations = at_peak(&by_forward);
    let behind = forward
        .last()
        .map_or(Bytes(0), |&last| sum(&|life| by_forward(life) && life.alive_behind(last)));
    let reads = |life: &Life, who: &[usize]| who.iter().any(|node| life.readers.contains(node));
    let made_here = |life: &Life| by_forward(life) && below(nodes.path(life.maker), module);
    let in_pass = |node: usize| nodes.phase(node).is_forward() && !nodes.updates(node);
    let is_loss = |node: usize| nodes.phase(node) == Phase::Loss;
    let outside = |life: &Life, of: &dyn Fn(usize) -> bool| {
        life.readers.iter().any(|&node| of(node) && !below(nodes.path(node), module))
    };
    let parameters = sum(&|life| {
        let used =
            life.readers.iter().any(|&node| in_pass(node) && below(nodes.path(node), module));
        nodes.phase(life.maker) == Phase::Parameter
            && (used || below(nodes.path(life.maker), module))
    });
    let seconds = |of: &dyn Fn(usize) -> bool| -> Seconds {
        inside.iter().filter(|&&node| of(node)).map(|&node| profile.seconds[nodes.id(node)]).sum()
    };
    ModuleStats {
        name: String::new(),
        parameters,
        gradients: parameters,
        total_gradients: at_peak(&|life| by_backward(life) && leaves_backward(life)),
        forward_activations: sum(&|life| {
            let loss = is_loss(life.maker) || life.readers.iter().any(|&node| is_loss(node));
            let saved = life.readers.iter().any(|&node| nodes.phase(node) == Phase::Backward);
            made_here(life)
                && saved
                && !loss
                && !life.kept
                && !outside(life, &|node| nodes.phase(node).is_forward())
        }),
        backward_activations,
        activation_gradients: at_peak(&|life| by_backward(life) && !leaves_backward(life))
            + workspace,
        total_activations: behind.max(backward_activations),
        input: sum(&|life| {
            let comes_in = nodes.phase(life.maker) == Phase::Input
                || by_forward(life) && !below(nodes.path(life.maker), module);
            comes_in && reads(life, &forward)
        }),
        output: sum(&|life| made_here(life) && (life.kept || outside(life, &in_pass))),
        forward: seconds(&|node| nodes.phase(node).is_forward()),
        backward: seconds(&|node| nodes.phase(node) == Phase::Backward),
        ..ModuleStats::default()
    }
}

/// Checks that every module is as defined, and that the moments of its figures are moments of the
/// step.
fn holds(graph: &Graph, profile: &Profile, what: &str) -> ModuleInfo {
    let info = measure(graph, profile).unwrap();
    let root = info.modules()[info.root()].name.clone();
    for stats in info.modules().values() {
        let path = stats.name[root.len()..].trim_start_matches('.');
        let defined = defined(graph, profile, path);
        let close = |a: Seconds, b: Seconds| (a.0 - b.0).abs() <= 1e-12 + 1e-9 * b.0;
        assert!(
            close(stats.forward, defined.forward) && close(stats.backward, defined.backward),
            "{what} `{path}`"
        );
        let comparable = ModuleStats {
            name: stats.name.clone(),
            forward: stats.forward,
            backward: stats.backward,
            is_leaf: stats.is_leaf,
            checkpointing_seconds: stats.checkpointing_seconds,
            checkpointing_bytes: stats.checkpointing_bytes,
            tradeoff: stats.tradeoff.clone(),
            ..defined
        };
        assert_eq!(stats, &comparable, "{what} `{path}`");
        assert!(
            stats.is_leaf || stats.checkpointing_bytes >= stats.forward_activations,
            "{what} `{path}`: what is saved is made"
        );
    }
    let again = ModuleInfo::from_json(info.to_json().as_bytes()).unwrap();
    assert_eq!(again.forward_post_order(), info.forward_post_order(), "{what}");
    for (read, stats) in again.modules().values().zip(info.modules().values()) {
        let times = ModuleStats {
            forward: read.forward,
            backward: read.backward,
            checkpointing_seconds: read.checkpointing_seconds,
            tradeoff: read.tradeoff.clone(),
            ..stats.clone()
        };
        assert_eq!(read, &times, "{what}: bytes read as they are written");
    }
    info
}

/// Bytes that the baseline does not include, while a node runs: batch, buffers, state, and what
/// updates make.
fn beside(graph: &Graph, node: usize) -> Bytes {
    let nodes = Nodes(graph, phases(graph));
    let counted = [Phase::Parameter, Phase::Forward, Phase::Loss, Phase::Backward];
    let others = lives(graph)
        .into_iter()
        .filter(|life| !counted.contains(&nodes.phase(life.maker)) && life.alive_at(&nodes, node));
    Bytes(others.map(|life| life.bytes).sum())
}

#[test]
fn steps_of_the_corpus_are_measured_as_defined() {
    for name in ["gpt-nano", "gpt-nano-dropout", "mlp-digits"] {
        let graph = step(name);
        holds(&graph, &profile(&graph), name);
        holds(&graph, &Profile::new(&graph, &Machine::unmeasured_cpu(2)), name);
    }
}

proptest! {
    #![proptest_config(tightfit_testing::config(150))]

    #[test]
    fn random_steps_are_measured_as_defined(recipe in generator::recipes(16)) {
        let graph = recipe.graph();
        for profile in generator::profiles(&graph) {
            holds(&graph, &profile, "random");
        }
    }
}

#[test]
fn the_baseline_bounds_the_backward_pass() {
    for name in GRAPHS {
        let graph = corpus::graph(name);
        let (profile, nodes) = (profile(&graph), Nodes(&graph, phases(&graph)));
        let info = measure(&graph, &profile).unwrap();
        let unplanned = tightfit::unplanned(&graph, &profile).unwrap();
        // The checker's own bytes, at the node of the backward pass where they are highest.
        let calls = &unplanned.timeline().calls;
        let runs = calls.iter().map(|call| (call.node.as_u32() as usize, call.held));
        let (at, peak) = runs
            .filter(|&(node, _)| nodes.phase(node) == Phase::Backward)
            .rev()
            .max_by_key(|&(_, held)| held)
            .unwrap();
        let root = &info.modules()[info.root()];
        let sum = root.parameters
            + root.total_gradients
            + root.activation_gradients
            + root.backward_activations;
        assert_eq!(
            sum + beside(&graph, at),
            peak,
            "{name}: the root's backward figures are what is held there"
        );
        assert!(info.baseline_peak() + beside(&graph, at) >= peak, "{name}");
        let seconds = info.baseline_seconds().0 / unplanned.timeline().seconds.0;
        assert!((seconds - 1.0).abs() < 1e-9, "{name}: these steps end with the backward pass");
    }
}

fn row(stats: &ModuleStats) -> String {
    let bytes = [
        ("parameters", stats.parameters),
        ("gradients", stats.gradients),
        ("total gradients", stats.total_gradients),
        ("forward activations", stats.forward_activations),
        ("backward activations", stats.backward_activations),
        ("activation gradients", stats.activation_gradients),
        ("total activations", stats.total_activations),
        ("input", stats.input),
        ("output", stats.output),
        ("checkpointing", stats.checkpointing_bytes),
    ];
    let bytes = bytes.map(|(name, bytes)| format!("{name} {}", bytes.0));
    let bytes: String = bytes.chunks(2).map(|pair| format!("    {}\n", pair.join(", "))).collect();
    let ms = [stats.forward, stats.backward, stats.checkpointing_seconds]
        .map(|seconds| format!("{:.3}", seconds.0 * 1e3))
        .join(" + ");
    format!("{}:\n{bytes}    {ms} ms; {} segments\n", stats.name, stats.tradeoff.segments.len())
}

#[test]
fn the_seven_graphs_have_these_baselines() {
    let mut text = String::new();
    for name in GRAPHS {
        let graph = corpus::graph(name);
        let info = measure(&graph, &profile(&graph)).unwrap();
        let (peak, seconds) = (info.baseline_peak(), info.baseline_seconds());
        text += &format!(
            "{} modules, baseline {} bytes, {:.3} ms; ",
            info.modules().len(),
            peak.0,
            seconds.0 * 1e3
        );
        text += &row(&info.modules()[info.root()]);
    }
    expect![[r#"
        221 modules, baseline 11745315968 bytes, 110.077 ms; bert_base_drop_b16_s512:
            parameters 219028596, gradients 219028596
            total gradients 0, forward activations 9525923844
            backward activations 9525923844, activation gradients 2000363524
            total activations 9525923848, input 131072
            output 4, checkpointing 24979730976
            30.988 + 79.089 + 30.988 ms; 25 segments
        247 modules, baseline 8849328140 bytes, 86.441 ms; gpt2_medium_b4_s1024:
            parameters 709646336, gradients 709646336
            total gradients 0, forward activations 6492823556
            backward activations 6492823556, activation gradients 1646858244
            total activations 6492823560, input 65536
            output 4, checkpointing 11379429505
            20.611 + 65.829 + 20.611 ms; 23 segments
        127 modules, baseline 4852627980 bytes, 35.640 ms; gpt2_small_b8_s512:
            parameters 248879616, gradients 248879616
            total gradients 0, forward activations 2956890116
            backward activations 2956890116, activation gradients 1646858244
            total activations 2956890120, input 65536
            output 4, checkpointing 5566763233
            8.411 + 27.230 + 8.411 ms; 24 segments
        215 modules, baseline 19606462476 bytes, 198.094 ms; llama_1b_b2_s2048:
            parameters 2471628800, gradients 2471628800
            total gradients 0, forward activations 12932104196
            backward activations 12932104196, activation gradients 4202729476
            total activations 12932104200, input 65536
            output 4, checkpointing 24292544593
            58.586 + 139.507 + 58.586 ms; 25 segments
        193 modules, baseline 2851846904 bytes, 24.750 ms; mobilenet_v3_large_b64:
            parameters 21932128, gradients 21932128
            total gradients 10044320, forward activations 2785111364
            backward activations 2783724532, activation gradients 30105608
            total activations 2785209336, input 38535680
            output 4, checkpointing 5437145484
            5.681 + 19.069 + 5.681 ms; 61 segments
        144 modules, baseline 2897199604 bytes, 24.079 ms; resnet50_b32:
            parameters 102228128, gradients 102228128
            total gradients 26046368, forward activations 2730177028
            backward activations 2691440044, activation gradients 38535172
            total activations 2730389936, input 19267840
            output 4, checkpointing 4859586692
            5.842 + 18.237 + 5.842 ms; 29 segments
        92 modules, baseline 2459277864 bytes, 38.345 ms; vit_b16_b32:
            parameters 173135312, gradients 173135312
            total gradients 6261200, forward activations 1882880644
            backward activations 1785897988, activation gradients 397000704
            total activations 1882880648, input 9634048
            output 4, checkpointing 2948148060
            5.539 + 32.806 + 5.539 ms; 18 segments
    "#]]
    .assert_eq(&text);
}

fn modules_of(name: &str, modules: &[&str], expected: Expect) {
    let graph = corpus::graph(name);
    let info = measure(&graph, &profile(&graph)).unwrap();
    let rows: Vec<String> = modules
        .iter()
        .map(|module| row(&info.modules()[info.find(&format!("{name}.{module}")).unwrap()]))
        .collect();
    expected.assert_eq(&rows.concat());
}

#[test]
fn modules_of_llama_read_as_their_shapes_say() {
    // 2 × 2048 tokens of 2048 bf16 are 16 MiB, and so is a mask of 2 × 2048² bf16. The inputs of
    // the first layer are the embedding, the mask as booleans (8 MiB) and the rotation (512 KiB);
    // it hands on its sum, and the mask that it made for all layers. Its gate makes 2 × 2048 × 8192
    // bf16, 64 MiB.
    modules_of(
        "llama_1b_b2_s2048",
        &["model.model.layers.0", "model.model.layers.0.mlp.gate_proj", "model.lm_head"],
        expect![[r#"
        llama_1b_b2_s2048.model.model.layers.0:
            parameters 121643008, gradients 121643008
            total gradients 1891758080, forward activations 671645696
            backward activations 487620612, activation gradients 848297984
            total activations 705724416, input 25690112
            output 33554432, checkpointing 1160347652
            2.924 + 6.353 + 2.887 ms; 13 segments
        llama_1b_b2_s2048.model.model.layers.0.mlp.gate_proj:
            parameters 33554432, gradients 33554432
            total gradients 1925312512, forward activations 0
            backward activations 219185156, activation gradients 646971392
            total activations 303071232, input 16777216
            output 67108864, checkpointing 0
            0.441 + 0.881 + 0.000 ms; 0 segments
        llama_1b_b2_s2048.model.lm_head:
            parameters 525336576, gradients 525336576
            total gradients 0, forward activations 0
            backward activations 10830757892, activation gradients 1576009728
            total activations 11881431040, input 16777216
            output 1050673152, checkpointing 0
            6.897 + 13.793 + 0.000 ms; 0 segments
    "#]],
    );
}

/// A step of two products, `a` before `b`, whose nodes run in the given modules.
fn interleaved(paths: [&str; 4]) -> Graph {
    let mut builder = GraphBuilder::new("two");
    let modules = paths.map(|path| builder.module(path));
    let value = |builder: &mut GraphBuilder| {
        Some(ValueSpec::contiguous(&[100], DType::U8, builder.storage(Bytes(100))))
    };
    let spec = value(&mut builder);
    let mut last = builder.node(NodeSpec::new("x", "placeholder", Phase::Input), &[spec])[0];
    let mut made = vec![];
    for (index, module) in modules.into_iter().enumerate() {
        let mut spec = NodeSpec::new(format!("forward_{index}"), "op", Phase::Forward);
        (spec.module, spec.inputs, spec.seconds) = (module, vec![last], Some(Seconds(0.001)));
        spec.args = vec![Argument::Value(last)];
        let output = value(&mut builder);
        last = builder.node(spec, &[output])[0];
        made.push((module, last));
    }
    for (index, (module, saved)) in made.into_iter().enumerate().rev() {
        let mut spec = NodeSpec::new(format!("backward_{index}"), "op", Phase::Backward);
        (spec.module, spec.inputs, spec.seconds) = (
            module,
            if last == saved { vec![saved] } else { vec![saved, last] },
            Some(Seconds(0.002)),
        );
        let output = value(&mut builder);
        last = builder.node(spec, &[output])[0];
    }
    builder.output(last);
    builder.build().unwrap()
}

#[test]
fn a_module_that_runs_twice_is_one_module() {
    // `a.in` runs, then `b`, then `a.in` again, then `a`: its forward pass ends where its last
    // piece does.
    let graph = interleaved(["a.in", "b", "a.in", "a"]);
    let info = holds(&graph, &profile(&graph), "twice");
    let names = |order: &[_]| {
        order.iter().map(|&module| info.modules()[module].name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        info.modules().values().map(|stats| stats.name.as_str()).collect::<Vec<_>>(),
        ["two", "two.a", "two.a.in", "two.b"]
    );
    assert_eq!(names(info.forward_post_order()), ["two.b", "two.a.in", "two.a", "two"]);
    assert_eq!(names(info.backward_pre_order()), ["two", "two.a", "two.a.in", "two.b"]);
    assert_eq!(names(info.backward_post_order()), ["two.b", "two.a.in", "two.a", "two"]);
    let stats = &info.modules()[info.find("two.a.in").unwrap()];
    assert_eq!((stats.forward, stats.backward), (Seconds(0.002), Seconds(0.004)));
    // The batch and the output of `b` come in; both outputs are read outside.
    assert_eq!(
        (stats.input, stats.output, stats.forward_activations),
        (Bytes(200), Bytes(200), Bytes(0))
    );
    assert_eq!(stats.total_activations, Bytes(300));
}

#[test]
fn numbered_layers_are_told_apart() {
    let graph = interleaved(["layers.1.n", "layers.10.n", "layers.10.n", "layers.1"]);
    let info = holds(&graph, &profile(&graph), "layers");
    let stats = |name: &str| &info.modules()[info.find(&format!("two.layers.{name}")).unwrap()];
    assert_eq!((stats("1").forward, stats("10").forward), (Seconds(0.002), Seconds(0.002)));
    assert_eq!((stats("1.n").forward, stats("10.n").forward), (Seconds(0.001), Seconds(0.002)));
}
