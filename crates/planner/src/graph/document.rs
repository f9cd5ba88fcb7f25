//! The text of a graph, taken apart. Invariant: what is read goes into the graph at once, a node at
//! a time, and fields that are not needed are skipped unread; the first error in the graph is the
//! one reported, unless the file turns out to be of another format.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use crate::graph::assembly::Assembly;
use crate::graph::error::ReadError;
use crate::graph::limits::{
    FORMAT, LONGEST_NAME, MOST_NAMES, MOST_NODES, MOST_OF_A_SOURCE, MOST_OF_AN_EVENT, MOST_STORAGES,
};
use crate::graph::raw::{RawNode, RawOutputs};
use crate::reading::{AtMost, Bounded, Text, too_many};

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Field {
    Format,
    Name,
    Source,
    Modules,
    Uncalled,
    Storages,
    Nodes,
    Outputs,
    OutputNames,
    #[serde(other)]
    Other,
}

/// The names of the fields, in their order; a file need not have the last.
const FIELDS: [&str; Field::Other as usize] = [
    "format",
    "name",
    "source",
    "modules",
    "uncalled",
    "storages",
    "nodes",
    "outputs",
    "output_names",
];
const NEEDED: [Field; 4] = [Field::Modules, Field::Storages, Field::Nodes, Field::Outputs];

type Names = AtMost<Text<LONGEST_NAME>, MOST_NAMES>;

/// A whole text, read into an assembly.
pub(super) struct Document<'a>(pub &'a mut Assembly);

impl<'de> DeserializeSeed<'de> for Document<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Document<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the fields of a graph")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let assembly = self.0;
        let mut seen = [false; FIELDS.len()];
        while let Some(field) = map.next_key::<Field>()? {
            if let Some(seen) = seen.get_mut(field as usize)
                && std::mem::replace(seen, true)
            {
                return Err(A::Error::duplicate_field(FIELDS[field as usize]));
            }
            if assembly.refusal.is_some() && field != Field::Format {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            match field {
                Field::Format => {
                    let Bounded(found) = map.next_value::<Bounded<MOST_OF_AN_EVENT>>()?;
                    assembly.is_named = true;
                    if found != FORMAT {
                        assembly.refusal = Some(ReadError::version(&found));
                    }
                }
                Field::Name => assembly.builder.name(map.next_value::<Text<LONGEST_NAME>>()?.0),
                Field::Source => {
                    assembly.builder.source(map.next_value::<Bounded<MOST_OF_A_SOURCE>>()?.0);
                }
                Field::Modules => {
                    for Text(name) in map.next_value::<Names>()?.0 {
                        assembly.builder.module(name);
                    }
                }
                Field::Uncalled => {
                    if let Some(names) = map.next_value::<Option<Names>>()? {
                        assembly.builder.uncalled(plain(names));
                    }
                }
                Field::Storages => map.next_value_seed(Storages(assembly))?,
                Field::Nodes => map.next_value_seed(Nodes(assembly))?,
                Field::Outputs => {
                    assembly.outputs = map.next_value::<AtMost<u64, MOST_NAMES>>()?.0;
                }
                Field::OutputNames => {
                    assembly.output_names = map.next_value::<Option<Names>>()?.map(plain);
                }
                Field::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            if assembly.refusal.is_some() && assembly.is_named {
                return Err(A::Error::custom("refused"));
            }
        }
        if !assembly.is_named {
            assembly.refusal = Some(ReadError::version(&serde_json::Value::Null));
        }
        match NEEDED.into_iter().find(|&field| !seen[field as usize]) {
            Some(field) => Err(A::Error::missing_field(FIELDS[field as usize])),
            None => Ok(()),
        }
    }
}

fn plain(names: Names) -> Vec<String> {
    names.0.into_iter().map(|name| name.0).collect()
}

/// The list of storages, added one by one.
struct Storages<'a>(&'a mut Assembly);

impl<'de> DeserializeSeed<'de> for Storages<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Storages<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut index = 0;
        while let Some(size) = list.next_element::<Number>()? {
            if index == MOST_STORAGES {
                return Err(too_many("a graph's list of storages", MOST_STORAGES));
            }
            if self.0.refusal.is_none() {
                self.0.refusal = self.0.storage(index, &size).err();
            }
            index += 1;
        }
        Ok(())
    }
}

/// The list of nodes, added one by one.
struct Nodes<'a>(&'a mut Assembly);

impl<'de> DeserializeSeed<'de> for Nodes<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Nodes<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let assembly = self.0;
        let mut count = 0;
        loop {
            let more = match &assembly.refusal {
                None => match list.next_element::<RawNode>()? {
                    Some(_) if count == MOST_NODES => {
                        return Err(too_many("a graph's list of nodes", MOST_NODES));
                    }
                    Some(node) => {
                        assembly.refusal = assembly.node(node).err();
                        count += 1;
                        true
                    }
                    None => false,
                },
                // Whether a later node makes the value decides which error this is.
                Some(ReadError::DanglingInput { value, .. }) => {
                    let value = *value;
                    match list.next_element::<RawOutputs>()? {
                        Some(outputs) => {
                            if outputs.contain(value) {
                                assembly.refusal =
                                    assembly.refusal.take().map(ReadError::too_early);
                            }
                            true
                        }
                        None => false,
                    }
                }
                Some(_) => list.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                return Ok(());
            }
        }
    }
}
