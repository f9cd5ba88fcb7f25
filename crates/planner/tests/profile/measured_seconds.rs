//! Measured seconds of calls. Invariant: signatures distinguish calls exactly by the work they ask
//! for; measured seconds take precedence over predicted ones; an invalid file is refused with the
//! reason.
//!
//! Tier: quick, since it takes less than a second.
use expect_test::{Expect, expect};
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{NodeId, ValueId};
use tightfit::machine::Machine;
use tightfit::profile::{CallSeconds, Profile, Signature, roofline};
use tightfit::tensor::{Argument, DType};
use tightfit::units::{Bytes, Seconds};

/// Two matrices of a shape, and the nodes that `calls` adds.
fn graph(shape: [u64; 2], calls: impl Fn(&mut GraphBuilder, ValueId, ValueId)) -> Graph {
    let mut builder = GraphBuilder::new("calls");
    let input = |builder: &mut GraphBuilder, name: &str| {
        let storage = builder.storage(Bytes(shape[0] * shape[1] * 4));
        let spec = NodeSpec::new(name, "placeholder", Phase::Input);
        builder.node(spec, &[Some(ValueSpec::contiguous(&shape, DType::F32, storage))])[0]
    };
    let (left, right) = (input(&mut builder, "left"), input(&mut builder, "right"));
    calls(&mut builder, left, right);
    builder.build().unwrap()
}

/// A product, element by element.
fn mul(builder: &mut GraphBuilder, name: &str, shape: [u64; 2], left: ValueId, right: Argument) {
    let storage = builder.storage(Bytes(shape[0] * shape[1] * 4));
    let other = right.values().into_iter().filter(|&value| value != left);
    let inputs = std::iter::once(left).chain(other).collect();
    let args = vec![Argument::Value(left), right];
    let spec = NodeSpec {
        inputs,
        args,
        seconds: Some(Seconds(7.0)),
        ..NodeSpec::new(name, "aten.mul.Tensor", Phase::Forward)
    };
    let made = builder.node(spec, &[Some(ValueSpec::contiguous(&shape, DType::F32, storage))]);
    builder.output(made[0]);
}

fn signature(graph: &Graph, name: &str) -> Signature {
    Signature::of(graph, graph.node_named(name).unwrap())
}

fn text(signature: &Signature) -> String {
    serde_json::to_value(signature).unwrap().as_str().unwrap().to_string()
}

#[test]
fn a_signature_is_the_work_that_a_call_asks_for() {
    let shape = [4, 8];
    let calls = graph(shape, |builder, left, right| {
        mul(builder, "both", shape, left, Argument::Value(right));
        mul(builder, "again", shape, right, Argument::Value(left));
        mul(builder, "square", shape, left, Argument::Value(left));
        mul(builder, "twice", shape, left, Argument::Float(2.0));
        mul(builder, "thrice", shape, left, Argument::Float(3.0));
    });
    expect!["aten.mul.Tensor(%0 f32[4,8], %1 f32[4,8]) -> f32[4,8]"]
        .assert_eq(&text(&signature(&calls, "both")));
    assert_eq!(signature(&calls, "both"), signature(&calls, "again"));
    let others = ["square", "twice", "thrice"].map(|name| signature(&calls, name));
    for (i, other) in others.iter().enumerate() {
        assert_ne!(*other, signature(&calls, "both"));
        assert!(!others[..i].contains(other), "{}", text(other));
    }
    let wider = graph([4, 16], |builder, left, right| {
        mul(builder, "both", [4, 16], left, Argument::Value(right))
    });
    assert_ne!(signature(&calls, "both"), signature(&wider, "both"));
}

#[test]
fn strides_are_part_of_a_signature() {
    let transposed = |strides: Option<Vec<u64>>| {
        let graph = graph([4, 4], |builder, left, _| {
            let storage = builder.storage(Bytes(64));
            let spec = NodeSpec {
                inputs: vec![left],
                args: vec![Argument::Value(left)],
                ..NodeSpec::new("x", "aten.clone.default", Phase::Forward)
            };
            let contiguous = strides.is_none();
            let value = ValueSpec {
                contiguous,
                strides: strides.clone(),
                ..ValueSpec::contiguous(&[4, 4], DType::F32, storage)
            };
            let made = builder.node(spec, &[Some(value)]);
            builder.output(made[0]);
        });
        text(&signature(&graph, "x"))
    };
    expect!["aten.clone.default(%0 f32[4,4]) -> f32[4,4]"].assert_eq(&transposed(None));
    expect!["aten.clone.default(%0 f32[4,4]) -> f32[4,4]:1,4"]
        .assert_eq(&transposed(Some(vec![1, 4])));
}

