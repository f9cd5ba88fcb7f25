//! `tightfit analyze`: nodes, operators, modules, budgets. Invariant: rows add up to the figures of
//! modules and graph, and JSON and tables show the same.
//!
//! Tier: quick with a part of the cases, 3 s; full with all of them.

#[path = "../../planner/tests/fixtures/graphinfo/mod.rs"]
mod graphinfo;

use std::collections::BTreeMap;
use std::path::Path;

use expect_test::{Expect, expect};
use serde_json::Value;
use tightfit::graph::write;
use tightfit_testing::first;

use crate::program::{BY_SIZE, Ran, corpus, folded, folder, run};

/// The figures that are sums, and the one that is a peak.
const SUMS: [&str; 6] =
    ["fwd_flop", "bwd_flop", "fwd_mem_in", "fwd_mem_tmp", "fwd_mem_out", "bwd_mem_out"];
const PEAK: &str = "bwd_mem_tmp";

fn analyze(arguments: &str) -> Ran {
    run(Path::new("."), &format!("analyze {arguments}"))
}

fn analyzed(arguments: &str) -> Value {
    analyze(&format!("{arguments} --json")).done().result()
}

fn rows<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap()
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("{key} of {row}"))
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or_else(|| panic!("{key} of {row}"))
}

fn is_below(path: &str, module: &str) -> bool {
    module.is_empty() || path == module || path.starts_with(&format!("{module}."))
}

/// Checks that the figures of some rows together make those of one row.
fn adds_up<'a>(parts: impl Iterator<Item = &'a Value> + Clone, whole: &Value, what: &str) {
    for key in SUMS {
        let sum: u64 = parts.clone().map(|part| number(part, key)).sum();
        assert_eq!(sum, number(whole, key), "{what}: {key}");
    }
    let most = parts.map(|part| number(part, PEAK)).max().unwrap_or(0);
    assert_eq!(most, number(whole, PEAK), "{what}: {PEAK}");
}

#[test]
fn rows_add_up_to_modules_and_the_graph() {
    let steps = ["gpt-nano-dropout", "mlp-digits"];
    let steps = steps.map(|name| format!("corpus/steps/{name} --threads 2"));
    let graphs = BY_SIZE.map(|name| format!("corpus/graphs/{name}.json.gz"));
    for graph in first(2, &graphs).iter().chain(&steps) {
        let all = analyzed(graph);
        let (nodes, operators) = (rows(&all, "nodes"), rows(&all, "operators"));
        let (whole, modules) = (&all["dataflow"]["graph"], rows(&all["dataflow"], "modules"));
        adds_up(nodes.iter().map(|node| &node["dataflow"]), whole, graph);
        assert!(number(whole, "fwd_mem_in") > 0, "{graph}: what the batch brings is in a row");
        // A module's figures: those of its own nodes and of its children.
        for module in modules {
            let path = text(module, "module");
            let own = nodes.iter().filter(|node| text(node, "module") == path);
            let is_child = |other: &&Value| {
                let other = text(other, "module");
                let parent = other.rsplit_once('.').map_or("", |(parent, _)| parent);
                !other.is_empty() && parent == path
            };
            let children = modules.iter().filter(is_child).map(|child| &child["share"]);
            let parts = own.map(|node| &node["dataflow"]).chain(children);
            adds_up(parts, &module["share"], &format!("{graph} {path}"));
        }
        // Operators, and nodes that belong to none.
        let is_of_none = |node: &&Value| {
            !["forward", "loss"].contains(&text(node, "phase")) && node["differentiates"].is_null()
        };
        let rest = nodes.iter().filter(is_of_none);
        let parts = operators.iter().map(|operator| &operator["share"]);
        adds_up(parts.chain(rest.map(|node| &node["dataflow"])), whole, graph);
        let seconds = |rows: &[Value], keys: &[&str]| -> f64 {
            let of = |row: &Value| keys.iter().map(|key| row[key].as_f64().unwrap()).sum::<f64>();
            rows.iter().map(of).sum()
        };
        assert!(
            (seconds(nodes, &["seconds"]) / all["step_seconds"].as_f64().unwrap() - 1.0).abs()
                < 1e-9
        );
        let linked = nodes.iter().any(|node| !node["differentiates"].is_null());
        assert_eq!(linked, graph.starts_with("corpus/steps"), "{graph}");
    }
}

