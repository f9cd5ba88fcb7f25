//! Choices applied one by one: peaks, bytes and seconds are those that were printed.
//!
//! Tier: quick with a part of the cases, 3 s; full with all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::Value as Json;
use tightfit::analysis::Sequence;
use tightfit::graph::{self, Graph};
use tightfit::id::NodeId;
use tightfit::machine::Machine;
use tightfit::plan::{self, Retention, Retentions, rematerialize, simulate};
use tightfit::profile::Profile;
use tightfit::schedule;

use super::generator;
use super::oracle::Oracle;
use super::{Answer, close, explained, list, number, row, text};
use crate::program::{corpus, folder, run};

/// A graph under costs.
struct Step {
    graph: Graph,
    profile: Profile,
}

impl Step {
    fn on_an_a100(graph: Graph) -> Step {
        let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
        Step { graph, profile }
    }

    fn node(&self, name: &Json) -> NodeId {
        self.graph.node_named(text(name)).unwrap()
    }

    fn names<'a>(&'a self, nodes: &'a BTreeSet<NodeId>) -> Vec<&'a str> {
        nodes.iter().map(|&node| self.graph.nodes()[node].name.as_str()).collect()
    }

    /// A row's figures are those of the oracle.
    fn figures(&self, oracle: &Oracle<'_>, row: &Json) {
        let (node, what) = (self.node(&row["node"]), text(&row["node"]));
        close(&row["recompute_seconds"], oracle.recompute_seconds(node), what);
        assert_eq!(row["executions"], oracle.executions(node), "{what}");
        let all = oracle.recompute_seconds(node) * oracle.executions(node) as f64;
        close(&row["execution_seconds"], all, what);
        close(&row["msps"], oracle.msps(node), what);
    }

    /// The candidates before the first choice are complete, with what they are computed from.
    fn candidates(&self, oracle: &Oracle<'_>, explanation: &Json) {
        let rows = list(&explanation["candidates"]);
        let found: BTreeSet<NodeId> = rows.iter().map(|row| self.node(&row["node"])).collect();
        assert_eq!(self.names(&found), self.names(&oracle.open()));
        let order = plan::base_order(&self.graph, &self.profile);
        for row in rows {
            self.figures(oracle, row);
            let node = self.node(&row["node"]);
            assert_eq!(number(&row["bytes"]), oracle.bytes(node));
            let sources = oracle.sources(node);
            for (key, expected) in [
                ("activation_sources", &sources.activations),
                ("parameter_sources", &sources.parameters),
                ("other_sources", &sources.others),
            ] {
                let found: Vec<&str> = list(&row[key]).iter().map(text).collect();
                assert_eq!(found, self.names(expected), "{key} of {}", row["node"]);
            }
            let is_forward = |node: NodeId| self.graph.nodes()[node].phase.is_forward();
            let readers = || {
                order.iter().copied().filter(|&reader| {
                    self.graph.reads(reader).iter().any(|s| self.graph.fresh(node).contains(s))
                })
            };
            let last = readers().rfind(|&reader| is_forward(reader)).unwrap();
            let first = readers().find(|&reader| !is_forward(reader)).unwrap();
            assert_eq!(self.node(&row["last_forward_access"]), last, "{}", row["node"]);
            assert_eq!(self.node(&row["first_backward_access"]), first, "{}", row["node"]);
        }
    }

