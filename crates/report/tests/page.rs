//! The data that a page carries is what the checker found. Invariant: the data is read from the
//! HTML as a browser would read it, and compared with timelines by code of its own.
//!
//! Tier: quick, since it takes 1 s.

use std::collections::BTreeMap;

use serde_json::Value;
use tightfit::check::check;
use tightfit::effort::Effort;
use tightfit::graph::{self, Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::DEVICE;
use tightfit::machine::{Link, Machine, Tier};
use tightfit::plan::{Instance, Planner};
use tightfit::profile::Profile;
use tightfit::schedule::{Lowering, Schedule, lower};
use tightfit::tensor::DType;
use tightfit::timeline::Timeline;
use tightfit::units::{Bytes, Seconds};
use tightfit::{Goal, Request};
use tightfit_report::{
    Course, FrontierPoint, Measured, Planned, Report, Role, Trace, page, savings,
};

fn corpus(path: &str) -> Graph {
    let path = format!("{}/../../corpus/{path}", env!("CARGO_MANIFEST_DIR"));
    graph::read(&std::fs::read(path).unwrap()).unwrap()
}

/// A step in two ways: as captured, and planned into a share of its peak.
struct Steps {
    graph: Graph,
    unplanned: (Schedule, Timeline),
    planned: (Schedule, Timeline),
}

fn steps(graph: Graph, in_place: bool, share: f64) -> Steps {
    let machine =
        if in_place { Machine::unmeasured_cpu(2) } else { Machine::preset("a100-80gb").unwrap() };
    let profile = Profile::new(&graph, &machine);
    let unplanned = tightfit::unplanned(&graph, &profile).unwrap();
    let budget = Bytes((unplanned.timeline().peak.0 as f64 * share) as u64);
    let effort = Effort { work: 300_000, ..Effort::default() };
    let fitted = tightfit::fit(
        &graph,
        &profile,
        &Request {
            goal: Goal::Within(budget),
            planner: Planner::Auto,
            effort,
            ..Request::default()
        },
    )
    .unwrap();
    // The checker is run again, so that what is compared comes from it alone.
    let timeline = check(&graph, &profile, fitted.schedule(), budget).unwrap();
    Steps {
        unplanned: (unplanned.schedule().clone(), unplanned.timeline().clone()),
        planned: (fitted.schedule().clone(), timeline),
        graph,
    }
}

/// The text between the tags of the element that carries the data.
fn data(html: &str) -> Value {
    let (_, rest) = html.split_once(r#"<script type="application/json" id="data">"#).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn numbers(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect()
}

fn html(steps: &Steps, points: &[FrontierPoint]) -> String {
    let before = Course::of(&steps.graph, &steps.unplanned.0, &steps.unplanned.1);
    let after = Course::of(&steps.graph, &steps.planned.0, &steps.planned.1);
    page(&Report {
        machine: "a machine",
        unplanned: &before,
        planned: &[Planned { name: "Planned", course: &after, chunks: None }],
        reserve: Bytes(0),
        frontier: points,
        measured: None,
    })
}

/// Rebuilds start, bytes and node of every call from the data.
fn agrees(graph: &Graph, data: &Value, side: &Value, timeline: &Timeline) {
    let names: Vec<&str> = data["nodes"]["name"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap())
        .collect();
    let time = numbers(&data["nodes"]["time"]);
    let times: Vec<f64> =
        data["times"].as_array().unwrap().iter().map(|time| time.as_f64().unwrap()).collect();
    let sizes: Vec<u64> =
        data["sizes"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).collect();
    let calls = numbers(&side["calls"]);
    let held = &side["held"];
    let [node, first, span, size, role] =
        ["node", "first", "span", "size", "role"].map(|key| numbers(&held[key]));
    let mut bytes = vec![0u64; calls.len()];
    let mut from = 0;
    for index in 0..node.len() {
        from += first[index];
        for call in &mut bytes[from..=from + span[index]] {
            *call += sizes[size[index]];
        }
        assert!(role[index] < Role::ALL.len());
    }
    assert_eq!(timeline.calls.len(), calls.len());
    let mut now = 0.0;
    for ((judged, call), bytes) in timeline.calls.iter().zip(&calls).zip(&bytes) {
        let name = &graph.nodes()[judged.node].name;
        assert_eq!((names[call / 2], call % 2 == 1), (name.as_str(), judged.recomputed));
        assert_eq!(*bytes, judged.held.0, "{name}");
        assert_eq!(now, judged.start.0, "{name}: to the last bit");
        now += times[time[call / 2]];
    }
    assert_eq!(now, timeline.seconds.0);
    let peak = side["peak"].as_u64().unwrap() as usize;
    assert_eq!(bytes[peak], timeline.peak.0);
    assert!(
        bytes[..peak].iter().all(|&bytes| bytes < timeline.peak.0),
        "the first call at the peak"
    );
}

#[test]
fn the_data_is_what_the_checker_found() {
    let cases = [
        ("graphs/llama_1b_b2_s2048.json.gz", false, 0.6),
        ("graphs/resnet50_b32.json.gz", false, 0.5),
        ("steps/gpt-nano/train.json.gz", true, 0.8),
    ];
    for (path, in_place, share) in cases {
        let steps = steps(corpus(path), in_place, share);
        assert!(steps.planned.0.recomputed() > 0, "{path}: a plan that changes something");
        let html = html(&steps, &[]);
        assert!(html.len() < 3 << 20, "{path}: {} bytes", html.len());
        let data = data(&html);
        agrees(&steps.graph, &data, &data["sides"][0], &steps.unplanned.1);
        agrees(&steps.graph, &data, &data["sides"][1], &steps.planned.1);
        assert_eq!(html, self::html(&steps, &[]), "{path}: same step, same bytes");
    }
}

#[test]
fn what_is_drawn_reaches_the_peak_and_no_more() {
    let steps = steps(corpus("graphs/llama_1b_b2_s2048.json.gz"), false, 0.6);
    let html = html(&steps, &[]);
    // The scale leaves a twenty-fifth above the higher peak; later areas lie below earlier ones.
    let top = steps.unplanned.1.peak.0 as f64 * 26.0 / 25.0;
    for (key, timeline) in [("before", &steps.unplanned.1), ("after", &steps.planned.1)] {
        let (_, plot) = html.split_once(&format!("data-side=\"{key}\"")).unwrap();
        let (plot, _) = plot.split_once("</svg>").unwrap();
        let heights = |path: &str| -> Vec<f64> {
            path.split('V')
                .skip(1)
                .map(|part| part.split(['H', 'Z']).next().unwrap().parse().unwrap())
                .collect()
        };
        let areas: Vec<f64> = plot
            .split("<path class=\"r")
            .skip(1)
            .map(|path| {
                heights(path.split_once("d=\"").unwrap().1.split('"').next().unwrap())
                    .into_iter()
                    .fold(f64::MAX, f64::min)
            })
            .collect();
        let expected = (1000.0 - timeline.peak.0 as f64 / top * 1000.0).round();
        assert!((areas[0] - expected).abs() <= 1.0, "{key}: {} instead of {expected}", areas[0]);
        assert!(areas.windows(2).all(|pair| pair[0] <= pair[1]), "{key}: {areas:?}");
    }
}

#[test]
fn savings_and_seconds_are_those_of_the_plan() {
    let steps = steps(corpus("graphs/llama_1b_b2_s2048.json.gz"), false, 0.6);
    let before = Course::of(&steps.graph, &steps.unplanned.0, &steps.unplanned.1);
    let after = Course::of(&steps.graph, &steps.planned.0, &steps.planned.1);
    let rows = savings(&before, &after);
    let paid: f64 = rows.iter().map(|row| row.seconds.0).sum();
    assert!(
        (paid - (steps.planned.1.seconds.0 - steps.unplanned.1.seconds.0)).abs() < 1e-9,
        "recomputation is all that takes longer"
    );
    assert_eq!(
        rows.iter().map(|row| row.recomputed as usize).sum::<usize>(),
        steps.planned.0.recomputed()
    );
    assert!(rows.windows(2).all(|pair| pair[0].saved >= pair[1].saved));
    // What is gone and what is there instead add up to the difference between the two at the same
    // node.
    let node = before.calls[before.at].node;
    let call = steps.planned.1.calls.iter().find(|call| call.node == node).unwrap();
    let gone: Bytes = rows.iter().map(|row| row.saved).sum();
    assert!(gone >= steps.unplanned.1.peak - call.held);
}

/// A step whose names are markup, and look like the end of a script.
fn hostile() -> Graph {
    let mut builder = GraphBuilder::new("</script><script>alert(1)</script> & \"co\" <!--");
    let module = builder.module("<b>\"m\"&'</b>.</script>");
    let mut value = None;
    for (index, phase) in
        [Phase::Input, Phase::Forward, Phase::Forward, Phase::Backward].into_iter().enumerate()
    {
        let storage = builder.storage(Bytes(4096 << index));
        let name = format!("<img src=x onerror=alert({index})>&\"'</script>\u{1}\n{index}");
        let op = if phase == Phase::Input { "placeholder" } else { "<i>&op" };
        let spec = NodeSpec {
            module,
            inputs: value.into_iter().collect(),
            seconds: Some(Seconds(1e-3)),
            ..NodeSpec::new(name, op, phase)
        };
        value = builder
            .node(spec, &[Some(ValueSpec::contiguous(&[1024 << index], DType::F32, storage))])
            .pop();
    }
    builder.output(value.unwrap());
    builder.build().unwrap()
}

#[test]
fn names_are_text_and_never_markup() {
    let steps = steps(hostile(), false, 1.0);
    let points = [FrontierPoint { budget: Bytes(20_000), overhead: 0.1, bound: Some(0.05) }];
    let html = html(&steps, &points);
    for (tag, count) in
        [("<script", 2), ("</script", 2), ("<img", 0), ("<i>&", 0), ("<!--", 0), ("<b>\"", 0)]
    {
        let found = html.to_ascii_lowercase().matches(tag).count();
        assert_eq!(found, count, "{tag}");
    }
    let data = data(&html);
    assert_eq!(data["graph"], steps.graph.name());
    let names = data["nodes"]["name"].as_array().unwrap();
    assert!(steps.graph.nodes().values().zip(names).all(|(node, name)| *name == *node.name));
    for drawing in [
        tightfit_report::stack_svg(
            steps.graph.name(),
            &[("<a>", &Course::of(&steps.graph, &steps.unplanned.0, &steps.unplanned.1))],
        ),
        tightfit_report::modules_svg(
            steps.graph.name(),
            &[("<a>", &Course::of(&steps.graph, &steps.unplanned.0, &steps.unplanned.1))],
        ),
    ] {
        assert!(
            !drawing.contains("<script") && !drawing.contains("<b>") && !drawing.contains("<a>")
        );
        assert!(!drawing.contains("NaN") && !drawing.contains("inf"));
    }
}

#[test]
fn a_step_in_which_nothing_runs_has_a_page() {
    let mut builder = GraphBuilder::new("nothing");
    let storage = builder.storage(Bytes(64));
    builder.node(
        NodeSpec::new("x", "placeholder", Phase::Parameter),
        &[Some(ValueSpec::contiguous(&[16], DType::F32, storage))],
    );
    let steps = steps(builder.build().unwrap(), false, 1.0);
    let html = html(&steps, &[]);
    assert!(html.contains("Nothing runs in this step; it holds 64 B."));
    assert!(!html.contains("NaN") && !html.contains("inf"));
}

#[test]
fn every_byte_has_a_role() {
    let steps = steps(corpus("steps/gpt-nano/train.json.gz"), true, 0.8);
    let course = Course::of(&steps.graph, &steps.planned.0, &steps.planned.1);
    for (call, by_role) in course.calls.iter().zip(&course.by_role) {
        assert_eq!(by_role.iter().copied().sum::<Bytes>(), call.held);
    }
    let mut most: BTreeMap<Role, Bytes> = BTreeMap::new();
    for by_role in &course.by_role {
        for role in Role::ALL {
            let most = most.entry(role).or_default();
            *most = by_role[role as usize].max(*most);
        }
    }
    let persistent = |phase: Phase| -> Bytes {
        let nodes = steps
            .graph
            .placeholder_storages()
            .filter(|(node, _)| steps.graph.nodes()[*node].phase == phase);
        nodes.map(|(_, storage)| steps.graph.storages()[storage]).sum()
    };
    assert_eq!(most[&Role::Parameters], persistent(Phase::Parameter));
    assert_eq!(most[&Role::OptimizerState], persistent(Phase::State));
    assert_eq!(most[&Role::Batch], persistent(Phase::Input));
    for role in [
        Role::Gradients,
        Role::Activations,
        Role::Recomputed,
        Role::ActivationGradients,
        Role::Workspace,
    ] {
        assert!(most[&role] > Bytes::ZERO, "{}", role.name());
    }
    let stays: Bytes = course.at_end.iter().copied().sum();
    assert_eq!(stays, steps.planned.1.held_at_end, "what the last instruction leaves");
}

#[test]
fn a_measured_trace_stands_beside_the_prediction() {
    let steps = steps(corpus("steps/gpt-nano/train.json.gz"), true, 0.8);
    let before = Course::of(&steps.graph, &steps.unplanned.0, &steps.unplanned.1);
    let after = Course::of(&steps.graph, &steps.planned.0, &steps.planned.1);
    // Twice as slow as predicted, with a pause before every call.
    let mut now = 0.0;
    let times: Vec<(Seconds, Seconds)> = after
        .calls
        .iter()
        .map(|call| {
            let start = now + 1e-6;
            now = start + 2.0 * call.seconds.0;
            (Seconds(start), Seconds(2.0 * call.seconds.0))
        })
        .collect();
    let trace = Trace::measured(&after, "here", &times, &[]);
    let measured = Measured { trace: &trace, times: trace.times(&after).unwrap() };
    let report = Report {
        machine: "cpu",
        unplanned: &before,
        planned: &[Planned { name: "Planned", course: &after, chunks: None }],
        reserve: Bytes(0),
        frontier: &[],
        measured: Some(measured),
    };
    let html = page(&report);
    assert!(html.contains("Predicted and measured") && html.contains("measured time"));
    let data = data(&html);
    let nanoseconds = numbers(&data["sides"][1]["measured"]["time"]);
    for (measured, call) in nanoseconds.iter().zip(&after.calls) {
        assert_eq!(*measured as u64, (call.seconds.0 * 2e9).round() as u64);
    }
    assert!(data["sides"][0].get("measured").is_none());
}

/// A step that moves tensors over two slow lanes.
fn tiered() -> Steps {
    let graph = corpus("graphs/bert_base_drop_b16_s512.json.gz");
    let mut machine = Machine::preset("a100-80gb").unwrap();
    let link = Link { latency: Seconds(1e-5), bandwidth: 2e9 };
    let tier = Tier { name: "disk".to_string(), capacity: None, block: Bytes(4096) };
    machine.hierarchy.add(tier, link, link);
    let profile = Profile::new(&graph, &machine);
    let unplanned = tightfit::unplanned(&graph, &profile).unwrap();
    // Plans in which nothing has to wait would test less.
    let order = tightfit::plan::base_order(&graph, &profile);
    let instance = Instance::new(&graph, &profile, &order);
    let peak = unplanned.timeline().peak;
    let plan = tightfit::plan::plan(instance, Bytes(peak.0 * 7 / 10), Planner::Offload).unwrap();
    let mut schedule = lower(&graph, &profile, &plan, &Lowering::to(Goal::Within(peak)));
    schedule.budget = schedule.slab;
    let timeline = check(&graph, &profile, &schedule, schedule.slab).unwrap();
    assert!(timeline.stall() > Seconds(0.0) && schedule.moved()[0] > Bytes(0));
    Steps {
        unplanned: (unplanned.schedule().clone(), unplanned.timeline().clone()),
        planned: (schedule, timeline),
        graph,
    }
}

#[test]
fn what_moves_is_in_the_data_and_under_the_drawing() {
    let steps = tiered();
    let html = html(&steps, &[]);
    let (schedule, timeline) = &steps.planned;
    let data = data(&html);
    let side = &data["sides"][1];
    let sizes = numbers(&data["sizes"]);
    // Each call starts when the calls and waits before it are over.
    let times: Vec<f64> =
        data["times"].as_array().unwrap().iter().map(|time| time.as_f64().unwrap()).collect();
    let time = numbers(&data["nodes"]["time"]);
    let waits: BTreeMap<usize, f64> = side["waits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|wait| (wait[0].as_u64().unwrap() as usize, wait[1].as_f64().unwrap() / 1e9))
        .collect();
    let mut now = 0.0;
    for (index, (call, of)) in timeline.calls.iter().zip(numbers(&side["calls"])).enumerate() {
        now += waits.get(&index).unwrap_or(&0.0);
        assert!((now - call.start.0).abs() < 1e-6, "call {index}: {now} for {:?}", call.start);
        now += times[time[of / 2]];
    }
    now += waits.get(&timeline.calls.len()).unwrap_or(&0.0);
    assert!((now - timeline.seconds.0).abs() < 1e-6);
    assert!((waits.values().sum::<f64>() - timeline.stall().0).abs() < 1e-6);
    // Bytes below the slab at each call, by code of this test.
    let mut expected = vec![0; timeline.calls.len()];
    for held in timeline.residencies.iter().filter(|held| held.tier != DEVICE) {
        let end = held.end.map_or(expected.len(), |end| end as usize);
        expected[held.first as usize..end].iter_mut().for_each(|sum| *sum += held.bytes.0);
    }
    let mut found = vec![0; expected.len()];
    let below = &side["below"];
    let (span, size) = (numbers(&below["span"]), numbers(&below["size"]));
    let mut first = 0;
    for (index, distance) in numbers(&below["first"]).into_iter().enumerate() {
        first += distance;
        let bytes = sizes[size[index]] as u64;
        found[first..=first + span[index]].iter_mut().for_each(|sum| *sum += bytes);
    }
    assert_eq!(found, expected);
    assert!(expected.iter().any(|&bytes| bytes > 0));
    // Every transfer, with its bytes and its direction.
    let moves = side["moves"].as_array().unwrap();
    let moved = |leaves: u64| -> usize {
        let these = moves.iter().filter(|moved| moved[1] == leaves);
        these.map(|moved| sizes[moved[4].as_u64().unwrap() as usize]).sum()
    };
    assert_eq!([moved(1), moved(0)], schedule.moved().map(|bytes| bytes.0 as usize));
    assert_eq!(moves.len(), timeline.transfers.len());
    // Drawn once, for the side that moves anything.
    for (part, count) in [
        (r#"<div class="lanes" role="img""#, 1),
        (r#"<path class="stall""#, 1),
        (r#"<path class="out" d="M"#, 1),
        (r#"<path class="back" d="M"#, 1),
        (r#"<path class="wait" d="M"#, 1),
        // As text, too, for readers who cannot see the strip.
        ("lie below the slab. In a step ", 2),
    ] {
        assert_eq!(html.matches(part).count(), count, "{part}");
    }
}

#[test]
fn a_trace_says_what_moves_and_what_waits() {
    let steps = tiered();
    let (schedule, timeline) = &steps.planned;
    let course = Course::of(&steps.graph, schedule, timeline);
    let trace = Trace::predicted(&course, "a machine");
    let text = trace.write();
    assert_eq!(Trace::read(text.as_bytes()).unwrap(), trace);
    let events: Value = serde_json::from_str(&text).unwrap();
    let events = events["traceEvents"].as_array().unwrap();
    let of = |cat: &str| events.iter().filter(|event| event["cat"] == cat).collect::<Vec<_>>();
    assert_eq!(of("out").len() + of("back").len(), timeline.transfers.len());
    let waiting: f64 = of("stall").iter().map(|event| event["dur"].as_f64().unwrap()).sum();
    let stalls = timeline.stall().0 * 1e6;
    assert!((waiting - stalls).abs() < 1e-3 * stalls + 1.0, "{waiting} of {stalls}");
    let counters = events.iter().filter(|event| event["name"] == "memory below");
    let most = counters.map(|event| {
        let roles = event["args"].as_object().unwrap().values();
        roles.map(|bytes| bytes.as_u64().unwrap()).sum::<u64>()
    });
    assert_eq!(most.max(), Some(course.below.peak().0));
}

#[test]
fn without_a_tier_nothing_of_it_is_shown() {
    let steps = steps(corpus("graphs/resnet50_b32.json.gz"), false, 0.6);
    let html = html(&steps, &[]);
    for part in ["<div class=\"lanes\"", "class=\"stall\"", "below the slab</dt>", "\"waits\":"] {
        assert!(!html.contains(part), "{part}");
    }
    let course = Course::of(&steps.graph, &steps.planned.0, &steps.planned.1);
    let text = Trace::predicted(&course, "a machine").write();
    assert!(!text.contains("memory below") && !text.contains("waiting"));
}
