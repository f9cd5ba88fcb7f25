//! One step in time, as Chrome trace events (JSON), which Perfetto and chrome://tracing open.
//! Invariant: predicted and measured traces have the same form; reading what was written gives the
//! same trace.
//!
//! ```text
//! { "displayTimeUnit": "ms",
//!   "otherData": { "format": "tightfit-trace/2", "graph": SHA-256, "name": …, "machine": …,
//!                  "planner": …, "budget_bytes": of the slab, "measured": … },
//!   "traceEvents": [
//!     { "ph": "M", … names of the process and of its lanes … },
//!     { "ph": "X", "name": PHASE or part of a module's path, "cat": "within", … },
//!     { "ph": "X", "name": OPERATOR, "cat": "run" | "recompute", "pid": 1, "tid": 1 | 2,
//!       "ts": µs, "dur": µs,
//!       "args": { "node": …, "module": …, "phase": …, "bytes": held while it runs } },
//!     { "ph": "X", "name": TENSOR, "cat": "out" | "back", "pid": 1, "tid": 3 | 4,
//!       "ts": µs, "dur": µs, "args": { "bytes": …, "stall": µs for which calls wait } },
//!     { "ph": "C", "name": "memory", "pid": 1, "ts": µs, "args": { ROLE: bytes, … } },
//!     { "ph": "C", "name": "memory in total", "pid": 1, "ts": µs, "args": { "bytes": … } }, …
//!     { "ph": "C", "name": "budget", … "args": { "bytes": what the slab may take } }
//!     and where anything moves
//!     { "ph": "X", "name": TENSOR, "cat": "stall", "pid": 1, "tid": 5, "ts": µs, "dur": µs for
//!       which calls wait, until the transfer has arrived },
//!     { "ph": "C", "name": "memory below", "pid": 1, "ts": µs, "args": { ROLE: bytes, … } }, … ] }
//! ```

mod join;
mod read;
mod within;
mod write;

use serde::Deserialize;
use thiserror::Error;
use tightfit::exit::coded;
use tightfit::graph::limits::{MOST_OF_AN_EVENT, MOST_TRACE};
use tightfit::reading::{Bounded, Excess};
use tightfit::timeline::TransferInTime;
use tightfit::units::{Bytes, Seconds};

use crate::course::{Course, tensor_name};
use crate::role::ByRole;

pub use join::join;

/// The format that is read and written.
pub const FORMAT: &str = "tightfit-trace/2";

const MEMORY: &str = "memory";
const TOTAL: &str = "memory in total";
const BUDGET: &str = "budget";
const BELOW: &str = "memory below";
/// Lanes of first runs and of recomputations, those of transfers out of the device and back, and
/// one that shows when calls wait for these.
const LANES: [(&str, &str); 5] = [
    ("run", "compute"),
    ("recompute", "recompute"),
    ("out", "offload"),
    ("back", "prefetch"),
    ("stall", "waiting"),
];

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

/// One transfer in a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TracedTransfer {
    /// The tensor's name.
    pub tensor: String,
    /// It leaves the device; otherwise it returns.
    pub leaves: bool,
    /// The bytes that are moved.
    pub bytes: Bytes,
    /// When its lane starts it; zero if it started before the step.
    pub start: Seconds,
    /// How long it takes from then on.
    pub seconds: Seconds,
    /// How long calls wait for it.
    pub stall: Seconds,
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
    /// Bytes that the slab may take.
    pub budget: Bytes,
    /// Measured, not predicted.
    pub measured: bool,
    /// What runs, in order.
    pub calls: Vec<TracedCall>,
    /// What moves at the same time.
    pub transfers: Vec<TracedTransfer>,
    /// Bytes over time: at the start of calls, and at the end of the step.
    pub memory: Vec<MemoryMark>,
    /// The same below the device; empty if nothing moves.
    pub below: Vec<MemoryMark>,
}

impl TracedTransfer {
    /// When calls wait for it: until it has arrived.
    pub fn wait(&self) -> Option<(Seconds, Seconds)> {
        let end = self.start + self.seconds;
        let from = Seconds((end.0 - self.stall.0).max(0.0));
        (self.stall.0 > 0.0 && from < end).then_some((from, end))
    }
}

/// Why bytes are not a trace, or not one of the graph or plan that is shown.
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
    /// The trace is a prediction.
    #[error(
        "the trace is a prediction, as `tightfit trace` writes it; pass one of a run, as \
         `tightfit train --trace` writes it"
    )]
    Predicted,
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

coded!(Content: TraceError);

impl Trace {
    /// The trace of a course as predicted.
    pub fn predicted(course: &Course<'_>, machine: &str) -> Trace {
        let times: Vec<(Seconds, Seconds)> =
            course.calls.iter().map(|call| (call.start, call.seconds)).collect();
        let transfers: Vec<TransferInTime> =
            course.transfers.iter().map(|carried| carried.time).collect();
        Trace { measured: false, ..Trace::measured(course, machine, &times, &transfers) }
    }

    /// The trace of a course whose calls started and took what `times` says, and whose transfers
    /// are those of `transfers`, in any order.
    pub fn measured(
        course: &Course<'_>,
        machine: &str,
        times: &[(Seconds, Seconds)],
        transfers: &[TransferInTime],
    ) -> Trace {
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
        let moves = !course.transfers.is_empty();
        let marks = course.below.by_role.iter().zip(&calls);
        let mut below: Vec<MemoryMark> = marks
            .filter(|_| moves)
            .map(|(&bytes, call)| MemoryMark { at: call.start, bytes })
            .collect();
        below.extend(below.last().map(|_| MemoryMark { at: end, bytes: course.below.at_end }));
        Trace {
            graph: graph.hash().to_string(),
            name: graph.name().to_string(),
            machine: machine.to_string(),
            planner: course.planner.to_string(),
            budget: course.budget,
            measured: true,
            calls,
            transfers: traced(course, transfers),
            memory,
            below,
        }
    }

    /// Seconds from the first call to the end of the last.
    pub fn seconds(&self) -> Seconds {
        self.calls.last().map_or(Seconds(0.0), |call| call.start + call.seconds)
    }

    /// Start and duration of each call, if the trace is one of this course.
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

    /// The trace as JSON, one event per line: such files are read by people, and compared.
    pub fn write(&self) -> String {
        write::whole(self)
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
        read::whole(bytes)
    }
}

/// The transfers of a course at these times; one that began before the step starts with it.
fn traced(course: &Course<'_>, times: &[TransferInTime]) -> Vec<TracedTransfer> {
    let carried = |time: &TransferInTime| {
        let known = course.transfers.iter().find(|known| known.time.id == time.id)?;
        let end = nanoseconds(time.start + time.seconds);
        let start = nanoseconds(Seconds(time.start.0.max(0.0)));
        Some(TracedTransfer {
            tensor: tensor_name(course.graph, known.node).to_string(),
            leaves: known.leaves,
            bytes: known.bytes,
            start,
            seconds: nanoseconds(Seconds((end.0 - start.0).max(0.0))),
            stall: nanoseconds(time.stall),
        })
    };
    times.iter().filter_map(carried).collect()
}

/// To the precision of a trace: whole nanoseconds.
fn nanoseconds(seconds: Seconds) -> Seconds {
    Seconds((seconds.0 * 1e9).round() / 1e9)
}
