//! The acceptance cases of Capuchin, through the program. Invariant: the file says what is
//! expected; sizes are multiplied by the alignment of addresses, so that they pack as the bytes do.
//!
//! Tier: quick, since it takes less than a second.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tightfit::graph::{self, Graph};
use tightfit::id::StorageId;
use tightfit::plan::{Retention, Retentions, rematerialize};
use tightfit::schedule::ALIGNMENT;

use super::{Answer, close, explained, list, number, row, text};
use crate::program::{corpus, folder};

struct Case {
    json: Json,
    folder: TempDir,
    graph: Graph,
}

/// The cases whose id starts with `prefix` and that are graphs, each written as a file.
fn cases(prefix: &str) -> Vec<Case> {
    let file = std::fs::read(corpus().join("cases/capuchin.json")).unwrap();
    let file: Json = serde_json::from_slice(&file).unwrap();
    let all = list(&file["cases"]);
    let starts = |case: &Json, prefix: &str| text(&case["id"]).starts_with(prefix);
    let nodes_of = |case: &Json| match case["input"]["nodes"].as_str() {
        // "same as ID", or "ID*": the first case whose id starts so.
        Some(named) => {
            let id = named.trim_start_matches("same as ").trim_end_matches('*');
            all.iter().find(|other| starts(other, id)).unwrap()["input"]["nodes"].clone()
        }
        None => case["input"]["nodes"].clone(),
    };
    let wanted = all.iter().filter(|case| starts(case, prefix) && case["baseline"].is_object());
    wanted
        .map(|case| {
            let (folder, text) = (folder(), file_of(&nodes_of(case)).to_string());
            std::fs::write(folder.path().join("graph.json"), &text).unwrap();
            let graph = graph::read(text.as_bytes()).unwrap();
            Case { json: case.clone(), folder, graph }
        })
        .collect()
}

/// One vector of bytes in a storage of its own for each node; `sep` is the last forward node;
/// `output` reads the outputs.
fn file_of(nodes: &Json) -> Json {
    let mut ids: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut storages, mut rows, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    let mut phase = "forward";
    for node in list(nodes) {
        let name = text(&node["name"]);
        let inputs: Vec<usize> = list(&node["inputs"]).iter().map(|name| ids[text(name)]).collect();
        if node["op"] == "output" {
            outputs = inputs;
            continue;
        }
        let (id, bytes) = (storages.len(), node["mem"].as_u64().unwrap_or(0) * ALIGNMENT);
        storages.push(bytes);
        ids.insert(name, id);
        rows.push(json!({
            "name": name,
            "op": node["op"],
            "phase": if node["op"] == "placeholder" { "parameter" } else { phase },
            "inputs": inputs,
            "outputs": [{ "id": id, "shape": [bytes], "dtype": "u8", "storage": id }],
            "seconds": node["time"].as_f64().unwrap() / 1e3,
        }));
        if name == "sep" {
            phase = "backward";
        }
    }
    json!({
        "format": "tightfit-graph/1", "name": "case", "modules": [""],
        "storages": storages, "nodes": rows, "outputs": outputs,
    })
}

fn set(list: &Json) -> BTreeSet<&str> {
    super::list(list).iter().map(text).collect()
}

fn keys(object: &Json) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

impl Case {
    fn id(&self) -> &str {
        text(&self.json["id"])
    }

    /// The program's answer within the unplanned peak less `need`.
    fn asked_to_save(&self, need: u64, variant: &str) -> Answer {
        let budget = (number(&self.json["baseline"]["peak"]) - need) * ALIGNMENT;
        self.within(budget, variant)
    }

    fn within(&self, budget: u64, variant: &str) -> Answer {
        explained(self.folder.path(), "FOLDER/graph.json", &budget.to_string(), variant)
    }

    /// The table before the first choice.
    fn candidates(&self, explanation: &Json) {
        let (accesses, expected) =
            (&self.json["candidates"], &self.json["expected_corrected"]["initial"]);
        let found = list(&explanation["candidates"]).iter().map(|row| text(&row["node"]));
        assert_eq!(found.collect::<BTreeSet<_>>(), keys(expected), "{}", self.id());
        for (name, expected) in expected.as_object().unwrap() {
            let (row, what) = (row(&explanation["candidates"], name), self.id());
            assert_eq!(row["last_forward_access"], accesses[name]["last_forward_access"], "{what}");
            let first = &accesses[name]["first_back_access"];
            assert_eq!(&row["first_backward_access"], first, "{what}");
            for (key, theirs) in [
                ("activation_sources", "activation_sources"),
                ("parameter_sources", "param_sources"),
                ("other_sources", "other_sources"),
            ] {
                assert_eq!(set(&row[key]), set(&expected[theirs]), "{what}: {key} of {name}");
            }
            let seconds = expected["rcomp_time"].as_f64().unwrap() / 1e3;
            close(&row["recompute_seconds"], seconds, what);
            close(&row["msps"], per_second(&expected["msps"]), what);
        }
    }

