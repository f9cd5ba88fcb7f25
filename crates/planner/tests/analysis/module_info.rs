//! Statistics of modules, read and written: the recorded ones, and those that must be refused.
//! Invariant: a refusal names the module.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.

use proptest::prelude::*;
use serde_json::{Value, json};
use tightfit::analysis::modules::{ModuleIndex, ModuleInfo};

use crate::fixtures::corpus;

fn file(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(corpus::path(&format!("cases/{name}"))).unwrap()).unwrap()
}

fn read(value: &Value) -> ModuleInfo {
    ModuleInfo::from_json(value.to_string().as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

fn case(id: &str) -> Value {
    let all = file("ilp_sac.json");
    all["cases"].as_array().unwrap().iter().find(|case| case["id"] == id).unwrap().clone()
}

fn names(info: &ModuleInfo) -> Vec<&str> {
    info.modules().values().map(|stats| stats.name.as_str()).collect()
}

#[test]
fn the_tree_and_the_baseline_are_those_of_the_recorded_case() {
    let case = case("ilp/parse_and_baseline");
    let (info, expected) = (read(&case["input"]["module_info"]), &case["expected"]);
    assert_eq!(json!(names(&info)), expected["index"]);
    let modules: Vec<ModuleIndex> = info.modules().keys().collect();
    let positions: Vec<usize> =
        modules.iter().map(|&module| info.forward_post_position(module)).collect();
    assert_eq!(json!(positions), expected["pos_fw_post_order"]);
    let contains: Vec<Vec<u8>> = modules
        .iter()
        .map(|&i| modules.iter().map(|&j| u8::from(info.contains(i, j))).collect())
        .collect();
    assert_eq!(json!(contains), expected["ad_matrix"]);
    assert_eq!(json!(info.ancestor_matrix()), expected["ad_matrix"]);
    for (at, stats) in
        info.document()["module_info"]["mod_stats"].as_array().unwrap().iter().enumerate()
    {
        assert_eq!(
            (&stats["index"], &stats["pos_fw_post_order"]),
            (&json!(at), &json!(positions[at]))
        );
    }
    assert_eq!(json!(info.baseline_peak().0), expected["baseline_peak"]);
    assert!(
        (info.baseline_seconds().0 * 1e3 - expected["baseline_runtime"].as_f64().unwrap()).abs()
            < 1e-9
    );
}

#[test]
fn baselines_of_real_models_are_right_to_the_byte() {
    for name in ["llama_tiny_4l", "torchtest_4l"] {
        let info = read(&file(&format!("module_info/module_info_{name}.json")));
        let answers = file(&format!("module_info/sac_answers_{name}.json"));
        assert_eq!(json!(info.baseline_peak().0), answers["baseline_peak_bytes"]);
        let milliseconds = info.baseline_seconds().0 * 1e3;
        assert!(
            (milliseconds / answers["baseline_compute_ms"].as_f64().unwrap() - 1.0).abs() < 1e-12
        );
        assert_eq!(json!(info.modules().len()), answers["n_modules"]);
    }
    let case = case("ilp/real_module_info_mlp3");
    assert_eq!(
        json!(read(&case["input"]["module_info"]).baseline_peak().0),
        case["expected"]["baseline_peak"]
    );
}

#[test]
fn the_index_is_the_forward_pre_order_whatever_the_order_of_the_statistics() {
    let case = case("ilp/parse_unsorted_input");
    let mut info = self::case("ilp/parse_and_baseline")["input"]["module_info"].clone();
    let stats = info["mod_stats"].as_array().unwrap().clone();
    let stats = case["input"]["mod_stats_order"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| stats.iter().find(|s| s["fqn"] == *name).unwrap());
    info["mod_stats"] = stats.cloned().collect();
    assert_eq!(json!(names(&read(&info))), case["expected_corrected"]["index"]);
}

/// A tree of the given names, the root first, with arbitrary figures.
fn tree(names: &[&str]) -> Value {
    let stats = names.iter().map(|name| {
        json!({
            "fqn": name, "param_per_module": 4, "grad_per_module": 4, "grad_total": 0,
            "act_fw_per_module": 2, "act_bw_per_module": 2, "act_grad_per_module": 1,
            "act_total": 2, "input_per_module": 1, "output_per_module": 1,
            "fw_runtime_per_module": 1.0, "bw_runtime_per_module": 2.0, "is_leaf": false,
            "sac_runtime": 1.0, "sac_memory": 2, "n_segments": 1, "slopes": [1.0],
            "intercepts": [0.0], "breakpoints": [0.0, 1.0], "tradeoff_curve": {},
        })
    });
    let post: Vec<&str> = names[1..].iter().rev().chain([&names[0]]).copied().collect();
    json!({
        "mod_order": {
            "fw_pre_order": names, "fw_post_order": post,
            "bw_pre_order": names, "bw_post_order": post,
        },
        "mod_stats": stats.collect::<Vec<_>>(),
    })
}

#[test]
fn ancestors_are_found_by_path_components() {
    let case = case("ilp/fqn_predicate");
    for (pair, expected) in case["input"]
        .as_array()
        .unwrap()
        .iter()
        .zip(case["expected_corrected_self_or_sub"].as_array().unwrap())
    {
        let (below, above) = (pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
        // One root above both, so that each may be in a tree of its own.
        let (below, above) = (format!("T.{below}"), format!("T.{above}"));
        let mut names = vec!["T", &above];
        names.extend((below != above).then_some(below.as_str()));
        let info = read(&tree(&names));
        let find = |name: &str| info.find(name).unwrap();
        assert_eq!(
            json!(info.contains(find(&above), find(&below))),
            *expected,
            "{below} below {above}"
        );
    }
    let info = read(&tree(&["T", "T.layers.1", "T.layers.10", "T.layers.1.a"]));
    let [root, one, ten, a] =
        ["T", "T.layers.1", "T.layers.10", "T.layers.1.a"].map(|name| info.find(name).unwrap());
    assert!(info.contains(one, a) && !info.contains(one, ten));
    assert_eq!(
        [info.parent(a), info.parent(ten), info.parent(root)],
        [Some(one), Some(root), None]
    );
    assert_eq!(info.lineage(a).collect::<Vec<_>>(), [a, one, root]);
}

#[test]
fn what_is_written_reads_the_same() {
    let recorded = ["llama_tiny_4l", "torchtest_4l"]
        .map(|name| file(&format!("module_info/module_info_{name}.json")));
    let cases = [
        case("ilp/real_module_info_mlp3")["input"]["module_info"].clone(),
        file("ilp_fsdp.json")["module_info"].clone(),
    ];
    for given in recorded.iter().chain(&cases) {
        let info = read(given);
        let written = info.to_json();
        assert_eq!(ModuleInfo::from_json(written.as_bytes()).unwrap(), info);
        // Every figure that was given is there again, to the last bit.
        let (written, given) = (
            serde_json::from_str::<Value>(&written).unwrap(),
            given.get("module_info").unwrap_or(given),
        );
        for stats in given["mod_stats"].as_array().unwrap() {
            let again = written["module_info"]["mod_stats"]
                .as_array()
                .unwrap()
                .iter()
                .find(|again| again["fqn"] == stats["fqn"])
                .unwrap();
            for (field, value) in stats.as_object().unwrap() {
                match (value.as_f64(), again[field].as_f64()) {
                    (Some(a), Some(b)) => assert_eq!(a.to_bits(), b.to_bits(), "{field}"),
                    _ => assert_eq!(again[field], *value, "{field}"),
                }
            }
        }
        for order in ["fw_pre_order", "fw_post_order", "bw_pre_order", "bw_post_order"] {
            assert_eq!(
                written["module_info"]["mod_order"][order], given["mod_order"][order],
                "{order}"
            );
        }
    }
}

proptest! {
    #![proptest_config(tightfit_testing::config(300))]

    #[test]
    fn every_number_is_written_as_it_was_read(
        times in prop::collection::vec(0u64..0x412e_8480_0000_0000, 3), // up to a million
        points in prop::collection::vec((0.0..=1.1f64, 0.0..=1.0f64), 0..6),
        bytes in 0u64..1 << 44,
    ) {
        let mut given = tree(&["M", "M.a"]);
        let fields = ["fw_runtime_per_module", "bw_runtime_per_module", "sac_runtime"];
        let times: Vec<f64> = times.into_iter().map(f64::from_bits).collect();
        for (field, &milliseconds) in fields.into_iter().zip(&times) {
            given["mod_stats"][1][field] = json!(milliseconds);
        }
        let mut points = points;
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        given["mod_stats"][1]["act_total"] = json!(bytes);
        given["mod_stats"][1]["tradeoff_curve"] = json!(points);
        let info = read(&given);
        let written = info.to_json();
        prop_assert_eq!(&ModuleInfo::from_json(written.as_bytes()).unwrap(), &info);
        let written: Value = serde_json::from_str(&written).unwrap();
        let again = &written["module_info"]["mod_stats"][1];
        for (field, milliseconds) in fields.into_iter().zip(times) {
            prop_assert_eq!(again[field].as_f64().map(f64::to_bits), Some(milliseconds.to_bits()));
        }
        prop_assert_eq!(&again["tradeoff_curve"], &json!(points));
        prop_assert_eq!(&again["act_total"], &json!(bytes));
        // Written as the table that Python makes of an `OrderedDict`, the curve is the same.
        let table: serde_json::Map<String, Value> =
            points.iter().map(|&(x, y)| (format!("{x:?}"), json!(y))).collect();
        if table.len() == points.len() {
            given["mod_stats"][1]["tradeoff_curve"] = json!(table);
            prop_assert_eq!(&read(&given), &info);
        }
    }
}

#[test]
fn curves_may_be_tables_and_unknown_keys_are_ignored() {
    let mut info = tree(&["M", "M.a"]);
    info["mod_stats"][1]["tradeoff_curve"] = json!({ "1.01": 1.0, "0.5": 0.25 });
    info["mod_stats"][1]["colour"] = json!("blue");
    let file = json!({ "meta": 1, "module_info": info, "sac_stats": {} });
    let info = read(&file);
    assert_eq!(
        info.modules()[info.find("M.a").unwrap()].tradeoff.points,
        [(0.5, 0.25), (1.01, 1.0)]
    );
}

#[test]
fn a_module_without_a_backward_pass_may_be_absent_from_backward_orders() {
    let mut info = tree(&["M", "M.frozen"]);
    info["mod_stats"][1]["bw_runtime_per_module"] = json!(0.0);
    info["mod_order"]["bw_pre_order"] = json!(["M"]);
    assert_eq!(read(&info).backward_pre_order().len(), 1);
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Value), message: &str) {
    let mut info = tree(&["M", "M.a", "M.a.b", "M.c"]);
    change(&mut info);
    let error =
        ModuleInfo::from_json(info.to_string().as_bytes()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains(message), "{error}");
}

#[test]
fn modules_missing_somewhere_are_named() {
    for order in ["fw_pre_order", "fw_post_order", "bw_pre_order", "bw_post_order"] {
        refused(
            |info| info["mod_order"][order].as_array_mut().unwrap().retain(|name| name != "M.c"),
            &format!("module `M.c` has statistics but does not stand in {order}"),
        );
        refused(
            |info| info["mod_order"][order].as_array_mut().unwrap().push(json!("M.z")),
            &format!("module `M.z` stands in {order} but has no statistics"),
        );
    }
    refused(
        |info| drop(info["mod_stats"].as_array_mut().unwrap().remove(2)),
        "module `M.a.b` stands in fw_pre_order but has no statistics",
    );
    refused(|info| info["mod_stats"][1]["fqn"] = json!(7), "an entry without `fqn` at place 1");
    refused(
        |info| drop(info["mod_stats"][1].as_object_mut().unwrap().remove("act_total")),
        "module `M.a` has no figure `act_total`",
    );
    refused(
        |info| drop(info["mod_stats"][1].as_object_mut().unwrap().remove("sac_memory")),
        "module `M.a` has no figure `sac_memory`",
    );
    refused(|info| *info = json!({ "mod_order": {}, "mod_stats": [] }), "there is no module");
    refused(|info| *info = json!({ "mod_order": {} }), "it has no `mod_stats`");
    refused(|info| *info = json!([1, 2]), "it has no `mod_order`");
}

#[test]
fn duplicates_and_names_that_make_no_tree_are_named() {
    let twice = |info: &mut Value| {
        let copy = info["mod_stats"][3].clone();
        info["mod_stats"].as_array_mut().unwrap().push(copy);
    };
    refused(twice, "module `M.c` stands twice in `mod_stats`");
    for order in ["fw_pre_order", "fw_post_order", "bw_pre_order", "bw_post_order"] {
        refused(
            |info| info["mod_order"][order].as_array_mut().unwrap().push(json!("M.a")),
            &format!("module `M.a` stands twice in {order}"),
        );
    }
    let rename = |to: &'static str| {
        move |info: &mut Value| {
            *info = serde_json::from_str(&info.to_string().replace("M.c", to)).unwrap()
        }
    };
    refused(rename("N.c"), "module `N.c` is not below the root `M`");
    refused(rename("N"), "module `N` is not below the root `M`");
    refused(rename("M..c"), "`M..c` is no fully qualified name");
    refused(rename(""), "`` is no fully qualified name");
    refused(
        |info| info["mod_order"]["fw_pre_order"] = json!(["M", "M.a.b", "M.a", "M.c"]),
        "module `M.a.b` comes before its ancestor `M.a` in fw_pre_order",
    );
    refused(
        |info| info["mod_order"]["fw_post_order"] = json!(["M.a", "M.a.b", "M.c", "M"]),
        "module `M.a.b` comes after its ancestor `M.a` in fw_post_order",
    );
}

#[test]
fn figures_that_are_none_are_named() {
    let bytes = [
        "param_per_module",
        "grad_per_module",
        "grad_total",
        "act_fw_per_module",
        "act_bw_per_module",
        "act_grad_per_module",
    ];
    let bytes =
        bytes.iter().chain(&["act_total", "input_per_module", "output_per_module", "sac_memory"]);
    for &field in bytes.chain(&["fw_runtime_per_module", "bw_runtime_per_module", "sac_runtime"]) {
        for wrong in [json!(-1), json!("many"), Value::Null, json!(true)] {
            refused(
                |info| info["mod_stats"][2][field] = wrong,
                &format!("module `M.a.b`: `{field}` is "),
            );
        }
    }
    refused(
        |info| info["mod_stats"][2]["act_total"] = json!(1.5),
        "module `M.a.b`: `act_total` is 1.5; expected a whole number of bytes",
    );
    refused(
        |info| info["mod_stats"][2]["act_total"] = json!(2e15),
        "module `M.a.b`: `act_total` is 2000000000000000; expected at most 16 TiB",
    );
    refused(
        |info| info["mod_stats"][2]["act_total"] = json!(u64::MAX),
        "module `M.a.b`: `act_total` is 18446744073709551615",
    );
    refused(|info| info["mod_stats"][2]["is_leaf"] = json!(0), "module `M.a.b`: `is_leaf` is 0");
    refused(
        |info| info["mod_stats"][2]["slopes"] = json!([1.0, 2.0]),
        "module `M.a.b` has 2 slopes, but 1 intercepts; expected 2",
    );
    refused(
        |info| info["mod_stats"][2]["n_segments"] = json!(3),
        "module `M.a.b` has 1 slopes, but 3 segments",
    );
    refused(
        |info| info["mod_stats"][2]["breakpoints"] = json!([0.5]),
        "module `M.a.b` has 1 slopes, but 1 breakpoints; expected 2",
    );
    refused(
        |info| info["mod_stats"][2]["breakpoints"] = json!([-0.5, 1.0]),
        "module `M.a.b`: `breakpoints` is -0.5",
    );
    refused(
        |info| info["mod_stats"][2]["slopes"] = json!([null]),
        "module `M.a.b`: `slopes` is [null]",
    );
    refused(
        |info| info["mod_stats"][2]["slopes"] = json!([1e300]),
        "module `M.a.b`: `slopes` is 1000",
    );
    refused(
        |info| info["mod_stats"][2]["tradeoff_curve"] = json!([[0.1]]),
        "module `M.a.b`: `tradeoff_curve` is [[0.1]]",
    );
}

#[test]
fn numbers_that_json_does_not_have_are_found_in_their_module() {
    for literal in ["NaN", "Infinity", "-Infinity"] {
        let text = tree(&["M", "M.a\\\"NaN"]).to_string();
        let text = text.replace("\"sac_runtime\":1.0", &format!("\"sac_runtime\":{literal}"));
        let error = ModuleInfo::from_json(text.as_bytes()).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("module `M`: `sac_runtime` is no number"), "{error}");
    }
    let error = ModuleInfo::from_json(b"{\"mod_order\": NaN").map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("it is no JSON of module statistics"), "{error}");
}
