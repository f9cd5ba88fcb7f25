//! JSON within limits, for the fields of files. Invariant: a list, a table, a text or a value is
//! refused at the first part beyond its limit, so that never more than the limit is held.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Reads a list of which each part is taken as soon as it is read. After the first part that is
/// refused, the rest of the list is skipped; the result is that refusal.
pub struct Each<T, F> {
    what: &'static str,
    most: usize,
    take: F,
    part: PhantomData<T>,
}

impl<T, F> Each<T, F> {
    /// At most `most` parts go to `take`; `what` names the list, with an article.
    pub fn new(what: &'static str, most: usize, take: F) -> Each<T, F> {
        Each { what, most, take, part: PhantomData }
    }
}

impl<'de, T, R, F> DeserializeSeed<'de> for Each<T, F>
where
    T: Deserialize<'de>,
    F: FnMut(T) -> Result<(), R>,
{
    type Value = Result<(), R>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T, R, F> Visitor<'de> for Each<T, F>
where
    T: Deserialize<'de>,
    F: FnMut(T) -> Result<(), R>,
{
    type Value = Result<(), R>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut count = 0;
        while let Some(part) = list.next_element()? {
            if count == self.most {
                return Err(too_many(self.what, self.most));
            }
            count += 1;
            if let Err(refusal) = (self.take)(part) {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(Err(refusal));
            }
        }
        Ok(Ok(()))
    }
}

/// A list of at most `MOST` parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AtMost<T, const MOST: usize>(pub Vec<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for AtMost<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut parts = Vec::new();
        let take = |part| -> Result<(), Infallible> {
            parts.push(part);
            Ok(())
        };
        let Ok(()) = Each::new("a list", MOST, take).deserialize(deserializer)?;
        Ok(AtMost(parts))
    }
}

/// A struct that is read from an object alone: a derived reader also takes a list of its fields.
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_map(Fields(PhantomData)).map(Object)
    }
}

/// A table of at most `MOST` entries, in the order of the file; no key occurs twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table<K, V, const MOST: usize>(pub Vec<(K, V)>);

impl<'de, K, V, const MOST: usize> Deserialize<'de> for Table<K, V, MOST>
where
    K: Deserialize<'de> + Ord + fmt::Display,
    V: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<K, V, const MOST: usize>(PhantomData<(K, V)>);
        impl<'de, K, V, const MOST: usize> Visitor<'de> for Entries<K, V, MOST>
        where
            K: Deserialize<'de> + Ord + fmt::Display,
            V: Deserialize<'de>,
        {
            type Value = Vec<(K, V)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<(K, V)>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    if entries.len() == MOST {
                        return Err(too_many("a table", MOST));
                    }
                    entries.push(entry);
                }
                let mut keys: Vec<&K> = entries.iter().map(|(key, _)| key).collect();
                keys.sort();
                match keys.windows(2).find(|pair| pair[0] == pair[1]) {
                    Some(pair) => Err(stands_twice(pair[0])),
                    None => Ok(entries),
                }
            }
        }
        deserializer.deserialize_map(Entries::<K, V, MOST>(PhantomData)).map(Table)
    }
}

/// A string of at most `MOST` bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<const MOST: usize>(pub String);

impl<const MOST: usize> fmt::Display for Text<MOST> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de, const MOST: usize> Deserialize<'de> for Text<MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Short<const MOST: usize>;
        impl<const MOST: usize> Visitor<'_> for Short<MOST> {
            type Value = String;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
                if text.len() > MOST {
                    return Err(E::custom(format_args!(
                        "a string has more than {MOST} bytes, the most that are read"
                    )));
                }
                Ok(text.to_string())
            }
        }
        deserializer.deserialize_str(Short::<MOST>).map(Text)
    }
}

/// Any value, of at most `MOST` parts: itself, and everything in it. A long string counts as the
/// number of parts whose memory it would take.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bounded<const MOST: usize>(pub Value);

impl<'de, const MOST: usize> Deserialize<'de> for Bounded<MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut left = MOST;
        Parts { left: &mut left }.deserialize(deserializer).map(Bounded)
    }
}

/// Bytes of memory that one part counts for.
const PART: usize = 64;

/// Reads a value part by part, and counts.
pub(crate) struct Parts<'a> {
    /// The number of parts that may follow.
    pub left: &'a mut usize,
}

impl Parts<'_> {
    /// Takes this many parts from those that may follow.
    pub fn take<E: Error>(left: &mut usize, parts: usize) -> Result<(), E> {
        let fewer = left.checked_sub(parts);
        *left = fewer.ok_or_else(|| E::custom("a value has more parts than are read"))?;
        Ok(())
    }

    /// Takes as many parts as a text needs memory for.
    pub fn take_text<E: Error>(left: &mut usize, text: &str) -> Result<(), E> {
        Parts::take(left, text.len() / PART)
    }
}

