//! Every way in which bytes are not a plan for a graph, with the message shown to the user.
//! Invariant: each variant of [`PlanFileError`] has a test here ([`variant`] does not compile when
//! one is added), and a damaged plan is an error of the reader or of the checker, never a panic.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.

use std::sync::LazyLock;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use tightfit::check::check;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::Planner;
use tightfit::profile::Profile;
use tightfit::schedule::{self, PlanFileError};
use tightfit::{Goal, Request};

use crate::fixtures::generator::{Kind, Layer, Recipe, Updates};

struct Small {
    graph: Graph,
    profile: Profile,
}

/// Five products with their activations, and their backward pass.
static SMALL: LazyLock<Small> = LazyLock::new(|| {
    let layer = |i: usize| {
        let kind = if i.is_multiple_of(2) { Kind::Linear } else { Kind::Relu };
        Layer {
            kind,
            first: 0,
            second: 0,
            size: 10,
            milliseconds: Some(1),
            workspace: 9,
            module: 1,
        }
    };
    let recipe = Recipe {
        batch: vec![3],
        layers: (0..10).map(layer).collect(),
        updates: Updates::Sgd,
        clip: false,
        kept: vec![],
        late_metric: false,
        epilogue: false,
        unread: false,
    };
    let graph = recipe.graph();
    let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
    Small { graph, profile }
});

fn plan(planner: Planner) -> Json {
    let Small { graph, profile } = &*SMALL;
    let fitted = tightfit::fit(
        graph,
        profile,
        &Request { goal: Goal::Smallest, planner, ..Request::default() },
    )
    .unwrap();
    schedule::write(graph, fitted.schedule())
}

/// Changes a plan that recomputes nothing, so that messages do not depend on how clever a planner
/// is.
fn with(change: impl FnOnce(&mut Json), expected: Expect) {
    let mut plan = plan(Planner::None);
    change(&mut plan);
    expected.assert_eq(&verdict(plan.to_string().as_bytes()));
}

fn verdict(bytes: &[u8]) -> String {
    match schedule::read(&SMALL.graph, bytes) {
        Ok(_) => "a plan".to_string(),
        Err(error) => format!("{}: {error}", variant(&error)),
    }
}

fn variant(error: &PlanFileError) -> &'static str {
    match error {
        PlanFileError::Json(_) => "Json",
        PlanFileError::Version { .. } => "Version",
        PlanFileError::OtherGraph { .. } => "OtherGraph",
        PlanFileError::UnknownNode { .. } => "UnknownNode",
        PlanFileError::UnknownBuffer { .. } => "UnknownBuffer",
        PlanFileError::Placeholder { .. } => "Placeholder",
        PlanFileError::Instruction { .. } => "Instruction",
        PlanFileError::TooLarge => "TooLarge",
        PlanFileError::Number { .. } => "Number",
        other => panic!("a variant without a test: {other}"),
    }
}

