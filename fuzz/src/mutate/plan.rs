//! Changes of a tightfit-plan/1 document: instructions, addresses, sizes, names. Invariant: most
//! changes leave what the reader takes, so that the checker has to judge it.

use serde_json::{Value as Json, json};

use crate::draw::Draw;
use crate::mutate::graph::list;
use crate::mutate::json;

/// One change of a plan.
pub fn hostile(plan: &mut Json, draw: &mut Draw) -> bool {
    match draw.below(16) {
        0..5 => instructions(plan, draw),
        5..8 => buffer(plan, draw),
        8..11 => operand(plan, draw),
        11 => sizes(plan, draw),
        12 => placeholder(plan, draw),
        13 => transfer(plan, draw),
        14 => header(plan, draw),
        _ => json::anywhere(plan, draw),
    }
}

/// Order and number of instructions.
fn instructions(plan: &mut Json, draw: &mut Draw) -> bool {
    let Some(all) = plan.get_mut("instructions").and_then(Json::as_array_mut) else {
        return false;
    };
    let (first, second) = (draw.below(all.len()), draw.below(all.len()));
    let next = (first + 1) % all.len().max(1);
    match draw.below(7) {
        _ if all.is_empty() => return false,
        0 => drop(all.remove(first)),
        1 => all.insert(first, all[first].clone()),
        2 => all.insert(second, all[first].clone()),
        3 => all.swap(first, second),
        // Neighbours often may change places.
        4 | 5 => all.swap(first, next),
        _ => {
            let moved = all.remove(first);
            all.insert(second.min(all.len()), moved);
        }
    }
    true
}

/// Size, address or tier of a buffer.
fn buffer(plan: &mut Json, draw: &mut Draw) -> bool {
    let buffers = list(plan, "buffers");
    let (at, other) = (draw.below(buffers.len()), draw.below(buffers.len()));
    let elsewhere = buffers.get(other).map(|other| other[1].clone());
    let Some(buffer) = buffers.get_mut(at).and_then(Json::as_array_mut) else { return false };
    if buffer.len() < 2 {
        return false;
    }
    let address = buffer[1].as_i64().unwrap_or(0);
    match draw.below(7) {
        0 => buffer[0] = json!(draw.near(buffer[0].as_i64().unwrap_or(0))),
        1 => {
            buffer[0] =
                json!(buffer[0].as_i64().unwrap_or(0).saturating_add(draw.one([-4, 4, -1, 64])))
        }
        2 => buffer[1] = json!(address.saturating_add(draw.one([-64, 64, 128, 4, 1]))),
        3 => buffer[1] = json!(draw.near(address)),
        4 => buffer.push(json!(draw.below(3))),
        _ => buffer[1] = elsewhere.unwrap_or(json!(0)),
    }
    true
}

/// A buffer that a call reads or writes, its workspace, or its part of the batch.
fn operand(plan: &mut Json, draw: &mut Draw) -> bool {
    let count = list(plan, "buffers").len();
    let all = list(plan, "instructions");
    let at = draw.below(all.len());
    let Some(call) = all.get_mut(at).and_then(Json::as_array_mut) else { return false };
    let buffer = json!(draw.below(count + 1));
    if call.len() < 5 {
        if let Some(last) = call.last_mut() {
            *last = buffer;
        }
        return true;
    }
    match draw.below(6) {
        0 => call[0] = json!(if call[0] == "run" { "recompute" } else { "run" }),
        1 => call[4] = if draw.chance(50) { Json::Null } else { buffer },
        2 => call.push(json!(draw.below(3))),
        part => {
            let side = 2 + part % 2;
            let operands = call[side].as_array_mut().map_or(&mut [][..], Vec::as_mut_slice);
            let place = draw.below(operands.len());
            let Some(operand) = operands.get_mut(place) else { return false };
            *operand = buffer;
        }
    }
    true
}

fn sizes(plan: &mut Json, draw: &mut Draw) -> bool {
    let field = draw.one(["budget_bytes", "slab_bytes", "slab_bytes", "rank"]);
    let from = plan.get(field).and_then(Json::as_i64).unwrap_or(0);
    json::set(
        plan,
        field,
        json!(if draw.chance(50) { from.saturating_sub(64) } else { draw.near(from) }),
    );
    true
}

fn placeholder(plan: &mut Json, draw: &mut Draw) -> bool {
    let count = list(plan, "buffers").len();
    let Some(all) = plan.get_mut("placeholders").and_then(Json::as_object_mut) else {
        return false;
    };
    let Some(name) = all.keys().nth(draw.below(all.len())).cloned() else { return false };
    match draw.below(3) {
        0 => drop(all.remove(&name)),
        1 => drop(all.insert("nobody".to_string(), json!(0))),
        _ => drop(all.insert(name, json!(draw.below(count + 1)))),
    }
    true
}

/// Transfers, which no planner makes today.
fn transfer(plan: &mut Json, draw: &mut Draw) -> bool {
    let count = list(plan, "buffers").len();
    let Some(all) = plan.get_mut("instructions").and_then(Json::as_array_mut) else {
        return false;
    };
    let (first, second) = (draw.below(count), draw.below(count));
    let at = draw.below(all.len() + 1);
    all.insert(at, json!(["start", 0, draw.below(2), "copy", first, second]));
    let behind = at + 1 + draw.below(all.len() - at);
    if draw.chance(80) {
        all.insert(behind, json!(["wait", 0]));
    }
    json::set(plan, "below_bytes", json!({ "1": 1 << 20 }));
    true
}

fn header(plan: &mut Json, draw: &mut Draw) -> bool {
    match draw.below(4) {
        0 => {
            json::set(plan, "format", json!(draw.one(["tightfit-plan/2", "tightfit-graph/1", ""])))
        }
        1 => json::set(plan, "graph", json!("0".repeat(64))),
        2 => json::set(plan, "planner", json::anything(draw)),
        _ => json::set(
            plan,
            "below_bytes",
            json!({ draw.one(["0", "1", "65536", "x"]): draw.near(64) }),
        ),
    }
    true
}
