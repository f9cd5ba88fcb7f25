//! The cases of the asynchronous pipeline of fairscale: chains of layers, some visited again, cut
//! into stages. Where the original is wrong, its cases say what is right.
//!
//! Tier: quick, since it takes less than a second.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{NodeId, PrimaryMap, RankId, SecondaryMap, StageId, StorageId, ValueId};
use tightfit::machine::Machine;
use tightfit::pipeline::{
    Layer, Message, Pass, PipelineSchedule, StageCost, cut_evenly, greedy, layers, simulate,
};
use tightfit::plan::{self, Instance, Planner};
use tightfit::profile::Profile;
use tightfit::tensor::{Argument, DType};
use tightfit::units::{Bytes, Seconds};

use crate::fixtures::corpus;
use crate::pipeline::stages::divided;

fn cases() -> Vec<Json> {
    let text = std::fs::read(corpus::path("cases/pipeline.json")).unwrap();
    serde_json::from_slice::<Json>(&text).unwrap()["cases"].as_array().unwrap().clone()
}

/// A step under construction; all tensors have one shape.
struct Chain {
    builder: GraphBuilder,
    stage: Vec<(NodeId, StageId)>,
    names: usize,
}

#[derive(Clone, Copy)]
struct Tensor {
    value: ValueId,
    storage: StorageId,
}

impl Chain {
    fn node(&mut self, op: &str, phase: Phase, reads: &[Tensor], of: Option<NodeId>) -> Tensor {
        self.names += 1;
        let name = format!("{}_{}", op.rsplit('.').next().unwrap_or(op), self.names);
        let mutates = phase == Phase::Optimizer;
        let storage = if mutates { reads[0].storage } else { self.builder.storage(Bytes(16)) };
        let spec = NodeSpec {
            inputs: reads.iter().map(|read| read.value).collect(),
            args: reads.iter().map(|read| Argument::Value(read.value)).collect(),
            parameter: phase.is_persistent().then(|| name.clone()),
            differentiates: of,
            mutates,
            ..NodeSpec::new(name, op, phase)
        };
        let output = ValueSpec::contiguous(&[4], DType::F32, storage);
        Tensor { value: self.builder.node(spec, &[Some(output)])[0], storage }
    }

    fn forward(&mut self, op: &str, reads: &[Tensor], stage: u32) -> (Tensor, NodeId) {
        let id = self.builder.next_node();
        self.stage.push((id, StageId::from_u32(stage)));
        (self.node(op, Phase::Forward, reads, None), id)
    }
}

