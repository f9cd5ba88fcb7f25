//! Changes of a step's `step.json` and of its data file. Invariant: the legal ones leave a step
//! that can be trained.

use serde_json::{Value as Json, json};

use crate::case::Case;
use crate::draw::Draw;
use crate::mutate::{bytes, json};

/// Another recipe, rate or seed that a step may have.
pub fn legal(step: &mut Json, draw: &mut Draw) -> bool {
    match draw.below(5) {
        0 => json::set_in(step, "optimizer", "learning_rate", json!(draw.share() * 0.1 + 1e-6)),
        1 => json::set_in(step, "data", "sampling_seed", json!(draw.word() as u32)),
        2 if step["data"]["kind"] == "table" => {
            json::set_in(step, "data", "scale", json!(draw.share()))
        }
        2 => validation(step, "last_fraction", json!(0.2 + 0.2 * draw.share())),
        3 => json::set(step, "evaluation", Json::Null),
        _ => {
            let Some(parameters) = step.get_mut("parameters").and_then(Json::as_object_mut) else {
                return false;
            };
            let at = draw.below(parameters.len());
            let Some(recipe) = parameters.values_mut().nth(at) else { return false };
            *recipe = draw.one([
                json!({ "constant": 0.25 }),
                json!({ "uniform": { "low": -0.5, "high": 0.5 } }),
                json!({ "normal": { "mean": 0.0, "std": 0.1 } }),
            ]);
        }
    }
    true
}

fn validation(step: &mut Json, field: &str, value: Json) {
    if let Some(data) = step.get_mut("data") {
        json::set_in(data, "validation", field, value);
    }
}

/// Anything else in any field.
pub fn hostile(step: &mut Json, draw: &mut Draw) -> bool {
    match draw.below(8) {
        0 => json::set_in(step, "optimizer", "kind", json::anything(draw)),
        1 => json::set_in(
            step,
            "optimizer",
            "learning_rate",
            json!(draw.one([-1.0, 0.0, 1e300, 1e-300])),
        ),
        2 => {
            let field = draw.one([
                "batch",
                "window",
                "features",
                "evaluation_batch",
                "sampling_seed",
                "scale",
                "validation",
                "file",
                "kind",
            ]);
            let value = if draw.chance(60) { json!(draw.near(8)) } else { json::anything(draw) };
            json::set_in(step, "data", field, value);
        }
        3 => {
            let field = draw.one(["last_fraction", "every", "remainder"]);
            validation(step, field, json!(draw.one([0.0, 1.0, -1.0, 0.999, 1e18])));
        }
        4 => {
            let Some(parameters) = step.get_mut("parameters").and_then(Json::as_object_mut) else {
                return false;
            };
            let at = draw.below(parameters.len());
            let Some(recipe) = parameters.values_mut().nth(at) else { return false };
            *recipe = draw.one([
                json!({ "normal": { "mean": 0.0, "std": -1.0 } }),
                json!({ "normal": { "mean": 1e300, "std": 1e300 } }),
                json!({ "uniform": { "low": 1.0, "high": -1.0 } }),
                json!({ "constant": 1e300 }),
                json!({ "file": "nowhere.safetensors" }),
                json!({ "file": "data.csv" }),
                json!({ "file": ".." }),
                json!("constant"),
            ]);
        }
        5 => {
            let field = draw.one(["training", "evaluation", "format", "name"]);
            json::set(
                step,
                field,
                draw.one([
                    json!("eval.json.gz"),
                    json!("train.json.gz"),
                    json!(""),
                    json!("."),
                    json!("step.json"),
                    json!("tightfit-step/2"),
                    json!(1),
                ]),
            );
        }
        _ => return json::anywhere(step, draw),
    }
    true
}

/// Changes the data file: damages it, or makes it differ from what the step was made with.
pub fn data(case: &mut Case, draw: &mut Draw) -> bool {
    let Some(name) = case.files.keys().find(|name| name.starts_with("data.")).cloned() else {
        return false;
    };
    if let Some(content) = case.files.get_mut(&name) {
        bytes::damage(content, draw);
    }
    true
}