#[test]
fn files_that_are_no_plans() {
    with(|_| {}, expect!["a plan"]);
    expect!["Json: not a tightfit-plan/1 file: expected value at line 1 column 1"]
        .assert_eq(&verdict(b"slab"));
    expect!["Json: not a tightfit-plan/1 file: missing field `graph` at line 1 column 29"]
        .assert_eq(&verdict(br#"{"format": "tightfit-plan/1"}"#));
    with(
        |plan| plan["format"] = json!("tightfit-plan/2"),
        expect![[
            r#"Version: the format is "tightfit-plan/2", but this program reads "tightfit-plan/1""#
        ]],
    );
    with(
        |plan| drop(plan.as_object_mut().unwrap().remove("format")),
        expect![[r#"Version: the format is missing, but this program reads "tightfit-plan/1""#]],
    );
}

#[test]
fn plans_for_something_else() {
    with(
        |plan| plan["graph"] = json!("0000"),
        expect![
            "OtherGraph: the plan was made for another graph: it names hash 0000, the graph's is \
             fb516e0f5916960f5e712daa1672aef132f9c208035a63b56393c36bc0427d6d; pass that graph, \
             with batches of the same size and number and the same --split, or \
         plan this one"
        ],
    );
    with(
        |plan| plan["instructions"][0][1] = json!("nobody"),
        expect!["UnknownNode: the plan names node `nobody`, which the graph does not have"],
    );
    with(
        |plan| plan["placeholders"]["nobody"] = json!(0),
        expect!["UnknownNode: the plan names node `nobody`, which the graph does not have"],
    );
    with(
        |plan| plan["instructions"][0][3][0] = json!(99),
        expect!["UnknownBuffer: the plan names buffer 99, but has 59 buffers"],
    );
    with(
        |plan| plan["placeholders"]["input_6"] = json!(99),
        expect!["UnknownBuffer: the plan names buffer 99, but has 59 buffers"],
    );
    with(
        |plan| plan["placeholders"]["input_6"] = json!("slab"),
        expect![[r#"Placeholder: the plan gives placeholder `input_6` no buffer, but "slab""#]],
    );
}

#[test]
fn instructions_that_do_not_exist() {
    for wrong in [
        json!(["fly", 3]),
        json!([]),
        json!(["free"]),
        json!(["free", -1]),
        json!(["run", "linear_7", [0.5], [], null]),
        json!(["run", "linear_7", [], [], null, 0, 0]),
        json!(["start", 0, 0, "fly", 0, 0]),
        json!(["start", 0, 0, "copy", 0]),
        json!(["wait"]),
        json!(["wait", "0"]),
    ] {
        with(
            |plan| plan["instructions"][2] = wrong,
            expect![
                "Instruction: instruction 2 is not one of [\"run\"|\"recompute\", node, inputs, \
                 outputs, workspace], [\"free\", buffer], [\"start\", transfer, lane, \"copy\", \
                 from, to] and [\"wait\", transfer]"
            ],
        );
    }
}

#[test]
fn numbers_that_no_table_should_have() {
    let huge = 1u64 << 16;
    with(
        |plan| plan["instructions"][2] = json!(["wait", huge]),
        expect!["Number: the plan speaks of transfer 65536; such numbers are below 61"],
    );
    with(
        |plan| plan["instructions"][2] = json!(["start", 0, huge, "copy", 0, 0]),
        expect!["Number: the plan speaks of lane 65536; such numbers are below 65536"],
    );
    with(
        |plan| plan["buffers"][0] = json!([4, 0, huge]),
        expect!["Number: the plan speaks of tier 65536; such numbers are below 65536"],
    );
    with(
        |plan| plan["rank"] = json!(huge),
        expect!["Number: the plan speaks of rank 65536; such numbers are below 65536"],
    );
}

/// Many micro-batches move the same tensors repeatedly.
#[test]
fn transfers_are_limited_by_the_instructions_alone() {
    let many = 70_000;
    let moves = |id: u32| [json!(["start", id, 0, "copy", 0, 0]), json!(["wait", id])];
    let mut plan = plan(Planner::None);
    plan["instructions"] = (0..many).flat_map(moves).collect();
    let read = schedule::read(&SMALL.graph, plan.to_string().as_bytes()).unwrap();
    assert_eq!(read.instructions.len(), 2 * many as usize);
}

#[test]
fn sizes() {
    with(
        |plan| plan["slab_bytes"] = json!(u64::MAX),
        expect!["TooLarge: sizes of the plan exceed 1152921504606846976 bytes"],
    );
    with(
        |plan| plan["budget_bytes"] = json!(-1),
        expect![
            "Json: not a tightfit-plan/1 file: invalid value: integer `-1`, expected u64 at line \
             1 column 18"
        ],
    );
    with(
        |plan| plan["buffers"][0] = json!([u64::MAX, 0]),
        expect!["TooLarge: sizes of the plan exceed 1152921504606846976 bytes"],
    );
    with(
        |plan| plan["buffers"][0] = json!([4, u64::MAX]),
        expect!["TooLarge: sizes of the plan exceed 1152921504606846976 bytes"],
    );
}

proptest! {
    #![proptest_config(tightfit_testing::config(2000))]

    #[test]
    fn damaged_plans_are_errors_and_not_panics(
        digits in prop::collection::vec((any::<prop::sample::Index>(), 0u8..10), 1..5),
    ) {
        static PLAN: LazyLock<String> = LazyLock::new(|| plan(Planner::Capuchin).to_string());
        let Small { graph, profile } = &*SMALL;
        let hash = graph.hash();
        let mut file = PLAN.replace(hash, "").into_bytes();
        let places: Vec<usize> = (0..file.len()).filter(|&i| file[i].is_ascii_digit()).collect();
        for (at, digit) in digits {
            file[places[at.index(places.len())]] = b'0' + digit;
        }
        let named = format!(r#""graph":"{hash}""#);
        let file = String::from_utf8(file).unwrap().replace(r#""graph":"""#, &named);
        if let Ok(damaged) = schedule::read(graph, file.as_bytes()) {
            let _ = check(graph, profile, &damaged, damaged.budget);
        }
    }
}