/// Layers by name, each of which reads the output of the one before it and, as given by `skips`,
/// those of earlier ones; in stages, one for each visit of a rank.
fn chain(
    layers: &[&str],
    ranks: &BTreeMap<&str, u32>,
    skips: &BTreeMap<usize, usize>,
    trains: bool,
) -> (Graph, SecondaryMap<NodeId, StageId>, PrimaryMap<StageId, RankId>) {
    let builder = GraphBuilder::new("chain");
    let mut chain = Chain { builder, stage: Vec::new(), names: 0 };
    let input = chain.node("placeholder", Phase::Input, &[], None);
    let mut weights: BTreeMap<&str, Tensor> = BTreeMap::new();
    for &layer in ranks.keys() {
        weights.insert(layer, chain.node("placeholder", Phase::Parameter, &[], None));
    }
    let mut placement: PrimaryMap<StageId, RankId> = PrimaryMap::new();
    let mut made: Vec<(Tensor, NodeId)> = Vec::new();
    for (index, &layer) in layers.iter().enumerate() {
        let rank = RankId::from_u32(ranks[layer]);
        if placement.values().next_back() != Some(&rank) {
            placement.push(rank);
        }
        let before = made.last().map_or(input, |&(tensor, _)| tensor);
        let mut reads = vec![before, weights[layer]];
        reads.extend(skips.get(&index).map(|&from| made[from].0));
        let stage = placement.len() as u32 - 1;
        made.push(chain.forward(&format!("test.{layer}"), &reads, stage));
    }
    let last = made[made.len() - 1].0;
    let id = chain.builder.next_node();
    chain.stage.push((id, StageId::from_u32(placement.len() as u32 - 1)));
    // A scalar, so that it has a mean.
    let storage = chain.builder.storage(Bytes(4));
    let loss = NodeSpec {
        inputs: vec![last.value],
        args: vec![Argument::Value(last.value)],
        ..NodeSpec::new("loss", "test.loss", Phase::Loss)
    };
    let output = ValueSpec::contiguous(&[], DType::F32, storage);
    let value = chain.builder.node(loss, &[Some(output)])[0];
    chain.builder.output(value);
    if trains {
        let loss = Tensor { value, storage };
        // Gradients of each layer's output, and of each layer's weight, so far.
        let mut gradients: BTreeMap<usize, Tensor> = BTreeMap::new();
        let mut changes: BTreeMap<&str, Tensor> = BTreeMap::new();
        let first = chain.node("test.loss_backward", Phase::Backward, &[loss], Some(id));
        gradients.insert(layers.len() - 1, first);
        for (index, &layer) in layers.iter().enumerate().rev() {
            let (of, given) = (Some(made[index].1), gradients[&index]);
            let mut sources: Vec<usize> = index.checked_sub(1).into_iter().collect();
            sources.extend(skips.get(&index));
            for source in sources {
                let reads = [given, weights[layer]];
                let mine = chain.node("test.input_gradient", Phase::Backward, &reads, of);
                let sum = match gradients.get(&source) {
                    Some(&other) => {
                        chain.node("aten.add.Tensor", Phase::Backward, &[other, mine], None)
                    }
                    None => mine,
                };
                gradients.insert(source, sum);
            }
            let reads = index.checked_sub(1).map_or(input, |before| made[before].0);
            let mine = chain.node("test.weight_gradient", Phase::Backward, &[given, reads], of);
            let sum = match changes.get(layer) {
                Some(&other) => {
                    chain.node("aten.add.Tensor", Phase::Backward, &[other, mine], None)
                }
                None => mine,
            };
            changes.insert(layer, sum);
        }
        for (layer, change) in changes {
            chain.node("test.sgd", Phase::Optimizer, &[weights[layer], change], None);
        }
    }
    let mut of_forward = SecondaryMap::with_default(StageId::from_u32(0));
    for &(node, stage) in &chain.stage {
        of_forward[node] = stage;
    }
    (chain.builder.build().unwrap(), of_forward, placement)
}

/// The messages of an update, and the number of runs of each layer.
fn run(
    layers: &[&str],
    ranks: &BTreeMap<&str, u32>,
    skips: &BTreeMap<usize, usize>,
    (micro_batches, trains): (u32, bool),
) -> (Vec<Message>, BTreeMap<String, usize>) {
    let (graph, of_forward, placement) = chain(layers, ranks, skips, trains);
    let cost = StageCost {
        forward: Seconds(1.0),
        input_gradient: Seconds(1.0),
        weight_gradient: Seconds(1.0),
        ..StageCost::default()
    };
    let rows = greedy(placement, micro_batches, &SecondaryMap::with_default(cost), Bytes(0));
    let ranks = divided(&graph, &of_forward, &rows).unwrap();
    let mut runs: BTreeMap<String, usize> = BTreeMap::new();
    for node in ranks.graphs.values().flat_map(|graph| graph.nodes().values()) {
        if let Some(layer) = node.op.strip_prefix("test.").filter(|_| node.phase == Phase::Forward)
        {
            *runs.entry(layer.to_string()).or_default() += 1;
        }
    }
    (ranks.messages, runs)
}

