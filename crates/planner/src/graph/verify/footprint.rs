//! Which bytes of its storage a value covers. Invariant: a value that passes lies inside its
//! storage as far as its strides are known, and the product of any of its extents is bounded.

use cranelift_entity::PrimaryMap;

use crate::graph::error::GraphError;
use crate::graph::node::{Node, Value};
use crate::id::StorageId;
use crate::tensor::TensorType;
use crate::units::Bytes;

/// Extents times element size must fit the storage; a strided value must lie inside as far as its
/// strides are known.
pub(super) fn fits(
    node: &Node,
    output: usize,
    value: &Value,
    storages: &PrimaryMap<StorageId, Bytes>,
) -> Result<(), GraphError> {
    let storage = value.storage.as_u32();
    let Some(&held) = storages.get(value.storage) else {
        let (node, count) = (node.name.clone(), storages.len());
        return Err(GraphError::UnknownStorage { node, output, storage, count });
    };
    let tensor = &value.tensor;
    let Some(elements) = elements(&tensor.shape) else {
        let (node, shape) = (node.name.clone(), tensor.shape.clone());
        return Err(GraphError::TooManyElements { node, output, shape });
    };
    strided(node, output, tensor)?;
    let needed = end(tensor, elements).saturating_mul(tensor.dtype.size().into());
    if needed > u128::from(held.0) {
        return Err(GraphError::DoesNotFit {
            node: node.name.clone(),
            output,
            tensor: describe(tensor),
            needed,
            storage,
            held: held.0,
        });
    }
    Ok(())
}

/// The number of elements, if it is bounded.
fn elements(shape: &[u64]) -> Option<u64> {
    // Extents of zero are left out, so that the product of any of the extents is bounded too.
    let elements = shape
        .iter()
        .filter(|&&extent| extent > 0)
        .try_fold(1u64, |product, &extent| product.checked_mul(extent));
    let elements = elements.filter(|&elements| elements <= Bytes::LIMIT.0)?;
    Some(if shape.contains(&0) { 0 } else { elements })
}

/// Strides, if there are any, must match the shape.
fn strided(node: &Node, output: usize, tensor: &TensorType) -> Result<(), GraphError> {
    let Some(strides) = &tensor.strides else { return Ok(()) };
    if strides.len() != tensor.shape.len() {
        return Err(GraphError::StrideCount {
            node: node.name.clone(),
            output,
            strides: strides.len(),
            dims: tensor.shape.len(),
        });
    }
    if tensor.contiguous && !row_major(&tensor.shape, strides) {
        return Err(GraphError::NotContiguous {
            node: node.name.clone(),
            output,
            strides: strides.clone(),
            shape: tensor.shape.clone(),
        });
    }
    Ok(())
}

/// Dimensions of extent one may have any stride.
fn row_major(shape: &[u64], strides: &[u64]) -> bool {
    let mut expected = 1u64;
    for (&extent, &stride) in shape.iter().zip(strides).rev() {
        if extent > 1 && stride != expected {
            return extent == 0;
        }
        expected = expected.saturating_mul(extent.max(1));
    }
    true
}

/// One past the last element; in 128 bits a shape's strides cannot overflow.
fn end(tensor: &TensorType, elements: u64) -> u128 {
    match &tensor.strides {
        _ if elements == 0 => 0,
        Some(strides) => {
            let steps = tensor
                .shape
                .iter()
                .zip(strides)
                .map(|(&extent, &stride)| u128::from(extent - 1) * u128::from(stride));
            steps.fold(1 + u128::from(tensor.offset), u128::saturating_add)
        }
        None if tensor.contiguous => u128::from(tensor.offset) + u128::from(elements),
        // Without strides only contiguous values can be checked against their storage.
        None => 0,
    }
}

/// A tensor's shape, type and place, in words.
fn describe(tensor: &TensorType) -> String {
    let strides = tensor
        .strides
        .as_ref()
        .map_or(String::new(), |strides| format!(" with strides {strides:?}"));
    format!(
        "shape {:?} of {}{strides} from element {}",
        tensor.shape,
        tensor.dtype.name(),
        tensor.offset
    )
}