#[test]
fn every_node_has_a_row_with_everything() {
    for graph in [
        "corpus/graphs/mobilenet_v3_large_b64.json.gz",
        "corpus/steps/gpt-nano-dropout --threads 2",
    ] {
        let all = analyzed(graph);
        let (nodes, last) = (rows(&all, "nodes"), number(&rows(&all, "modules")[0], "nodes") - 1);
        let ranks: Vec<u64> = nodes.iter().filter_map(|node| node["rank"].as_u64()).collect();
        assert_eq!(ranks, (0..=last).collect::<Vec<u64>>(), "{graph}: in the order of the runs");
        let mut phases: BTreeMap<&str, u64> = BTreeMap::new();
        for node in nodes {
            let what = format!("{graph} {}", text(node, "name"));
            let runs = !node["rank"].is_null();
            let is_placeholder = text(node, "op") == "placeholder";
            assert_eq!(runs, !is_placeholder && node["is_view"] == false, "{what}");
            *phases.entry(text(node, "phase")).or_default() += 1;
            // It is held from the run that makes it; a value there from the start has no birth.
            assert_eq!(
                node["birth"].is_null(),
                node["death"].is_null() || is_placeholder,
                "{what}"
            );
            assert!(node["birth"].is_null() || node["birth"] == node["rank"], "{what}");
            assert_eq!(node["death"].is_null(), number(node, "output_bytes") == 0, "{what}");
            assert!(node["death"].is_null() || number(node, "death") <= last, "{what}");
            assert_eq!(node["active_bytes"].is_null(), !runs, "{what}");
            assert_eq!(node["saved"] == true, number(node, "saved_bytes") > 0, "{what}");
            let flow = &node["dataflow"];
            assert!(
                number(flow, "fwd_mem_tmp")
                    + number(flow, "fwd_mem_out")
                    + number(flow, "fwd_mem_in")
                    <= number(node, "saved_bytes"),
                "{what}"
            );
            // An output of the forward pass that the backward pass reads waits in between.
            let in_forward = ["forward", "loss"].contains(&text(node, "pass"));
            if in_forward && node["saved"] == true {
                assert!(node["idle_seconds"].as_f64().unwrap() >= 0.0, "{what}");
                assert!(!node["first_backward_access"].is_null(), "{what}");
            }
            assert!(node["swap_seconds"].is_null(), "{what}: no machine has a tier below");
            assert_eq!(node["parameter"].is_string(), is_persistent(node), "{what}");
        }
        assert!(phases["parameter"] > 0 && phases["input"] > 0, "{graph}");
    }
    // By phase alone, these would count as gradients.
    let all = analyzed("corpus/graphs/mobilenet_v3_large_b64.json.gz");
    let moved = rows(&all, "nodes").iter().filter(|node| node["phase"] != node["pass"]);
    let moved: Vec<_> = moved.map(|node| (text(node, "phase"), text(node, "pass"))).collect();
    assert_eq!(moved, [("backward", "forward"); 21]);
}

fn is_persistent(node: &Value) -> bool {
    ["parameter", "buffer", "state"].contains(&text(node, "phase"))
}

