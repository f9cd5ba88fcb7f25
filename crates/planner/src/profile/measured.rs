//! Measured seconds of calls. Invariant: two calls have the same signature if and only if the
//! engine does the same work for both: same operator, same constants, tensors of the same types,
//! shapes and strides.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::graph::Graph;
use crate::id::{NodeId, ValueId};
use crate::tensor::Argument;
use crate::units::Seconds;

/// Name and version of the file format.
const FORMAT: &str = "tightfit-seconds/1";

/// What the engine has to compute for a call, as text. It contains no names, addresses or seeds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Signature(String);

impl Signature {
    /// The signature of a node: `aten.mul.Tensor(%0 f32[8,64], 2.0) -> f32[8,64]`. Strides follow
    /// the shape of a tensor that is not contiguous; arguments with the same number after `%` are
    /// the same tensor.
    pub fn of(graph: &Graph, node: NodeId) -> Signature {
        let call = &graph.nodes()[node];
        let tensor = |value: ValueId| {
            let value = &graph.values()[value];
            let strides = if value.tensor.contiguous {
                String::new()
            } else {
                format!(":{}", list(&value.tensor.strides_or_contiguous()))
            };
            format!("{}[{}]{strides}", value.tensor.dtype.name(), list(&value.tensor.shape))
        };
        let mut places: Vec<(ValueId, usize)> = call.inputs.iter().copied().zip(0..).collect();
        places.sort_unstable();
        let input = |value: ValueId| {
            let place = places.binary_search_by_key(&value, |&(input, _)| input);
            format!("%{} {}", place.map_or(0, |place| places[place].1), tensor(value))
        };
        let mut text = format!("{}(", call.op);
        let keywords = call.kwargs.iter().map(|(key, argument)| (Some(key), argument));
        for (i, (key, argument)) in
            call.args.iter().map(|argument| (None, argument)).chain(keywords).enumerate()
        {
            text.push_str(if i > 0 { ", " } else { "" });
            key.into_iter().for_each(|key| text.extend([key, "="]));
            constant_or_tensor(&mut text, argument, &input);
        }
        let outputs = call.outputs.iter().map(|output| output.map_or("-".to_string(), tensor));
        text.push_str(") -> ");
        text.push_str(&outputs.collect::<Vec<_>>().join(", "));
        Signature(text)
    }
}

fn constant_or_tensor(text: &mut String, argument: &Argument, tensor: &impl Fn(ValueId) -> String) {
    let written = match argument {
        Argument::Value(value) => write!(text, "{}", tensor(*value)),
        Argument::None => write!(text, "None"),
        Argument::Bool(x) => write!(text, "{x}"),
        Argument::Int(x) => write!(text, "{x}"),
        Argument::Float(x) => write!(text, "{x:?}"),
        Argument::Text(x) => write!(text, "{x:?}"),
        Argument::List(items) => {
            text.push('[');
            for (i, item) in items.iter().enumerate() {
                text.push_str(if i > 0 { ", " } else { "" });
                constant_or_tensor(text, item, tensor);
            }
            write!(text, "]")
        }
    };
    written.expect("writing to a string never fails");
}

fn list(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

/// Why a file has no seconds for this engine on this number of threads.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CallSecondsError {
    /// The text is not JSON, or does not have the structure of the format.
    #[error("it cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// The file has another format.
    #[error("its format is `{found}`, not `{FORMAT}`")]
    Format {
        /// The format that the file names.
        found: String,
    },
    /// The seconds are those of another version of the engine or another number of threads.
    #[error("it was measured with engine {engine} on {threads} threads")]
    Other {
        /// The version of the engine that was measured.
        engine: String,
        /// The number of threads that it ran on.
        threads: u32,
    },
    /// The time of a call is not positive, or over the limit.
    #[error(
        "`{signature}` takes {found:e} seconds, but must take a positive time of at most {:e} \
         seconds",
        Seconds::LIMIT.0
    )]
    Seconds {
        /// The signature of the call.
        signature: String,
        /// The time, in seconds.
        found: f64,
    },
}

/// Seconds of calls, measured with one version of the engine on one number of threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallSeconds {
    format: String,
    engine: String,
    threads: u32,
    seconds: BTreeMap<Signature, Seconds>,
}

impl CallSeconds {
    /// An empty table.
    pub fn new(engine: &str, threads: u32) -> CallSeconds {
        CallSeconds {
            format: FORMAT.to_string(),
            engine: engine.to_string(),
            threads,
            seconds: BTreeMap::new(),
        }
    }

    /// Reads a file's bytes; refuses seconds of another engine or number of threads, or impossible
    /// ones.
    pub fn read(bytes: &[u8], engine: &str, threads: u32) -> Result<CallSeconds, CallSecondsError> {
        let table: CallSeconds = serde_json::from_slice(bytes)?;
        if table.format != FORMAT {
            return Err(CallSecondsError::Format { found: table.format });
        }
        if table.engine != engine || table.threads != threads {
            return Err(CallSecondsError::Other { engine: table.engine, threads: table.threads });
        }
        match table.seconds.iter().find(|(_, seconds)| !is_possible(**seconds)) {
            Some((signature, seconds)) => {
                Err(CallSecondsError::Seconds { signature: signature.0.clone(), found: seconds.0 })
            }
            None => Ok(table),
        }
    }

    /// The text of a file, which [`CallSeconds::read`] reads.
    pub fn write(&self) -> String {
        serde_json::to_string_pretty(self).expect("a table of numbers by name is valid JSON")
    }

    /// Sets the seconds of a call. A time that `read` would refuse is ignored.
    pub fn record(&mut self, signature: Signature, seconds: Seconds) {
        if is_possible(seconds) {
            self.seconds.insert(signature, seconds);
        }
    }

    /// Adds all entries of `newer`, which replace those of the same calls.
    pub fn update(&mut self, newer: CallSeconds) {
        self.seconds.extend(newer.seconds);
    }

    /// The seconds of a call, if it has an entry.
    pub fn get(&self, signature: &Signature) -> Option<Seconds> {
        self.seconds.get(signature).copied()
    }

    /// The number of calls that have entries.
    pub fn len(&self) -> usize {
        self.seconds.len()
    }

    /// Whether no call has an entry.
    pub fn is_empty(&self) -> bool {
        self.seconds.is_empty()
    }

    /// Whether every call of a graph has an entry.
    pub fn covers(&self, graph: &Graph) -> bool {
        graph
            .compute_nodes()
            .into_iter()
            .all(|node| self.seconds.contains_key(&Signature::of(graph, node)))
    }
}

fn is_possible(seconds: Seconds) -> bool {
    seconds.0 > 0.0 && seconds <= Seconds::LIMIT
}
