//! `doc/graph-format.md`, the page on the format. Invariant: its example is a graph, the page has a
//! row for every key that the writer writes and for no other, and names every phase and element
//! type.
//!
//! Tier: quick, since it takes less than a second.

use std::collections::BTreeSet;

use serde_json::Value as Json;
use tightfit::graph::{Phase, read, write};
use tightfit::tensor::DType;

const PAGE: &str = include_str!("../../../../doc/graph-format.md");

/// The page's example, the only JSON on it.
fn example() -> &'static str {
    let mut blocks = PAGE.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let first = blocks.next().unwrap();
    assert!(blocks.next().is_none(), "a second example, which nothing reads");
    first
}

/// The contents of the first column of the section's first table.
fn rows(section: &str) -> BTreeSet<String> {
    let text = PAGE.split(&format!("\n## {section}\n")).nth(1).unwrap();
    let table = text.lines().skip_while(|line| !line.starts_with('|'));
    let rows = table.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.split('`').nth(1).unwrap().to_string()).collect()
}

fn keys<'a>(objects: impl IntoIterator<Item = &'a Json>) -> BTreeSet<String> {
    objects.into_iter().flat_map(|object| object.as_object().unwrap().keys().cloned()).collect()
}

#[test]
fn the_example_is_a_graph_and_is_written_as_it_was_read() {
    let graph = read(example().as_bytes()).unwrap();
    let written = write(&graph);
    assert_eq!(read(written.to_string().as_bytes()).unwrap(), graph);
    let given: Json = serde_json::from_str(example()).unwrap();
    let (given, written) = (given["nodes"].as_array(), written["nodes"].as_array());
    for (given, written) in given.unwrap().iter().zip(written.unwrap()) {
        assert_eq!(given, written);
    }
    assert_eq!(graph.nodes().len(), 15);
}

#[test]
fn every_key_has_its_row_and_every_row_its_key() {
    let written = write(&read(example().as_bytes()).unwrap());
    let nodes = written["nodes"].as_array().unwrap();
    let values = nodes.iter().flat_map(|node| node["outputs"].as_array().unwrap());
    assert_eq!(rows("The file"), keys([&written]));
    assert_eq!(rows("A second capture"), keys(written["recaptures"].as_object().unwrap().values()));
    assert_eq!(rows("A node"), keys(nodes));
    assert_eq!(rows("A value"), keys(values.filter(|value| !value.is_null())));
}

#[test]
fn every_name_is_on_the_page() {
    let mut names = Phase::ALL.map(|(_, name)| name).to_vec();
    names.extend(DType::ALL.map(|(_, name, _)| name));
    for name in names {
        assert!(PAGE.contains(&format!("`{name}`")), "{name}");
    }
}