    /// The choices, each with all figures that it changes.
    fn choices(&self, explanation: &Json) {
        let expected = &self.json["expected_corrected"];
        let trace: Vec<&Json> =
            list(&expected["trace"]).iter().filter(|choice| choice.is_object()).collect();
        assert_eq!(list(&explanation["choices"]).len(), trace.len(), "{}", self.id());
        let mut open: BTreeMap<&str, &Json> =
            list(&explanation["candidates"]).iter().map(|row| (text(&row["node"]), row)).collect();
        for (choice, expected) in list(&explanation["choices"]).iter().zip(trace) {
            let what = self.id();
            assert_eq!(choice["node"], expected["chosen"], "{what}");
            close(&choice["msps"], per_second(&expected["msps"]), what);
            let seconds = |json: &Json| json.as_f64().unwrap() / 1e3;
            close(&choice["execution_seconds"], seconds(&expected["exe_time"]), what);
            assert_eq!(choice["executions"], expected["exe_count"], "{what}");
            let remaining = number(&expected["remaining"]) * ALIGNMENT;
            assert_eq!(number(&choice["remaining_bytes"]), remaining, "{what}");
            open.remove(text(&choice["node"]));
            open.extend(list(&choice["changed"]).iter().map(|row| (text(&row["node"]), row)));
            let after = &expected["msps_after"];
            assert_eq!(open.keys().copied().collect::<BTreeSet<_>>(), keys(after), "{what}");
            for (name, row) in &open {
                close(&row["msps"], per_second(&after[name]), what);
                let all = seconds(&expected["exe_time_after"][name]);
                close(&row["execution_seconds"], all, what);
            }
        }
    }

    /// The final state of the chosen nodes.
    fn ends(&self, explanation: &Json) {
        let expected = &self.json["expected_corrected"];
        let what = self.id();
        let ends = list(&explanation["ends"]);
        let chosen: Vec<&str> = ends.iter().map(|end| text(&end["node"])).collect();
        let recorded: Vec<&str> = list(&expected["recomps"]).iter().map(text).collect();
        assert_eq!(chosen, recorded, "{what}");
        let tops = ends.iter().filter(|end| end["is_top"] == true).map(|end| text(&end["node"]));
        assert_eq!(tops.collect::<BTreeSet<_>>(), set(&expected["top_recomps"]), "{what}");
        for end in ends {
            let expected = &expected["final"][text(&end["node"])];
            for (key, theirs) in [
                ("activation_sources", "activation_sources"),
                ("parameter_sources", "param_sources"),
                ("intermediates", "intermediates"),
                ("outputs", "rcomp_outs"),
            ] {
                assert_eq!(set(&end[key]), set(&expected[theirs]), "{what}: {key}");
            }
        }
    }

    /// The step that the printed choices make, in the file's notation: `_r` for a node that runs
    /// again, and the operands that are not those of the original node.
    fn rewritten(&self, explanation: &Json) -> (Vec<String>, BTreeMap<String, Vec<String>>) {
        let mut retentions = Retentions::new();
        for choice in list(&explanation["choices"]) {
            assert_eq!(choice["mode"], "recompute", "{}", self.id());
            retentions[self.graph.node_named(text(&choice["node"])).unwrap()] =
                Retention::Recompute;
        }
        let runs = rematerialize(&self.graph, &self.graph.compute_nodes(), &retentions);
        let name = |storage: &StorageId| {
            self.graph.nodes()[self.graph.producer(*storage).unwrap()].name.clone()
        };
        let mut newest: BTreeMap<StorageId, String> = BTreeMap::new();
        let (mut order, mut operands) = (Vec::new(), BTreeMap::new());
        for node in runs {
            let reads = self.graph.reads(node);
            let original: Vec<String> = reads.iter().map(name).collect();
            let newest_of =
                |storage: &StorageId| newest.get(storage).cloned().unwrap_or_else(|| name(storage));
            let read: Vec<String> = reads.iter().map(newest_of).collect();
            let mut own = self.graph.nodes()[node].name.clone();
            let again = order.contains(&own);
            if again {
                own += "_r";
            }
            if again || read != original {
                operands.insert(own.clone(), read);
            }
            newest.extend(self.graph.fresh(node).iter().map(|&made| (made, own.clone())));
            order.push(own);
        }
        order.push("output".to_string());
        (order, operands)
    }

    /// The step after the choices costs what the file says.
    fn costs(&self, explanation: &Json, after: &Json) {
        assert_eq!(number(&explanation["peak_bytes"]), number(&after["peak"]) * ALIGNMENT);
        let last = list(&explanation["choices"]).last();
        let seconds = last.map_or(&explanation["unplanned_step_seconds"], |c| &c["step_seconds"]);
        close(seconds, after["total_time"].as_f64().unwrap() / 1e3, self.id());
    }

