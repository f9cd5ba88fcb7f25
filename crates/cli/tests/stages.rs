//! `tightfit stages`. Invariant: the output about a plan is what the planner found, and the order
//! that is written is one that `train` runs.
//!
//! Tier: quick with a part of the cases, 22 s; full with all of them.

use serde_json::Value;
use tightfit_testing::first;

use crate::program::{folder, run, train};

const LLAMA: &str = "stages corpus/graphs/llama_1b_b2_s2048.json.gz --devices 8 --microbatches 16 \
                     --state 16 --link 50GB/s,10us";

#[test]
fn orders_stand_with_the_fastest_first() {
    let folder = folder();
    let result = run(folder.path(), &format!("{LLAMA} --budget 40GB --json")).done().result();
    let plans = result["plans"].as_array().unwrap();
    let seconds: Vec<f64> =
        plans.iter().map(|plan| plan["step_seconds"].as_f64().unwrap()).collect();
    assert!(seconds.is_sorted(), "{seconds:?}");
    // An order that the model of layers does not find faster is not planned.
    let unplanned = result["unplanned"].as_array().unwrap();
    assert!(plans.len() + unplanned.len() >= 8, "{plans:?} {unplanned:?}");
    for order in unplanned {
        assert!(order["estimated_step_seconds"].as_f64().unwrap() >= seconds[0], "{order}");
    }
    assert_eq!(plans[0]["schedule"], result["schedule"]);
    assert_eq!(result["ranks"].as_array().unwrap().len(), 8);
    for peak in result["peak_bytes"].as_array().unwrap() {
        assert!(peak.as_u64().unwrap() <= 40_000_000_000);
    }
    let layers = |stage: &Value| stage["layers"].as_array().unwrap().len();
    let stages = result["stages"].as_array().unwrap();
    assert!(stages.iter().all(|stage| layers(stage) > 0));
    let words =
        run(folder.path(), &format!("{LLAMA} --budget 40GB --deadline 300ms")).done().stdout;
    assert!(words.contains("llama_1b_b2_s2048: 16 micro-batches on 8 × a100-80gb"), "{words}");
    assert!(words.contains("rank7 "), "{words}");
}

/// The best order has the same plan, of the same layers, if it alone is requested.
#[test]
fn an_order_alone_is_planned_as_among_all() {
    let folder = folder();
    let planned = |rest: &str| {
        let graph = "corpus/graphs/gpt2_small_b8_s512.json.gz";
        let stages = format!("stages {graph} --devices 2 --microbatches 4 --budget 8GB");
        run(folder.path(), &format!("{stages} --iterations 300 --json {rest}")).done().result()
    };
    let all = planned("");
    let mut plans = all["plans"].as_array().unwrap().iter();
    let finest = plans.clone().find(|plan| plan["schedule"] == "1f1b");
    for order in plans.next().into_iter().chain(finest) {
        let name = order["schedule"].as_str().unwrap();
        let alone = planned(&format!("--schedule {name}"));
        assert_eq!(alone["plans"][0], *order);
    }
}

/// The best cut of an order, if requested by name, is planned as it was among all of them.
#[test]
fn stages_begin_where_they_are_asked_to() {
    let folder = folder();
    let stages = "stages corpus/graphs/gpt2_small_b8_s512.json.gz --devices 2 --microbatches 4";
    let planned = |rest: &str| {
        let command = format!("{stages} --budget 40GB --emit torch -o FOLDER/plan.json {rest}");
        run(folder.path(), &command).done();
        let plan = std::fs::read(folder.path().join("plan.json")).unwrap();
        serde_json::from_slice::<Value>(&plan).unwrap()
    };
    let begins = |plan: &Value| -> Vec<String> {
        let stages = plan["stages"].as_array().unwrap()[1..].iter();
        let module =
            |stage: &Value| stage["layers"][0]["begins"]["module"].as_str().map(str::to_string);
        stages.map(|stage| module(stage).unwrap()).collect()
    };
    for order in ["1f1b", "zb-v"] {
        let free = planned(&format!("--schedule {order}"));
        let cut = begins(&free).join(",");
        let given = planned(&format!("--schedule {order} --cut {cut}"));
        assert_eq!(begins(&given).join(","), cut);
        let seconds = |plan: &Value| plan["step_seconds"].as_f64().unwrap();
        assert!((seconds(&given) / seconds(&free) - 1.0).abs() < 1e-9, "{order} at {cut}");
    }
    let other = "model.transformer.h.2";
    assert_eq!(begins(&planned(&format!("--cut {other}"))), [other]);
    // Tensor by tensor, too.
    let command = format!("{stages} --budget 8GB --iterations 300 --json --cut {other}");
    let result = run(folder.path(), &command).done().result();
    let layers = result["stages"][1]["layers"].as_array().unwrap();
    assert!(layers[0].to_string().contains(other), "{layers:?}");
    for (cut, because) in [
        ("model.transformer.h.12", "no operator of the forward pass lies in a module"),
        ("model.transformer", "the model begins with `model.transformer`"),
        (
            "model.transformer.h.3,model.transformer.h.2,model.lm_head",
            "`model.transformer.h.2` is not called after `model.transformer.h.3`",
        ),
        (
            "model.transformer.h.3,model.lm_head",
            "cuts before 2 modules make 3 stages, and orders on 2 devices have 2 or 4; name 1 or 3 \
             modules",
        ),
    ] {
        let refused = run(folder.path(), &format!("{stages} --budget 8GB --cut {cut}"));
        assert_eq!(
            (refused.code, refused.stderr.contains(because)),
            (Some(2), true),
            "{}",
            refused.stderr
        );
    }
}

