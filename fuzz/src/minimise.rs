//! Minimising a finding: unneeded changes are left out, then nodes and instructions, then bytes.
//! Invariant: what is left gives a verdict of the same cause as the whole.

use std::cell::Cell;
use std::io;
use std::path::Path;

use serde_json::Value as Json;

use crate::case::Case;
use crate::child::{Judged, Workers};
use crate::mutate::bytes::packed;
use crate::target::make::ORIGINAL;
use crate::verdict::Verdict;

/// Most attempts for one finding.
const MOST_TRIES: usize = 150;

/// The smallest case found that ends as `judged` did; begins from what lies in `scratch`.
pub fn minimise(workers: &Workers, judged: &Judged, scratch: &Path) -> io::Result<Case> {
    let cause = judged.verdict.cause();
    let tries = Cell::new(MOST_TRIES);
    let same = |verdict: &Verdict| {
        tries.set(tries.get().saturating_sub(1));
        verdict.cause() == cause
    };
    let mut kept: Vec<usize> = (0..judged.changes).collect();
    // A hang costs its whole limit at every attempt.
    let is_slow = judged.verdict == Verdict::Hang;
    let mut smallest = Case::read(scratch)?;
    for change in (0..judged.changes).rev() {
        let fewer: Vec<usize> = kept.iter().copied().filter(|&other| other != change).collect();
        if same(&workers.some_changes(judged.number, &fewer, scratch)?) {
            kept = fewer;
            smallest = Case::read(scratch)?;
        }
    }
    if is_slow {
        return Ok(smallest);
    }
    // Fewer nodes give other numbers than the original's.
    if smallest.files.contains_key(ORIGINAL) {
        return Ok(smallest);
    }
    let names: Vec<String> = smallest.files.keys().cloned().collect();
    for name in names.iter().filter(|name| !name.starts_with("data")) {
        let mut attempt = |bytes: Vec<u8>| -> io::Result<Option<Case>> {
            let mut case = smallest.clone();
            case.files.insert(name.clone(), bytes);
            case.write(scratch)?;
            Ok((tries.get() > 0 && same(&workers.folder(scratch)?)).then_some(case))
        };
        let before = smallest.bytes(name).to_vec();
        let after = match document(&before) {
            Some((document, is_packed)) => fewer_parts(document, is_packed, &mut attempt)?,
            None => fewer_bytes(before, &mut attempt)?,
        };
        if let Some(case) = after {
            smallest = case;
        }
    }
    Ok(smallest)
}

/// The JSON that a file holds, if it does, and whether it was packed.
fn document(bytes: &[u8]) -> Option<(Json, bool)> {
    if let Ok(document) = serde_json::from_slice(bytes) {
        return Some((document, false));
    }
    let mut text = Vec::new();
    io::Read::read_to_end(&mut flate2::read::GzDecoder::new(bytes), &mut text).ok()?;
    Some((serde_json::from_slice(&text).ok()?, true))
}

type Attempt<'a> = dyn FnMut(Vec<u8>) -> io::Result<Option<Case>> + 'a;

/// Leaves out runs of nodes, instructions or modules, from long runs to single ones. Nodes are
/// removed from the end, since a value comes before its readers.
fn fewer_parts(
    mut document: Json,
    is_packed: bool,
    attempt: &mut Attempt<'_>,
) -> io::Result<Option<Case>> {
    let mut best = None;
    for key in ["nodes", "instructions", "mod_stats", "outputs"] {
        let count = document.get(key).and_then(Json::as_array).map_or(0, Vec::len);
        let mut run = count.div_ceil(2);
        while run > 0 {
            let mut end = document[key].as_array().map_or(0, Vec::len);
            while end > 0 {
                let start = end.saturating_sub(run);
                let mut fewer = document.clone();
                if let Some(parts) = fewer[key].as_array_mut() {
                    parts.drain(start..end);
                }
                let text = fewer.to_string().into_bytes();
                let text = if is_packed { packed(&text) } else { text };
                if let Some(case) = attempt(text)? {
                    (document, best) = (fewer, Some(case));
                }
                end = start;
            }
            run /= 2;
        }
    }
    Ok(best)
}

/// Leaves out runs of bytes.
fn fewer_bytes(mut bytes: Vec<u8>, attempt: &mut Attempt<'_>) -> io::Result<Option<Case>> {
    let mut best = None;
    let mut run = bytes.len() / 2;
    while run > 0 {
        let mut start = 0;
        while start < bytes.len() {
            let mut fewer = bytes.clone();
            fewer.drain(start..(start + run).min(bytes.len()));
            if let Some(case) = attempt(fewer.clone())? {
                (bytes, best) = (fewer, Some(case));
            } else {
                start += run;
            }
        }
        run /= 2;
    }
    Ok(best)
}
