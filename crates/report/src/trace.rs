//! One step in time, as Chrome trace events (JSON), which Perfetto and chrome://tracing open.
//! Invariant: predicted and measured traces have the same form; reading what was written gives the
//! same trace.
//!
//! ```text
//! { "displayTimeUnit": "ms",
//!   "otherData": { "format": "tightfit-trace/1", "graph": SHA-256, "name": …, "machine": …,
//!                  "planner": …, "measured": … },
//!   "traceEvents": [
//!     { "ph": "M", … names of the process and of its lanes … },
//!     { "ph": "X", "name": NODE, "cat": "run" | "recompute", "pid": 1, "tid": 1 | 2,
//!       "ts": µs, "dur": µs,
//!       "args": { "op": …, "module": …, "phase": …, "bytes": held while it runs } },
//!     { "ph": "C", "name": "memory", "pid": 1, "ts": µs, "args": { ROLE: bytes, … } },
//!     { "ph": "C", "name": "memory in total", "pid": 1, "ts": µs, "args": { "bytes": … } }, … ] }
//! ```

use std::fmt;

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Value as Json, json};
use thiserror::Error;
use tightfit::graph::limits::{LONGEST_NAME, MOST_EVENTS, MOST_OF_AN_EVENT, MOST_TRACE};
use tightfit::reading::{Bounded, Excess, Text};
use tightfit::units::{Bytes, Seconds};

use crate::course::Course;
use crate::role::{ByRole, Role};

/// The format that is read and written.
pub const FORMAT: &str = "tightfit-trace/1";

const MEMORY: &str = "memory";
const TOTAL: &str = "memory in total";
/// Lanes of first runs and of recomputations.
const LANES: [(&str, &str); 2] = [("run", "compute"), ("recompute", "recompute")];

/// One call in a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TracedCall {
    /// The node's name.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// Its module.
    pub module: String,
    /// Its phase.
    pub phase: String,
    /// It is a recomputation.
    pub recomputed: bool,
    /// When it starts.
    pub start: Seconds,
    /// How long it takes.
    pub seconds: Seconds,
    /// Bytes held while it runs.
    pub held: Bytes,
}

/// Bytes held from a moment on.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryMark {
    /// The moment.
    pub at: Seconds,
    /// Bytes of each role.
    pub bytes: ByRole<Bytes>,
}

/// One step in time.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Hash of the graph.
    pub graph: String,
    /// Its name.
    pub name: String,
    /// The machine that it is for, or was measured on.
    pub machine: String,
    /// The planner.
    pub planner: String,
    /// Measured, not predicted.
    pub measured: bool,
    /// What runs, in order.
    pub calls: Vec<TracedCall>,
    /// Bytes over time: at the start of calls, and at the end of the step.
    pub memory: Vec<MemoryMark>,
}

/// Why bytes are not a trace, or not a trace of what is shown.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The bytes are not JSON, or lack a field.
    #[error("not a trace: {0}")]
    Json(#[from] serde_json::Error),
    /// The text is longer than any trace.
    #[error(transparent)]
    Excess(#[from] Excess),
    /// The trace is of another format or version.
    #[error(
        "the trace's format is {found}, but this program reads \"{FORMAT}\", as `tightfit train \
         --trace` writes it"
    )]
    Version {
        /// The format that it names.
        found: String,
    },
    /// An event cannot be read.
    #[error("event {index} of the trace (`{name}`): {what}")]
    Event {
        /// Its place among the events, from 0.
        index: usize,
        /// Its name.
        name: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The trace was taken from a step of another graph.
    #[error("the trace is of another graph: it names hash {traced}, the graph's is {actual}")]
    OtherGraph {
        /// The hash that it names.
        traced: String,
        /// The hash of the graph that is shown.
        actual: String,
    },
    /// The trace was taken from another plan of the graph.
    #[error(
        "the trace is of another plan: its call {index} is {traced}, the plan's is {planned}; \
         pass the plan that ran, as `tightfit train --trace … -o PLAN` writes it"
    )]
    OtherPlan {
        /// The first call that differs, counted in calls.
        index: usize,
        /// That call in the trace.
        traced: String,
        /// That call in the plan.
        planned: String,
    },
}

impl Trace {
    /// The trace of a course as predicted.
    pub fn predicted(course: &Course<'_>, machine: &str) -> Trace {
        let times: Vec<(Seconds, Seconds)> =
            course.calls.iter().map(|call| (call.start, call.seconds)).collect();
        Trace { measured: false, ..Trace::measured(course, machine, &times) }
    }

