//! Decisions about modules, executed: `sac`. Invariant: the oracle knows how a model was built and
//! which modules were decided on; what runs again follows from these by rules that are stated here,
//! and shares no code with the planner.
//!
//! Tier: quick with a part of the cases, 6 s; full with all of them.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use tightfit::analysis::Sequence;
use tightfit::analysis::modules::measure;
use tightfit::check::check;
use tightfit::effort::Effort;
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{NodeId, ValueId};
use tightfit::machine::Machine;
use tightfit::plan::modules::{ModulePlanError, SelectiveTask, selective};
use tightfit::plan::{self, Instance, PlanError, Planner, SolverLimits};
use tightfit::profile::Profile;
use tightfit::tensor::DType;
use tightfit::units::{Bytes, Seconds};
use tightfit::{Goal, Request};

use crate::fixtures::{corpus, oracle};

/// Budgets of the program that the planner tries.
const BUDGETS: u64 = 32;

/// A forward node of a model, which makes one tensor.
struct Layer {
    module: String,
    bytes: u64,
    seconds: f64,
    /// Layers that it reads.
    reads: Vec<usize>,
    /// Layers whose outputs its backward node reads.
    saves: Vec<usize>,
}

/// A model of blocks, each of a few modules.
struct Model(Vec<Layer>);

impl Model {
    fn random(seed: u64) -> Model {
        let mut random = Rng::with_seed(seed);
        let mut layers = vec![];
        for block in 0..random.usize(1..5) {
            let first = layers.len();
            for part in 0..random.usize(1..4) {
                let own = random.usize(..4) == 0;
                let module =
                    if own { format!("h.{block}") } else { format!("h.{block}.part_{part}") };
                for _ in 0..random.usize(1..4) {
                    let (at, mut reads) = (layers.len(), vec![]);
                    reads.extend(at.checked_sub(1));
                    // A branch within the block, or past it.
                    if at > 1 && random.usize(..3) == 0 {
                        reads.push(random.usize(first.saturating_sub(1)..at));
                    }
                    reads.dedup();
                    let mut saves: Vec<usize> =
                        reads.iter().copied().filter(|_| random.usize(..3) > 0).collect();
                    saves.extend((random.usize(..3) == 0).then_some(at));
                    layers.push(Layer {
                        module: module.clone(),
                        bytes: random.u64(1..100),
                        seconds: random.f64() + 0.01,
                        reads,
                        saves,
                    });
                }
            }
        }
        let last = layers.len() - 1;
        let (module, reads, saves) = ("head".to_string(), vec![last], vec![last]);
        layers.push(Layer { module, bytes: 4, seconds: 0.5, reads, saves });
        Model(layers)
    }

    fn graph(&self) -> Graph {
        let mut builder = GraphBuilder::new("model");
        let tensor = |builder: &mut GraphBuilder, bytes: u64| {
            let storage = builder.storage(Bytes(bytes));
            [Some(ValueSpec::contiguous(&[bytes], DType::U8, storage))]
        };
        let output = tensor(&mut builder, 8);
        let batch = builder.node(NodeSpec::new("x", "placeholder", Phase::Input), &output)[0];
        let mut made: Vec<ValueId> = vec![];
        for (at, layer) in self.0.iter().enumerate() {
            let mut spec = NodeSpec::new(format!("forward_{at}"), "op", Phase::Forward);
            spec.module = builder.module(layer.module.as_str());
            spec.inputs = layer.reads.iter().map(|&read| made[read]).collect();
            if spec.inputs.is_empty() {
                spec.inputs.push(batch);
            }
            spec.seconds = Some(Seconds(layer.seconds));
            let output = tensor(&mut builder, layer.bytes);
            made.push(builder.node(spec, &output)[0]);
        }
        let mut loss = NodeSpec::new("loss", "op", Phase::Loss);
        loss.inputs.extend(made.last());
        let output = tensor(&mut builder, 4);
        let mut gradient = builder.node(loss, &output)[0];
        for (at, layer) in self.0.iter().enumerate().rev() {
            let mut spec = NodeSpec::new(format!("backward_{at}"), "op", Phase::Backward);
            spec.module = builder.module(layer.module.as_str());
            spec.inputs = layer.saves.iter().map(|&saved| made[saved]).collect();
            spec.inputs.push(gradient);
            spec.inputs.dedup();
            spec.seconds = Some(Seconds(0.3));
            let output = tensor(&mut builder, layer.reads.first().map_or(8, |&r| self.0[r].bytes));
            gradient = builder.node(spec, &output)[0];
        }
        builder.output(gradient);
        builder.build().unwrap()
    }

    fn is_within(&self, layer: usize, module: &str) -> bool {
        let own = &self.0[layer].module;
        own == module || own.starts_with(&format!("{module}."))
    }

