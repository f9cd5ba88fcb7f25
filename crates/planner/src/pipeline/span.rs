//! Names for runs of layers. Invariant: a name is the outermost module of which no part lies in
//! another run, so that runs share a name only if a module is called again, or is itself cut.

use std::ops::Range;

use crate::graph::Graph;
use crate::pipeline::layers::{Layer, is_within};

/// A run of a model's layers in words: the module that it is, or the first and the last one in it;
/// "the loss" if the model itself computes all of it.
pub fn span<'a>(graph: &'a Graph, layers: &'a [Layer], run: Range<usize>) -> String {
    let paths_of = |layer: &'a Layer| layer.nodes.iter().map(|&node| graph.module_of(node));
    let paths = || layers[run.clone()].iter().flat_map(paths_of);
    let others = || layers[..run.start].iter().chain(&layers[run.end..]).flat_map(paths_of);
    let is_elsewhere = |module: &str| others().any(|path| is_within(path, module));
    // What a module computes apart from its calls does not count for names.
    let calls = |module: &str| paths().any(|inner| inner != module && is_within(inner, module));
    let mut called = paths().filter(|module| !module.is_empty() && !calls(module));
    let Some(first) = called.next() else { return "the loss".to_string() };
    let last = called.next_back().unwrap_or(first);
    let outermost = |inner| outward(inner).filter(|module| !is_elsewhere(module)).last();
    let (first, last) = (outermost(first).unwrap_or(first), outermost(last).unwrap_or(last));
    match first == last {
        true => first.to_string(),
        false => format!("{first} … {last}"),
    }
}

/// A module and all that contain it, from the inside out.
fn outward(module: &str) -> impl Iterator<Item = &str> {
    let ends = module.match_indices('.').map(|(end, _)| end).rev();
    [module.len()].into_iter().chain(ends).map(|end| &module[..end])
}