#[test]
fn a_smaller_budget_recomputes_or_is_refused() {
    let folder = folder();
    let gpt = |budget: &str| {
        run(
            folder.path(),
            &format!(
                "stages corpus/steps/gpt-small --devices 2 {} --budget {budget}",
                if budget.contains("--microbatches") { "" } else { "--microbatches 8" }
            ),
        )
    };
    let plan = |budget: &str| gpt(&format!("{budget} --schedule 1f1b --json")).done().result();
    let again = |result: &Value, what: &str| result["plans"][0][what].as_u64().unwrap();
    assert_eq!(again(&plan("800MiB"), "recomputed_calls"), 0);
    let tight = plan("250MiB");
    assert!(again(&tight, "recomputed_calls") > 0);
    for (rank, peak) in
        tight["ranks"].as_array().unwrap().iter().zip(tight["peak_bytes"].as_array().unwrap())
    {
        assert_eq!(rank["peak_bytes"], *peak);
        assert!(peak.as_u64().unwrap() <= 250 << 20, "{peak}");
    }
    assert!(again(&plan("60%"), "recomputed_calls") > 0, "of the peak on one device");
    // By the model of whole layers, which is coarser, it takes longer.
    assert_eq!(again(&plan("800MiB --whole-layers"), "recomputed_layers"), 0);
    let layers = plan("250MiB --whole-layers");
    assert!(again(&layers, "recomputed_layers") > 0);
    let seconds = |result: &Value| result["step_seconds"].as_f64().unwrap();
    assert!(seconds(&tight) < seconds(&layers), "{tight} {layers}");
    let refused = run(folder.path(), &format!("{LLAMA} --budget 5GB"));
    assert_eq!(refused.code, Some(10), "{}", refused.stderr);
    assert!(refused.stderr.contains("no plan was found that fits 8 devices"), "{}", refused.stderr);
    assert!(refused.stderr.contains("needs at least"), "{}", refused.stderr);
    let refusals = [
        ("min", 8, "min"),
        ("0", 8, "a budget of zero"),
        ("1%", 10, "needs at least"),
        ("1% --whole-layers", 10, "alone needs"),
        ("150MiB --whole-layers", 10, "no cut leaves each device with layers that fit together"),
        ("300MiB --planner nobody", 2, "possible values: none, chen"),
        ("300MiB --schedule nonsense", 2, "orders are gpipe"),
        ("300MiB --link fast", 2, "bytes per second"),
        ("300MiB --state nan", 2, "a number of bytes"),
        ("300MiB --state 1e300", 2, "a number of bytes"),
        ("300MiB --tier FOLDER", 2, "unexpected argument '--tier'"),
        ("1000TB", 8, "more than this machine's memory"),
        // Every order is searched for the smallest budget, which takes a minute.
        ("120MiB", 10, "is known to fit in"),
    ];
    for &(arguments, code, says) in first(refusals.len() - 1, &refusals) {
        let ran = gpt(arguments);
        assert!(ran.stderr.contains(says), "{arguments}: {}", ran.stderr);
        assert_eq!(ran.code, Some(code), "{arguments}");
    }
    let many = gpt("900MiB --microbatches 1000").done();
    assert!(many.stderr.contains("are too many to be planned tensor by tensor"), "{}", many.stderr);
    let many = "stages corpus/steps/gpt-small --devices 3000 --budget 1GiB";
    let many = run(folder.path(), many);
    assert_eq!(many.code, Some(2), "{}", many.stderr);
    assert!(many.stderr.contains("3000 stages are asked for"), "{}", many.stderr);
}

