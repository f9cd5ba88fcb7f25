//! The text of a graph, taken apart. Invariant: storages and nodes are checked one at a time, and
//! fields that are not needed are skipped unread. An error in the text is reported before one in
//! the graph that it describes.

use cranelift_entity::PrimaryMap;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error};
use serde_json::Number;

use crate::graph::Graph;
use crate::graph::assembly::{Assembly, storage_size};
use crate::graph::error::{GraphError, ReadError};
use crate::graph::limits::{
    FORMAT, MOST_NAMES, MOST_NODES, MOST_OF_A_SOURCE, MOST_OF_AN_EVENT, MOST_STORAGES,
};
use crate::graph::raw::{Name, RawNode, makes};
use crate::graph::recapture::RawRecaptures;
use crate::id::StorageId;
use crate::reading::{AtMost, Bounded, Each};
use crate::units::Bytes;

/// A whole text. Storages and nodes are what was made of them, or the first error in them.
#[derive(Deserialize)]
pub(super) struct Document {
    #[serde(rename = "format", deserialize_with = "supported")]
    _format: (),
    #[serde(default)]
    name: Name,
    #[serde(default)]
    source: Bounded<MOST_OF_A_SOURCE>,
    modules: Names,
    uncalled: Option<Names>,
    #[serde(deserialize_with = "storages")]
    storages: Result<Storages, ReadError>,
    #[serde(deserialize_with = "nodes")]
    nodes: Result<Assembly, ReadError>,
    outputs: AtMost<u64, MOST_NAMES>,
    output_names: Option<Names>,
    recaptures: Option<RawRecaptures>,
}

type Names = AtMost<Name, MOST_NAMES>;
type Storages = PrimaryMap<StorageId, Bytes>;

/// Refuses any format but the supported one.
fn supported<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    let Bounded(found) = Bounded::<MOST_OF_AN_EVENT>::deserialize(deserializer)?;
    if found == FORMAT { Ok(()) } else { Err(D::Error::custom(ReadError::version(&found))) }
}

fn storages<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Result<Storages, ReadError>, D::Error> {
    let mut storages = Storages::new();
    let add = |size: Number| {
        storages.push(storage_size(storages.len(), &size)?);
        Ok(())
    };
    let added =
        Each::new("a graph's list of storages", MOST_STORAGES, add).deserialize(deserializer)?;
    Ok(added.map(|()| storages))
}

fn nodes<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Result<Assembly, ReadError>, D::Error> {
    let mut assembly = Assembly::default();
    // A node that reads a value which no node before it makes.
    let mut dangling: Option<(String, u64)> = None;
    let add = |raw: RawNode| match &dangling {
        None => match assembly.node(raw) {
            Err(ReadError::DanglingInput { node, value }) => {
                dangling = Some((node, value));
                Ok(())
            }
            added => added,
        },
        // Whether a later node makes the value decides which error this is.
        Some((node, value)) if makes(&raw.outputs.0, *value) => {
            Err(GraphError::ReadBeforeProduced { node: node.clone(), value: *value }.into())
        }
        Some(_) => Ok(()),
    };
    let added = Each::new("a graph's list of nodes", MOST_NODES, add).deserialize(deserializer)?;
    Ok(added.and(match dangling {
        None => Ok(assembly),
        Some((node, value)) => Err(ReadError::DanglingInput { node, value }),
    }))
}

impl Document {
    /// The verified graph.
    pub fn graph(self) -> Result<Graph, ReadError> {
        let storages = self.storages?;
        let mut nodes = self.nodes?;
        let builder = &mut nodes.builder;
        builder.name(self.name.0);
        builder.source(self.source.0);
        for module in self.modules.0 {
            builder.module(module.0);
        }
        if let Some(names) = self.uncalled {
            builder.uncalled(plain(names));
        }
        builder.storages(storages);
        for value in self.outputs.0 {
            builder.output(*nodes.values.get(&value).ok_or(ReadError::DanglingOutput { value })?);
        }
        if let Some(names) = self.output_names {
            builder.output_names(plain(names));
        }
        for (dimension, seen) in self.recaptures.into_iter().flat_map(RawRecaptures::all) {
            builder.recapture(dimension, seen);
        }
        Ok(nodes.builder.build()?)
    }
}

fn plain(names: Names) -> Vec<String> {
    names.0.into_iter().map(|name| name.0).collect()
}
