//! Steps that a campaign of hostile input found (`corpus/hostile`), and data that do not fit.
//! Invariant: what does not follow from its inputs is refused by the name of the node before a step
//! runs; a correct step trains, with the same losses within every budget.
//!
//! Tier: quick, since it takes less than a second.

use serde_json::json;

use super::{Case, listing, node, unpacked};
use crate::program::{corpus, run, train};

/// The node that is wrong, by step; `None` if none is.
const STEPS: [(&str, Option<&str>); 14] = [
    ("DIFF-2000982-train", Some("permute_46")),
    ("DIFF-2003100-train", Some("_scaled_dot_product_flash_attention_for_cpu_backward_1")),
    ("DIFF-2003502-train", Some("_scaled_dot_product_flash_attention_for_cpu_backward_1")),
    ("PANIC-2000766-train", Some("view_58")),
    ("PANIC-2001686-train", Some("view_43")),
    ("PANIC-2003764-train", Some("view_58")),
    ("craft-R-cat-oob", Some("view_41")),
    ("craft-R-cat-panic", Some("evil")),
    ("craft-R-control", None),
    ("craft-R-dropout-x-small", Some("evil")),
    ("craft-R-nll-out-empty", Some("evil")),
    ("craft-R-nllb-large", Some("evil")),
    ("craft-R-nllb-narrow", Some("evil")),
    ("craft-R-softmax-panic", Some("evil")),
];

#[test]
fn a_wrong_node_is_refused_by_name_and_a_right_one_trains() {
    let mut present = listing(&corpus().join("hostile"));
    present.retain(|name| name != "README.md");
    assert_eq!(present, STEPS.map(|(step, _)| step), "a step without an expectation");
    for (step, wrong) in STEPS {
        let case = Case::new();
        let arguments = format!("corpus/hostile/{step} --steps 2 --eval-batches 0");
        let ran = train(case.folder.path(), &format!("{arguments} --budget 100%"));
        match wrong {
            Some(node) => {
                assert_eq!(ran.code, Some(6), "{step}: {}", ran.stderr);
                assert!(ran.stderr.contains(&format!("node `{node}`")), "{step}: {}", ran.stderr);
                assert_eq!(ran.losses().len(), 0, "{step}");
            }
            None => {
                let losses = ran.done().losses();
                assert_eq!(losses.len(), 2, "{step}");
                let least = train(case.folder.path(), &format!("{arguments} --budget min"));
                assert_eq!(losses, least.done().losses(), "{step}");
            }
        }
    }
}

#[test]
fn targets_of_fewer_rows_than_the_input_are_refused_as_data() {
    let from = corpus().join("steps/gpt-nano");
    let mut step: serde_json::Value =
        serde_json::from_slice(&std::fs::read(from.join("step.json")).unwrap()).unwrap();
    step["data"]["file"] = json!(corpus().join("data/kjv.txt"));
    step["training"] = json!("train.json");
    step.as_object_mut().unwrap().remove("evaluation");
    let mut graph: serde_json::Value =
        serde_json::from_str(&unpacked(&from.join("train.json.gz"))).unwrap();
    node(&mut graph, "target")["outputs"][0]["shape"] = json!([1, 64]);
    let case = Case::new();
    std::fs::create_dir(case.path("step")).unwrap();
    let case =
        case.file("step/step.json", step.to_string()).file("step/train.json", graph.to_string());
    let ran = run(case.folder.path(), "train FOLDER/step --budget 100% --steps 1 --threads 2");
    assert_eq!(ran.code, Some(7), "{}", ran.stderr);
    assert!(ran.stderr.contains("4 windows, as of the input"), "{}", ran.stderr);
}
