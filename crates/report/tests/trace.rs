//! Traces hold what courses hold, are read as they were written, and anything that is not a trace
//! is refused.
//!
//! Tier: quick, since it takes less than a second.

use expect_test::{Expect, expect, expect_file};
use serde_json::{Value, json};
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::machine::Machine;
use tightfit::profile::Profile;
use tightfit::schedule::Schedule;
use tightfit::tensor::DType;
use tightfit::timeline::Timeline;
use tightfit::units::{Bytes, Seconds};
use tightfit_report::{Course, Trace};

/// A chain of three, with a batch and a parameter.
fn step(name: &str) -> (Graph, Schedule, Timeline) {
    let mut builder = GraphBuilder::new("chain");
    let mut input = Vec::new();
    for (name, phase) in [("w", Phase::Parameter), ("x", Phase::Input)] {
        let storage = builder.storage(Bytes(64));
        let spec = NodeSpec::new(name, "placeholder", phase);
        input
            .extend(builder.node(spec, &[Some(ValueSpec::contiguous(&[16], DType::F32, storage))]));
    }
    let module = builder.module("body");
    for (name, phase) in [(name, Phase::Forward), ("b", Phase::Loss), ("c", Phase::Backward)] {
        let storage = builder.storage(Bytes(128));
        let spec = NodeSpec {
            module,
            inputs: input,
            seconds: Some(Seconds(1.5e-6)),
            workspace: Bytes(32),
            ..NodeSpec::new(name, "aten.op", phase)
        };
        input = builder.node(spec, &[Some(ValueSpec::contiguous(&[32], DType::F32, storage))]);
    }
    builder.output(input[0]);
    let graph = builder.build().unwrap();
    let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
    let fitted = tightfit::unplanned(&graph, &profile).unwrap();
    (graph, fitted.schedule().clone(), fitted.timeline().clone())
}

#[test]
fn a_trace_holds_the_course() {
    let (graph, schedule, timeline) = step("a");
    let text = Trace::predicted(&Course::of(&graph, &schedule, &timeline), "a100-80gb")
        .write()
        .replace(graph.hash(), "HASH");
    expect_file!["./trace.json"].assert_eq(&text);
}

#[test]
fn what_is_written_is_read() {
    let (graph, schedule, timeline) = step("<a> \"&\u{1F600}");
    let course = Course::of(&graph, &schedule, &timeline);
    for trace in [
        Trace::predicted(&course, "m"),
        Trace::measured(&course, "m", &[(Seconds(1e-9), Seconds(0.1234567891)); 3], &[]),
    ] {
        assert_eq!(Trace::read(trace.write().as_bytes()).unwrap(), trace);
    }
}

#[test]
fn a_trace_suits_its_own_course_only() {
    let (graph, schedule, timeline) = step("a");
    let course = Course::of(&graph, &schedule, &timeline);
    let trace = Trace::predicted(&course, "m");
    assert_eq!(trace.times(&course).unwrap().len(), 3);
    let refused = |trace: &Trace, expected: Expect| {
        expected
            .assert_eq(&trace.times(&course).unwrap_err().to_string().replace(graph.hash(), "HASH"))
    };
    refused(
        &Trace { graph: "0".to_string(), ..trace.clone() },
        expect!["the trace is of another graph: it names hash 0, the graph's is HASH"],
    );
    let mut other = trace.clone();
    other.calls[1].recomputed = true;
    refused(
        &other,
        expect![
            "the trace is of another plan: its call 1 is a recomputation of `b`, the plan's is a \
             first run of `b`; pass the plan that ran, as `tightfit train --trace … -o PLAN` \
             writes it"
        ],
    );
    let mut shorter = trace.clone();
    shorter.calls.pop();
    refused(
        &shorter,
        expect![
            "the trace is of another plan: its call 2 is missing, the plan's is a first run of \
             `c`; pass the plan that ran, as `tightfit train --trace … -o PLAN` writes it"
        ],
    );
}

#[test]
fn other_files_are_refused_with_the_reason() {
    let refused = |text: &str, expected: Expect| {
        expected.assert_eq(&Trace::read(text.as_bytes()).unwrap_err().to_string())
    };
    refused("{", expect!["not a trace: EOF while parsing an object at line 1 column 1"]);
    for without_format in ["[]", "{}"] {
        refused(
            without_format,
            expect![
                "the trace's format is missing, but this program reads \"tightfit-trace/2\", as \
                 `tightfit train --trace` writes it"
            ],
        );
    }
    refused(
        r#"{"otherData": {"format": "tightfit-trace/9"}, "traceEvents": []}"#,
        expect![
            "the trace's format is \"tightfit-trace/9\", but this program reads \
             \"tightfit-trace/2\", as `tightfit train --trace` writes it"
        ],
    );
    let with = |event: Value| {
        let about = json!({
            "format": "tightfit-trace/2", "graph": "", "name": "", "machine": "", "planner": "",
            "budget_bytes": 0, "measured": false,
        });
        json!({ "otherData": about, "traceEvents": [event] }).to_string()
    };
    let args = json!({ "node": "o", "module": "", "phase": "forward", "bytes": 1 });
    refused(
        &with(json!({ "ph": "X", "name": "n", "cat": "run", "ts": -1, "dur": 1, "args": args })),
        expect!["event 0 of the trace (`n`): its time is missing, negative or not a number"],
    );
    refused(
        &with(json!({ "ph": "X", "name": "n", "cat": "other", "ts": 1, "dur": 1, "args": args })),
        expect!["event 0 of the trace (`n`): its category is neither `run` nor `recompute`"],
    );
    refused(
        &with(json!({ "ph": "X", "name": "n", "cat": "run", "ts": 1, "dur": 1, "args": {} })),
        expect![
            "event 0 of the trace (`n`): a call needs node, module, phase and bytes among its \
             arguments"
        ],
    );
    refused(
        &with(json!({ "ph": "C", "name": "memory", "ts": 1, "args": { "gold": 1 } })),
        expect!["event 0 of the trace (`memory`): its arguments are not bytes by role"],
    );
    refused(
        &with(json!({ "ph": "C", "name": "memory", "ts": 1, "args": { "batch": u64::MAX } })),
        expect!["event 0 of the trace (`memory`): its arguments are not bytes by role"],
    );
    // Other programs may add events of their own.
    assert!(
        Trace::read(with(json!({ "ph": "i", "name": "n" })).as_bytes()).unwrap().calls.is_empty()
    );
}
