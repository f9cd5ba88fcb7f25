//! Changes of a safetensors file: its header as JSON, its length, its bytes. Invariant: if the
//! header is changed, its stated size is that of the new one, so that the reader gets past it.

use serde_json::{Value as Json, json};

use crate::draw::Draw;
use crate::mutate::{bytes, json};

/// Header and data of a whole file.
fn parts(file: &[u8]) -> Option<(Json, &[u8])> {
    let (size, rest) = file.split_first_chunk::<8>()?;
    let size = usize::try_from(u64::from_le_bytes(*size)).ok()?;
    let (header, data) = rest.split_at_checked(size)?;
    Some((serde_json::from_slice(header).ok()?, data))
}

/// One change of a file of weights.
pub fn hostile(file: &mut Vec<u8>, draw: &mut Draw) -> bool {
    if draw.chance(25) {
        bytes::damage(file, draw);
        return true;
    }
    let Some((mut header, data)) = parts(file) else { return false };
    if draw.chance(50) {
        unseal(&mut header);
    }
    let changed = change(&mut header, draw);
    let text = header.to_string().into_bytes();
    let size = if draw.chance(95) { text.len() as u64 } else { draw.near(8) as u64 };
    *file = [&size.to_le_bytes()[..], &text, data].concat();
    changed
}

/// Takes the checksums out: files of other programs have none, and get past more checks.
fn unseal(header: &mut Json) {
    if let Some(metadata) = header.get_mut("__metadata__").and_then(Json::as_object_mut) {
        metadata.retain(|key, _| !key.starts_with("sha256"));
    }
}

fn change(header: &mut Json, draw: &mut Draw) -> bool {
    let Some(tensors) = header.as_object_mut() else { return false };
    if draw.chance(30) {
        let field = draw.one(["format", "step_name", "steps", "seed", "checksum"]);
        let metadata = tensors.entry("__metadata__").or_insert(json!({}));
        json::set(
            metadata,
            field,
            draw.one([
                json!(""),
                json!("4294967295"),
                json!("4294967296"),
                json!("-1"),
                json!("perceptron"),
                json!(5),
                Json::Null,
            ]),
        );
        return true;
    }
    let names: Vec<String> =
        tensors.keys().filter(|name| *name != "__metadata__").cloned().collect();
    let (Some(name), Some(other)) = (draw.pick(&names), draw.pick(&names)) else { return false };
    let other = tensors[other].clone();
    let Some(tensor) = tensors.get_mut(name) else { return false };
    match draw.below(7) {
        0 => json::set(tensor, "dtype", json!(draw.one(["F16", "I64", "F64", "BOOL", "F32", "X"]))),
        part @ (1 | 2) => {
            let field = if part == 1 { "shape" } else { "data_offsets" };
            if let Some(numbers) = tensor.get_mut(field) {
                json::change(numbers, draw);
            }
        }
        3 => json::set(tensor, "data_offsets", other["data_offsets"].clone()),
        4 => drop(tensors.remove(name)),
        5 => drop(tensors.insert("another".to_string(), other)),
        _ => return json::anywhere(header, draw),
    }
    true
}