    /// Applies the choices one by one, and returns the sequence that results. After each choice all
    /// open candidates are compared, or without `every` the chosen one alone.
    fn replay(&self, explanation: &Json, every: bool) -> Vec<NodeId> {
        let Step { graph, profile } = self;
        let order = plan::base_order(graph, profile);
        let mut oracle = Oracle::new(graph, profile);
        self.candidates(&oracle, explanation);
        let published = explanation["variant"] == "published";
        let unplanned = simulate(graph, profile, &Sequence::from(&order));
        assert_eq!(number(&explanation["unplanned_peak_bytes"]), unplanned.curve.peak.0);
        assert_eq!(explanation["unplanned_step_seconds"], unplanned.seconds.0);
        let mut open: BTreeMap<&str, &Json> =
            list(&explanation["candidates"]).iter().map(|row| (text(&row["node"]), row)).collect();
        let (mut retentions, mut runs) = (Retentions::new(), order.clone());
        let (mut peak, mut promised) = (unplanned.curve.peak.0, 0);
        for choice in list(&explanation["choices"]) {
            let (node, what) = (self.node(&choice["node"]), text(&choice["node"]));
            self.figures(&oracle, choice);
            if published && every {
                let best =
                    oracle.open().into_iter().map(|node| oracle.msps(node)).fold(0.0, f64::max);
                close(&choice["msps"], best, "the highest MSPS is chosen");
            }
            retentions[node] = match text(&choice["mode"]) {
                "recompute" => Retention::Recompute,
                "recompute each use" => Retention::RecomputeEachUse,
                other => panic!("{what} is chosen to `{other}`"),
            };
            runs = rematerialize(graph, &order, &retentions);
            let after = simulate(graph, profile, &Sequence::from(&runs));
            assert_eq!(number(&choice["peak_bytes"]), after.curve.peak.0, "{what}");
            assert_eq!(choice["step_seconds"], after.seconds.0, "{what}");
            let saved = peak as i64 - after.curve.peak.0 as i64;
            assert_eq!(choice["saved_bytes"], saved, "{what}");
            peak = after.curve.peak.0;
            assert_eq!(number(&choice["bytes"]), oracle.bytes(node), "{what}");
            promised += oracle.bytes(node);
            if published {
                let need = number(&explanation["need_bytes"]);
                assert_eq!(number(&choice["remaining_bytes"]), need.saturating_sub(promised));
                let predicted = unplanned.curve.peak.0.saturating_sub(promised);
                assert_eq!(number(&choice["predicted_peak_bytes"]), predicted);
            } else {
                assert!(saved >= 0, "ours never raises the peak: {what}");
                assert_eq!(choice.get("remaining_bytes"), None);
            }
            oracle.chosen.push(node);
            assert!(open.remove(what).is_some(), "{what} is chosen twice");
            open.extend(list(&choice["changed"]).iter().map(|row| (text(&row["node"]), row)));
            if every {
                assert_eq!(open.len(), oracle.open().len());
                open.values().for_each(|row| self.figures(&oracle, row));
            }
        }
        assert_eq!(number(&explanation["peak_bytes"]), peak);
        if published {
            self.ends(&oracle, explanation);
        }
        runs
    }

    /// Intermediates are the chosen nodes among those that run again with a node; a top yields
    /// them.
    fn ends(&self, oracle: &Oracle<'_>, explanation: &Json) {
        let ends = list(&explanation["ends"]);
        assert_eq!(ends.len(), oracle.chosen.len());
        for (end, &node) in ends.iter().zip(&oracle.chosen) {
            assert_eq!(self.node(&end["node"]), node);
            let sources = oracle.sources(node);
            let chosen = |node: &&NodeId| oracle.chosen.contains(node);
            let inner: BTreeSet<NodeId> = sources.others.iter().filter(chosen).copied().collect();
            assert_eq!(end["intermediates"], Json::from(self.names(&inner)));
            assert_eq!(end["activation_sources"], Json::from(self.names(&sources.activations)));
            assert_eq!(end["parameter_sources"], Json::from(self.names(&sources.parameters)));
            let own = vec![self.graph.nodes()[node].name.as_str()];
            let yielded = match end["is_top"].as_bool().unwrap() {
                true => [own, self.names(&inner)].concat(),
                false => own,
            };
            assert_eq!(end["outputs"], Json::from(yielded));
        }
    }

