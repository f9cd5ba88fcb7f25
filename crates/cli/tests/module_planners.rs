//! The verbs `sac` and `shard` on files of both kinds. Invariant: the printed figures are those
//! that other tests check the planner against; here they only have to recur.
//!
//! Tier: quick, since it takes 2 s.

use serde_json::json;

use crate::program::{corpus, folder, run};

fn statistics(name: &str) -> String {
    corpus().join(format!("cases/module_info/module_info_{name}.json")).display().to_string()
}

#[test]
fn sac_reads_statistics_and_prints_what_it_chose() {
    let here = folder();
    let ran = run(here.path(), &format!("sac {} --budget 70% --json", statistics("llama_tiny_4l")))
        .done();
    let result = ran.result();
    assert!(result["recompute_ms"].as_f64().unwrap() <= 0.355, "{result}");
    assert!(result["peak_bytes"].as_u64() <= result["budget_bytes"].as_u64());
    assert_eq!(
        (&result["baseline_peak_bytes"], &result["gap"]),
        (&json!(550_332_416), &json!(0.0))
    );
    let units = result["units"].as_array().unwrap();
    let recompute: f64 = units.iter().map(|unit| unit["recompute_ms"].as_f64().unwrap()).sum();
    assert!((recompute - result["recompute_ms"].as_f64().unwrap()).abs() < 1e-9);
    // The file has the operators of every layer.
    assert!(
        units.iter().all(|unit| unit["saved_operators"].as_array().unwrap().len() == 53),
        "{result}"
    );
    assert!(result["seconds"].as_f64().is_some());
}

#[test]
fn a_plan_is_printed_in_the_terms_of_pytorch() {
    let here = folder();
    let verb = format!("sac {} --budget 70%", statistics("llama_tiny_4l"));
    let result = run(here.path(), &format!("{verb} --json")).done().result();
    let decisions = result["sac_milp"]["ac_decisions"].as_object().unwrap();
    let units = result["units"].as_array().unwrap();
    assert_eq!(decisions.len(), units.len());
    for unit in units {
        assert_eq!(decisions[unit["module"].as_str().unwrap()], unit["discard_ratio"]);
    }
    assert_eq!(result["sac_milp"]["recomputation_time"], result["recompute_ms"]);
    assert_eq!(result["sac_milp"]["peak_mem"], result["peak_bytes"]);
    let text = run(here.path(), &format!("{verb} --wide")).done().stdout;
    let peak = result["peak_bytes"].as_u64().unwrap();
    let returned = format!("recomputation_time 0.350 (ms), peak_mem {peak} (bytes), ac_decisions:");
    assert!(text.contains(&returned), "{text}");
    for (module, ratio) in decisions {
        let ratio = format!("{:.4}", ratio.as_f64().unwrap());
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(module));
        assert_eq!(line.unwrap().split_whitespace().nth(1), Some(ratio.as_str()), "{text}");
    }
}

#[test]
fn what_cannot_be_met_ends_with_code_3_and_its_proof() {
    let here = folder();
    let ran = run(here.path(), &format!("sac {} --budget 35% --json", statistics("llama_tiny_4l")));
    assert_eq!((ran.code, ran.result()["feasible"].as_bool()), (Some(3), Some(false)));
    assert!(
        ran.stderr.contains(
            "the least that any choice of modules reaches is 251.80 MiB (264028160 bytes)"
        ),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr.contains("it binds in the backward pass of module `Llama.layers.0`"),
        "{}",
        ran.stderr
    );
    let least =
        run(here.path(), &format!("sac {} --budget min --json", statistics("llama_tiny_4l")))
            .done()
            .result();
    assert_eq!(least["peak_bytes"], json!(264_028_160));
    let links = "--world-size 8 --bandwidth 100GB/s --latency 20us";
    let ran =
        run(here.path(), &format!("shard {} --budget 1MiB {links}", statistics("llama_tiny_4l")));
    assert_eq!(ran.code, Some(3));
    assert!(ran.stderr.contains("parameters on the way"), "{}", ran.stderr);
}

#[test]
fn shard_chooses_units_checkpoints_and_offloads() {
    let here = folder();
    let shard = |options: &str| {
        let links = "--world-size 8 --bandwidth 100GB/s --latency 20us --budget 50% --json";
        run(here.path(), &format!("shard {} {links} {options}", statistics("torchtest_4l")))
            .done()
            .result()
    };
    let seconds = |result: &serde_json::Value| {
        result["exposed_ms"].as_f64().unwrap() + result["recompute_ms"].as_f64().unwrap()
    };
    let (joint, offloading) =
        (shard("--checkpoint"), shard("--checkpoint --host-bandwidth 20GB/s"));
    assert!(seconds(&offloading) <= seconds(&joint) + 1e-6, "{offloading} {joint}");
    assert_eq!(joint["units"][0], json!({ "module": "Transformer", "offloaded": false }));
    assert!(joint["checkpointed"].as_array().is_some_and(|units| !units.is_empty()), "{joint}");
    let fixed = shard("--checkpoint --units Transformer.layers.0,Transformer.layers.1");
    assert_eq!(fixed["units"].as_array().unwrap().len(), 3);
    assert!(seconds(&joint) <= seconds(&fixed) + 1e-6);
    let published =
        shard("--checkpoint --units Transformer.layers.0,Transformer.layers.1 --variant published");
    assert!(seconds(&published) > seconds(&fixed), "{published} {fixed}");
}