#[test]
fn every_operator_has_all_figures_of_the_original() {
    let all = analyzed("corpus/steps/gpt-nano-dropout --threads 2");
    let nodes: BTreeMap<&str, &Value> =
        rows(&all, "nodes").iter().map(|node| (text(node, "name"), node)).collect();
    let mut linked = 0;
    for operator in rows(&all, "operators") {
        let name = text(operator, "name");
        for kind in ["share", "alone"] {
            for key in SUMS.iter().chain([&PEAK]) {
                assert!(operator[kind][key].is_u64(), "{name}: {kind} {key}");
            }
        }
        for backward in rows(operator, "backward") {
            assert_eq!(nodes[backward.as_str().unwrap()]["differentiates"], name);
            linked += 1;
        }
        for (list, figure) in
            [("fwd_in", "fwd_mem_in"), ("fwd_tmp", "fwd_mem_tmp"), ("fwd_out", "fwd_mem_out")]
        {
            let bytes: u64 = rows(operator, list).iter().map(|saved| number(saved, "bytes")).sum();
            assert_eq!(bytes, number(&operator["alone"], figure), "{name}: {list}");
            for saved in rows(operator, list) {
                let maker = nodes[text(saved, "name")];
                assert_eq!(maker["saved"], true, "{name}: {list}");
                assert_eq!(list != "fwd_in", text(maker, "name") == name, "{name}: {list}");
            }
        }
        assert_eq!(operator["save_fwd_in"] == true, !rows(operator, "fwd_in").is_empty(), "{name}");
    }
    let all_linked = nodes.values().filter(|node| !node["differentiates"].is_null()).count();
    assert!(linked > 50 && linked == all_linked);
}

#[test]
fn the_acceptance_cases_pass_through_the_program() {
    let file = std::fs::read(corpus().join("cases/graphinfo.json")).unwrap();
    let cases = graphinfo::cases(&file);
    assert_eq!(cases.len(), 13);
    for case in cases {
        let folder = folder();
        let path = folder.path().join("graph.json");
        std::fs::write(&path, write(&case.graph).to_string()).unwrap();
        let all = run(folder.path(), "analyze FOLDER/graph.json --json").done().result();
        let flow = &all["dataflow"];
        let root = &rows(flow, "modules")[0];
        for figures in [&flow["graph"], &root["share"], &root["alone"]] {
            let row = graphinfo::FIGURES.map(|key| number(figures, key));
            assert_eq!(row, case.right(), "{}", case.id);
        }
        adds_up(rows(&all, "nodes").iter().map(|node| &node["dataflow"]), &flow["graph"], &case.id);
    }
}

#[test]
fn tables_of_modules_agree() {
    for graph in [
        "corpus/graphs/gpt2_small_b8_s512.json.gz",
        "corpus/graphs/mobilenet_v3_large_b64.json.gz",
        "corpus/steps/gpt-nano --threads 2",
    ] {
        let all = analyzed(&format!("{graph} --depth 64"));
        let info = run(Path::new("."), &format!("modules {graph} --json")).done().result();
        let stats = rows(&info["module_info"], "mod_stats");
        let (table, figures) = (rows(&all, "modules"), rows(&all["dataflow"], "modules"));
        let statistics_of: BTreeMap<&str, &Value> = stats
            .iter()
            .map(|stats| (text(stats, "fqn").split_once('.').map_or("", |(_, path)| path), stats))
            .collect();
        let mut found = 0;
        for (row, figures) in table.iter().zip(figures) {
            assert_eq!(row["module"], figures["module"]);
            let name = text(row, "module");
            // A module that is never called holds only numbered modules, and has no statistics.
            let Some(stats) = statistics_of.get(name) else {
                let below = table.iter().filter_map(|row| {
                    text(row, "module").strip_prefix(name)?.strip_prefix('.')?.split('.').next()
                });
                let below: Vec<&str> = below.collect();
                assert!(!below.is_empty(), "{graph} {name}");
                assert!(below.iter().all(|path| path.parse::<u32>().is_ok()), "{graph} {name}");
                continue;
            };
            found += 1;
            assert_eq!(row["parameter_bytes"], stats["param_per_module"], "{graph} {name}");
            let alone = &figures["alone"];
            assert_eq!(alone["fwd_mem_tmp"], stats["act_fw_per_module"], "{graph} {name}");
            assert_eq!(
                number(row, "saved_bytes"),
                number(alone, "fwd_mem_tmp") + number(alone, "fwd_mem_out"),
                "{graph} {name}"
            );
            for (ours, theirs) in
                [("fwd_seconds", "fw_runtime_per_module"), ("bwd_seconds", "bw_runtime_per_module")]
            {
                let (ours, theirs) = (row[ours].as_f64().unwrap(), stats[theirs].as_f64().unwrap());
                assert!((ours * 1e3 - theirs).abs() <= 1e-9 * theirs, "{graph} {name}");
            }
        }
        assert_eq!(found, stats.len(), "{graph}");
    }
}

