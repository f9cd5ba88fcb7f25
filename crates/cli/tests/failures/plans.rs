//! Plans that were damaged or are of another graph. Invariant: none of them is accepted.
//!
//! Tier: quick, since it takes less than a second.

use expect_test::expect;
use serde_json::{Value, json};

use super::Case;

#[test]
fn a_plan_for_another_graph() {
    let case =
        Case::new().given("plan corpus/steps/gpt-nano --budget 90% --threads 2 -o FOLDER/plan");
    case.fails(
        "check corpus/steps/mlp-digits FOLDER/plan --budget 1GiB --threads 2",
        5,
        expect![[r#"
            error: FOLDER/plan: the plan was made for another graph: it names hash \
            f06c038c9b5034ae677b521b698099e650f401cff94cf4071d3841ac726bfc96, the graph's \
            is 7bc3f12669fab9f7895c1a3a8e4db8f5dbeb8d60dc43c002713f656930a7f574; pass that \
            graph, with batches of the same size and number and the same --split, or plan \
            this one
        "#]],
    );
}

#[test]
fn a_tampered_plan() {
    let case =
        Case::new().given("plan corpus/steps/mlp-digits --budget 100% --threads 2 -o FOLDER/plan");
    let plan: Value = serde_json::from_slice(&std::fs::read(case.path("plan")).unwrap()).unwrap();
    let tampered = |change: &dyn Fn(&mut Value)| {
        let mut plan = plan.clone();
        change(&mut plan);
        Case::new().file("plan", plan.to_string())
    };
    let check = "check corpus/steps/mlp-digits FOLDER/plan --budget 1GiB --threads 2";
    tampered(&|plan| drop(plan["instructions"].as_array_mut().unwrap().remove(0))).fails(
        check,
        9,
        expect![[r#"
            error: the plan does not hold on cpu; name the machine and the threads that it \
            was made for: instruction 0: `relu` reads `addmm` from buffer80, which holds \
            nothing
        "#]],
    );
    tampered(&|plan| drop(plan["instructions"].as_array_mut().unwrap().pop())).fails(
        check,
        9,
        expect![[r#"
            error: the plan does not hold on cpu; name the machine and the threads that it \
            was made for: buffer160 still holds what `sum_13` made (version 0) at the end \
            of the step
        "#]],
    );
    tampered(&|plan| plan["buffers"][0][0] = json!(4)).fails(
        check,
        9,
        expect![[r#"
            error: the plan does not hold on cpu; name the machine and the threads that it \
            was made for: instruction 0: `layers_0_weight` needs 16384 bytes for its \
            value, but buffer0 has 4
        "#]],
    );
    tampered(&|plan| plan["buffers"][1][1] = plan["buffers"][0][1].clone()).fails(
        check,
        9,
        expect![[r#"
            error: the plan does not hold on cpu; name the machine and the threads that it \
            was made for: instruction 0: buffer1 overlaps buffer0, which is held
        "#]],
    );
    tampered(&|plan| plan["slab_bytes"] = json!(1000)).fails(
        check,
        9,
        expect![[r#"
            error: the plan does not hold on cpu; name the machine and the threads that it \
            was made for: buffer0 ends at byte 16384, outside the slab of 1000 bytes
        "#]],
    );
    tampered(&|plan| plan["instructions"][0][1] = json!("nobody")).fails(
        check,
        5,
        expect![[r#"
        error: FOLDER/plan: the plan names node `nobody`, which the graph does not have
    "#]],
    );
    tampered(&|plan| plan["instructions"][0] = json!(["skip", 1])).fails(
        check,
        5,
        expect![[r#"
        error: FOLDER/plan: instruction 0 is not one of ["run"|"recompute", node, \
        inputs, outputs, workspace], ["free", buffer], ["start", transfer, lane, \
        "copy", from, to] and ["wait", transfer]
    "#]],
    );
    tampered(&|plan| plan["format"] = json!("tightfit-plan/9")).fails(
        check,
        5,
        expect![[r#"
        error: FOLDER/plan: the format is "tightfit-plan/9", but this program reads \
        "tightfit-plan/1"
    "#]],
    );
    Case::new().file("plan", "{").fails(
        check,
        5,
        expect![[r#"
        error: FOLDER/plan: not a tightfit-plan/1 file: EOF while parsing an object at \
        line 1 column N
    "#]],
    );
}
