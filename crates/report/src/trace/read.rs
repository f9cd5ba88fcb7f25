//! A trace, read event by event. Invariant: each event is converted as soon as it is read, and an
//! event that cannot be read is named.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value as Json;
use tightfit::graph::limits::{LONGEST_NAME, MOST_EVENTS, MOST_OF_AN_EVENT};
use tightfit::reading::{Bounded, Each, Text};
use tightfit::units::{Bytes, Seconds};

use crate::role::{ByRole, Role};
use crate::trace::within::CATEGORY;
use crate::trace::{
    BELOW, LANES, MEMORY, MemoryMark, Trace, TraceError, TracedCall, TracedTransfer, nanoseconds,
};

/// Reads all of a text that is a trace of this version.
pub(super) fn whole(bytes: &[u8]) -> Result<Trace, TraceError> {
    let mut refusal = None;
    let parsed = Whole(&mut refusal).deserialize(&mut serde_json::Deserializer::from_slice(bytes));
    match refusal {
        Some(refusal) => Err(refusal),
        None => Ok(parsed?),
    }
}

type Name = Text<LONGEST_NAME>;

/// A whole trace; an error in an event is stored in the field.
struct Whole<'a>(&'a mut Option<TraceError>);

#[derive(Deserialize)]
#[serde(field_identifier)]
enum Field {
    #[serde(rename = "otherData")]
    About,
    #[serde(rename = "traceEvents")]
    Events,
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct RawAbout {
    graph: Name,
    name: Name,
    machine: Name,
    planner: Name,
    budget_bytes: Bytes,
    measured: bool,
}

impl<'de> DeserializeSeed<'de> for Whole<'_> {
    type Value = Trace;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Trace, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Whole<'_> {
    type Value = Trace;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a trace")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Trace, A::Error> {
        let (mut about, mut events) = (None, None);
        while let Some(field) = map.next_key()? {
            match field {
                Field::About => about = Some(map.next_value::<RawAbout>()?),
                Field::Events => {
                    let mut read = Read::default();
                    let add = |event| read.add(event);
                    let what = "a trace's list of events";
                    let added = map.next_value_seed(Each::new(what, MOST_EVENTS, add))?;
                    *self.0 = self.0.take().or(added.err());
                    events = Some(read);
                }
                Field::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let about = about.ok_or_else(|| A::Error::missing_field("otherData"))?;
        let Read { calls, transfers, memory, below, .. } =
            events.ok_or_else(|| A::Error::missing_field("traceEvents"))?;
        Ok(Trace {
            graph: about.graph.0,
            name: about.name.0,
            machine: about.machine.0,
            planner: about.planner.0,
            budget: about.budget_bytes,
            measured: about.measured,
            calls,
            transfers,
            memory,
            below,
        })
    }
}

/// The contents of a trace's events.
#[derive(Default)]
struct Read {
    calls: Vec<TracedCall>,
    transfers: Vec<TracedTransfer>,
    memory: Vec<MemoryMark>,
    below: Vec<MemoryMark>,
    /// The number of events so far.
    count: usize,
}

impl Read {
    /// Converts the next event.
    fn add(&mut self, event: RawEvent) -> Result<(), TraceError> {
        let index = self.count;
        self.count += 1;
        match event.ph.0.as_str() {
            "X" if [LANES[2].0, LANES[3].0].contains(&event.cat.0.as_str()) => {
                self.transfers.push(event.transfer(index)?);
            }
            // They repeat what transfers and calls say.
            "X" if [LANES[4].0, CATEGORY].contains(&event.cat.0.as_str()) => {}
            "X" => self.calls.push(event.call(index)?),
            "C" if event.name.0 == MEMORY => self.memory.push(event.mark(index)?),
            "C" if event.name.0 == BELOW => self.below.push(event.mark(index)?),
            _ => {}
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct RawEvent {
    ph: Name,
    name: Name,
    #[serde(default)]
    cat: Name,
    ts: Option<f64>,
    dur: Option<f64>,
    #[serde(default)]
    args: Bounded<MOST_OF_AN_EVENT>,
}

impl RawEvent {
    fn wrong(&self, index: usize, what: &'static str) -> TraceError {
        TraceError::Event { index, name: self.name.0.clone(), what }
    }

    fn time(&self, index: usize, micros: Option<f64>) -> Result<Seconds, TraceError> {
        let most = Seconds::LIMIT.micros();
        let time = micros.filter(|micros| (0.0..=most).contains(micros));
        time.map(|micros| nanoseconds(Seconds(micros / 1e6)))
            .ok_or_else(|| self.wrong(index, "its time is missing, negative or not a number"))
    }

    fn call(self, index: usize) -> Result<TracedCall, TraceError> {
        let (start, seconds) = (self.time(index, self.ts)?, self.time(index, self.dur)?);
        let args = &self.args.0;
        let text = |key: &str| args.get(key).and_then(Json::as_str).map(str::to_string);
        let held = args.get("bytes").and_then(Json::as_u64).filter(|&held| held <= Bytes::LIMIT.0);
        let (Some(node), Some(module), Some(phase), Some(held)) =
            (text("node"), text("module"), text("phase"), held)
        else {
            return Err(
                self.wrong(index, "a call needs node, module, phase and bytes among its arguments")
            );
        };
        let recomputed = match LANES.iter().position(|(category, _)| *category == self.cat.0) {
            Some(lane) => lane == 1,
            None => return Err(self.wrong(index, "its category is neither `run` nor `recompute`")),
        };
        Ok(TracedCall {
            node,
            op: self.name.0,
            module,
            phase,
            recomputed,
            start,
            seconds,
            held: Bytes(held),
        })
    }

    fn transfer(self, index: usize) -> Result<TracedTransfer, TraceError> {
        let (start, seconds) = (self.time(index, self.ts)?, self.time(index, self.dur)?);
        let stall = self.time(index, self.args.0.get("stall").and_then(Json::as_f64))?;
        let bytes = self.args.0.get("bytes").and_then(Json::as_u64);
        let Some(bytes) = bytes.filter(|&bytes| bytes <= Bytes::LIMIT.0) else {
            return Err(self.wrong(index, "a transfer needs bytes and stall among its arguments"));
        };
        let leaves = self.cat.0 == LANES[2].0;
        Ok(TracedTransfer {
            tensor: self.name.0,
            leaves,
            bytes: Bytes(bytes),
            start,
            seconds,
            stall,
        })
    }

    fn mark(self, index: usize) -> Result<MemoryMark, TraceError> {
        let at = self.time(index, self.ts)?;
        let mut bytes = ByRole::<Bytes>::default();
        for (name, value) in self.args.0.as_object().into_iter().flatten() {
            let role = Role::ALL.into_iter().find(|role| role.name() == name);
            let value =
                value.as_u64().filter(|&value| value <= Bytes::LIMIT.0 / Role::ALL.len() as u64);
            let (Some(role), Some(value)) = (role, value) else {
                return Err(self.wrong(index, "its arguments are not bytes by role"));
            };
            bytes[role as usize] = Bytes(value);
        }
        Ok(MemoryMark { at, bytes })
    }
}