#[test]
fn parameters_of_planning_graphs_stand_in_their_modules() {
    for graph in ["resnet50_b32", "mobilenet_v3_large_b64"] {
        let all = analyzed(&format!("corpus/graphs/{graph}.json.gz"));
        let nodes = rows(&all, "nodes").iter();
        let parameters: Vec<&Value> = nodes.filter(|node| node["phase"] == "parameter").collect();
        assert!(parameters.len() > 100, "{graph}");
        for row in parameters {
            // The capture's own name for it says where it is.
            let module = format!("L__self___{}_", text(row, "module").replace('.', "_"));
            let name = text(row, "parameter").strip_prefix(&module);
            assert!(matches!(name, Some("weight" | "bias")), "{graph}: {row}");
        }
    }
}

#[test]
fn a_filter_keeps_a_module_with_all_below_it() {
    let graph = "corpus/graphs/gpt2_small_b8_s512.json.gz";
    let (all, some) =
        (analyzed(graph), analyzed(&format!("{graph} --module model.transformer.h.1")));
    assert_eq!(some["within_module"], "model.transformer.h.1");
    for key in ["nodes", "operators", "live"] {
        // And none of `h.10` and `h.11`.
        let within = rows(&all, key).iter();
        let within = within.filter(|row| is_below(text(row, "module"), "model.transformer.h.1"));
        assert_eq!(
            within.collect::<Vec<_>>(),
            rows(&some, key).iter().collect::<Vec<_>>(),
            "{key}"
        );
        assert!(!rows(&some, key).is_empty(), "{key}");
    }
    let modules: Vec<&str> = rows(&some, "modules").iter().map(|row| text(row, "module")).collect();
    assert_eq!(modules[..2], ["model.transformer.h.1", "model.transformer.h.1.ln_1"]);
    assert!(modules.contains(&"model.transformer.h.1.mlp.act"), "depth counts from the module");
    for key in ["peak_bytes", "step_seconds", "static_bytes"] {
        assert_eq!(all[key], some[key], "{key}");
    }
    assert_eq!(all["dataflow"]["graph"], some["dataflow"]["graph"]);
}

