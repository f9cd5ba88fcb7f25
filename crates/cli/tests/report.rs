//! `report`, `trace` and `train --trace`. Invariant: pages, drawings and traces say what the other
//! verbs say.
//!
//! Tier: quick, since it takes 7 s.

use std::path::Path;

use serde_json::Value;

use crate::program::{folder, run, tags, train};

const NANO: &str = "corpus/steps/gpt-nano";
const RESNET: &str = "corpus/graphs/resnet50_b32.json.gz";

/// The data that a page carries.
fn data(html: &str) -> Value {
    let (_, rest) = html.split_once(r#"<script type="application/json" id="data">"#).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn a_page_says_what_plan_says() {
    for graph in [format!("{NANO} --threads 2"), RESNET.to_string()] {
        let folder = folder();
        let planned =
            run(folder.path(), &format!("plan {graph} --budget 87% --json -o FOLDER/plan"))
                .done()
                .result();
        let report = |output: &str| {
            let limits = "--points 3 --iterations 100000";
            run(
                folder.path(),
                &format!("report {graph} --plan FOLDER/plan {limits} -o FOLDER/{output}"),
            )
            .done();
            read(folder.path(), output)
        };
        let html = report("first.html");
        assert_eq!(
            html,
            report("second.html"),
            "{graph}: a limit of work gives the same page twice"
        );
        let data = data(&html);
        assert_eq!(data["graph"], planned["graph"]);
        assert_eq!(data["sides"].as_array().unwrap().len(), 2);
        for words in [
            "Unplanned",
            "Planned",
            "Where it peaks",
            "By module, at the peak",
            "The largest savings",
            "Time by budget",
        ] {
            assert!(html.contains(words), "{graph}: {words}");
        }
        let again = data["sides"][1]["calls"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|call| call.as_u64().unwrap() % 2 == 1)
            .count();
        assert_eq!(again as u64, planned["recomputed_nodes"].as_u64().unwrap(), "{graph}");
        // Nothing is fetched from anywhere.
        for needle in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!html.contains(needle), "{graph}: {needle}");
        }
        assert!(!html.contains("NaN") && !html.contains("inf%"), "{graph}");
    }
}

#[test]
fn without_a_plan_there_is_the_step_as_captured() {
    let folder = folder();
    run(folder.path(), &format!("report {RESNET} --points 0 -o FOLDER/report.html")).done();
    let html = read(folder.path(), "report.html");
    assert_eq!(data(&html)["sides"].as_array().unwrap().len(), 1);
    assert!(
        !html.contains("<b>Planned")
            && !html.contains("Time by budget")
            && !html.contains("savings")
    );
}

#[test]
fn single_drawings_are_well_formed() {
    let folder = folder();
    run(folder.path(), &format!("plan {RESNET} --budget 70% -o FOLDER/plan")).done();
    for (drawing, tag) in [("memory", "path"), ("modules", "g"), ("frontier", "circle")] {
        let limits = "--points 3 --deadline 50ms";
        run(
            folder.path(),
            &format!(
                "report {RESNET} --plan FOLDER/plan {limits} --svg {drawing} \
            -o FOLDER/{drawing}.svg"
            ),
        )
        .done();
        let text = read(folder.path(), &format!("{drawing}.svg"));
        let tags = tags(&text);
        assert_eq!(tags[0], "svg", "{drawing}");
        assert!(tags.iter().any(|other| other == tag), "{drawing}: no <{tag}>");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{drawing}");
    }
}