#[test]
fn messages_and_visits_are_those_of_the_cases() {
    let mut seen = 0;
    for case in cases() {
        let id = case["id"].as_str().unwrap();
        let input = &case["input"];
        let Some(layers) = input["layers"].as_str() else { continue };
        if id == "pipeline/dup_rejected" {
            // About the original's configuration: the same layers run in `reuse_r1r2r3`.
            continue;
        }
        let layers: Vec<&str> = layers.split(' ').collect();
        let number = |key: &str| input[key].as_u64().unwrap() as u32;
        // Distinct layers, in the order of their first visits, go to the ranks in turn.
        let mut left: Vec<u32> = serde_json::from_value(input["balance"].clone()).unwrap();
        let mut ranks: BTreeMap<&str, u32> = BTreeMap::new();
        for &layer in &layers {
            if !ranks.contains_key(layer) {
                let rank = left.iter().position(|&count| count > 0).unwrap();
                left[rank] -= 1;
                ranks.insert(layer, rank as u32);
            }
        }
        let micro_batches = number("batch").div_ceil(number("batch").div_ceil(number("chunks")));
        let trains = input["train"].as_bool().unwrap();
        let (messages, runs) = run(&layers, &ranks, &BTreeMap::new(), (micro_batches, trains));

        // Activations are sent on to another visit, gradients back along the same path.
        let at: Vec<u32> = layers.iter().map(|layer| ranks[layer]).collect();
        let edges = at.windows(2).filter(|pair| pair[0] != pair[1]).count();
        let directions = if trains { 2 } else { 1 };
        assert_eq!(messages.len(), directions * edges * micro_batches as usize, "{id}");
        assert!(messages.iter().all(|message| message.micro_batch.is_some()), "{id}: shared");
        let right = [&case["expected_corrected"], &case["expected_seed"]]
            .into_iter()
            .find(|expected| expected["activation_messages"].is_u64())
            .unwrap();
        let stated = ["activation_messages", "gradient_messages"].map(|key| right[key].as_u64());
        let stated: u64 = stated.into_iter().flatten().sum();
        assert_eq!(messages.len() as u64, stated, "{id}");
        for &layer in ranks.keys() {
            let visits = layers.iter().filter(|&&other| other == layer).count();
            assert_eq!(runs[layer], visits * micro_batches as usize, "{id}: {layer}");
        }
        seen += 1;
    }
    assert_eq!(seen, 17);
}

/// What the original refuses at construction is refused here, except for what cannot be expressed.
#[test]
fn what_makes_no_pipeline_is_refused() {
    let case = cases().into_iter().find(|case| case["id"] == "pipeline/ctor_errors").unwrap();
    assert_eq!(case["expected"]["chunks=0"], "ValueError");
    assert!(PipelineSchedule::GPipe.rows(3, 0).is_err());
    assert!(PipelineSchedule::GPipe.rows(0, 3).is_err());
    assert_eq!(PipelineSchedule::from_name("x"), None);
    assert_eq!(Planner::from_name("checkpoint-x"), None);
    // Stages without layers, and fewer ranks than stages, cannot be written down as a cut.
    let step = corpus::step("mlp-digits");
    let profile = Profile::new(&step, &Machine::preset("a100-80gb").unwrap());
    assert!(layers(&step, &profile, 10_000).is_err());
}

/// Sequences of numbers divided into parts whose largest sum is as small as possible.
#[test]
fn blocks_of_numbers_are_cut_evenly() {
    let case = cases().into_iter().find(|case| case["id"] == "pipeline/blockpartition").unwrap();
    let expected = case["expected"].as_object().unwrap();
    for (asked, expected) in expected {
        let (numbers, parts) = asked.split_once('/').unwrap();
        let numbers: Vec<f64> = serde_json::from_str(numbers).unwrap();
        let layer = |(index, &seconds): (usize, &f64)| Layer {
            begins: None,
            nodes: vec![NodeId::from_u32(index as u32)],
            seconds: Seconds(seconds),
            leaves: Bytes(0),
        };
        let all: Vec<Layer> = numbers.iter().enumerate().map(layer).collect();
        let cut = cut_evenly(&all, parts.parse().unwrap());
        let Some(blocks) = expected.as_array() else {
            assert!(cut.is_err(), "{asked}");
            continue;
        };
        let stages = cut.unwrap();
        let largest = |of: &dyn Fn(usize) -> usize| -> f64 {
            let sum = |block: usize| -> f64 {
                let in_block = (0..numbers.len()).filter(|&index| of(index) == block);
                in_block.map(|index| numbers[index]).sum()
            };
            (0..blocks.len()).map(sum).fold(0.0, f64::max)
        };
        let ours = largest(&|index| stages[NodeId::from_u32(index as u32)].as_u32() as usize);
        let sums = blocks.iter().map(|block| {
            let numbers = block.as_array().unwrap().iter();
            numbers.map(|number| number.as_f64().unwrap()).sum::<f64>()
        });
        assert_eq!(ours, sums.fold(0.0, f64::max), "{asked}");
    }
}