#[test]
fn a_budget_marks_what_is_over_it() {
    for (graph, reserved) in
        [("corpus/graphs/resnet50_b32.json.gz", false), ("corpus/steps/gpt-nano --threads 2", true)]
    {
        let plain = analyzed(graph);
        assert!(plain["budget_bytes"].is_null());
        for budget in ["95%", "60%", "1TiB"] {
            let all = analyzed(&format!("{graph} --budget {budget}"));
            let (whole, reserve) = (number(&all, "budget_bytes"), number(&all, "reserve_bytes"));
            assert_eq!(reserve > 0, reserved, "{graph}");
            if let Some(percent) = budget.strip_suffix('%') {
                let peak = (number(&all, "peak_bytes") + number(&all, "packing_bytes")) as f64;
                let share = percent.parse::<f64>().unwrap() / 100.0;
                let base = number(&all, "base_bytes");
                assert_eq!(base > 0, reserved, "{graph}");
                let expected = base + (peak * share) as u64;
                assert_eq!(whole, expected, "{graph}: base, and a share of peak and packing");
            }
            let intervals = rows(&all, "peak_intervals");
            let (mut over, mut most) = (0, 0);
            for node in rows(&all, "nodes").iter().filter(|node| !node["rank"].is_null()) {
                let (rank, held) = (number(node, "rank"), number(node, "active_bytes") + reserve);
                assert_eq!(node["in_peak_interval"] == true, held > whole, "{graph} {node}");
                let around = |interval: &&Value| {
                    number(interval, "first_rank") <= rank && rank <= number(interval, "last_rank")
                };
                let around: Vec<_> = intervals.iter().filter(around).collect();
                assert_eq!(around.len(), usize::from(held > whole), "{graph} {node}");
                for interval in around {
                    let by = held - whole;
                    assert!(by <= number(interval, "over_bytes"), "{graph} {node}");
                    over += 1;
                    most = most.max(by);
                }
            }
            assert_eq!(intervals.is_empty(), budget == "1TiB", "{graph}");
            let largest = intervals.iter().map(|interval| number(interval, "over_bytes")).max();
            assert_eq!(largest.unwrap_or(0), most, "{graph}");
            let text = analyze(&format!("{graph} --budget {budget}")).done().stdout;
            let said = match over {
                0 => "never exceeded".to_string(),
                _ => format!(
                    "exceeded while {over} of {} nodes run",
                    number(&plain["modules"][0], "nodes")
                ),
            };
            assert!(text.contains(&said), "{graph}: `{said}` is missing from\n{text}");
        }
    }
}

fn shows(arguments: &str, expected: Expect) {
    let text = analyze(arguments).done().stdout;
    expected.assert_eq(&folded(&text));
    // Sentences may be longer; table rows may not.
    let (_, tables) = text.split_once("\n\n").unwrap();
    assert!(tables.lines().all(|line| line.chars().count() <= 120), "{tables}");
}

