//! Changes of any JSON document, whatever it means. Invariant: a document stays valid JSON; its
//! content may be anything.

use serde_json::{Map, Value as Json, json};

use crate::draw::Draw;

/// A place in a document.
enum Key {
    Field(String),
    Index(usize),
}

/// One random change somewhere below `document`.
pub fn anywhere(document: &mut Json, draw: &mut Draw) -> bool {
    let depth = 1 + draw.below(6);
    let mut here = document;
    for _ in 0..depth {
        let Some(key) = child(here, draw) else { break };
        let next = match key {
            Key::Field(field) => here.get_mut(&field),
            Key::Index(index) => here.get_mut(index),
        };
        let Some(next) = next else { return false };
        here = next;
    }
    change(here, draw);
    true
}

fn child(here: &Json, draw: &mut Draw) -> Option<Key> {
    match here {
        Json::Array(list) if !list.is_empty() => Some(Key::Index(draw.below(list.len()))),
        Json::Object(object) if !object.is_empty() => {
            object.keys().nth(draw.below(object.len())).cloned().map(Key::Field)
        }
        _ => None,
    }
}

/// Changes one value, according to its type or into something else.
pub fn change(here: &mut Json, draw: &mut Draw) {
    if draw.chance(12) {
        *here = anything(draw);
        return;
    }
    match here {
        Json::Null => *here = anything(draw),
        Json::Bool(x) => *x = !*x,
        Json::Number(number) => {
            *here = match number.as_i64() {
                Some(x) if draw.chance(85) => json!(draw.near(x)),
                _ => float(number.as_f64().unwrap_or(0.0), draw),
            }
        }
        Json::String(text) => string(text, draw),
        Json::Array(list) => array(list, draw),
        Json::Object(object) => fields(object, draw),
    }
}

fn float(x: f64, draw: &mut Draw) -> Json {
    json!(match draw.below(7) {
        0 => -x,
        1 => x * draw.share(),
        2 => x * 1e30,
        3 => 1e308,
        4 => 5e-324,
        5 => 0.0,
        _ => draw.share(),
    })
}

fn string(text: &mut String, draw: &mut Draw) {
    match draw.below(6) {
        0 => text.clear(),
        1 => text.push('x'),
        2 => drop(text.pop()),
        3 => *text = text.repeat(2),
        4 => *text = "\u{1b}[2J\u{0}\u{202e}é`".to_string(),
        _ => *text = text.to_uppercase(),
    }
}

fn array(list: &mut Vec<Json>, draw: &mut Draw) {
    let (first, second) = (draw.below(list.len()), draw.below(list.len()));
    match draw.below(6) {
        _ if list.is_empty() => list.push(anything(draw)),
        0 => drop(list.remove(first)),
        1 => list.insert(second, list[first].clone()),
        2 => list.swap(first, second),
        3 => list.truncate(first),
        4 => list.push(anything(draw)),
        _ => list.reverse(),
    }
}

fn fields(object: &mut Map<String, Json>, draw: &mut Draw) {
    let Some(key) = object.keys().nth(draw.below(object.len())).cloned() else {
        object.insert("x".to_string(), anything(draw));
        return;
    };
    match draw.below(4) {
        0 => drop(object.remove(&key)),
        1 => drop(object.insert(key, anything(draw))),
        2 => {
            let value = object.remove(&key).unwrap_or(Json::Null);
            object.insert(format!("{key}x"), value);
        }
        _ => drop(object.insert("another".to_string(), anything(draw))),
    }
}

/// Sets a field if `of` has fields; a value that was damaged before may have none.
pub fn set(of: &mut Json, field: &str, value: Json) {
    if let Some(object) = of.as_object_mut() {
        object.insert(field.to_string(), value);
    }
}

/// Sets a field of a field.
pub fn set_in(of: &mut Json, outer: &str, field: &str, value: Json) {
    if let Some(inner) = of.get_mut(outer) {
        set(inner, field, value);
    }
}

/// A value where it does not belong.
pub fn anything(draw: &mut Draw) -> Json {
    match draw.below(10) {
        0 => Json::Null,
        1 => json!(true),
        2 => json!("text"),
        3 => json!([]),
        4 => json!({}),
        5 => json!(draw.near(1)),
        6 => json!(1e300),
        7 => (0..draw.one([20, 200])).fold(json!(0), |inner, _| json!([inner])),
        8 => json!({ "value": draw.below(100) }),
        _ => json!([draw.below(10), draw.below(10)]),
    }
}
