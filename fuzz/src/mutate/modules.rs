//! Changes of module statistics, as PyTorch's tools write them. Invariant: names, orders and
//! figures are each changed by themselves.

use serde_json::{Value as Json, json};

use crate::draw::Draw;
use crate::mutate::graph::list;
use crate::mutate::json;

const FIGURES: [&str; 18] = [
    "param_per_module",
    "grad_per_module",
    "grad_total",
    "act_fw_per_module",
    "act_bw_per_module",
    "act_grad_per_module",
    "act_total",
    "input_per_module",
    "output_per_module",
    "fw_runtime_per_module",
    "bw_runtime_per_module",
    "is_leaf",
    "sac_runtime",
    "sac_memory",
    "n_segments",
    "slopes",
    "breakpoints",
    "tradeoff_curve",
];

/// One change of statistics, which may lie under `module_info` or stand alone.
pub fn hostile(statistics: &mut Json, draw: &mut Draw) -> bool {
    if draw.chance(3) {
        let inner = statistics.get("module_info").cloned();
        *statistics = inner.unwrap_or_else(|| json!({ "module_info": statistics }));
        return true;
    }
    let info = if statistics.get("module_info").is_some() {
        &mut statistics["module_info"]
    } else {
        statistics
    };
    match draw.below(8) {
        0..4 => figure(info, draw),
        4 => name(info, draw),
        5 | 6 => order(info, draw),
        _ => json::anywhere(info, draw),
    }
}

fn figure(info: &mut Json, draw: &mut Draw) -> bool {
    let modules = list(info, "mod_stats");
    let at = draw.below(modules.len());
    let Some(module) = modules.get_mut(at).and_then(Json::as_object_mut) else { return false };
    let field = draw.one(FIGURES);
    match module.get_mut(field) {
        Some(figure) if draw.chance(85) => json::change(figure, draw),
        Some(_) => drop(module.remove(field)),
        None => drop(module.insert(field.to_string(), json::anything(draw))),
    }
    true
}

fn name(info: &mut Json, draw: &mut Draw) -> bool {
    let modules = list(info, "mod_stats");
    let (at, other) = (draw.below(modules.len()), draw.below(modules.len()));
    let Some(given) = modules.get(other).map(|module| module["fqn"].clone()) else { return false };
    let longer = format!("{}.x", given.as_str().unwrap_or(""));
    json::set(
        &mut modules[at],
        "fqn",
        draw.one([given, json!(longer), json!(""), json!("."), json!(7)]),
    );
    true
}

fn order(info: &mut Json, draw: &mut Draw) -> bool {
    let order = draw.one(["fw_pre_order", "fw_post_order", "bw_pre_order", "bw_post_order"]);
    let Some(names) = info.get_mut("mod_order").and_then(|all| all.get_mut(order)) else {
        return false;
    };
    json::change(names, draw);
    true
}