    /// Whether forward nodes outside of a module, including the loss, read a layer.
    fn leaves(&self, layer: usize, module: &str) -> bool {
        let reads = |&at: &usize| self.0[at].reads.contains(&layer);
        let mut readers = (0..self.0.len()).filter(reads);
        layer + 1 == self.0.len() || readers.any(|reader| !self.is_within(reader, module))
    }

    fn is_saved(&self, layer: usize) -> bool {
        self.0.iter().any(|other| other.saves.contains(&layer))
    }

    /// What a checkpointed module does not keep if it discards a share of what it makes for itself:
    /// of all choices that keep no more than the rest, the one that takes the least time.
    fn discarded(&self, module: &str, ratio: f64) -> BTreeSet<usize> {
        let own = |&layer: &usize| self.is_within(layer, module) && !self.leaves(layer, module);
        let own: Vec<usize> = (0..self.0.len()).filter(own).collect();
        let all: u64 = own.iter().map(|&layer| self.0[layer].bytes).sum();
        let capacity = ((1.0 - ratio) * all as f64).ceil() as u64;
        let mut best: Option<(f64, BTreeSet<usize>)> = None;
        for choice in 0u32..1 << own.len() {
            let is_kept = |&(place, _): &(usize, &usize)| choice >> place & 1 == 1;
            let (kept, gone): (Vec<_>, Vec<_>) = own.iter().enumerate().partition(is_kept);
            let bytes: u64 = kept.iter().map(|&(_, &layer)| self.0[layer].bytes).sum();
            let seconds: f64 = gone.iter().map(|&(_, &layer)| self.0[layer].seconds).sum();
            if bytes <= capacity && best.as_ref().is_none_or(|(least, _)| seconds < *least) {
                best = Some((seconds, gone.into_iter().map(|(_, &layer)| layer).collect()));
            }
        }
        best.unwrap().1
    }

    /// The layers that run again if these modules discard these shares: what the backward pass
    /// reads of what is gone, and everything needed for that. The input of a module is kept.
    fn again(&self, units: &[(String, f64)]) -> BTreeSet<usize> {
        let mut again = BTreeSet::new();
        for (module, ratio) in units {
            let gone = self.discarded(module, *ratio);
            let mut wanted: Vec<usize> =
                gone.iter().copied().filter(|&layer| self.is_saved(layer)).collect();
            while let Some(layer) = wanted.pop() {
                // What leaves the module is held for the backward passes that read it.
                let is_gone =
                    gone.contains(&layer) || self.leaves(layer, module) && !self.is_saved(layer);
                if self.is_within(layer, module) && is_gone && again.insert(layer) {
                    wanted.extend(&self.0[layer].reads);
                }
            }
        }
        again
    }
}

/// The decisions for each budget of the program that the planner tries.
fn decisions(graph: &Graph, profile: &Profile) -> Vec<Vec<(String, f64)>> {
    let info = measure(graph, profile).unwrap();
    let within = |budget| {
        let limits = SolverLimits::default();
        let (allowed, sharded) = (None, vec![]);
        selective(&info, &SelectiveTask { budget, world_size: 1, allowed, sharded, limits })
    };
    let least = match within(Bytes::ZERO) {
        Err(ModulePlanError::Infeasible(proof)) => proof.least,
        other => panic!("{other:?}"),
    };
    let step = (info.baseline_peak() - least).0 / BUDGETS;
    let plans = (0..BUDGETS).map(|part| within(least + Bytes(step * part)).unwrap());
    let name = |module| info.modules()[module].name.trim_start_matches("model.").to_string();
    let units = plans.map(|plan| plan.units);
    units
        .map(|units| units.iter().map(|unit| (name(unit.module), unit.discard_ratio)).collect())
        .collect()
}

/// The number of times each node runs.
fn counted(runs: &[NodeId]) -> BTreeMap<NodeId, usize> {
    let mut counts = BTreeMap::new();
    for &node in runs {
        *counts.entry(node).or_default() += 1;
    }
    counts
}

fn cases() -> u64 {
    u64::from(tightfit_testing::cases(20))
}

