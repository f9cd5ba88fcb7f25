//! Changes of a tightfit-plan/1 document: instructions, addresses, sizes, names. Invariant: most
//! changes leave it acceptable to the reader, so that the checker has to judge it.

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

/// One change under which most plans stay valid: other places, more space, a later free.
pub fn legal(plan: &mut Json, draw: &mut Draw) -> bool {
    match draw.below(4) {
        0 => move_buffer(plan, draw),
        1 => shift(plan, draw),
        2 => late_free(plan, draw),
        _ => {
            let room = draw.below(1 << 16) as u64;
            grow(plan, room);
            true
        }
    }
}

/// Makes slab and budget larger; returns where the slab ended before.
fn grow(plan: &mut Json, room: u64) -> u64 {
    let size = |plan: &Json, field: &str| plan.get(field).and_then(Json::as_u64).unwrap_or(0);
    let end = size(plan, "slab_bytes");
    let slab = end.saturating_add(room);
    let budget = size(plan, "budget_bytes").max(slab);
    json::set(plan, "slab_bytes", json!(slab));
    json::set(plan, "budget_bytes", json!(budget));
    end
}

/// Gives a buffer a place of its own after all others.
fn move_buffer(plan: &mut Json, draw: &mut Draw) -> bool {
    let buffers = list(plan, "buffers");
    let at = draw.below(buffers.len());
    let Some(bytes) = buffers.get(at).and_then(|buffer| buffer[0].as_u64()) else { return false };
    let end = (grow(plan, bytes.saturating_add(128)) / 64 * 64).saturating_add(64);
    let Some(buffer) = list(plan, "buffers").get_mut(at).and_then(Json::as_array_mut) else {
        return false;
    };
    if let Some(address) = buffer.get_mut(1) {
        *address = json!(end);
    }
    true
}

/// Moves all buffers by the same distance.
fn shift(plan: &mut Json, draw: &mut Draw) -> bool {
    let by = 64 * (1 + draw.below(8)) as u64;
    grow(plan, by);
    for buffer in list(plan, "buffers") {
        let buffer = buffer.as_array_mut().map_or(&mut [][..], Vec::as_mut_slice);
        if let Some(address) = buffer.get_mut(1) {
            *address = json!(address.as_u64().unwrap_or(0).saturating_add(by));
        }
    }
    true
}

/// Frees a buffer later, which is legal if nothing else lies there meanwhile.
fn late_free(plan: &mut Json, draw: &mut Draw) -> bool {
    let Some(all) = plan.get_mut("instructions").and_then(Json::as_array_mut) else {
        return false;
    };
    let frees: Vec<usize> =
        (0..all.len().saturating_sub(1)).filter(|&at| all[at][0] == "free").collect();
    let Some(&at) = draw.pick(&frees) else { return false };
    let to = at + 1 + draw.below((all.len() - at - 1).min(4));
    let moved = all.remove(at);
    all.insert(to.min(all.len()), moved);
    true
}

/// Changes the order and number of instructions.
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
        // Neighbours can often change places.
        4 | 5 => all.swap(first, next),
        _ => {
            let moved = all.remove(first);
            all.insert(second.min(all.len()), moved);
        }
    }
    true
}

/// Changes the size, address or tier of a buffer.
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

/// Changes a buffer that a call reads or writes, its workspace, or its part of the batch.
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

/// Changes or adds transfers.
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
