//! Checking a call against its row. Invariant: a call that passes has the arguments, element types,
//! shapes and places that the engine's kernels rely on.

use crate::operator::call::{TypedCall, Unsuited};
use crate::operator::output::Output;
use crate::operator::table::Operator;
use crate::tensor::TensorType;

impl Operator {
    /// Refuses a call whose arguments do not suit the schema, whose element types the engine does
    /// not support, or whose outputs are not those derived from the inputs.
    pub fn conform(self, call: &TypedCall<'_>) -> Result<(), Unsuited> {
        let row = self.row();
        let schema = Unsuited::Schema { arguments: call.args.len(), outputs: call.outputs.len() };
        if call.outputs.is_empty() {
            return Err(schema);
        }
        row.signature.check(call)?;
        for index in 0..call.args.len() {
            let Some(&legal) = row.legal.get(index).or(row.legal.last()) else { break };
            if let Some(other) = call.tensors(index).iter().find(|t| !legal.contains(&t.dtype)) {
                return Err(Unsuited::Type { index, found: other.dtype.name(), legal });
            }
        }
        let derived = (row.outputs)(call)?;
        if call.outputs.len() > derived.len() {
            return Err(schema);
        }
        for (index, (value, derived)) in call.outputs.iter().zip(&derived).enumerate() {
            let Some(value) = value else { continue };
            let found = call.types.type_of(*value);
            if !agrees(found, derived) {
                return Err(Unsuited::Output {
                    index,
                    found: describe(found),
                    derived: derived.to_string(),
                });
            }
        }
        Ok(())
    }
}

/// Same shape and type, and the same place if the operator gives one. Strides of extents of one and
/// of empty tensors have no effect, so they do not count.
fn agrees(found: &TensorType, derived: &Output) -> bool {
    if found.shape != derived.shape || found.dtype != derived.dtype {
        return false;
    }
    let Some(place) = &derived.place else { return true };
    let strides = found.strides_or_contiguous();
    let same = |d: usize| found.shape[d] == 1 || strides[d] == place.strides[d];
    found.elements() == 0 || found.offset == place.offset && (0..strides.len()).all(same)
}

fn describe(found: &TensorType) -> String {
    let strides = found.strides_or_contiguous();
    let place = format!(", strides {strides:?} from element {}", found.offset);
    format!("{} {:?}{place}", found.dtype.name(), found.shape)
}

impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.dtype.name(), self.shape)?;
        match &self.place {
            Some(place) => {
                write!(f, ", strides {:?} from element {}", place.strides, place.offset)
            }
            None => Ok(()),
        }
    }
}