#[test]
fn what_sac_decides_is_planned_and_run() {
    let here = folder();
    let step = "corpus/steps/gpt-nano";
    let plan = |budget: &str| {
        let options = "--planner sac --machine a100-80gb --json -o FOLDER/plan";
        run(here.path(), &format!("plan {step} --budget {budget} {options}"))
    };
    let planned = plan("85%").done().result();
    assert_eq!(planned["planner"], "sac");
    assert!(planned["recomputed_nodes"].as_u64() > Some(0), "{planned}");
    assert!(planned["slab_bytes"].as_u64() <= planned["budget_bytes"].as_u64(), "{planned}");
    let check = "--machine a100-80gb --budget 85%";
    run(here.path(), &format!("check {step} FOLDER/plan {check}")).done();
    assert_eq!(plan("100%").done().result()["recomputed_nodes"], 0);
    // The budget that a refusal names is enough.
    let refused = plan("20%").result();
    assert_eq!(refused["feasible"], false, "{refused}");
    let reached = refused["reached_bytes"].as_u64().unwrap();
    assert!(plan(&reached.to_string()).done().result()["recomputed_nodes"].as_u64() > Some(0));
    let train = |options: &str| {
        let options = format!("{step} --steps 2 --eval-batches 0 {options}");
        crate::program::train(here.path(), &options).done().losses()
    };
    let unplanned = train("--budget 100% --planner none");
    assert_eq!(train("--budget 85% --planner sac"), unplanned);
}

#[test]
fn sac_without_modules_is_refused_with_a_way_out() {
    let here = folder();
    let graph = "corpus/synthetic/chain24.json.gz";
    let ran = run(here.path(), &format!("plan {graph} --budget 60% --planner sac"));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("names no modules below the model itself"), "{}", ran.stderr);
    assert!(ran.stderr.contains("choose another planner, such as `auto`"), "{}", ran.stderr);
    run(here.path(), &format!("plan {graph} --budget 100% --planner sac")).done();
}

#[test]
fn graphs_are_measured_first() {
    let here = folder();
    let graph = corpus().join("graphs/gpt2_small_b8_s512.json.gz").display().to_string();
    let result = run(here.path(), &format!("sac {graph} --budget 60% --json")).done().result();
    assert!(result["peak_bytes"].as_u64() <= result["budget_bytes"].as_u64());
    // Output of `modules` is read with the same figures as were measured.
    let measured = run(here.path(), &format!("modules {graph} --json")).done().stdout;
    std::fs::write(here.path().join("modules.json"), measured).unwrap();
    let again = run(
        here.path(),
        &format!("sac {} --budget 60% --json", here.path().join("modules.json").display()),
    )
    .done()
    .result();
    assert_eq!(again["budget_bytes"], result["budget_bytes"]);
    let difference =
        again["recompute_ms"].as_f64().unwrap() / result["recompute_ms"].as_f64().unwrap() - 1.0;
    assert!(difference.abs() < 1e-6, "{difference}");
}

#[test]
fn wrong_input_has_its_exit_code() {
    let here = folder();
    let given = statistics("llama_tiny_4l");
    let broken = std::fs::read_to_string(&given).unwrap().replacen(
        "\"act_total\": 428154880",
        "\"act_total\": -1",
        1,
    );
    std::fs::write(here.path().join("broken.json"), broken).unwrap();
    std::fs::write(here.path().join("other.json"), "{}").unwrap();
    let links = "--world-size 8 --bandwidth 100GB/s --latency 20us";
    let broken = here.path().join("broken.json").display().to_string();
    let other = here.path().join("other.json").display().to_string();
    let nested = "Llama.layers.1,Llama.layers.1.ff";
    for (arguments, code, message) in [
        (format!("sac {broken} --budget 50%"), 5, "module `Llama`: `act_total` is -1"),
        (format!("sac {other} --budget 50%"), 5, "tightfit-graph/1"),
        (
            format!("sac {} --budget 50%", here.path().join("absent.json").display()),
            4,
            "absent.json",
        ),
        (format!("sac {given} --budget 0"), 8, "a budget of zero"),
        (format!("sac {given} --budget 50% --units Llama.z"), 2, "there is no module `Llama.z`"),
        (format!("sac {given} --budget 50% --world-size 0"), 2, "a world size of 0"),
        (format!("sac {given} --budget 50% --gap 2"), 2, "a share from 0% to 100%"),
        (
            format!("shard {given} --budget 50% --world-size 8 --bandwidth 0 --latency 0"),
            2,
            "bytes per second",
        ),
        (
            format!("shard {given} --budget 90% {links} --units {nested}"),
            2,
            "one contains the other",
        ),
    ] {
        let ran = run(here.path(), &arguments);
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (Some(code), ""),
            "{arguments}: {}",
            ran.stderr
        );
        assert!(ran.stderr.contains(message), "{arguments}: {}", ran.stderr);
    }
}