    /// The trace of a course whose calls started and took what `times` says.
    pub fn measured(course: &Course<'_>, machine: &str, times: &[(Seconds, Seconds)]) -> Trace {
        let graph = course.graph;
        let (mut calls, mut memory) =
            (Vec::with_capacity(times.len()), Vec::with_capacity(times.len() + 1));
        for ((call, bytes), &(start, seconds)) in
            course.calls.iter().zip(&course.by_role).zip(times)
        {
            let node = &graph.nodes()[call.node];
            let (start, seconds) = (nanoseconds(start), nanoseconds(seconds));
            calls.push(TracedCall {
                node: node.name.clone(),
                op: node.op.clone(),
                module: graph.module_of(call.node).to_string(),
                phase: node.phase.name().to_string(),
                recomputed: call.recomputed,
                start,
                seconds,
                held: call.held,
            });
            memory.push(MemoryMark { at: start, bytes: *bytes });
        }
        let end = calls.last().map_or(Seconds(0.0), |call| nanoseconds(call.start + call.seconds));
        memory.extend(course.by_role.last().map(|_| MemoryMark { at: end, bytes: course.at_end }));
        Trace {
            graph: graph.hash().to_string(),
            name: graph.name().to_string(),
            machine: machine.to_string(),
            planner: course.planner.to_string(),
            measured: true,
            calls,
            memory,
        }
    }

    /// Seconds from the first call to the end of the last.
    pub fn seconds(&self) -> Seconds {
        self.calls.last().map_or(Seconds(0.0), |call| call.start + call.seconds)
    }

    /// Start and duration of each call, where the trace is one of this course.
    pub fn times(&self, course: &Course<'_>) -> Result<Vec<(Seconds, Seconds)>, TraceError> {
        if self.graph != course.graph.hash() {
            return Err(TraceError::OtherGraph {
                traced: self.graph.clone(),
                actual: course.graph.hash().to_string(),
            });
        }
        let shown = |call: Option<(&str, bool)>| match call {
            Some((node, recomputed)) => {
                format!("a {} of `{node}`", if recomputed { "recomputation" } else { "first run" })
            }
            None => "missing".to_string(),
        };
        for index in 0..self.calls.len().max(course.calls.len()) {
            let traced = self.calls.get(index).map(|call| (call.node.as_str(), call.recomputed));
            let planned = course
                .calls
                .get(index)
                .map(|call| (course.graph.nodes()[call.node].name.as_str(), call.recomputed));
            if traced != planned {
                return Err(TraceError::OtherPlan {
                    index,
                    traced: shown(traced),
                    planned: shown(planned),
                });
            }
        }
        Ok(self.calls.iter().map(|call| (call.start, call.seconds)).collect())
    }

    /// The trace as JSON, one event a line: such files are looked at, and compared.
    pub fn write(&self) -> String {
        let about = json!({
            "format": FORMAT, "graph": self.graph, "name": self.name, "machine": self.machine,
            "planner": self.planner, "measured": self.measured,
        });
        let what = if self.measured { "measured" } else { "predicted" };
        let process = format!("{} on {} ({what})", self.name, self.machine);
        let mut text =
            format!("{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"traceEvents\":[\n");
        // Written as it is made: a run that is traced has little memory left.
        let mut push = |event: Json| {
            text.push_str(&event.to_string());
            text.push_str(",\n");
        };
        for (index, (_, lane)) in LANES.iter().enumerate() {
            for (name, args) in [
                ("thread_name", json!({ "name": lane })),
                ("thread_sort_index", json!({ "sort_index": index })),
            ] {
                push(json!({ "ph": "M", "name": name, "pid": 1, "tid": index + 1, "args": args }));
            }
        }
        for call in &self.calls {
            let lane = usize::from(call.recomputed);
            let mut event = json!({
                "ph": "X", "name": call.node, "cat": LANES[lane].0, "pid": 1, "tid": lane + 1,
                "ts": micros(call.start), "dur": micros(call.seconds),
                "args": {
                    "op": call.op, "module": call.module, "phase": call.phase, "bytes": call.held
                },
            });
            if call.recomputed {
                event["cname"] = json!("terrible");
            }
            push(event);
        }
        let used: Vec<Role> = Role::ALL
            .into_iter()
            .filter(|&role| self.memory.iter().any(|mark| mark.bytes[role as usize] > Bytes::ZERO))
            .collect();
        for mark in &self.memory {
            let bytes: Map<String, Json> = used
                .iter()
                .map(|&role| (role.name().to_string(), json!(mark.bytes[role as usize])))
                .collect();
            let total: Bytes = mark.bytes.iter().copied().sum();
            let ts = micros(mark.at);
            push(json!({ "ph": "C", "name": MEMORY, "pid": 1, "ts": ts, "args": bytes }));
            push(json!({
                "ph": "C", "name": TOTAL, "pid": 1, "ts": ts, "args": { "bytes": total }
            }));
        }
        // Last, since no comma may follow.
        let name =
            json!({ "ph": "M", "name": "process_name", "pid": 1, "args": { "name": process } });
        text + &format!("{name}\n]}}\n")
    }