#[test]
fn a_person_can_read_the_overview() {
    shows(
        "corpus/graphs/gpt2_small_b8_s512.json.gz --top 4 --depth 3 --budget 60%",
        expect![[r#"
            gpt2_small_b8_s512: 1197 nodes run, 35.64 ms on a100-80gb: 8.41 ms forward and
            27.23 ms backward
            peak 4.5 GiB (4852660744 bytes) at `scatter` in the root module; 237.4 MiB of it
            is parameters, state and batch
            budget 2.7 GiB (2911596446 bytes): exceeded while 28 of 1197 nodes run, in 1
            interval:
              from `_to_copy` (231) to `_to_copy_2` (258), by 1.8 GiB at most, at `scatter`

            alive there, the 4 largest of 354:
                 size  phase      tensor                                  module
            785.3 MiB  forward    _log_softmax                            (root)
            785.3 MiB  backward   full_like                               (root)
            785.3 MiB  backward   scatter                                 (root)
             73.6 MiB  parameter  L__self___model_transformer_wte_weight  model

            fwd_in, fwd_tmp, fwd_out: saved for the backward pass, and made outside, used
            within, handed on; bwd_tmp: temporaries of the backward pass at their most;
            bwd_out: gradients that leave; all at the border of the module

            module                  parameters    fwd_in   fwd_tmp  fwd_out   fwd ms  bwd ms
            (root)                   237.4 MiB  64.0 KiB   2.8 GiB        –    8.411   27.23
            model                    237.4 MiB  32.0 KiB   2.0 GiB        –    6.593   19.75
            model.transformer        237.4 MiB  32.0 KiB   2.0 GiB  6.0 MiB    5.580   17.72
            model.transformer.wte     73.6 MiB  32.0 KiB         –        –   0.0410  0.3686
            model.transformer.wpe      1.5 MiB   4.0 KiB         –        –  0.00116  0.0104
            model.transformer.h      162.2 MiB   6.0 MiB   2.0 GiB  6.0 MiB    5.517   17.14
            model.transformer.ln_f     3.0 KiB   6.0 MiB  16.0 KiB  6.0 MiB  0.00618  0.1945
            model.lm_head             73.6 MiB   6.0 MiB         –        –    1.013   2.027
            … and 3 more columns with --wide
        "#]],
    );
}

#[test]
fn a_person_can_read_the_nodes() {
    shows(
        "corpus/steps/gpt-nano --machine a100-80gb --nodes --module h.0.attn --sort idle_ms \
         --top 8",
        expect![[r#"
            gpt-nano: 104 nodes run, 0.0119 ms on a100-80gb: 0.00344 ms forward and
            0.00682 ms backward
            peak 4.3 MiB (4478468 bytes) at `_log_softmax_backward_data` in the root module;
            1.4 MiB of it is parameters, state and batch

            held: while the node runs; *: at the peak

            node                     pass          output     held    idle ms  module
            h_0_attn_qkv_bias        parameter      768 B        –     0.0103  h.0.attn.qkv
            h_0_attn_proj_bias       parameter      256 B        –     0.0102  h.0.attn.proj
            h_0_attn_qkv_weight      parameter   48.0 KiB        –    0.00908  h.0.attn.qkv
            addmm                    forward    192.0 KiB  1.7 MiB    0.00850  h.0.attn.qkv
            _scaled_dot…ion_for_cpu  forward     66.0 KiB  1.8 MiB    0.00832  h.0.attn
            h_0_attn_proj_weight     parameter   16.0 KiB        –    0.00825  h.0.attn.proj
            h_0_attn_qk…ght_exp_avg  state       48.0 KiB        –          –  h.0.attn.qkv
            h_0_attn_qk…_exp_avg_sq  state       48.0 KiB        –          –  h.0.attn.qkv
            … and 48 more rows
            … and 4 more columns with --wide
        "#]],
    );
}

#[test]
fn a_person_can_read_the_operators() {
    shows(
        "corpus/steps/gpt-nano --machine a100-80gb --operators --module h.0.mlp",
        expect![[r#"
            gpt-nano: 104 nodes run, 0.0119 ms on a100-80gb: 0.00344 ms forward and
            0.00682 ms backward
            peak 4.3 MiB (4478468 bytes) at `_log_softmax_backward_data` in the root module;
            1.4 MiB of it is parameters, state and batch

            fwd_in, fwd_tmp, fwd_out: saved for the backward pass, and made outside, used
            within, handed on; bwd_tmp: temporaries of the backward pass at their most;
            bwd_out: gradients that leave; all at the border of the operator

            operator   fwd_flop    fwd ms    bwd ms     fwd_in    fwd_out
            view_8            –         –         –          –          –
            permute_6         –         –         –          –          –
            addmm_2       8.4 M  0.000193  0.000515   64.0 KiB  256.0 KiB
            view_9            –         –         –          –          –
            gelu              –  0.000257  0.000386  256.0 KiB  256.0 KiB
            view_10           –         –         –          –          –
            permute_7         –         –         –          –          –
            addmm_3       8.4 M  0.000193  0.000418  256.0 KiB          –
            view_11           –         –         –          –          –
            … and 5 more columns with --wide
        "#]],
    );
}

#[test]
fn tables_sort_by_what_they_show() {
    let graph = "corpus/graphs/vit_b16_b32.json.gz";
    let all = analyzed(graph);
    let key = |node: &Value| number(node, "output_bytes");
    let mut nodes: Vec<&Value> = rows(&all, "nodes").iter().collect();
    nodes.sort_by_key(|node| std::cmp::Reverse(key(node)));
    // With nothing left out of the names, the table's first column is the JSON's.
    let shown = analyze(&format!("{graph} --nodes --sort OUTPUT --top 40 --wide")).done().stdout;
    let table: Vec<&str> = shown.split_once("\nnode ").unwrap().1.lines().skip(1).collect();
    assert_eq!(table.len(), 41);
    for (row, node) in table.iter().zip(&nodes) {
        let (head, tail) = row
            .split_whitespace()
            .next()
            .unwrap()
            .split_once('…')
            .unwrap_or((row.split_whitespace().next().unwrap(), ""));
        let name = text(node, "name");
        assert!(name.starts_with(head) && name.ends_with(tail), "{row} {name}");
    }
    assert_eq!(table[40], format!("… and {} more rows", nodes.len() - 40));
    // Words rise.
    let shown = analyze(&format!("{graph} --nodes --sort node --top 3")).done().stdout;
    let mut names: Vec<&str> = nodes.iter().map(|node| text(node, "name")).collect();
    names.sort_unstable();
    let first = shown.split_once("\nnode ").unwrap().1.lines().nth(1).unwrap();
    assert!(first.starts_with(&names[0][..8]), "{first} {}", names[0]);
}

#[test]
fn what_is_not_there_is_refused_with_what_is() {
    let refused = |arguments: &str, code: i32, expected: Expect| {
        let ran = analyze(&format!("corpus/steps/gpt-nano --threads 2 {arguments}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{arguments}");
        expected.assert_eq(&folded(&ran.stderr));
    };
    refused(
        "--nodes --sort size",
        2,
        expect![[r#"
        error: there is no column `size`; the columns are node, pass, rank, until, \
        output, saved, held, ms, idle_ms, module
    "#]],
    );
    refused(
        "--operators --sort fwd",
        2,
        expect![[r#"
        error: there is no column `fwd`; the columns are operator, bwd, fwd_flop, \
        bwd_flop, fwd_ms, bwd_ms, fwd_in, fwd_tmp, fwd_out, bwd_tmp, bwd_out
    "#]],
    );
    refused(
        "--module h.2",
        2,
        expect![[r#"
        error: there is no module `h.2`; `h` has `0`, `1`
    "#]],
    );
    refused(
        "--module h.1.mlp.fc.x",
        2,
        expect![[r#"
        error: there is no module `h.1.mlp.fc.x`; `h.1.mlp.fc` has no modules in it
    "#]],
    );
    refused(
        "--budget min",
        8,
        expect![[r#"
            error: this verb takes no `min`, which is the smallest budget that one device \
            is planned into; write bytes, 320MiB, 2.5GB or 60%
        "#]],
    );
    refused(
        "--budget 0",
        8,
        expect![[r#"
        error: a budget of zero leaves no memory for anything; write bytes, 320MiB, \
        2.5GB, 60% or min
    "#]],
    );
    // What the process takes depends on the build, and packing on the processor's caches.
    let little = analyze("corpus/steps/gpt-nano --threads 2 --budget 1000");
    assert_eq!((little.code, little.stdout.as_str()), (Some(3), ""), "{}", little.stderr);
    let begin = "error: a budget of 1000 B leaves nothing for a slab: the process itself takes ";
    assert!(little.stderr.starts_with(begin), "{}", little.stderr);
    refused(
        "--sort ms",
        2,
        expect![[r#"
        error: the following required arguments were not provided:
          <--nodes|--operators>

        Usage: tightfit analyze --threads <THREADS> --sort <COLUMN> \
        <--nodes|--operators> <GRAPH>

        For more information, try '--help'.
    "#]],
    );
}

#[test]
fn what_is_there_from_the_start_may_exceed_a_budget_by_itself() {
    let here = folder();
    let graph = r#"{"format": "tightfit-graph/1", "name": "g", "modules": [""], "storages": [4],
        "nodes": [{"name": "p", "op": "placeholder", "phase": "parameter",
        "outputs": [{"id": 0, "shape": [1], "dtype": "f32", "storage": 0}]}], "outputs": [0]}"#;
    std::fs::write(here.path().join("g.json"), graph).unwrap();
    let said = |budget: u64| {
        run(here.path(), &format!("analyze FOLDER/g.json --budget {budget}")).done().stdout
    };
    assert!(said(1).contains("exceeded by 3 B by what is there before anything runs"));
    assert!(said(4).contains("never exceeded, 0 B are left at the peak"));
}