#[test]
fn a_predicted_trace_says_what_plan_says() {
    let folder = folder();
    let planned = run(folder.path(), &format!("plan {RESNET} --budget 70% --json -o FOLDER/plan"))
        .done()
        .result();
    run(folder.path(), &format!("trace {RESNET} --plan FOLDER/plan -o FOLDER/trace")).done();
    let trace: Value = serde_json::from_str(&read(folder.path(), "trace")).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let slices = || events.iter().filter(|event| event["ph"] == "X");
    let (around, calls): (Vec<&Value>, Vec<&Value>) =
        slices().partition(|event| event["cat"] == "within");
    let again = calls.iter().filter(|call| call["cat"] == "recompute").count();
    assert_eq!(again as u64, planned["recomputed_nodes"].as_u64().unwrap());
    let busy: f64 = calls.iter().map(|call| call["dur"].as_f64().unwrap()).sum();
    let step = planned["step_seconds"].as_f64().unwrap() * 1e6;
    assert!(
        (busy - step).abs() < 0.001 * calls.len() as f64,
        "{busy} {step}: each call is rounded to a nanosecond"
    );
    // Slices of a lane are nested or disjoint, and every call is within those of its phase and
    // module.
    let span = |event: &Value| {
        let start = event["ts"].as_f64().unwrap();
        (event["tid"].as_u64(), start, start + event["dur"].as_f64().unwrap())
    };
    let contains = |(lane, from, to): (Option<u64>, f64, f64), (of, start, end): (_, f64, f64)| {
        lane == of && from <= start + 0.002 && end <= to + 0.002
    };
    for (index, &slice) in around.iter().enumerate() {
        for &other in &around[index + 1..] {
            let (one, two) = (span(slice), span(other));
            let is_apart = one.0 != two.0 || two.1 > one.2 - 0.002 || one.1 > two.2 - 0.002;
            assert!(is_apart || contains(one, two), "{slice} {other}");
        }
    }
    for call in &calls {
        let names: Vec<&str> = around
            .iter()
            .filter(|slice| contains(span(slice), span(call)))
            .filter_map(|slice| slice["name"].as_str())
            .collect();
        let module = call["args"]["module"].as_str().unwrap();
        let parts = module.split('.').filter(|part| !part.is_empty());
        let path: Vec<&str> = call["args"]["phase"].as_str().into_iter().chain(parts).collect();
        assert!(path.iter().all(|part| names.contains(part)), "{call}: {names:?}");
    }
    // Counters: the sum of the roles is the total, and the highest is the peak.
    let counter = |name: &str| -> Vec<u64> {
        let marks = events.iter().filter(|event| event["ph"] == "C" && event["name"] == name);
        marks
            .map(|mark| {
                mark["args"]
                    .as_object()
                    .unwrap()
                    .values()
                    .map(|bytes| bytes.as_u64().unwrap())
                    .sum()
            })
            .collect()
    };
    assert_eq!(counter("memory"), counter("memory in total"));
    assert_eq!(counter("memory").into_iter().max(), planned["peak_bytes"].as_u64());
}

#[test]
fn training_writes_its_plan_and_what_it_measured() {
    let folder = folder();
    let files = "-o FOLDER/plan --trace FOLDER/measured";
    let ran = train(folder.path(), &format!("{NANO} --budget 80% --steps 4 {files}")).done();
    let plain = train(folder.path(), &format!("{NANO} --budget 80% --steps 4")).done();
    assert_eq!(ran.losses(), plain.losses(), "to be watched changes nothing");
    let result = ran.result();
    run(folder.path(), &format!("trace {NANO} --threads 2 --plan FOLDER/plan -o FOLDER/predicted"))
        .done();
    let events = |name: &str, form: &str| -> Vec<Value> {
        let trace: Value = serde_json::from_str(&read(folder.path(), name)).unwrap();
        assert_eq!(trace["otherData"]["measured"], name == "measured");
        trace["traceEvents"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| event["ph"] == form && event["cat"] != "within")
            .cloned()
            .collect()
    };
    let (measured, predicted) = (events("measured", "X"), events("predicted", "X"));
    let named = |events: &[Value]| -> Vec<(Value, Value)> {
        events.iter().map(|event| (event["name"].clone(), event["cat"].clone())).collect()
    };
    assert_eq!(named(&measured), named(&predicted), "one form, one order");
    let recomputed = measured.iter().filter(|event| event["cat"] == "recompute").count();
    assert_eq!(recomputed as u64, result["recomputed_nodes"].as_u64().unwrap());
    // Calls follow each other.
    for pair in measured.windows(2) {
        let end = pair[0]["ts"].as_f64().unwrap() + pair[0]["dur"].as_f64().unwrap();
        assert!(pair[1]["ts"].as_f64().unwrap() > end - 0.002, "{} {}", pair[0], pair[1]);
    }
    assert_eq!(events("measured", "C").len(), events("predicted", "C").len());

    run(
        folder.path(),
        &format!(
            "report {NANO} --threads 2 --plan FOLDER/plan --measured FOLDER/measured \
            --points 0 -o FOLDER/report.html"
        ),
    )
    .done();
    let html = read(folder.path(), "report.html");
    let predicted = format!(
        "report {NANO} --threads 2 --plan FOLDER/plan --measured FOLDER/predicted --points 0 -o \
         FOLDER/none.html"
    );
    let refused = run(folder.path(), &predicted);
    assert_eq!(refused.code, Some(5), "{}", refused.stderr);
    assert!(refused.stderr.contains("the trace is a prediction"), "{}", refused.stderr);
    assert!(html.contains("Predicted and measured"));
    assert_eq!(
        data(&html)["sides"][1]["measured"]["time"].as_array().unwrap().len(),
        measured.len()
    );
}