#[test]
fn what_was_measured_counts_before_what_is_predicted() {
    let shape = [4, 8];
    let graph = graph(shape, |builder, left, right| {
        mul(builder, "known", shape, left, Argument::Value(right));
        mul(builder, "unknown", shape, left, Argument::Float(2.0));
    });
    let cpu = Machine::unmeasured_cpu(2);
    let node = |name: &str| -> NodeId { graph.node_named(name).unwrap() };
    let mut table = CallSeconds::new("1", 2);
    table.record(signature(&graph, "known"), Seconds(0.5));
    assert!(!table.covers(&graph));
    let profile = Profile::measured(&graph, &cpu, &table);
    assert_eq!(profile.seconds[node("known")], Seconds(0.5));
    assert_eq!(
        profile.seconds[node("unknown")],
        Seconds(7.0),
        "what the graph says stays where nothing was measured"
    );
    assert_ne!(roofline(&graph, &cpu, node("known")), Seconds(0.5));
    // The times of one machine say nothing about another.
    let gpu = Machine::preset("a100-80gb").unwrap();
    assert_eq!(Profile::measured(&graph, &gpu, &table).seconds[node("known")], Seconds(7.0));
    table.record(signature(&graph, "unknown"), Seconds(0.25));
    assert!(table.covers(&graph));
}

#[test]
fn newer_seconds_replace_older_ones_and_no_clock_gives_others() {
    let shape = [4, 8];
    let graph = graph(shape, |builder, left, right| {
        mul(builder, "call", shape, left, Argument::Value(right))
    });
    let call = signature(&graph, "call");
    let mut table = CallSeconds::new("1", 2);
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        table.record(call.clone(), Seconds(wrong));
    }
    assert!(table.is_empty());
    table.record(call.clone(), Seconds(0.5));
    let mut newer = CallSeconds::new("1", 2);
    newer.record(call.clone(), Seconds(0.125));
    table.update(newer);
    assert_eq!((table.len(), table.get(&call)), (1, Some(Seconds(0.125))));
    assert_eq!(CallSeconds::read(table.write().as_bytes(), "1", 2).unwrap(), table);
}

#[track_caller]
fn refused(text: &str, expected: Expect) {
    expected.assert_eq(&CallSeconds::read(text.as_bytes(), "1", 2).unwrap_err().to_string());
}

#[test]
fn other_files_are_refused() {
    let file = |format: &str, engine: &str, seconds: &str| {
        format!(
            "{{\"format\":\"{format}\",\"engine\":\"{engine}\",\"threads\":2,\
             \"seconds\":{{\"f()\":{seconds}}}}}"
        )
    };
    assert_eq!(
        CallSeconds::read(file("tightfit-seconds/1", "1", "0.5").as_bytes(), "1", 2).unwrap().len(),
        1
    );
    refused("", expect!["it cannot be read: EOF while parsing a value at line 1 column 0"]);
    refused(
        &file("tightfit-seconds/2", "1", "0.5"),
        expect!["its format is `tightfit-seconds/2`, not `tightfit-seconds/1`"],
    );
    refused(
        &file("tightfit-seconds/1", "0", "0.5"),
        expect!["it was measured with engine 0 on 2 threads"],
    );
    refused(
        &file("tightfit-seconds/1", "1", "-0.5"),
        expect!["`f()` takes -5e-1 seconds, but must take a positive time of at most 1e12 seconds"],
    );
    let endless = file("tightfit-seconds/1", "1", "1e308");
    assert!(CallSeconds::read(endless.as_bytes(), "1", 2).is_err());
    refused(
        &file("tightfit-seconds/1", "1", "null"),
        expect!["it cannot be read: invalid type: null, expected f64 at line 1 column 77"],
    );
}