    /// The list of what is recomputed, checked against the sequence of runs alone. The machine
    /// reuses no input.
    fn recomputed(&self, rows: &Json, runs: &[NodeId]) {
        assert!(!self.profile.reuse.is_any());
        let graph = &self.graph;
        let touches = |at: NodeId, storage| {
            graph.reads(at).contains(storage) || graph.fresh(at).contains(storage)
        };
        let program = graph.compute_nodes();
        let again: BTreeSet<NodeId> = runs
            .iter()
            .copied()
            .filter(|node| runs.iter().filter(|other| *other == node).count() > 1)
            .collect();
        assert_eq!(list(rows).len(), again.len());
        for &node in &again {
            let name = graph.nodes()[node].name.as_str();
            let row = row(rows, name);
            let times: Vec<usize> = (0..runs.len()).filter(|&at| runs[at] == node).collect();
            assert_eq!(number(&row["times"]), times.len() as u64 - 1, "{name}");
            let seconds = self.profile.seconds[node].0 * (times.len() - 1) as f64;
            close(&row["seconds"], seconds, name);
            let (mut absent, mut saved) = (0, 0);
            for &at in &times[1..] {
                let (mut absent_here, mut saved_here) = (0, 0);
                for storage in graph.fresh(node).iter().filter(|&&s| !graph.is_kept(s)) {
                    let last = (0..at).rev().find(|&at| touches(runs[at], storage)).unwrap();
                    if last + 1 < at {
                        absent_here += graph.storages()[*storage].0;
                        let last =
                            program.iter().rev().find(|&&node| touches(node, storage)).unwrap();
                        if runs.iter().position(|node| node == last).unwrap() > at {
                            saved_here += graph.storages()[*storage].0;
                        }
                    }
                }
                (absent, saved) = (absent.max(absent_here), saved.max(saved_here));
            }
            assert_eq!(number(&row["absent_bytes"]), absent, "{name}");
            assert_eq!(number(&row["saved_bytes"]), saved, "{name}");
            assert_eq!(row["op"], graph.nodes()[node].op);
            assert_eq!(row["module"], graph.module_of(node));
        }
        let saved: Vec<u64> = list(rows).iter().map(|row| number(&row["saved_bytes"])).collect();
        assert!(saved.is_sorted_by(|a, b| a >= b), "{saved:?}");
    }

    /// The plan of the program, in its order.
    fn planned(&self, folder: &Path) -> Vec<NodeId> {
        let file = std::fs::read(folder.join("plan.json")).unwrap();
        schedule::read(&self.graph, &file).unwrap().runs()
    }

    /// Replays one answer of the program; returns whether there is a plan.
    fn holds(&self, folder: &Path, answer: &Answer, every: bool) -> bool {
        let explanation = &answer.json["explanation"];
        let runs = self.replay(explanation, every);
        let last = list(&explanation["choices"]).last();
        if answer.code == 0 {
            assert_eq!(runs, self.planned(folder));
            assert_eq!(explanation["peak_bytes"], answer.json["peak_bytes"]);
            let remaining = last.and_then(|last| last.get("remaining_bytes"));
            assert!(remaining.is_none_or(|remaining| *remaining == 0), "the need is covered");
            self.recomputed(&answer.json["recomputed"], &runs);
            return true;
        }
        assert_eq!(answer.code, crate::program::code_of_refusal(&answer.stderr));
        let peak = number(&explanation["peak_bytes"]);
        assert_eq!(answer.json["feasible"], false);
        if explanation["variant"] == "published" {
            let (predicted, simulated) =
                (&answer.json["predicted_peak_bytes"], &answer.json["simulated_peak_bytes"]);
            let unplanned = &explanation["unplanned_peak_bytes"];
            assert_eq!(predicted, last.map_or(unplanned, |last| &last["predicted_peak_bytes"]));
            assert_eq!(number(simulated), peak);
            let chosen = list(&explanation["choices"]).len();
            let said = format!("activations chosen: {chosen}; the predicted peak is ");
            assert!(answer.stderr.contains(&said), "{}", answer.stderr);
        } else {
            assert!(peak <= number(&answer.json["reached_bytes"]));
        }
        false
    }
}

#[test]
fn graphs_of_the_corpus() {
    let folder = folder();
    let mut plans = 0;
    for (name, budget, every) in [
        ("graphs/llama_1b_b2_s2048", "60%", false),
        ("graphs/llama_1b_b2_s2048", "85%", false),
        ("graphs/gpt2_small_b8_s512", "70%", false),
        ("graphs/mobilenet_v3_large_b64", "80%", false),
        ("graphs/resnet50_b32", "50%", false),
        ("synthetic/chain24", "60%", true),
        ("synthetic/tf2", "75%", true),
        ("synthetic/unet3_1", "65%", true),
        ("synthetic/unet2_1", "min", true),
    ] {
        let file = format!("corpus/{name}.json.gz");
        let bytes = std::fs::read(corpus().join(format!("{name}.json.gz"))).unwrap();
        let step = Step::on_an_a100(graph::read(&bytes).unwrap());
        for variant in ["ours", "published"] {
            let answer = explained(folder.path(), &file, budget, variant);
            plans += usize::from(step.holds(folder.path(), &answer, every));
        }
    }
    assert!(plans > 9, "{plans} plans");
}