impl<'de> DeserializeSeed<'de> for Parts<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Parts::take::<D::Error>(self.left, 1)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Parts<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Bool(truth))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Parts::take_text::<E>(self.left, text)?;
        Ok(Value::String(text.to_string()))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = list.next_element_seed(Parts { left: &mut *self.left })? {
            parts.push(part);
        }
        Ok(Value::Array(parts))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            Parts::take_text::<A::Error>(self.left, &key)?;
            if entries.contains_key(&key) {
                return Err(stands_twice(&key));
            }
            entries.insert(key, map.next_value_seed(Parts { left: &mut *self.left })?);
        }
        Ok(Value::Object(entries))
    }
}

/// The `format` of a file that need not have the structure of any; null if it names none.
pub(crate) fn format_of<const MOST: usize>(text: &[u8]) -> Option<Value> {
    #[derive(Deserialize)]
    struct Header<const MOST: usize> {
        #[serde(default)]
        format: Bounded<MOST>,
    }
    let header: Option<Header<MOST>> = serde_json::from_slice(text).ok();
    header.map(|header| header.format.0)
}

/// The refusal of a list or a table that is too long.
fn too_many<E: Error>(what: &str, most: usize) -> E {
    E::custom(format_args!("{what} has more than {most} parts, the most that are read"))
}

/// The refusal of a table in which a key occurs twice.
fn stands_twice<E: Error>(key: &impl fmt::Display) -> E {
    E::custom(format_args!("the key `{key}` stands twice in a table"))
}

#[cfg(test)]
mod tests {
    use serde_json::{from_str, json};

    use super::*;

    #[test]
    fn lists_and_tables_end_at_their_limit() {
        assert_eq!(from_str::<AtMost<u64, 3>>("[1, 2, 3]").unwrap().0, [1, 2, 3]);
        // The rest is not even examined.
        let error = from_str::<AtMost<u64, 3>>("[1, 2, 3, 4, ?").unwrap_err().to_string();
        assert!(error.contains("a list has more than 3 parts"), "{error}");
        let table = from_str::<Table<String, u8, 2>>(r#"{"b": 1, "a": 2}"#).unwrap();
        assert_eq!(table.0, [("b".to_string(), 1), ("a".to_string(), 2)]);
        let error = from_str::<Table<String, u8, 1>>(r#"{"b": 1, "a": 2, ?"#).unwrap_err();
        assert!(error.to_string().contains("a table has more than 1 parts"), "{error}");
    }

    #[test]
    fn parts_are_taken_until_one_is_refused() {
        let mut taken = Vec::new();
        let take = |part: u64| {
            taken.push(part);
            if part < 3 { Ok(()) } else { Err(part) }
        };
        // What comes after the part that is refused may be anything.
        let mut text = serde_json::Deserializer::from_str(r#"[1, 5, "x", []]"#);
        let refused = Each::new("a list", 2, take).deserialize(&mut text).unwrap();
        assert_eq!((refused, taken), (Err(5), vec![1, 5]));
        let mut text = serde_json::Deserializer::from_str("7");
        let take = |_: u64| Ok::<(), ()>(());
        let error = Each::new("a list of sizes", 2, take).deserialize(&mut text).unwrap_err();
        assert!(error.to_string().contains("expected a list of sizes"), "{error}");
    }

    #[test]
    fn an_object_is_no_list_of_its_fields() {
        #[derive(Debug, Deserialize, PartialEq)]
        struct Point {
            x: u8,
        }
        assert_eq!(from_str::<Object<Point>>(r#"{"x": 1}"#).unwrap().0, Point { x: 1 });
        assert_eq!(from_str::<Point>("[1]").unwrap(), Point { x: 1 });
        let error = from_str::<Object<Point>>("[1]").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("invalid type: sequence, expected an object"), "{error}");
    }

    #[test]
    fn a_key_that_stands_twice_is_refused() {
        let twice = r#"{"b": 1, "a": 2, "b": 1}"#;
        let nested = format!("[{twice}]");
        let errors = [
            from_str::<Table<String, u8, 9>>(twice).unwrap_err(),
            from_str::<Bounded<9>>(&nested).unwrap_err(),
        ];
        for error in errors.map(|error| error.to_string()) {
            assert!(error.contains("the key `b` stands twice"), "{error}");
        }
    }

    #[test]
    fn a_value_is_the_one_that_others_read() {
        let text = r#"{"a": [null, true, -1, 1.5, 18446744073709551615, {"b": "\u001b"}], "": {}}"#;
        assert_eq!(from_str::<Bounded<10>>(text).unwrap().0, from_str::<Value>(text).unwrap());
        assert!(from_str::<Bounded<9>>(text).is_err());
        assert_eq!(from_str::<Bounded<1>>("3").unwrap().0, json!(3));
        assert!(from_str::<Bounded<1>>("[[[").unwrap_err().to_string().contains("more parts"));
    }

    #[test]
    fn strings_end_at_their_limit() {
        let quoted = |length: usize| format!("\"{}\"", "x".repeat(length));
        assert_eq!(from_str::<Text<5>>(&quoted(5)).unwrap().0, "xxxxx");
        assert!(from_str::<Text<5>>(&quoted(6)).is_err());
        assert!(from_str::<Bounded<3>>(&quoted(191)).is_ok());
        assert!(from_str::<Bounded<3>>(&quoted(192)).is_err());
        assert!(from_str::<Bounded<3>>(&format!("{{{}: 0}}", quoted(192))).is_err());
    }
}