#[test]
fn what_does_not_belong_together_is_refused_with_the_reason() {
    let folder = folder();
    run(folder.path(), &format!("plan {RESNET} --budget 70% -o FOLDER/plan")).done();
    run(folder.path(), &format!("trace {RESNET} -o FOLDER/captured")).done();
    std::fs::write(folder.path().join("broken"), "{\"format\": 7").unwrap();
    let cases = [
        ("report corpus/graphs/vit_b16_b32.json.gz --plan FOLDER/plan", 5, "another graph"),
        (
            "report corpus/graphs/resnet50_b32.json.gz --plan FOLDER/broken",
            5,
            "not a tightfit-plan/1 file",
        ),
        (
            "report corpus/graphs/resnet50_b32.json.gz --plan FOLDER/missing",
            4,
            "missing: No such file",
        ),
        (
            "report corpus/graphs/resnet50_b32.json.gz --points 0 --measured FOLDER/broken",
            5,
            "not a trace",
        ),
        (
            "report corpus/graphs/resnet50_b32.json.gz --points 0 --measured FOLDER/plan",
            5,
            "tightfit-trace/2",
        ),
        (
            "report corpus/graphs/resnet50_b32.json.gz --points 0 --plan FOLDER/plan --measured \
             FOLDER/captured",
            5,
            "another plan",
        ),
        (
            "report corpus/graphs/vit_b16_b32.json.gz --points 0 --measured FOLDER/captured",
            5,
            "another graph",
        ),
        ("report corpus/graphs/resnet50_b32.json.gz --points 1", 2, "2 to 1000"),
        ("report corpus/graphs/resnet50_b32.json.gz --svg frontier --points 0", 2, "--points"),
        ("trace corpus/graphs/vit_b16_b32.json.gz --plan FOLDER/plan", 5, "another graph"),
    ];
    for (arguments, code, words) in cases {
        let ran = run(folder.path(), &format!("{arguments} -o FOLDER/out"));
        assert_eq!(ran.code, Some(code), "{arguments}\n{}", ran.stderr);
        assert!(ran.stderr.contains(words), "{arguments}\n{}", ran.stderr);
        assert!(!folder.path().join("out").exists(), "{arguments}");
    }
}

#[test]
fn several_plans_have_names_of_their_own() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("other")).unwrap();
    for (budget, file) in [("80%", "a.json"), ("90%", "other/a.json"), ("95%", "b.json")] {
        let plan = format!("plan {NANO} --threads 2 --budget {budget} -o FOLDER/{file}");
        run(folder.path(), &plan).done();
    }
    let report = "--plan FOLDER/a.json --plan FOLDER/other/a.json --plan FOLDER/b.json --points 0";
    let report = format!("report {NANO} --threads 2 {report} -o FOLDER/page.html");
    assert!(run(folder.path(), &report).done().stdout.contains("page.html written"));
    let html = read(folder.path(), "page.html");
    let data = data(&html);
    let names: Vec<&str> = data["sides"]
        .as_array()
        .unwrap()
        .iter()
        .map(|side| side["name"].as_str().unwrap())
        .collect();
    assert_eq!(names[0], "Unplanned");
    assert!(names[1].ends_with("a.json") && names[2].ends_with("other/a.json"), "{names:?}");
    assert_eq!(names[3], "Planned, b");
}