#[test]
fn more_stages_than_layers_are_wrong_usage_whoever_plans_them() {
    let folder = folder();
    let stages = "stages corpus/steps/mlp-digits --devices 30 --microbatches 4 --budget 60MiB";
    for (options, asked) in [
        // Two stages on each device.
        ("--schedule zb-v", 60),
        ("--schedule zb-v --whole-layers", 60),
        // There are enough calls, but not enough modules.
        ("--emit torch -o FOLDER/plan.json", 30),
    ] {
        let ran = run(folder.path(), &format!("{stages} {options}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{options}: {}", ran.stderr);
        let says = format!("{asked} stages are asked for, and the forward pass has ");
        assert!(ran.stderr.contains(&says), "{options}: {}", ran.stderr);
    }
    assert!(crate::program::listing(folder.path()).is_empty());
}

#[test]
fn the_order_that_is_written_runs() {
    let folder = folder();
    run(
        folder.path(),
        "stages corpus/steps/mlp-digits --devices 2 --microbatches 4 --budget 60MiB \
         --csv FOLDER/o.csv --svg FOLDER/o.svg",
    )
    .done();
    let drawn = std::fs::read_to_string(folder.path().join("o.svg")).unwrap();
    crate::program::tags(&drawn);
    assert!(drawn.contains("mlp-digits on 2 devices"), "{drawn}");
    train(
        folder.path(),
        "corpus/steps/mlp-digits --stages 2 --microbatches 4 --budget 60MiB --steps 1 \
         --schedule FOLDER/o.csv",
    )
    .done();
}

#[test]
fn a_plan_for_pytorch_names_modules() {
    let folder = folder();
    let emitted = format!("{LLAMA} --budget 40GB --emit torch -o FOLDER/plan.json");
    run(folder.path(), &emitted).done();
    let plan = std::fs::read(folder.path().join("plan.json")).unwrap();
    let plan: Value = serde_json::from_slice(&plan).unwrap();
    assert_eq!(plan["format"], "tightfit-stages/1");
    let stages = plan["stages"].as_array().unwrap();
    let layers = stages.iter().flat_map(|stage| stage["layers"].as_array().unwrap());
    let begins: Vec<&Value> = layers.map(|layer| &layer["begins"]).collect();
    // The first layer begins with the model, every other one with a call.
    assert!(begins[0].is_null());
    assert!(begins[1..].iter().all(|begin| begin["module"].is_string()), "{begins:?}");
    // Each module is in one part, and the parts go through the model in its order.
    let parts = plan["module_fqns_per_model_part"].as_array().unwrap();
    assert_eq!(parts.len(), stages.len());
    let names: Vec<&str> =
        parts.iter().flat_map(|part| part.as_array().unwrap()).filter_map(Value::as_str).collect();
    let block = |name: &&str| name.rsplit_once("layers.").map(|(_, number)| number.to_string());
    let blocks: Vec<String> = names.iter().filter_map(block).collect();
    let numbers: Vec<u32> = blocks.iter().filter_map(|name| name.parse().ok()).collect();
    assert!(numbers.is_sorted(), "{names:?}");
    assert_eq!(names.last(), Some(&"model.lm_head"), "{names:?}");
    for wrong in ["--emit torch", "-o FOLDER/plan.json", "--emit jax -o FOLDER/plan.json"] {
        let ran = run(folder.path(), &format!("{LLAMA} --budget 40GB {wrong}"));
        assert_eq!(ran.code, Some(2), "{wrong}: {}", ran.stderr);
    }
}

#[test]
fn no_file_is_replaced_that_is_read_or_written_here() {
    let folder = folder();
    let graph = folder.path().join("graph.json.gz");
    std::fs::copy(crate::program::corpus().join("graphs/resnet50_b32.json.gz"), &graph).unwrap();
    let before = std::fs::read(&graph).unwrap();
    let common = "stages FOLDER/graph.json.gz --devices 2 --budget 40GB --microbatches 2";
    for (options, says) in [
        ("--csv FOLDER/graph.json.gz", "--csv would replace"),
        ("--emit torch -o FOLDER/graph.json.gz", "--output would replace"),
        ("--csv FOLDER/new --svg FOLDER/new", "--csv and --svg name the same file"),
    ] {
        let ran = run(folder.path(), &format!("{common} {options}"));
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(says), "{options}: {}", ran.stderr);
    }
    assert!(std::fs::read(&graph).unwrap() == before);
    assert_eq!(crate::program::listing(folder.path()), ["graph.json.gz"]);
}
