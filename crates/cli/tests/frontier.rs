//! `pareto` and the limits of a search. Invariant: a larger budget is never slower, and a limit of
//! work alone gives the same answer twice.
//!
//! Tier: quick, since it takes 5 s.

use std::path::Path;

use expect_test::{Expect, expect};
use serde_json::Value;

use crate::program::{folder, run, tags};

const NANO: &str = "corpus/steps/gpt-nano --threads 2";
const RESNET: &str = "corpus/graphs/resnet50_b32.json.gz";

fn points(arguments: &str) -> Vec<Value> {
    let ran = run(Path::new("."), &format!("pareto {arguments} --json")).done();
    ran.result()["points"].as_array().unwrap().clone()
}

#[test]
fn budgets_fall_from_the_unplanned_step_to_the_smallest() {
    for graph in [NANO, RESNET] {
        let points = points(&format!("{graph} --points 5 --deadline 100ms"));
        assert_eq!(points.len(), 5);
        assert!(
            points[0]["overhead"].as_f64().unwrap() < 1e-9,
            "nothing to recompute in {}",
            points[0]
        );
        for pair in points.windows(2) {
            let [large, small] = pair else { panic!() };
            assert!(small["budget_bytes"].as_u64() < large["budget_bytes"].as_u64(), "{graph}");
            let (fast, slow) =
                (large["step_seconds"].as_f64().unwrap(), small["step_seconds"].as_f64().unwrap());
            assert!(fast <= slow * (1.0 + 1e-9), "{graph}: {large} is slower than {small}");
        }
        for point in &points {
            assert_eq!(point["feasible"], true, "{graph}: {point}");
            assert!(
                point["peak_bytes"].as_u64() <= point["budget_bytes"].as_u64(),
                "{graph}: {point}"
            );
            assert!(
                point["gap"].is_null() || point["gap"].as_f64().unwrap() > -1e-7,
                "{graph}: {point}"
            );
        }
    }
}

#[test]
fn the_frontier_is_drawn() {
    let folder = folder();
    let text = run(
        folder.path(),
        &format!("pareto {RESNET} --points 4 --deadline 50ms --svg FOLDER/frontier.svg"),
    )
    .done()
    .stdout;
    let table = text.lines().take_while(|line| !line.contains("frontier.svg written"));
    assert_eq!(table.count(), 2 + 4, "{text}");
    assert!(text.contains("frontier.svg written"), "{text}");
    let drawing = std::fs::read_to_string(folder.path().join("frontier.svg")).unwrap();
    assert_eq!(tags(&drawing).iter().filter(|tag| *tag == "circle").count(), 4);
    assert!(!drawing.contains("NaN") && !drawing.contains("inf"));
}

/// The value without what depends on a clock.
fn timeless(mut value: Value) -> Value {
    match &mut value {
        Value::Array(list) => list.iter_mut().for_each(|item| *item = timeless(item.take())),
        Value::Object(object) => {
            object.remove("planning_seconds");
            object.remove("building_seconds");
            object.values_mut().for_each(|item| *item = timeless(item.take()));
        }
        _ => {}
    }
    value
}

#[test]
fn a_limit_of_work_gives_the_same_answer_twice() {
    let limits = "--iterations 200000 --seed 7 --json";
    for command in [
        format!("plan {RESNET} --budget 55% {limits}"),
        format!("pareto {NANO} --points 3 {limits}"),
    ] {
        let answer = || timeless(run(Path::new("."), &command).done().result());
        assert_eq!(answer(), answer(), "{command}");
    }
}

#[test]
fn without_time_there_is_a_plan_nevertheless() {
    let result = run(Path::new("."), &format!("plan {RESNET} --budget 60% --deadline 0 --json"))
        .done()
        .result();
    assert!(result["slab_bytes"].as_u64() <= result["budget_bytes"].as_u64());
    assert_eq!(result["interrupted"], false);
    for key in ["bound_step_seconds", "bound_order", "gap"] {
        assert!(result.get(key).is_some(), "{key} is there, if only as null");
    }
    assert_eq!(result["bound_step_seconds"].is_null(), result["gap"].is_null());
}

/// With any planner, however early the search ends, and whether or not it proves anything.
#[test]
fn a_budget_that_the_unplanned_step_fits_costs_nothing() {
    for search in ["--planner capuchin", "--deadline 0"] {
        let points = points(&format!("corpus/synthetic/tf2.json.gz --points 2 {search}"));
        let whole = &points[0];
        let figures = [&whole["overhead"], &whole["bound"], &whole["gap"]];
        assert_eq!(figures, [0.0; 3], "{search}: {whole}");
    }
}

#[track_caller]
fn refused(arguments: &str, message: Expect) {
    let ran = run(Path::new("."), arguments);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "wrong usage");
    message.assert_eq(ran.stderr.lines().next().unwrap_or_default());
}

#[test]
fn options_without_sense_are_refused() {
    refused(
        &format!("plan {RESNET} --budget 60% --deadline soon"),
        expect![
            "error: invalid value 'soon' for '--deadline <SECONDS>': write seconds, \
             at most 1e9, as in 10, 0.5, 10s, 500ms or 20us"
        ],
    );
    refused(
        &format!("plan {RESNET} --budget 60% --deadline -1"),
        expect![
            "error: invalid value '-1' for '--deadline <SECONDS>': write seconds, \
             at most 1e9, as in 10, 0.5, 10s, 500ms or 20us"
        ],
    );
    refused(
        &format!("pareto {RESNET} --iterations many"),
        expect![
            "error: invalid value 'many' for '--iterations <N>': invalid digit found in string"
        ],
    );
    refused(
        &format!("pareto {RESNET} --points 1"),
        expect!["error: invalid value '1' for '--points <N>': 1 is not in 2..=1000"],
    );
}