#[test]
fn random_graphs() {
    let folder = folder();
    let (mut plans, mut refused, mut choices) = ([0; 2], [0; 2], [0; 2]);
    let mut runner = TestRunner::new(tightfit_testing::config(1));
    let recipes = generator::recipes(24);
    for case in 0..100 {
        let graph = recipes.new_tree(&mut runner).unwrap().current().graph();
        // Storages so large that the alignment of addresses matters little.
        let mut file = graph::write(&graph);
        for bytes in file["storages"].as_array_mut().unwrap() {
            *bytes = (number(bytes) << 12).into();
        }
        let file = file.to_string();
        std::fs::write(folder.path().join("graph.json"), &file).unwrap();
        let step = Step::on_an_a100(graph::read(file.as_bytes()).unwrap());
        let order = plan::base_order(&step.graph, &step.profile);
        let (peak, fixed) = (
            simulate(&step.graph, &step.profile, &Sequence::from(&order)).curve.peak,
            step.graph.static_bytes(),
        );
        let part = [0.97, 0.9, 0.8][case % 3];
        let budget = fixed.0 + (part * (peak - fixed).0 as f64) as u64;
        let asked = [budget.to_string(), "min".to_string()];
        for (index, variant) in ["ours", "published"].into_iter().enumerate() {
            for budget in &asked {
                let answer = explained(folder.path(), "FOLDER/graph.json", budget, variant);
                match step.holds(folder.path(), &answer, true) {
                    true => plans[index] += 1,
                    false => refused[index] += 1,
                }
                choices[index] += list(&answer.json["explanation"]["choices"]).len();
            }
        }
    }
    assert!(
        [plans, refused, choices].iter().flatten().all(|&seen| seen > 50),
        "plans {plans:?}, refused {refused:?}, choices {choices:?}"
    );
}

/// On the engine's machine an output may take over its input's memory, and a reserve is part of the
/// budget.
#[test]
fn steps_are_explained_as_they_are_trained() {
    let folder = folder();
    let mut choices = 0;
    for name in ["gpt-nano", "gpt-nano-dropout", "mlp-digits"] {
        for (variant, budget) in [("ours", "min"), ("ours", "90%"), ("published", "min")] {
            let ran = run(
                folder.path(),
                &format!(
                    "plan corpus/steps/{name} --threads 2 --budget {budget} --planner capuchin \
                     --variant {variant} --explain --json -o FOLDER/plan.json"
                ),
            )
            .done();
            let bytes =
                std::fs::read(corpus().join(format!("steps/{name}/train.json.gz"))).unwrap();
            let graph = graph::read(&bytes).unwrap();
            let profile = Profile::new(&graph, &Machine::unmeasured_cpu(2));
            let step = Step { graph, profile };
            let result = ran.result();
            let runs = step.replay(&result["explanation"], false);
            assert_eq!(runs, step.planned(folder.path()), "{name} {variant} {budget}");
            assert_eq!(result["explanation"]["peak_bytes"], result["peak_bytes"]);
            choices += list(&result["explanation"]["choices"]).len();
        }
    }
    assert!(choices > 20, "{choices} choices");
}

/// Every planner lists what it recomputes, and only Capuchin explains choices.
#[test]
fn every_planner_lists_what_it_recomputes() {
    let folder = folder();
    let bytes = std::fs::read(corpus().join("synthetic/chain24.json.gz")).unwrap();
    let step = Step::on_an_a100(graph::read(&bytes).unwrap());
    let mut rows = 0;
    for planner in ["none", "chen", "xla", "dtr", "knapsack", "rotor", "exact", "auto"] {
        // The exact planner would take long to find something.
        let budget = if ["none", "exact"].contains(&planner) { "100%" } else { "70%" };
        let ran = run(
            folder.path(),
            &format!(
                "plan corpus/synthetic/chain24.json.gz --budget {budget} --planner {planner} \
                 --iterations 20000 --explain --json -o FOLDER/plan.json"
            ),
        );
        if ran.code != Some(0) {
            assert_eq!(ran.code, Some(crate::program::code_of_refusal(&ran.stderr)));
            assert_eq!(ran.result().get("explanation"), None, "{planner} has nothing to explain");
            continue;
        }
        let result = ran.done().result();
        assert_eq!(result.get("explanation"), None, "{planner}");
        let runs = step.planned(folder.path());
        step.recomputed(&result["recomputed"], &runs);
        let times: u64 = list(&result["recomputed"]).iter().map(|row| number(&row["times"])).sum();
        assert_eq!(times, number(&result["recomputed_nodes"]), "{planner}");
        rows += list(&result["recomputed"]).len();
    }
    assert!(rows > 20, "{rows} rows");
}
