//! Statistics of the operators under one module, as used by checkpointing. Invariant: every index
//! refers to an operator.

use serde_json::Value;
use thiserror::Error;

use crate::exit::coded;
use crate::units::{Bytes, Seconds};

/// One operator of a module's forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct OperatorStats {
    /// Its name.
    pub name: String,
    /// Time to run it again.
    pub seconds: Seconds,
    /// Size of its output.
    pub bytes: Bytes,
    /// A view of its input: there is nothing to save.
    pub is_view: bool,
    /// It draws random numbers.
    pub is_random: bool,
    /// The index of the operator whose output it overwrites; its own if that is not an output in
    /// the module.
    pub in_place_of: Option<usize>,
}

/// Errors in statistics of operators.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum OperatorStatsError {
    /// A field is missing or of the wrong kind.
    #[error("module `{module}`: its operators' `{field}` is not {expected}")]
    Field {
        /// The fully qualified name of the module.
        module: String,
        /// The name of the field.
        field: &'static str,
        /// What the field must be.
        expected: &'static str,
    },
    /// A field names an operator that is not in the list.
    #[error("module `{module}`: `{field}` names operator {found} of {operators}")]
    Place {
        /// The fully qualified name of the module.
        module: String,
        /// The name of the field.
        field: &'static str,
        /// The index that it names.
        found: u64,
        /// The number of operators in the list.
        operators: usize,
    },
}

coded!(Content: OperatorStatsError);

/// Operators of one module from the JSON of PyTorch's tools (`SACStats`; milliseconds there are
/// seconds here), and whether random numbers have to be saved.
pub fn operators(
    module: &str,
    stats: &Value,
) -> Result<(Vec<OperatorStats>, bool), OperatorStatsError> {
    let wrong =
        |field, expected| OperatorStatsError::Field { module: module.to_string(), field, expected };
    let list = |field| stats[field].as_array().ok_or_else(|| wrong(field, "a list"));
    let (names, runtimes, memory) = (list("func_names")?, list("runtimes")?, list("memory")?);
    for (field, other) in [("runtimes", runtimes), ("memory", memory)] {
        if other.len() != names.len() {
            return Err(wrong(field, "as long as `func_names`"));
        }
    }
    let place = |field, value: &Value| {
        let found = value.as_u64().ok_or_else(|| wrong(field, "a list of places"))?;
        let operators = names.len();
        usize::try_from(found).ok().filter(|&place| place < operators).ok_or_else(|| {
            let module = module.to_string();
            OperatorStatsError::Place { module, field, found, operators }
        })
    };
    let mut operators = Vec::with_capacity(names.len());
    for ((name, runtime), bytes) in names.iter().zip(runtimes).zip(memory) {
        let milliseconds = runtime
            .as_f64()
            .filter(|&x| x >= 0.0)
            .ok_or_else(|| wrong("runtimes", "milliseconds, 0 or more"))?;
        operators.push(OperatorStats {
            name: name.as_str().ok_or_else(|| wrong("func_names", "a list of names"))?.to_string(),
            seconds: Seconds(milliseconds / 1e3),
            bytes: Bytes(
                bytes
                    .as_u64()
                    .filter(|&x| x <= crate::analysis::modules::LARGEST.0)
                    .ok_or_else(|| wrong("memory", "bytes, 0 or more"))?,
            ),
            is_view: false,
            is_random: false,
            in_place_of: None,
        });
    }
    for value in list("view_like_ops")? {
        operators[place("view_like_ops", value)?].is_view = true;
    }
    for value in list("rand_ops")? {
        operators[place("rand_ops", value)?].is_random = true;
    }
    for pair in list("inplace_ops")? {
        let [operator, parent] = pair.as_array().map(Vec::as_slice).unwrap_or_default() else {
            return Err(wrong("inplace_ops", "pairs of places"));
        };
        operators[place("inplace_ops", operator)?].in_place_of =
            Some(place("inplace_ops", parent)?);
    }
    Ok((operators, stats["force_store_random"].as_bool().unwrap_or(false)))
}