    /// Reads what [`Trace::write`] wrote. Events of other kinds are ignored.
    pub fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
        #[derive(Deserialize)]
        struct Header {
            #[serde(rename = "otherData", default)]
            about: Format,
        }
        #[derive(Default, Deserialize)]
        struct Format {
            format: Option<Bounded<MOST_OF_AN_EVENT>>,
        }
        if bytes.len() as u64 > MOST_TRACE {
            return Err(Excess::of_bytes("a trace", MOST_TRACE).into());
        }
        let Header { about: Format { format } } = serde_json::from_slice(bytes)?;
        if format.as_ref().is_none_or(|format| format.0 != FORMAT) {
            return Err(TraceError::Version {
                found: format.map_or("missing".to_string(), |format| format.0.to_string()),
            });
        }
        let mut refusal = None;
        let parsed =
            Whole(&mut refusal).deserialize(&mut serde_json::Deserializer::from_slice(bytes));
        match refusal {
            Some(refusal) => Err(refusal),
            None => Ok(parsed?),
        }
    }
}

type Name = Text<LONGEST_NAME>;

/// A whole trace; what is wrong with an event goes where this leads.
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
                Field::Events => events = Some(map.next_value_seed(Events(&mut *self.0))?),
                Field::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let about = about.ok_or_else(|| A::Error::missing_field("otherData"))?;
        let (calls, memory) = events.ok_or_else(|| A::Error::missing_field("traceEvents"))?;
        Ok(Trace {
            graph: about.graph.0,
            name: about.name.0,
            machine: about.machine.0,
            planner: about.planner.0,
            measured: about.measured,
            calls,
            memory,
        })
    }
}

/// The events of a trace, each read into what it says at once.
struct Events<'a>(&'a mut Option<TraceError>);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = (Vec<TracedCall>, Vec<MemoryMark>);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = (Vec<TracedCall>, Vec<MemoryMark>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let (mut calls, mut memory) = (Vec::new(), Vec::new());
        let mut index = 0;
        while let Some(event) = list.next_element::<RawEvent>()? {
            let read = match event.ph.0.as_str() {
                _ if index == MOST_EVENTS => {
                    Err(event.wrong(index, "a trace has fewer events than that"))
                }
                "X" => event.call(index).map(|call| calls.push(call)),
                "C" if event.name.0 == MEMORY => event.mark(index).map(|mark| memory.push(mark)),
                _ => Ok(()),
            };
            if let Err(refusal) = read {
                *self.0 = Some(refusal);
                return Err(A::Error::custom("refused"));
            }
            index += 1;
        }
        Ok((calls, memory))
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
        let (Some(op), Some(module), Some(phase), Some(held)) =
            (text("op"), text("module"), text("phase"), held)
        else {
            return Err(
                self.wrong(index, "a call needs op, module, phase and bytes among its arguments")
            );
        };
        let recomputed = match LANES.iter().position(|(category, _)| *category == self.cat.0) {
            Some(lane) => lane == 1,
            None => return Err(self.wrong(index, "its category is neither `run` nor `recompute`")),
        };
        Ok(TracedCall {
            node: self.name.0,
            op,
            module,
            phase,
            recomputed,
            start,
            seconds,
            held: Bytes(held),
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

/// As exact as a trace is: whole nanoseconds.
fn nanoseconds(seconds: Seconds) -> Seconds {
    Seconds((seconds.0 * 1e9).round() / 1e9)
}

fn micros(seconds: Seconds) -> f64 {
    (seconds.0 * 1e9).round() / 1e3
}