#[test]
fn what_runs_again_is_what_was_decided() {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..cases() {
        let model = Model::random(seed);
        let graph = model.graph();
        let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
        let order = plan::base_order(&graph, &profile);
        let instance = Instance::new(&graph, &profile, &order);
        let unplanned = plan::simulate(&graph, &profile, &Sequence::from(&order)).curve.peak;
        let decisions = decisions(&graph, &profile);
        let expected: BTreeSet<BTreeSet<usize>> =
            decisions.iter().map(|units| model.again(units)).collect();
        for percent in [100, 90, 80, 70, 60, 0] {
            let budget = Bytes(unplanned.0 * percent / 100);
            let (runs, is_within) = match plan::plan(instance, budget, Planner::Sac) {
                Ok(plan) => (plan.runs(), true),
                Err(PlanError::Infeasible(proof)) => (proof.plan.runs(), false),
                Err(error) => panic!("{seed}: {error}"),
            };
            let cost = oracle::replay(&graph, &profile, &runs).unwrap();
            assert_eq!(cost.peak <= budget.0, is_within, "{seed}");
            let counts = counted(&runs);
            assert!(counts.values().all(|&count| count <= 2), "{seed}: a layer runs three times");
            let again: BTreeSet<usize> = counts
                .into_iter()
                .filter(|&(_, count)| count == 2)
                .map(|(node, _)| graph.nodes()[node].name["forward_".len()..].parse().unwrap())
                .collect();
            assert!(
                again.is_empty() || expected.contains(&again),
                "{seed} at {percent} %: {again:?} of {decisions:?}"
            );
            assert!(percent < 100 || again.is_empty(), "{seed}: the whole budget");
            *kinds
                .entry(if again.is_empty() { "nothing runs again" } else { "some does" })
                .or_default() += 1;
        }
        let is_in_part = |(_, ratio): &(String, f64)| *ratio < 1.0;
        *kinds.entry("a module keeps a part").or_default() +=
            usize::from(decisions.iter().flatten().any(is_in_part));
        *kinds.entry("several modules").or_default() +=
            usize::from(decisions.iter().any(|units| units.len() > 1));
    }
    println!("{kinds:#?}");
    assert!(kinds.len() == 4 && kinds.values().all(|&count| count > 0), "{kinds:#?}");
}

#[test]
fn every_plan_is_accepted_within_its_budget() {
    let effort = Effort::work(1, 3_000);
    for seed in 0..cases() {
        let graph = Model::random(seed).graph();
        for profile in crate::fixtures::generator::profiles(&graph) {
            let unplanned = tightfit::unplanned(&graph, &profile).unwrap().schedule().slab;
            for percent in [100, 85, 70, 0] {
                let budget = Bytes(unplanned.0 * percent / 100);
                let request = Request {
                    goal: Goal::Within(budget),
                    planner: Planner::Sac,
                    effort,
                    ..Request::default()
                };
                match tightfit::fit(&graph, &profile, &request) {
                    Ok(fitted) => {
                        let timeline = check(&graph, &profile, fitted.schedule(), budget);
                        assert_eq!(&timeline.unwrap(), fitted.timeline(), "{seed}");
                        assert!(fitted.schedule().slab <= budget, "{seed}");
                    }
                    Err(error) => {
                        let reached = error.infeasible().unwrap().reached;
                        assert!(percent < 100 && reached > budget, "{seed}: {error}");
                        let request = Request { goal: Goal::Within(reached), ..request };
                        let fitted = tightfit::fit(&graph, &profile, &request);
                        assert!(fitted.is_ok(), "{seed}: {} bytes were said to do", reached.0);
                    }
                }
            }
        }
    }
}

#[test]
fn a_step_without_modules_is_refused_with_a_way_out() {
    let mut model = Model::random(3);
    model.0.iter_mut().for_each(|layer| layer.module.clear());
    let graph = model.graph();
    let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
    let order = plan::base_order(&graph, &profile);
    let instance = Instance::new(&graph, &profile, &order);
    let unplanned = plan::simulate(&graph, &profile, &Sequence::from(&order)).curve.peak;
    let planned = |budget| plan::plan(instance, budget, Planner::Sac);
    assert_eq!(planned(unplanned).unwrap().runs(), order);
    let error = planned(unplanned - Bytes(1)).unwrap_err();
    assert!(matches!(error, PlanError::NoModules), "{error:?}");
    assert!(error.to_string().contains("choose another planner, such as `auto`"), "{error}");
}

/// Some modules of real models draw random numbers, and some write in place.
#[test]
fn models_of_the_corpus_are_planned() {
    for name in tightfit_testing::first(
        2,
        &["resnet50_b32", "llama_1b_b2_s2048", "bert_base_drop_b16_s512"],
    ) {
        let graph = corpus::graph(name);
        let profile = corpus::profile(&graph);
        let order = plan::base_order(&graph, &profile);
        let instance = Instance::new(&graph, &profile, &order);
        let unplanned = plan::simulate(&graph, &profile, &Sequence::from(&order));
        let mut before = 0.0;
        for percent in [90, 75, 60] {
            let budget = Bytes(unplanned.curve.peak.0 / 100 * percent);
            let plan = plan::plan(instance, budget, Planner::Sac).unwrap();
            let cost = oracle::replay(&graph, &profile, &plan.runs()).unwrap();
            println!("{name} at {percent} %: {:.4}", cost.seconds / unplanned.seconds.0);
            assert!(cost.peak <= budget.0 && cost.seconds > before, "{name} at {percent} %");
            before = cost.seconds;
        }
    }
}
