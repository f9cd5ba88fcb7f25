//! `largest`: sizes that fit, the fastest of them, and what is proven about the next one.
//!
//! Tier: quick, 4 s.

use serde_json::Value;

use crate::program::{folder, run, tags};

const LLAMA: &str = "corpus/graphs/cuda/llama_1b_b2_s2048.json.gz";

fn found(arguments: &str) -> Value {
    run(folder().path(), &format!("largest {arguments} --json")).done().result()
}

fn tried(found: &Value) -> Vec<&Value> {
    found["tried"].as_array().unwrap().iter().collect()
}

#[test]
fn the_largest_size_is_planned_and_the_next_one_is_not() {
    for axis in ["batch", "length"] {
        let found = found(&format!("{LLAMA} --budget 24GiB --axis {axis} --split off"));
        let size = found["size"].as_u64().unwrap();
        assert_eq!(found["is_proven"], true, "{found}");
        assert_eq!(found["axis"], axis);
        let budget = found["budget_bytes"].as_u64().unwrap();
        for one in tried(&found) {
            let fits = one["feasible"] == true;
            assert_eq!(fits, one["size"].as_u64().unwrap() <= size, "{one}");
            let bytes = if fits { &one["slab_bytes"] } else { &one["needed_bytes"] };
            assert_eq!(bytes.as_u64().unwrap() <= budget, fits, "{one}");
            if fits {
                let most = one["most_per_second"].as_f64().unwrap();
                assert!(one["per_second"].as_f64().unwrap() <= most * (1.0 + 1e-9), "{one}");
            }
        }
        // `plan` says the same of both.
        let plan = |size: u64| {
            let options = format!("--{axis} {size} --budget 24GiB --deadline 1s --split off");
            run(folder().path(), &format!("plan {LLAMA} {options}")).code
        };
        assert_eq!((plan(size), plan(size + 1)), (Some(0), Some(3)));
        let speed = |one: &&Value| one["per_second"].as_f64().unwrap_or(0.0);
        let fastest = tried(&found).into_iter().max_by(|a, b| speed(a).total_cmp(&speed(b)));
        assert_eq!(found["fastest_size"], fastest.unwrap()["size"]);
    }
}

#[test]
fn a_length_ends_where_its_table_of_positions_does() {
    let found = found("corpus/steps/gpt-nano --budget 64MiB --axis length --iterations 300");
    assert_eq!(found["size"], 64, "{found}");
    assert!(found["end"].as_str().unwrap().contains("its table has 64"), "{found}");
    let longer = run(folder().path(), "plan corpus/steps/gpt-nano --length 65 --budget 90%");
    assert_eq!(longer.code, Some(2), "{}", longer.stderr);
}

#[test]
fn micro_batches_count_and_a_step_on_this_processor_has_a_base() {
    let (one, three) = (
        found("corpus/steps/gpt-nano --budget 48MB --iterations 300"),
        found("corpus/steps/gpt-nano --budget 48MB --iterations 300 --microbatches 3"),
    );
    let size = |found: &Value| found["size"].as_u64().unwrap();
    assert!(size(&three) <= size(&one) && size(&three) > 2, "{} {}", size(&three), size(&one));
    let larger = found("corpus/steps/gpt-nano --batch 32 --budget 48MB --iterations 300");
    assert!(size(&larger).abs_diff(size(&one)) <= 1 + size(&one) / 8);
}

#[test]
fn sizes_are_drawn_and_shown() {
    let folder = folder();
    let command = format!("largest {LLAMA} --budget 24GiB --split off --svg FOLDER/sizes.svg");
    let text = run(folder.path(), &command).done().stdout;
    assert!(text.contains("largest batch") && text.contains("proven not to fit"), "{text}");
    let drawing = std::fs::read_to_string(folder.path().join("sizes.svg")).unwrap();
    assert!(tags(&drawing).iter().filter(|tag| *tag == "circle").count() >= 3);
    assert!(!drawing.contains("NaN") && !drawing.contains("inf"));
}

#[test]
fn what_has_no_answer_is_refused() {
    let refused = |arguments: &str, code: i32, said: &str| {
        let ran = run(folder().path(), &format!("largest {arguments}"));
        assert_eq!(ran.code, Some(code), "{arguments}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains(said), "{arguments}: {}", ran.stderr);
    };
    for budget in ["60%", "min", "0", "-5", "much"] {
        let said = format!("the budget `{budget}` is not a number of bytes; give one");
        refused(&format!("{LLAMA} --budget {budget}"), 8, &said);
    }
    refused(&format!("{LLAMA} --budget 4GiB"), 3, "no schedule needs less");
    let images = "corpus/graphs/cuda/resnet50_b32.json.gz";
    refused(&format!("{images} --budget 4GiB --axis length"), 2, "`convolution`");
    refused("corpus/synthetic/chain24.json.gz --budget 4GiB", 2, "");
}