    /// Whether the answer is the one that follows from the simulated peak.
    fn answered(&self, answer: &Answer, need: u64, after: &Json) {
        let (peak, baseline) = (number(&after["peak"]), number(&self.json["baseline"]["peak"]));
        let is_right = peak <= baseline - need;
        let expected = if is_right { 0 } else { crate::program::code_of_refusal(&answer.stderr) };
        assert_eq!(answer.code, expected, "{}, need {need}: {}", self.id(), answer.stderr);
        if !is_right {
            let said = "; the simulated peak is ";
            let bytes = format!(" ({} bytes)\n", peak * ALIGNMENT);
            assert!(answer.stderr.contains(said) && answer.stderr.contains(&bytes));
            let predicted = number(&answer.json["predicted_peak_bytes"]);
            assert!(predicted <= (baseline - need) * ALIGNMENT, "the prediction is met");
            assert!(predicted < peak * ALIGNMENT);
        }
    }
}

/// From bytes per millisecond.
fn per_second(msps: &Json) -> f64 {
    msps.as_f64().unwrap() * 1e3 * ALIGNMENT as f64
}

#[test]
fn published_gives_the_recorded_cases() {
    let mut pinned = 0;
    for case in cases("capuchin/C").iter().filter(|c| c.json["expected_corrected"].is_object()) {
        let expected = &case.json["expected_corrected"];
        let need = number(&case.json["input"]["mem_saving_needed"]);
        let answer = case.asked_to_save(need, "published");
        let explanation = &answer.json["explanation"];
        let baseline = number(&case.json["baseline"]["peak"]) * ALIGNMENT;
        assert_eq!(number(&explanation["unplanned_peak_bytes"]), baseline, "{}", case.id());
        assert_eq!(number(&explanation["need_bytes"]), need * ALIGNMENT, "{}", case.id());
        case.candidates(explanation);
        case.choices(explanation);
        case.ends(explanation);
        if expected["status"].is_string() {
            assert_eq!(
                answer.code,
                crate::program::code_of_refusal(&answer.stderr),
                "{}",
                case.id()
            );
            assert!(answer.stderr.contains("and no candidate is left"), "{}", answer.stderr);
        } else {
            let (order, operands) = case.rewritten(explanation);
            assert_eq!(Json::from(order), expected["rewritten_order"], "{}", case.id());
            assert_eq!(json!(operands), expected["rewritten_inputs"], "{}", case.id());
            case.costs(explanation, &expected["after"]);
            case.answered(&answer, need, &expected["after"]);
        }
        pinned += 1;
    }
    assert_eq!(pinned, 8);
}

/// For larger needs, the chain of six peaks higher; if the prediction is right there is a plan.
#[test]
fn published_is_right_at_times_on_the_chain_of_six() {
    let case = cases("capuchin/pareto/C3_chain6").remove(0);
    let mut right = Vec::new();
    for expected in list(&case.json["greedy_corrected_seed"]) {
        let need = number(&expected["need"]);
        let answer = case.asked_to_save(need, "published");
        let explanation = &answer.json["explanation"];
        let chosen: Vec<&str> =
            list(&explanation["choices"]).iter().map(|choice| text(&choice["node"])).collect();
        let recorded: Vec<&str> = list(&expected["recomps"]).iter().map(text).collect();
        assert_eq!(chosen, recorded);
        let tops =
            list(&explanation["ends"]).iter().filter(|e| e["is_top"] == true).map(|e| &e["node"]);
        assert_eq!(tops.map(text).collect::<BTreeSet<_>>(), set(&expected["top"]));
        case.costs(explanation, &expected["after"]);
        case.answered(&answer, need, &expected["after"]);
        if answer.code == 0 {
            right.push(need);
        }
    }
    assert_eq!(right, [100, 200]);
}

/// Our rule at the budgets of the file's frontiers: within each budget or refused, and never higher
/// than for a larger budget.
#[test]
fn ours_keeps_the_budgets_of_the_frontiers() {
    let mut plans = 0;
    for case in cases("capuchin/pareto/") {
        let frontier = list(&case.json["expected"]["frontier"]);
        let mut least = 0;
        for point in frontier {
            let budget = number(&point["peak"]) * ALIGNMENT;
            let answer = case.within(budget, "ours");
            if answer.code != 0 {
                assert_eq!(answer.code, crate::program::code_of_refusal(&answer.stderr));
                assert_eq!(least, 0, "{}: a larger budget is refused", case.id());
                assert!(number(&answer.json["explanation"]["peak_bytes"]) > budget);
                continue;
            }
            let peak = number(&answer.json["peak_bytes"]);
            assert!((least..=budget).contains(&peak), "{}", case.id());
            least = peak;
            plans += 1;
        }
        let whole = case.within(number(&case.json["baseline"]["peak"]) * ALIGNMENT, "ours");
        case.costs(&whole.json["explanation"], &case.json["baseline"]);
        assert_eq!(list(&whole.json["explanation"]["choices"]), &[] as &[Json]);
    }
    assert!(plans > 5, "{plans} plans");
}
