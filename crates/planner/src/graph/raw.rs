//! A node as in a file: numbers that are not yet checked against their ranges, values by the file's
//! own ids. Invariant: the size of one node is bounded, whatever its text says.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value as Json};

use crate::graph::limits::{DEEPEST_LIST, LONGEST_NAME, MOST_DIMENSIONS, MOST_OF_A_NODE};
use crate::reading::{AtMost, Bounded, Parts, Text};

pub(super) type Name = Text<LONGEST_NAME>;
pub(super) type Extents = AtMost<Number, MOST_DIMENSIONS>;
type OfANode<T> = AtMost<T, MOST_OF_A_NODE>;

#[derive(Deserialize)]
pub(super) struct RawNode {
    pub name: Name,
    pub op: Name,
    pub phase: Name,
    pub module: Option<Number>,
    pub micro_batch: Option<Number>,
    pub parameter: Option<Name>,
    #[serde(default)]
    pub inputs: OfANode<u64>,
    #[serde(default)]
    pub outputs: OfANode<Option<RawValue>>,
    #[serde(default, deserialize_with = "arguments")]
    pub args: Vec<RawArgument>,
    #[serde(default, deserialize_with = "keywords")]
    pub kwargs: BTreeMap<String, RawArgument>,
    pub flops: Option<Number>,
    pub bytes_read: Option<Number>,
    pub bytes_written: Option<Number>,
    pub workspace: Option<Number>,
    pub seconds: Option<f64>,
    #[serde(default)]
    pub random: bool,
    pub seed_slot: Option<u32>,
    #[serde(default)]
    pub stream: bool,
    #[serde(default)]
    pub mutates: bool,
    pub differentiates: Option<Name>,
    pub recomputes: Option<Name>,
    #[serde(default)]
    pub overwrites: OfANode<u64>,
}

#[derive(Deserialize)]
pub(super) struct RawValue {
    pub id: u64,
    pub shape: Extents,
    pub dtype: Name,
    pub storage: Number,
    pub contiguous: Option<bool>,
    pub strides: Option<Extents>,
    pub offset: Option<Number>,
}

/// Whether the value with this id is among the outputs.
pub(super) fn makes(outputs: &[Option<RawValue>], value: u64) -> bool {
    outputs.iter().flatten().any(|output| output.id == value)
}

/// One argument.
pub(super) enum RawArgument {
    Value(u64),
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<RawArgument>),
    /// A list nested too deeply.
    Deep,
    /// An object that is not a value, as JSON.
    Unknown(String),
}

/// Reads the arguments of one call by position.
fn arguments<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RawArgument>, D::Error> {
    let mut left = MOST_OF_A_NODE;
    deserializer.deserialize_seq(List { left: &mut left, depth: 0 })
}

/// Reads the arguments of one call by name. Of several with the same name, the last counts.
fn keywords<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, RawArgument>, D::Error> {
    struct Keywords;
    impl<'de> Visitor<'de> for Keywords {
        type Value = BTreeMap<String, RawArgument>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut left = MOST_OF_A_NODE;
            let mut keywords = BTreeMap::new();
            while let Some(Text(key)) = map.next_key::<Name>()? {
                let seed = OneArgument { left: &mut left, depth: 0 };
                keywords.insert(key, map.next_value_seed(seed)?);
            }
            Ok(keywords)
        }
    }
    deserializer.deserialize_map(Keywords)
}

/// Reads a list of arguments.
struct List<'a> {
    /// The number of further parts that the call may have.
    left: &'a mut usize,
    /// The number of lists around each of them.
    depth: usize,
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = Vec<RawArgument>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let List { left, depth } = self;
        let mut arguments = Vec::new();
        while let Some(argument) = list.next_element_seed(OneArgument { left, depth })? {
            arguments.push(argument);
        }
        Ok(arguments)
    }
}

/// Reads one argument with all of its parts.
struct OneArgument<'a> {
    /// The number of further parts that the call may have.
    left: &'a mut usize,
    /// The number of lists around it.
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for OneArgument<'_> {
    type Value = RawArgument;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawArgument, D::Error> {
        Parts::take::<D::Error>(self.left, 1)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for OneArgument<'_> {
    type Value = RawArgument;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an argument")
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<RawArgument, E> {
        Ok(RawArgument::Bool(truth))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<RawArgument, E> {
        Ok(RawArgument::Int(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<RawArgument, E> {
        let float = RawArgument::Float(number as f64);
        Ok(i64::try_from(number).map_or(float, RawArgument::Int))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<RawArgument, E> {
        Ok(RawArgument::Float(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<RawArgument, E> {
        Parts::take_text::<E>(self.left, text)?;
        Ok(RawArgument::Text(text.to_string()))
    }

    fn visit_unit<E: Error>(self) -> Result<RawArgument, E> {
        Ok(RawArgument::None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<RawArgument, A::Error> {
        let depth = self.depth + 1;
        let arguments = List { left: self.left, depth }.visit_seq(list)?;
        Ok(if depth > DEEPEST_LIST { RawArgument::Deep } else { RawArgument::List(arguments) })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawArgument, A::Error> {
        let mut value = None;
        let mut others = Map::new();
        while let Some(key) = map.next_key::<Key>()? {
            match key {
                // A number, which is already counted.
                Key::Value => value = Some(map.next_value::<Bounded<OF_A_NUMBER>>()?.0),
                Key::Other(key) => {
                    Parts::take_text::<A::Error>(self.left, &key)?;
                    others.insert(key, map.next_value_seed(Parts { left: &mut *self.left })?);
                }
            }
        }
        Ok(match value.as_ref().and_then(Json::as_u64) {
            Some(value) => RawArgument::Value(value),
            None => {
                others.extend(value.map(|value| (VALUE.to_string(), value)));
                RawArgument::Unknown(Json::Object(others).to_string())
            }
        })
    }
}

const VALUE: &str = "value";
/// Parts of a JSON value in place of a number, as shown in the message.
const OF_A_NUMBER: usize = 16;

/// A key of an argument that is an object.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Key {
    Value,
    Other(String),
}