/// The number of times each layer runs again, by its micro-batch, if its rank checkpoints with this
/// planner.
fn again(graphs: &PrimaryMap<RankId, Graph>, planner: Planner) -> BTreeMap<(String, u32), usize> {
    let mut runs: BTreeMap<(String, u32), usize> = BTreeMap::new();
    for graph in graphs.values() {
        let profile = Profile::new(graph, &Machine::preset("a100-80gb").unwrap());
        let order = graph.compute_nodes();
        let instance = Instance::new(graph, &profile, &order);
        let plan = plan::plan(instance, Bytes::LIMIT, planner).unwrap();
        for id in plan.runs() {
            let node = &graph.nodes()[id];
            if let Some(layer) = node.op.strip_prefix("test.").filter(|_| node.phase.is_forward()) {
                *runs.entry((layer.to_string(), node.micro_batch.as_u32())).or_default() += 1;
            }
        }
    }
    runs.values_mut().for_each(|count| *count -= 1);
    runs
}

/// On one rank, where every layer reads what the rank has made, layers run again as in the cases.
#[test]
fn checkpointed_micro_batches_run_again() {
    let layers = ["A", "B", "C"];
    let ranks = BTreeMap::from(layers.map(|layer| (layer, 0)));
    let (graph, of_forward, placement) = chain(&layers, &ranks, &BTreeMap::new(), true);
    for (id, planner) in [
        ("pipeline/ckpt_always", Planner::CheckpointAlways),
        ("pipeline/ckpt_except_last", Planner::CheckpointExceptLast),
        ("pipeline/single_stage", Planner::CheckpointExceptLast),
        ("pipeline/ckpt_never", Planner::None),
    ] {
        let case = cases().into_iter().find(|case| case["id"] == id).unwrap();
        let micro_batches = case["input"]["chunks"].as_u64().unwrap() as u32;
        let costs = SecondaryMap::with_default(StageCost::default());
        let rows = greedy(placement.clone(), micro_batches, &costs, Bytes(0));
        let divided = divided(&graph, &of_forward, &rows).unwrap();
        let runs = again(&divided.graphs, planner);
        let calls = &case["expected_seed"]["forward_and_recompute_calls_per_layer"];
        for (layer, calls) in layers.iter().zip(calls.as_array().unwrap()) {
            let own = runs.iter().filter(|((name, _), _)| name == layer);
            let again: usize = own.map(|(_, count)| count).sum();
            assert_eq!(json!([micro_batches, again]), *calls, "{id}: {layer}");
        }
        if planner == Planner::CheckpointExceptLast {
            let last = runs.iter().filter(|((_, of), _)| *of + 1 == micro_batches);
            assert!(last.into_iter().all(|(_, &count)| count == 0), "{id}: the last one");
        }
    }
}

/// A tensor that a later stage reads, past the one in between: one more message each way.
#[test]
fn a_skip_is_a_message_of_its_own() {
    let layers = ["A", "B", "C"];
    let ranks = BTreeMap::from([("A", 0), ("B", 1), ("C", 2)]);
    let skips = BTreeMap::from([(2, 0)]);
    let (messages, _) = run(&layers, &ranks, &skips, (4, true));
    assert_eq!(messages.len(), 2 * 3 * 4);
    let ends = |message: &&Message| (message.from.as_u32(), message.to.as_u32()) == (0, 2);
    assert_eq!(messages.iter().filter(ends).count(), 4, "one for each micro-batch");
    let ranks = BTreeMap::from([("A", 0), ("B", 0), ("C", 0)]);
    assert_eq!(run(&layers, &ranks, &skips, (4, true)).0.len(), 0, "on one rank there is none");
}

/// The forward passes that run at the same time.
#[test]
fn forward_passes_come_in_clock_cycles() {
    let case = cases().into_iter().find(|case| case["id"] == "pipeline/clock_cycles").unwrap();
    let number = |key: &str| case["input"][key].as_u64().unwrap() as u32;
    let rows = PipelineSchedule::GPipe.rows(number("n"), number("m")).unwrap();
    let cost = StageCost { forward: Seconds(1.0), ..StageCost::default() };
    let simulated = simulate(&rows, &SecondaryMap::with_default(cost)).unwrap();
    let mut cycles: BTreeMap<u64, Vec<[u32; 2]>> = BTreeMap::new();
    for done in simulated.ranks.values().flatten() {
        if done.action.pass == Pass::Forward {
            let what = [done.action.micro_batch.as_u32(), done.action.stage.as_u32()];
            cycles.entry(done.start.0 as u64).or_default().push(what);
        }
    }
    let expected: Vec<Vec<[u32; 2]>> = serde_json::from_value(case["expected"].clone()).unwrap();
    assert_eq!(cycles.into_values().collect::<Vec<_>>(), expected);
}
