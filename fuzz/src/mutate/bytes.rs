//! Damage of bytes, whatever they mean: flips, cuts, repetitions, and gzip streams that end early.
//! Invariant: no case grows without bound.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::draw::Draw;

/// Damages some bytes.
pub fn damage(bytes: &mut Vec<u8>, draw: &mut Draw) {
    for _ in 0..1 + draw.below(4) {
        let (first, second) = (draw.below(bytes.len()), draw.below(bytes.len()));
        let (low, high) = (first.min(second), first.max(second));
        match draw.below(9) {
            _ if bytes.is_empty() => bytes.push(draw.byte()),
            0..3 => bytes[first] ^= 1 << draw.below(8),
            3 => bytes[first] = draw.byte(),
            4 => bytes.truncate(first),
            5 => drop(bytes.drain(low..high.min(low + 64))),
            6 => {
                let part = bytes[low..high.min(low + 256)].to_vec();
                bytes.splice(first..first, part);
            }
            7 => bytes.extend_from_slice(&[0; 16]),
            _ => number(bytes, first, draw),
        }
    }
}

/// Writes another number over the first run of digits after `from`.
fn number(bytes: &mut Vec<u8>, from: usize, draw: &mut Draw) {
    let Some(start) = bytes[from..].iter().position(u8::is_ascii_digit) else { return };
    let start = from + start;
    let length = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let edge = draw.near(1);
    let text = draw.one(["-0", "1e999", "18446744073709551616", "NaN", "0.5", "00", ""]);
    let text = if draw.chance(50) { edge.to_string() } else { text.to_string() };
    bytes.splice(start..start + length, text.into_bytes());
}

/// The bytes compressed by gzip.
pub fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory cannot fail.
    drop(packer.write_all(bytes));
    packer.finish().unwrap_or_default()
}

/// The bytes of a document: often as they are, else packed or damaged or both.
pub fn as_file(text: Vec<u8>, draw: &mut Draw) -> Vec<u8> {
    let mut bytes = if draw.chance(20) { packed(&text) } else { text };
    if draw.chance(20) {
        damage(&mut bytes, draw);
    }
    bytes
}
